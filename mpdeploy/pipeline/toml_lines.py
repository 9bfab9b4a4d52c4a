"""Where in a TOML file a key stands, for messages."""

import re

_TABLE = re.compile(r"\s*\[\s*([\w.\-]+)\s*\]")
_KEY = re.compile(r"\s*([\w.\-]+)\s*=")


def line_of(text: str, keys: tuple[str, ...]) -> int:
    """Return the line, counted from 1, of a key such as ("train", "seed"); of its table if it is not there; else 0."""
    table: tuple[str, ...] = ()
    found = 0
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _TABLE.match(line):
            table = tuple(header[1].split("."))
            if table == keys:
                return number
            if table == keys[:-1]:
                found = number
        elif (key := _KEY.match(line)) and (*table, *key[1].split(".")) == keys:
            return number
    return found
