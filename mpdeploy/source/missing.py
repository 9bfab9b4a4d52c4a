"""What a model's file does not say and nobody has said yet: told all at once, and before torch is imported."""

from dataclasses import dataclass
from pathlib import Path

from mpdeploy.archive import is_archive
from mpdeploy.documents import parse_json
from mpdeploy.errors import UsageError
from mpdeploy.source.entries import choose, tables_in
from mpdeploy.source.given import Given
from mpdeploy.source.kinds import Kind, kind_of
from mpdeploy.source.outline import Marked, outline_of

_NAMED = 3  # weights shown by name
_LONGEST_HEADER = 100_000_000  # bytes; the safetensors format's own limit
_OF_OURS = ({"record", "weights", "examples"}, {"record", "state"})


def require_complete(path: Path, given: Given, *, with_data: bool) -> None:
    """Check that a file of weights comes with its model, the choice of weights and the inputs.

    Args:
        path: The model's file or folder, in any form.
        given: What was said of it.
        with_data: Whether data were given, which name the inputs as well.

    Raises:
        UsageError: Something is missing; the message names everything that is.
    """
    found = _weights_in(path, given)
    if found is None:
        return
    lacking, remedies = [], []
    if given.factory is None:
        beside = (path.parent / "config.json").is_file()
        lacking.append("the model they belong to")
        remedies.append("--model FILE.py:FUNCTION" + (f" (or give the folder {path.parent})" if beside else ""))
    if found.question:
        lacking.append(f"which to take: {found.question}")
        remedies.append(found.choice)
    if not given.inputs and not with_data:
        lacking.append("what it takes")
        remedies.append("--input NAME:SHAPE for each input, as in --input image:batch,3,224,224, or --data")
    if not lacking or (given.factory is not None and len(lacking) == 1):
        return  # the model itself, once it is built, says more about its inputs
    shown = ", ".join(found.names[:_NAMED]) + ("…" if len(found.names) > _NAMED else "")
    raise UsageError(
        f"the file holds weights ({len(found.names)}: {shown}) but not {', nor '.join(lacking)}",
        where=str(path),
        remedy=f"add {', and '.join(remedies)}",
    )


@dataclass(frozen=True)
class _Weights:
    """The names of a file's weights; where there are several sets, and none chosen, what is the question and how to."""

    names: tuple[str, ...]
    question: str = ""
    choice: str = ""


def _weights_in(path: Path, given: Given) -> _Weights | None:
    """Return what is in a file of weights; None for a file of another kind, or one that is not looked into."""
    kind = kind_of(path)
    if kind is Kind.SAFETENSORS:
        names = _safetensors_names(path)
        return _Weights(names) if names else None
    if kind is not Kind.TORCH or given.trust or not is_archive(path):
        return None
    content = outline_of(path)
    if not isinstance(content, dict) or content.keys() in _OF_OURS:
        return None
    tables = tables_in(content, Marked)
    if not tables:
        return None
    try:
        return _Weights(tuple(tables[choose(tuple(tables), given.weights, str(path))]))
    except UsageError as error:
        if given.weights is not None:
            raise
        names = tuple(next(iter(tables.values())))
        return _Weights(names, error.what, str(error.remedy).removeprefix("choose with "))


def _safetensors_names(path: Path) -> tuple[str, ...]:
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > min(_LONGEST_HEADER, path.stat().st_size):
            return ()
        try:
            header = parse_json(stream.read(length))
        except (ValueError, RecursionError):
            return ()  # the reader of weights says what is wrong
    return tuple(name for name in header if name != "__metadata__") if isinstance(header, dict) else ()
