"""The JSON form of the frozen records that pass along the road.

A record is a frozen dataclass.  The ones that stand in a file of their own carry a ``schema`` field such as
``"mpdeploy.plan/1"`` whose default is the only value that is accepted on reading; a document without it is refused.
JSON has no NaN and no infinity: a metric that is not finite is written as ``null``, so its field's type is
``float | None``.
"""

from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from mpdeploy.errors import UsageError
from mpdeploy.files import readable_file, write_bytes

Record = TypeVar("Record")


def to_builtins(record: object) -> Any:
    """Return the record as dicts, lists, strings and numbers, ready for any JSON writer."""
    return msgspec.to_builtins(record)


def to_json(record: object) -> bytes:
    """Return the record as indented JSON in UTF-8 that ends in a newline."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def from_json(kind: type[Record], content: bytes, where: str) -> Record:
    """Return the record of type ``kind`` that ``content`` holds.

    Raises ``UsageError`` that names ``where`` and the place inside the document if it is not JSON, a field is
    missing or of a wrong type, or the ``schema`` is another one or not there.
    """
    try:
        content = content.removeprefix(b"\xef\xbb\xbf")  # editors on Windows put it there
        _check_schema(kind, content, where)
        record = msgspec.json.decode(content, type=kind, strict=True)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"not a valid {kind.__name__} document: {error}", where=where) from error
    _check_inner(record, where)
    return record


class _Stamp(msgspec.Struct):
    schema: Any = msgspec.UNSET


def _check_schema(kind: type, content: bytes, where: str) -> None:
    """Refuse another schema before the fields are looked at, which may be others, too."""
    wanted = _schema_of(kind)
    found = msgspec.json.decode(content, type=_Stamp, strict=True).schema if wanted else wanted
    if found is msgspec.UNSET:
        raise UsageError(f"not a {kind.__name__} document: it has no schema, {wanted!r} is read here", where=where)
    _demand(found, wanted, where)


def _check_inner(record: object, where: str) -> None:
    """Check the schema of the records in a record's fields."""
    for field in fields(record):  # type: ignore[arg-type]
        value = getattr(record, field.name)
        for inner in value if isinstance(value, tuple) else (value,):
            if not is_dataclass(inner) or not (wanted := _schema_of(type(inner))):
                break
            _demand(getattr(inner, "schema", None), wanted, where)


def _demand(found: object, wanted: str, where: str) -> None:
    if found != wanted:
        raise UsageError(f"the document has schema {found!r}, this version reads {wanted!r}", where=where)


def _schema_of(kind: type) -> str:
    return next((str(field.default) for field in fields(kind) if field.name == "schema"), "")


def relocated(record: Record, old: Path, new: Path) -> Record:
    """Return the record with every text in it that names a place in ``old`` naming it in ``new``."""
    moved: Any = _relocated(record, str(old), str(new))
    return cast(Record, moved)


def _relocated(value: Any, old: str, new: str) -> Any:
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, tuple):
        return tuple(_relocated(inner, old, new) for inner in value)
    if isinstance(value, dict):
        return {key: _relocated(inner, old, new) for key, inner in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _relocated(getattr(value, f.name), old, new) for f in fields(value) if f.init})
    return value


def save(record: object, path: Path) -> None:
    """Write the record to ``path`` as JSON, atomically."""
    write_bytes(path, to_json(record))


def load(kind: type[Record], path: Path) -> Record:
    """Read a record of type ``kind`` from ``path``; faults as in ``from_json``."""
    return from_json(kind, readable_file(path, f"{kind.__name__} file").read_bytes(), str(path))
