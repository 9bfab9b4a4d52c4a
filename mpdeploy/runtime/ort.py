"""ONNX Runtime as a runner."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from mpdeploy.errors import DependencyError, ModelError, MpdeployError, UsageError
from mpdeploy.graph.lowering import lowered
from mpdeploy.graph.patience import limit_of
from mpdeploy.graph.scope import all_nodes
from mpdeploy.runtime.arrays import in_order
from mpdeploy.runtime.attended import ENDLESS, Attendant
from mpdeploy.runtime.ort_model import without_weights
from mpdeploy.runtime.ort_values import array_of, is_plain, ort_value
from mpdeploy.runtime.runner import Array, Execution, Feed, TensorSpec, input_specs, output_specs
from mpdeploy.runtime.twin import low_formats

if TYPE_CHECKING:
    import onnxruntime

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
RTX = "NvTensorRTRTXExecutionProvider"
SILENT = 4  # ONNX Runtime's severity "fatal": its faults reach the user as our errors, not as log lines

_QUANTISERS = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
_INTEGER_KERNELS = "ONNX Runtime fuses quantised operators into integer kernels, which round otherwise than the graph"

# Passes that move or remove Casts.  The twin's Casts are its point: they must stay where they are.
_CAST_PASSES = ("PropagateCastOps", "CastElimination", "CastChainElimination")


@dataclass(frozen=True)
class _Provider:
    """What is known of an execution provider.

    ``options`` are given to it, ``arithmetic`` says in what it computes.  ``doubt``: why its low formats are no
    evidence.  ``tf32``: it rounds the operands of FP32 products to TF32 unless the driver's switch keeps it from that.
    """

    options: dict[str, str]
    arithmetic: str
    doubt: str = ""
    tf32: bool = False


# FP32 is to be FP32: NVIDIA's libraries round matrix operands to TF32 unless told not to.
_PROVIDERS = {
    CPU: _Provider(
        {},
        "float32",
        "ONNX Runtime's CPU provider computes half-precision operators in float32 and drops the roundings between them",
    ),
    CUDA: _Provider({"use_tf32": "0"}, "the formats of the graph, TF32 off"),
    TENSORRT: _Provider({"trt_fp16_enable": "0"}, "the formats of the graph, as TensorRT reads them", tf32=True),
    RTX: _Provider({}, "the formats of the graph, as TensorRT for RTX reads them", tf32=True),
}
_UNKNOWN = _Provider({}, "unknown", "nobody vouches for this provider's arithmetic")
_TF32_SWITCH = "NVIDIA_TF32_OVERRIDE"  # read by the driver when CUDA starts


def doubt_of(provider: str, *, low: bool, fuses_integers: bool, environment: Mapping[str, str]) -> str:
    """Return why what a provider computes is no evidence, empty if it is.

    Args:
        provider: The execution provider's name.
        low: Whether the model computes in a low format.
        fuses_integers: Whether quantised operators are fused into integer kernels.
        environment: The process's variables: one of them keeps NVIDIA's libraries from TF32.
    """
    known = _PROVIDERS.get(provider, _UNKNOWN)
    if known.tf32 and environment.get(_TF32_SWITCH) != "0":
        return f"this provider rounds operands of FP32 products to TF32 unless {_TF32_SWITCH}=0 is set before it starts"
    if fuses_integers:
        return _INTEGER_KERNELS
    return known.doubt if low or known is _UNKNOWN else ""


class OrtRunner:
    """A model in an ONNX Runtime session.

    ``where`` names the model in errors.  ``providers`` are execution providers in order of preference; ``threads``
    0 means one per core; without ``fused`` every operator runs by itself; ``lean`` spares the copies of weights that
    make runs faster; ``as_written`` quantised operators run as the graph says, not fused into integer kernels, as they
    do by default elsewhere.  An operator that has a kernel only in an
    older version runs as that, where it means the same.  A model with a time limit (see ``graph.patience``) or a loop
    is attended: it can be stopped.  Raises ``ModelError`` if ONNX Runtime refuses the model,
    ``DependencyError`` if it lacks a provider.
    """

    def __init__(
        self,
        model: ir.Model,
        where: str,
        providers: tuple[str, ...] = (CPU,),
        threads: int = 0,
        *,
        fused: bool = True,
        lean: bool = False,
        as_written: bool = True,
    ) -> None:
        self._where = where
        self._fuses_integers = not as_written and any(n.op_type in _QUANTISERS for n in all_nodes(model))
        self._inputs, self._outputs = input_specs(model), output_specs(model)
        self._types = {v.name: v.dtype for v in model.graph.inputs}
        self._low = bool(low_formats(model))
        content, weights = without_weights(model)
        # The session reads these arrays as long as it lives, and does not own them.
        self._weights = {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in weights.items()}
        values = {name: ort_value(array, weights[name].dtype) for name, array in self._weights.items()}
        options = _options(threads, fused=fused, lean=lean, as_written=as_written)
        if values:
            options.add_external_initializers(list(values), list(values.values()))
        self._session = _open_session(model, content, options, where, providers)
        limit = limit_of(model)
        attended = limit is not None or any(node.op_type == ENDLESS for node in all_nodes(model))
        self._attendant = Attendant(where, limit) if attended else None

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
        arrays = {name: in_order(array) if isinstance(array, np.ndarray) else array for name, array in feed.items()}
        plain = all(map(is_plain, arrays.values())) and all(s.dtype != "bfloat16" for s in self._outputs)
        try:
            results = self._attended(arrays, plain=plain)
        except MpdeployError:
            raise
        except Exception as error:
            raise _fault(error, "ONNX Runtime failed to run the model", self._where) from error
        return _flat([spec.name for spec in self._outputs], results)

    def _attended(self, arrays: Feed, *, plain: bool) -> list[Any]:
        import onnxruntime

        run = self._session.run if plain else self._run_values
        if self._attendant is None:
            return list(run(None, arrays))
        options = onnxruntime.RunOptions()

        def stop() -> None:
            options.terminate = True

        return list(self._attendant.call(lambda: run(None, arrays, options), stop))

    def _run_values(self, names: None, arrays: Feed, options: "onnxruntime.RunOptions | None" = None) -> list[Any]:
        values = {name: ort_value(a, self._types[name] or ir.DataType.UNDEFINED) for name, a in arrays.items()}
        return [array_of(value) for value in self._session.run_with_ort_values(names, values, options)]

    def describe(self) -> Execution:
        """Return exactly what runs."""
        import onnxruntime

        provider = self._session.get_providers()[0]
        known = _PROVIDERS.get(provider, _UNKNOWN)
        doubt = doubt_of(provider, low=self._low, fuses_integers=self._fuses_integers, environment=os.environ)
        return Execution(
            runtime="onnxruntime",
            version=onnxruntime.__version__,
            provider=provider,
            precision=known.arithmetic if self._low or provider != CPU else "float32",
            evidence=not doubt,
            note=doubt,
        )


def _options(threads: int, *, fused: bool, lean: bool, as_written: bool) -> "onnxruntime.SessionOptions":
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = SILENT
    options.use_deterministic_compute = True
    options.intra_op_num_threads = threads
    if as_written:
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    if lean:
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.enable_cpu_mem_arena = False
    if not fused:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def _open_session(
    model: ir.Model,
    content: bytes,
    options: "onnxruntime.SessionOptions",
    where: str,
    providers: tuple[str, ...],
) -> "onnxruntime.InferenceSession":
    import onnxruntime

    onnxruntime.set_default_logger_severity(SILENT)
    missing = [p for p in providers if p not in onnxruntime.get_available_providers()]
    if missing:
        raise DependencyError(
            f"ONNX Runtime here has no {missing[0]}",
            remedy=f"it has {', '.join(onnxruntime.get_available_providers())}",
        )
    wanted = [(p, _PROVIDERS[p].options if p in _PROVIDERS else {}) for p in providers]
    while True:
        try:
            session = onnxruntime.InferenceSession(
                content, options, providers=wanted, disabled_optimizers=list(_CAST_PASSES)
            )
        except Exception as error:
            older = lowered(model) if type(error).__name__ == "NotImplemented" else None
            if older is None:
                raise _fault(error, "ONNX Runtime refuses the model", where) from error
            model, content = older, without_weights(older)[0]
            continue
        if session.get_providers()[0] != providers[0]:
            # ONNX Runtime falls back to the CPU without a word.
            raise DependencyError(
                f"ONNX Runtime cannot start {providers[0]}", remedy="`mpdeploy doctor` says what works here"
            )
        return session


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
