"""The weights of an engine that was built without them: read from its ONNX model, which its sidecar names."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mpdeploy.engine.faults import parse_fault
from mpdeploy.engine.messages import Inbox, constructed, logger_for
from mpdeploy.engine.record import EngineRecord
from mpdeploy.errors import ModelError, MpdeployError, UsageError
from mpdeploy.files import sha256_of
from mpdeploy.graph.io import files_of
from mpdeploy.runtime.facts import FileFacts


def refit(module: Any, engine: Any, record: EngineRecord, path: Path, inbox: Inbox) -> None:
    """Give the engine loaded from ``path`` its weights.

    Raises ``UsageError`` if the very model that it was built from is not found, ``ModelError`` if TensorRT refuses.
    """
    model = find_source(record, path)
    refitter = constructed(lambda: module.Refitter(engine, logger_for(module)))
    if refitter is None:
        raise ModelError(f"the engine takes no weights: {(*inbox.errors(), 'no reason given')[0]}", where=str(path))
    parser = module.OnnxParserRefitter(refitter, logger_for(module))
    if not parser.refit_from_file(str(model)):
        fault = parse_fault((parser.get_error(index) for index in range(parser.num_errors)), str(model))
        raise ModelError(f"the engine does not take the model's weights: {fault.what}", where=fault.where)
    if not refitter.refit_cuda_engine():
        reason = (*inbox.errors(), "no reason given")[0]
        raise ModelError(f"the engine does not take the model's weights: {reason}", where=str(path))


def find_source(record: EngineRecord, path: Path) -> Path:
    """Return the model that the engine in ``path`` was built from: where it was, or beside it, or in its bundle."""
    lacking = record.source.files[0]
    for candidate in _candidates(record, path, lacking.name):
        other = _other_file(candidate, record)
        if other is None:
            return candidate
        if other is not record.source.files[0]:
            lacking = other  # the model is there, the weights beside it are others
    raise UsageError(
        "the engine was built without its weights, and the model that holds them is not here",
        where=str(path),
        remedy=f"put {lacking.name} (SHA-256 {lacking.sha256[:12]}…) beside it",
    )


def _other_file(candidate: Path, record: EngineRecord) -> FileFacts | None:
    """The first of the model's files that is not what the engine was built from, external data included."""
    model, *data = record.source.files
    if not _is(candidate, model):
        return model
    try:
        there = {file.name: file for file in files_of(candidate)}
    except MpdeployError:
        there = {}
    return next((file for file in data if file.name not in there or not _is(there[file.name], file)), None)


def _is(path: Path, wanted: FileFacts) -> bool:
    return path.is_file() and path.stat().st_size == wanted.bytes and sha256_of(path) == wanted.sha256


def _candidates(record: EngineRecord, path: Path, name: str) -> Iterator[Path]:
    yield path.with_name(name)
    yield path.parent.parent / "models" / name
    yield Path(record.source.path)
