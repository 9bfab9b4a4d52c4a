"""A mixed-precision model under true rounding, on any machine."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from mpdeploy.graph.opset import raised
from mpdeploy.numerics.formats import Format
from mpdeploy.runtime import accumulate, what_if
from mpdeploy.runtime.accumulate import Accumulation
from mpdeploy.runtime.ort import OrtRunner
from mpdeploy.runtime.runner import Array, Execution, Feed, TensorSpec, dtype_name, input_specs, output_specs
from mpdeploy.runtime.twin import float_twin, low_formats

_LOW_NAMES = ("float16", "bfloat16")


@dataclass(frozen=True)
class Arithmetic:
    """What is asked of the emulator beyond the graph's own types.

    ``accumulation``: how sums inside low-precision operators add up (see ``mpdeploy.runtime.accumulate``);
    ``operands``: what if float32 matrix operands were rounded so (see ``mpdeploy.runtime.what_if``).
    """

    accumulation: Accumulation = Accumulation.FLOAT32
    operands: Format | None = None

    @property
    def opset(self) -> int:
        """The lowest opset in which the rewriting can be written."""
        return max(
            what_if.OPSET if self.operands else 0,
            accumulate.OPSET if self.accumulation is not Accumulation.FLOAT32 else 0,
        )


PLAIN = Arithmetic()


@dataclass(frozen=True)
class Twin:
    """A float32 twin in the arithmetic asked for; ``left`` operators could not be put into it, ``changed`` were."""

    model: ir.Model
    left: int = 0
    changed: int = 0


def twin_of(model: ir.Model, arithmetic: Arithmetic) -> Twin:
    """Return the model's twin; ``ModelError`` if the model cannot be brought to the opset that it needs."""
    twin = float_twin(raised(model, arithmetic.opset))
    left = changed = 0
    if arithmetic.accumulation is not Accumulation.FLOAT32:
        left = accumulate.accumulate_strictly(twin, arithmetic.accumulation)
    if arithmetic.operands:
        changed = what_if.round_operands(twin, arithmetic.operands)
    return Twin(twin, left, changed)


class EmulatorRunner:
    """Runs a model's float32 twin (see ``mpdeploy.runtime.twin``): every FP16 and BF16 tensor is really rounded.

    Takes and returns the types that the model declares.  Faults as in ``OrtRunner``, and ``ModelError`` if the model
    cannot be brought to the opset that ``arithmetic`` needs.
    """

    def __init__(
        self,
        model: ir.Model,
        where: str,
        threads: int = 0,
        *,
        fused: bool = True,
        lean: bool = False,
        arithmetic: Arithmetic = PLAIN,
    ) -> None:
        self._inputs, self._outputs = input_specs(model), output_specs(model)
        self._formats = sorted(dtype_name(d) for d in low_formats(model))
        self._kinds = {spec.name: _numpy_type(spec.dtype) for spec in self._outputs if spec.dtype in _LOW_NAMES}
        self._arithmetic = arithmetic
        twin = twin_of(model, arithmetic)
        self._left, self._changed = twin.left, twin.changed
        self._twin = OrtRunner(twin.model, where, threads=threads, fused=fused, lean=lean)

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
        results = self._twin.run(widened(feed))
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
            precision=f"{formats} tensors rounded as declared, {self._sums()}{self._operands()}",
            evidence=True,
            note=f"{self._left} operators whose sizes are unknown compute in float32" if self._left else "",
        )

    def _sums(self) -> str:
        mode = self._arithmetic.accumulation
        if mode is Accumulation.FLOAT32:
            return "sums inside operators in float32"
        return f"sums inside operators rounded after every {mode.value} terms"

    def _operands(self) -> str:
        target = self._arithmetic.operands
        return f", operands of {self._changed} matrix operators rounded to {target.value}" if target else ""


def widened(feed: Feed) -> dict[str, Array]:
    """Return the feed as a twin takes it: FP16 and BF16 arrays as float32."""
    return {n: a.astype(np.float32) if a.dtype.name in _LOW_NAMES else a for n, a in feed.items()}


def _numpy_type(name: str) -> "np.dtype[np.generic]":
    return np.dtype(ir.DataType.BFLOAT16.numpy()) if name == "bfloat16" else np.dtype(name)
