"""The weights of an engine that was built without them: read from its ONNX model, which its sidecar names."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mpdeploy.engine.faults import parse_fault
from mpdeploy.engine.messages import Inbox, logger_for
from mpdeploy.engine.record import EngineRecord
from mpdeploy.errors import ModelError, UsageError
from mpdeploy.files import sha256_of


def refit(module: Any, engine: Any, record: EngineRecord, path: Path, inbox: Inbox) -> None:
    """Give the engine loaded from ``path`` its weights.

    Raises ``UsageError`` if the very model that it was built from is not found, ``ModelError`` if TensorRT refuses.
    """
    model = find_source(record, path)
    refitter = module.Refitter(engine, logger_for(module))
    parser = module.OnnxParserRefitter(refitter, logger_for(module))
    if not parser.refit_from_file(str(model)):
        fault = parse_fault((parser.get_error(index) for index in range(parser.num_errors)), str(model))
        raise ModelError(f"the engine does not take the model's weights: {fault.what}", where=fault.where)
    if not refitter.refit_cuda_engine():
        reason = (*inbox.errors(), "no reason given")[0]
        raise ModelError(f"the engine does not take the model's weights: {reason}", where=str(path))


def find_source(record: EngineRecord, path: Path) -> Path:
    """Return the model that the engine in ``path`` was built from: where it was, or beside it, or in its bundle."""
    wanted = record.source.files[0]
    for candidate in _candidates(record, path, wanted.name):
        if candidate.is_file() and candidate.stat().st_size == wanted.bytes and sha256_of(candidate) == wanted.sha256:
            return candidate
    raise UsageError(
        "the engine was built without its weights, and the model that holds them is not here",
        where=str(path),
        remedy=f"put {wanted.name} (SHA-256 {wanted.sha256[:12]}…) beside it",
    )


def _candidates(record: EngineRecord, path: Path, name: str) -> Iterator[Path]:
    yield path.with_name(name)
    yield path.parent.parent / "models" / name
    yield Path(record.source.path)
