"""JSON and TOML from anywhere: whatever stands in them, reading them ends in a value or in one kind of fault."""

import json
import tomllib
from pathlib import Path
from typing import Any

from mpdeploy.errors import UsageError
from mpdeploy.files import readable_file

_BOM = "\ufeff"


def parse_json(content: bytes) -> Any:
    """Return what a JSON document holds; raise ``ValueError`` for any that is none, or is nested beyond reading."""
    try:
        return json.loads(content.decode("utf-8-sig"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def read_toml(path: Path, what: str) -> tuple[dict[str, Any], str]:
    """Return what a TOML file holds, and its text; raise ``UsageError`` that calls it ``what`` if it is none."""
    content = readable_file(path, what).read_bytes()
    try:
        text = content.decode("utf-8").removeprefix(_BOM)
        return tomllib.loads(text), text
    except RecursionError as error:
        raise UsageError("not valid TOML: nested too deeply", where=str(path)) from error
    except ValueError as error:  # UnicodeDecodeError and TOMLDecodeError are such
        raise UsageError(f"not valid TOML: {error}", where=str(path)) from error
