"""A mixed-precision model under true rounding, on any machine."""

import numpy as np
import onnx_ir as ir

from mpdeploy.runtime.ort import OrtRunner
from mpdeploy.runtime.runner import Array, Execution, Feed, TensorSpec, dtype_name, input_specs, output_specs
from mpdeploy.runtime.twin import float_twin, low_formats

_LOW_NAMES = ("float16", "bfloat16")


class EmulatorRunner:
    """Runs a model's float32 twin (see ``mpdeploy.runtime.twin``): every FP16 and BF16 tensor is really rounded.

    Takes and returns the types that the model declares.  Faults as in ``OrtRunner``.
    """

    def __init__(self, model: ir.Model, where: str, threads: int = 0, *, fused: bool = True) -> None:
        self._inputs, self._outputs = input_specs(model), output_specs(model)
        self._formats = sorted(dtype_name(d) for d in low_formats(model))
        self._kinds = {spec.name: _numpy_type(spec.dtype) for spec in self._outputs if spec.dtype in _LOW_NAMES}
        self._twin = OrtRunner(float_twin(model), where, threads=threads, fused=fused)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs that a feed must hold."""
        return self._inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs, in the model's order."""
        return self._outputs

    def run(self, feed: Feed) -> dict[str, Array]:
        """Return the outputs by name; see ``OrtRunner.run``."""
        wide = {
            name: array.astype(np.float32) if array.dtype.name in _LOW_NAMES else array for name, array in feed.items()
        }
        results = self._twin.run(wide)
        with np.errstate(invalid="ignore"):  # a cast of NaN is a NaN, and no news
            return {
                name: array.astype(kind) if (kind := self._kinds.get(name.partition("[")[0])) else array
                for name, array in results.items()
            }

    def describe(self) -> Execution:
        """Return exactly what runs."""
        inner = self._twin.describe()
        formats = " and ".join(self._formats) or "no low-precision"
        return Execution(
            runtime="mpdeploy emulator",
            version=f"onnxruntime {inner.version}",
            provider=inner.provider,
            precision=f"{formats} tensors rounded as declared, sums inside operators in float32",
            evidence=True,
        )


def _numpy_type(name: str) -> "np.dtype[np.generic]":
    return np.dtype(ir.DataType.BFLOAT16.numpy()) if name == "bfloat16" else np.dtype(name)
