"""ONNX Runtime as a runner."""

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from mpdeploy.errors import DependencyError, ModelError, MpdeployError, UsageError
from mpdeploy.graph.scope import all_graphs, all_nodes
from mpdeploy.runtime.runner import Array, Execution, Feed, TensorSpec, input_specs, output_specs
from mpdeploy.runtime.twin import low_formats

if TYPE_CHECKING:
    import onnxruntime

CPU = "CPUExecutionProvider"
SILENT = 4  # ONNX Runtime's severity "fatal": its faults reach the user as our errors, not as log lines

_HIDES_ROUNDING = (
    "ONNX Runtime's CPU provider computes half-precision operators in float32 and drops the roundings between them"
)
# Passes that move or remove Casts.  The twin's Casts are its point: they must stay where they are.
_CAST_PASSES = ("PropagateCastOps", "CastElimination", "CastChainElimination")


class OrtRunner:
    """A model in an ONNX Runtime session.

    ``where`` names the model in errors.  ``providers`` are execution providers in order of preference; ``threads``
    0 means one per core.  Raises ``ModelError`` if ONNX Runtime refuses the model, ``DependencyError`` if it
    lacks a provider.
    """

    def __init__(self, model: ir.Model, where: str, providers: tuple[str, ...] = (CPU,), threads: int = 0) -> None:
        self._where = where
        self._inputs, self._outputs = input_specs(model), output_specs(model)
        self._low = bool(low_formats(model))
        content, weights = _without_weights(model)
        # The session reads these arrays as long as it lives, and does not own them.
        self._weights = {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in weights.items()}
        values = {name: _ort_value(array, weights[name].dtype) for name, array in self._weights.items()}
        self._session = _open_session(content, values, where, providers, threads)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs that a feed must hold."""
        return self._inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs, in the model's order."""
        return self._outputs

    def run(self, feed: Feed) -> dict[str, Array]:
        """Return the outputs by name; see ``Runner.run``.

        Raises ``UsageError`` if the feed does not fit, ``ModelError`` if an operator fails on it.
        """
        try:
            results = self._session.run(None, dict(feed))
        except Exception as error:
            raise _fault(error, "ONNX Runtime failed to run the model", self._where) from error
        return _flat([spec.name for spec in self._outputs], results)

    def describe(self) -> Execution:
        """Return exactly what runs."""
        import onnxruntime

        provider = self._session.get_providers()[0]
        hidden = self._low and provider == CPU
        return Execution(
            runtime="onnxruntime",
            version=onnxruntime.__version__,
            provider=provider,
            precision="float32" if hidden or not self._low else "the formats of the graph",
            evidence=not hidden,
            note=_HIDES_ROUNDING if hidden else "",
        )


def _open_session(
    content: bytes, weights: dict[str, "onnxruntime.OrtValue"], where: str, providers: tuple[str, ...], threads: int
) -> "onnxruntime.InferenceSession":
    import onnxruntime

    onnxruntime.set_default_logger_severity(SILENT)
    missing = [p for p in providers if p not in onnxruntime.get_available_providers()]
    if missing:
        raise DependencyError(
            f"ONNX Runtime here has no {missing[0]}",
            remedy=f"it has {', '.join(onnxruntime.get_available_providers())}",
        )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = SILENT
    options.use_deterministic_compute = True
    options.intra_op_num_threads = threads
    if weights:
        options.add_external_initializers(list(weights), list(weights.values()))
    try:
        return onnxruntime.InferenceSession(
            content, options, providers=list(providers), disabled_optimizers=list(_CAST_PASSES)
        )
    except Exception as error:
        raise _fault(error, "ONNX Runtime refuses the model", where) from error


def _without_weights(model: ir.Model) -> tuple[bytes, dict[str, ir.TensorProtocol]]:
    """Return the model as bytes, and apart from it the large weights by name.

    Handing weights over as they are spares two copies, and protobuf's limit of 2 GiB.
    """
    copy = model.clone()
    weights: dict[str, ir.TensorProtocol] = {}
    for name, value in copy.graph.initializers.items():
        tensor = value.const_value
        if tensor is not None and tensor.nbytes >= _LARGE and _ort_can_take(tensor) and value.uses():
            weights[name] = tensor
            value.const_value = ir.ExternalTensor(
                "weights", 0, tensor.nbytes, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=name
            )
    for graph in all_graphs(copy):
        for value in graph.initializers.values():
            if value.name not in weights and isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = _in_memory(value.const_value)
    for node in all_nodes(copy):
        # ONNX Runtime infers types itself; what a file says of them may be stale.
        for output in node.outputs:
            if not output.is_graph_output():
                output.type = output.shape = None
        for key, attribute in list(node.attributes.items()):
            if attribute.type is ir.AttributeType.TENSOR and isinstance(attribute.value, ir.ExternalTensor):
                node.attributes[key] = ir.AttrTensor(key, _in_memory(attribute.value))
    return ir.to_proto(copy).SerializeToString(), weights


_LARGE = 1024  # bytes; smaller weights may decide shapes, which ONNX Runtime infers from the model alone


def _ort_can_take(tensor: ir.TensorProtocol) -> bool:
    return tensor.dtype.bitwidth >= 8 and tensor.dtype != ir.DataType.STRING


def _ort_value(array: Array, dtype: ir.DataType) -> "onnxruntime.OrtValue":
    import onnxruntime

    if array.dtype.kind in "biufc":
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    raw = array.view(np.dtype(f"u{array.itemsize}"))  # a view: it shares the memory that the caller keeps
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, int(dtype))


def _in_memory(tensor: ir.ExternalTensor) -> ir.Tensor[Any]:
    return ir.Tensor(np.asarray(tensor.numpy()), dtype=tensor.dtype, name=tensor.name)


def _flat(names: list[str], results: list[Any]) -> dict[str, Array]:
    flat: dict[str, Array] = {}
    for name, result in zip(names, results, strict=True):
        if isinstance(result, list):
            flat.update({f"{name}[{i}]": np.asarray(item) for i, item in enumerate(result)})
        elif result is not None:
            flat[name] = np.asarray(result)
    return flat


def _fault(error: Exception, what: str, where: str) -> MpdeployError:
    # The message reads "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : <text>".
    text = str(error).rpartition("[ONNXRuntimeError] : ")[2]
    kind = type(error).__name__
    text = text.split(" : ", 2)[-1]
    if kind == "InvalidArgument" and "input" in text.lower() and "Load" not in text:
        return UsageError(f"the data does not fit the model: {text}", where=where)
    return ModelError(f"{what}: {text}", where=where)
