"""Which runner gives evidence about a model on this machine."""

from collections.abc import Iterator

import onnx_ir as ir

from mpdeploy.runtime.emulator import EmulatorRunner
from mpdeploy.runtime.ort import OrtRunner
from mpdeploy.runtime.runner import Runner
from mpdeploy.runtime.twin import low_formats


def truthful_runner(model: ir.Model, where: str, threads: int = 0, *, fused: bool = True, lean: bool = False) -> Runner:
    """Return a runner whose numbers are those of the model's declared formats.

    A model with FP16 or BF16 tensors runs in the emulator, any other in ONNX Runtime on the CPU.  ``where`` names
    the model in errors; ``threads`` 0 means one per core; without ``fused`` every operator runs by itself; ``lean``
    spares the copies of weights that make runs faster.
    """
    if low_formats(model):
        return EmulatorRunner(model, where, threads=threads, fused=fused, lean=lean)
    return OrtRunner(model, where, threads=threads, fused=fused, lean=lean)


def other_ways(model: ir.Model, where: str) -> Iterator[tuple[str, Runner]]:
    """Yield other runs of the same model, each with a word for it: what they differ in is the model's own noise.

    In exact arithmetic all would agree.  Each is made when it is asked for.
    """
    yield "in one thread", truthful_runner(model, where, threads=1)
    yield "with operators not fused", truthful_runner(model, where, fused=False)
