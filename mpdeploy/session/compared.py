"""A file as one side of a comparison, in the runtime that the user names."""

from dataclasses import replace
from pathlib import Path

from mpdeploy.graph import io
from mpdeploy.numerics.formats import Format
from mpdeploy.runtime.accumulate import Accumulation
from mpdeploy.runtime.emulator import Arithmetic
from mpdeploy.runtime.ort import CPU, CUDA, RTX, TENSORRT, OrtRunner
from mpdeploy.session.opening import Kind, Runtime, kind_of, open_runner
from mpdeploy.verification.subject import Subject, opened

# ONNX Runtime's execution providers, by the names that `--runtime` takes; what they cannot run falls to the next.
PROVIDERS = {
    "ort-cuda": (CUDA, CPU),
    "ort-tensorrt": (TENSORRT, CUDA, CPU),
    "ort-rtx": (RTX, CPU),
}
# Other arithmetic for the emulator, by the names that `--emulate` takes.
ARITHMETIC = {
    "chunked": Arithmetic(Accumulation.CHUNKED),
    "half": Arithmetic(Accumulation.HALF),
    "tf32": Arithmetic(operands=Format.TF32),
    "fp8e4m3": Arithmetic(operands=Format.FP8E4M3),
    "fp8e5m2": Arithmetic(operands=Format.FP8E5M2),
}


def subject_in(path: Path, runtime: str = Runtime.AUTO.value) -> Subject:
    """Return the ONNX model or engine in a file, ready to be compared, run by ``runtime``.

    ``runtime`` is a value of ``Runtime`` or a key of ``PROVIDERS``; ``auto`` runs the file truthfully.  Faults as in
    ``open_runner`` and ``OrtRunner``.
    """
    if kind_of(path) is Kind.ENGINE:
        from mpdeploy.engine.loading import read_engine

        record = read_engine(path)
        facts = replace(record.source, path=str(path), files=(record.engine,))
        return Subject(path, None, facts, lambda: open_runner(path, Runtime(runtime)), None)
    if runtime in PROVIDERS:
        return opened(path, lambda: OrtRunner(io.load(path), str(path), PROVIDERS[runtime]))
    return opened(path, None if runtime == Runtime.AUTO.value else lambda: open_runner(path, Runtime(runtime)))
