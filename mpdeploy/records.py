"""The JSON form of the frozen records that pass along the road.

A record is a frozen dataclass.  The ones that stand in a file of their own carry a ``schema`` field such as
``"mpdeploy.plan/1"`` whose default is the only value that is accepted on reading.  JSON has no NaN and no
infinity: a metric that is not finite is written as ``null``, so its field's type is ``float | None``.
"""

from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

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
    missing or of a wrong type, or the ``schema`` is another one.
    """
    try:
        record = msgspec.json.decode(content, type=kind, strict=True)
    except msgspec.MsgspecError as error:
        raise UsageError(f"not a valid {kind.__name__} document: {error}", where=where) from error
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name == "schema" and getattr(record, "schema", None) != field.default:
            raise UsageError(
                f"the document has schema {getattr(record, 'schema', None)!r}, this version reads {field.default!r}",
                where=where,
            )
    return record


def save(record: object, path: Path) -> None:
    """Write the record to ``path`` as JSON, atomically."""
    write_bytes(path, to_json(record))


def load(kind: type[Record], path: Path) -> Record:
    """Read a record of type ``kind`` from ``path``; faults as in ``from_json``."""
    return from_json(kind, readable_file(path, f"{kind.__name__} file").read_bytes(), str(path))
