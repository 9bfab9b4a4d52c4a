"""OpenVINO's CPU plugin as a runner: real BF16 arithmetic on processors that have it."""

import contextlib
import functools
import importlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from mpdeploy.errors import DependencyError, ModelError, MpdeployError, UsageError
from mpdeploy.graph import io
from mpdeploy.graph.scope import all_nodes
from mpdeploy.numerics.formats import Format
from mpdeploy.runtime.arrays import in_order
from mpdeploy.runtime.attended import ENDLESS, Attendant
from mpdeploy.runtime.runner import Array, Execution, Feed, TensorSpec, dtype_name, input_specs, output_specs
from mpdeploy.runtime.twin import low_formats

DEVICE = "CPU"
# Without the hint the plugin lowers FP32 graphs to BF16 by itself; with it the graph's types decide.
_HONOUR_THE_GRAPH = {"EXECUTION_MODE_HINT": "ACCURACY"}
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_FP16_IS_HIDDEN = "OpenVINO's CPU plugin computes FP16 graphs in wider formats, so overflow and underflow stay hidden"
_NO_BF16 = "this processor has no BF16 arithmetic, so OpenVINO computed the BF16 graph in FP32"
_REASON_LINES = 2


class OpenVinoRunner:
    """The ONNX model in ``path``, compiled by OpenVINO for the CPU with the graph's own types.

    ``threads`` 0 means one per core; it may be run from several threads at once.  One run may take ``timeout`` seconds;
    a model with a limit, or a loop, is attended, one run after the other.  Raises ``DependencyError`` if
    OpenVINO is not installed, ``UsageError`` for a file that is no model, ``ModelError`` if OpenVINO refuses the model.
    """

    def __init__(self, path: Path, threads: int = 0, timeout: float | None = None) -> None:
        self._where = str(path)
        model = io.load(path)
        self._inputs, self._outputs = input_specs(model), output_specs(model)
        self._declared = {dtype_name(dtype) for dtype in low_formats(model)}
        self._openvino = _import()
        settings = _HONOUR_THE_GRAPH | ({"INFERENCE_NUM_THREADS": threads} if threads else {})
        try:
            core = self._openvino.Core()
            self._native_bf16 = "BF16" in core.get_property(DEVICE, "OPTIMIZATION_CAPABILITIES")
            self._compiled = core.compile_model(core.read_model(str(path)), DEVICE, settings)
        except Exception as error:
            raise ModelError(f"OpenVINO refuses the model: {_reason(error)}", where=self._where) from error
        attended = timeout is not None or any(node.op_type == ENDLESS for node in all_nodes(model))
        self._attendant = Attendant(self._where, timeout) if attended else None
        self._idle: deque[Any] = deque()  # requests that nobody uses: one serves one thread at a time

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
        arrays = {spec.name: self._tensor(feed, spec) for spec in self._inputs}
        try:
            with self._request() as request:
                # Inputs are read in place; outputs are copied, because the next run overwrites them.
                infer = functools.partial(request.infer, arrays, share_inputs=True)
                results = infer() if self._attendant is None else self._attendant.call(infer, request.cancel)
        except MpdeployError:
            raise
        except Exception as error:
            reason = _reason(error)
            if "set the input tensor" in reason:
                raise UsageError(f"the data does not fit the model: {reason}", where=self._where) from error
            raise ModelError(f"OpenVINO failed to run the model: {reason}", where=self._where) from error
        return {
            spec.name: array.view(_BFLOAT16) if spec.dtype == "bfloat16" else array
            for spec, array in zip(self._outputs, results.values(), strict=True)
        }

    def describe(self) -> Execution:
        """Return exactly what runs; which formats the plugin chose is read from its own account."""
        ran = self._executed()
        note = ""
        if "float16" in self._declared:
            note = _FP16_IS_HIDDEN
        elif "bfloat16" in self._declared and not self._native_bf16:
            note = _NO_BF16
        return Execution(
            runtime="openvino",
            version=str(self._openvino.__version__).split("-")[0],
            provider=DEVICE,
            precision=" and ".join(sorted(ran)) or Format.FP32.value,
            evidence=not note,
            note=note,
        )

    @contextlib.contextmanager
    def _request(self) -> Iterator[Any]:
        try:
            request = self._idle.pop()
        except IndexError:
            request = self._compiled.create_infer_request()
        yield request  # one that failed is not used again
        self._idle.append(request)

    def _tensor(self, feed: Feed, spec: TensorSpec) -> Any:
        if spec.name not in feed:
            raise UsageError(f"the data lacks input '{spec.name}'", where=self._where)
        array = in_order(feed[spec.name])
        if array.dtype.name != spec.dtype:
            raise UsageError(f"input '{spec.name}' is {array.dtype.name}, the model takes {spec}", where=self._where)
        if array.dtype == _BFLOAT16:  # a type that numpy does not know of itself
            return self._openvino.Tensor(array.view(np.uint16), array.shape, self._openvino.Type.bf16)
        # Memory that may not be written to is not shared: OpenVINO asks for more than it needs.
        shared = array.dtype.kind in "fiu" and array.flags.writeable
        return self._openvino.Tensor(array, shared_memory=True) if shared else array

    def _executed(self) -> set[str]:
        operators = self._compiled.get_runtime_model().get_ordered_ops()
        kinds = {str(op.get_rt_info()["runtimePrecision"].value).lower() for op in operators}
        names = {"f32": Format.FP32.value, "f16": Format.FP16.value, "bf16": Format.BF16.value}
        return {names[kind] for kind in kinds if kind in names}


def _import() -> Any:
    try:
        return importlib.import_module("openvino")
    except ImportError as error:
        raise DependencyError(
            "OpenVINO is not installed", where=str(error), remedy="pip install 'mpdeploy[openvino]'"
        ) from error


def _reason(error: Exception) -> str:
    """The lines of OpenVINO's text that say something: it opens with places in its own source."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [
        line
        for line in lines
        if line and not line.startswith(("Exception from src", "Check '")) and ".cpp:" not in line
    ]
    return " ".join((told or lines)[:_REASON_LINES]) or type(error).__name__
