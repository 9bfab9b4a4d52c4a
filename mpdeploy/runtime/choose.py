"""Which runner gives evidence about a model on this machine."""

import onnx_ir as ir

from mpdeploy.runtime.emulator import EmulatorRunner
from mpdeploy.runtime.ort import OrtRunner
from mpdeploy.runtime.runner import Runner
from mpdeploy.runtime.twin import low_formats


def truthful_runner(model: ir.Model, where: str, threads: int = 0) -> Runner:
    """Return a runner whose numbers are those of the model's declared formats.

    A model with FP16 or BF16 tensors runs in the emulator, any other in ONNX Runtime on the CPU.  ``where`` names
    the model in errors; ``threads`` 0 means one per core.
    """
    if low_formats(model):
        return EmulatorRunner(model, where, threads=threads)
    return OrtRunner(model, where, threads=threads)
