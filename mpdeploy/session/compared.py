"""A file as one side of a comparison, in the runtime that the user names."""

from dataclasses import replace
from pathlib import Path

from mpdeploy.errors import UsageError
from mpdeploy.files import sha256_of
from mpdeploy.graph import io
from mpdeploy.graph.patience import limited, require_seconds
from mpdeploy.numerics.formats import Format
from mpdeploy.runtime.accumulate import Accumulation
from mpdeploy.runtime.emulator import Arithmetic
from mpdeploy.runtime.facts import FileFacts, ModelFacts
from mpdeploy.runtime.feeds import Feeds
from mpdeploy.runtime.ort import CPU, CUDA, RTX, TENSORRT, OrtRunner
from mpdeploy.session.opening import RUNTIMES_OF, Kind, Runtime, kind_of, open_runner
from mpdeploy.source.given import NOTHING, Given
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


def subject_in(
    path: Path,
    runtime: str = Runtime.AUTO.value,
    *,
    given: Given = NOTHING,
    data: Feeds | None = None,
    timeout: float | None = None,
) -> Subject:
    """Return the ONNX model, engine or torch model in a file, ready to be compared, run by ``runtime``.

    ``runtime`` is a value of ``Runtime`` or a key of ``PROVIDERS``; ``auto`` runs the file truthfully.  ``given`` and
    ``data``, and faults, are as in ``open_runner``.
    """
    kind = kind_of(path)
    if runtime in PROVIDERS and kind is not Kind.ONNX:
        raise UsageError(
            f"{runtime} does not run {kind.value}",
            where=str(path),
            remedy=f"use --runtime {RUNTIMES_OF[kind][0].value}",
        )
    if kind is Kind.TORCH:
        runner = open_runner(path, Runtime.TORCH, given=given, data=data, timeout=timeout)
        return Subject(path, None, _facts(path), lambda: runner, None)
    if kind is Kind.ENGINE:
        from mpdeploy.engine.loading import read_engine

        record = read_engine(path)
        facts = replace(record.source, path=str(path), files=(record.engine,))
        origin = _still_there(record.source, path.parent)
        return Subject(
            path,
            None,
            facts,
            lambda: open_runner(path, Runtime(runtime), timeout=timeout),
            None,
            origin=origin,
            timeout=timeout,
        )
    if runtime in PROVIDERS:
        limit = require_seconds(timeout)
        return opened(
            path,
            lambda: OrtRunner(limited(io.load(path), limit), str(path), PROVIDERS[runtime], as_written=False),
            timeout=limit,
        )
    auto = runtime == Runtime.AUTO.value
    return opened(path, None if auto else lambda: open_runner(path, Runtime(runtime), timeout=timeout), timeout=timeout)


def _still_there(source: ModelFacts, folder: Path) -> Path | None:
    """The model that an engine was built from, where it was or beside the engine, if it is still the same."""
    was = Path(source.path)
    for path in (was, folder / was.name):
        if path.is_file() and source.files and sha256_of(path) == source.files[0].sha256:
            return path
    return None


def _facts(path: Path) -> ModelFacts:
    """A torch model always computes in FP32; its operators and weights are not looked into."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    return ModelFacts(
        path=str(path),
        files=tuple(FileFacts(file.name, file.stat().st_size, sha256_of(file)) for file in files),
        nodes=0,
        values={},
        weights={},
    )
