"""Ways to break a file: its bytes, the entries of an archive, the values of a document, the fields of a model."""

import copy
import io
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Break = Callable[[bytes, random.Random], bytes]

_NUMBERS = (0, 1, -1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, -(2**63), 10**30)
_DEEP = 100_000
_VALUES: tuple[Any, ...] = (
    None, True, [], {}, "", "x" * 300, "\x1b[2K\nforged", "../../etc/passwd", "/dev/zero", "\u202e", "1e999", 0.5,
    float("nan"), float("inf"), [[]] * 3, {"schema": 1}, *_NUMBERS,
)  # fmt: skip


def ways(path: Path) -> list[Break]:
    """Return the ways that fit a kind of file: those for any, and those for its own form."""
    found = [truncated, flipped, overwritten, forged, cut_out, doubled, spliced]
    if path.suffix in (".npz", ".pt", ".pth", ".pt2") and zipfile.is_zipfile(path):
        found += [entry_broken, entry_broken, directory_forged, bomb]
    if path.suffix in (".json", ".toml"):
        found += [value_changed] * 4 + [deep]
    if path.suffix == ".onnx":
        found += [model_changed] * 6
    return found


def truncated(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content) + 1)]


def flipped(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 3, 10, 100))):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def overwritten(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    place, length = chance.randrange(len(changed)), chance.choice((1, 2, 4, 8, 64, 512))
    changed[place : place + length] = chance.choice((bytes(length), b"\xff" * length, chance.randbytes(length)))
    return bytes(changed)


def forged(content: bytes, chance: random.Random) -> bytes:
    """Write a number that is too large, or negative, where a size may stand."""
    changed, width = bytearray(content), chance.choice((2, 4, 8))
    places = [at for at in range(len(content) - 8) if 0 < int.from_bytes(content[at : at + 4], "little") < 1 << 16]
    place = chance.choice(places) if places else 0
    number = chance.choice(_NUMBERS[3:9]) % (1 << 8 * width)
    changed[place : place + width] = number.to_bytes(width, "little")
    return bytes(changed)


def cut_out(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content))
    return content[:place] + content[place + chance.choice((1, 4, 100, 1000)) :]


def doubled(content: bytes, chance: random.Random) -> bytes:
    place, length = chance.randrange(len(content)), chance.choice((1, 4, 100, 1000))
    return content[: place + length] + content[place:]


def spliced(content: bytes, chance: random.Random) -> bytes:
    """Move a piece of the file to another place in it."""
    source, place, length = (chance.randrange(1, len(content) + 1) for _ in range(3))
    piece = content[source : source + length]
    return content[:place] + piece + content[place + len(piece) :]


def entry_broken(content: bytes, chance: random.Random) -> bytes:
    """Break an entry of an archive, whose sums are right again then."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = [(entry.filename, archive.read(entry)) for entry in archive.infolist()]
    chosen = chance.randrange(len(entries))
    kind = chance.choice((truncated, flipped, overwritten, forged, cut_out, spliced))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for number, (name, held) in enumerate(entries):
            archive.writestr(name, kind(held, chance) if number == chosen and held else held)
    return out.getvalue()


def directory_forged(content: bytes, chance: random.Random) -> bytes:
    """Let the directory of an archive lie about an entry: its flags, way, sums, sizes or place."""
    changed = bytearray(content)
    places = [at for at in range(len(content)) if content[at : at + 4] == b"PK\x01\x02"]
    field, width = chance.choice(((8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2), (42, 4)))
    at = chance.choice(places) + field
    changed[at : at + width] = chance.choice((1, 8, 99, *_NUMBERS[3:6])).to_bytes(8, "little")[:width]
    return bytes(changed)


def bomb(content: bytes, chance: random.Random) -> bytes:
    """Put an entry into an archive that grows a thousandfold, in the place of another one or beside them."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    beside = next(iter(entries)).split("/")[0] + "/data/99"
    entries[chance.choice((*entries, beside))] = bytes(32 << 20)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, held in entries.items():
            archive.writestr(name, held)
    return out.getvalue()


def value_changed(content: bytes, chance: random.Random) -> bytes:
    """Put another value in the place of one in a document, or leave it out, or give it another name."""
    try:
        document = json.loads(content)
    except ValueError:
        return _text_changed(content, chance)
    for _ in range(chance.choice((1, 1, 2, 5))):
        holder, key = chance.choice(list(_places(document)) or [({"": 0}, "")])
        what = chance.randrange(4)
        if what == 0 and isinstance(holder, dict):
            del holder[key]
        elif what == 1 and isinstance(holder, dict):
            holder[f"{key}~"] = holder.pop(key)
        else:
            holder[key] = copy.deepcopy(chance.choice(_VALUES))
    return json.dumps(document).encode("utf-8", "surrogatepass")


def deep(content: bytes, chance: random.Random) -> bytes:
    """Nest a list beyond all reading, alone or in the place of a value."""
    nested = b"[" * _DEEP + b"]" * chance.choice((0, _DEEP))
    places = [at for at, byte in enumerate(content) if byte in b":="]
    place = chance.choice([0, *places])
    return content[: place + 1] + nested + content[place + 1 :] if place else nested


def model_changed(content: bytes, chance: random.Random) -> bytes:
    """Change fields of an ONNX model that is well formed before and after."""
    import onnx

    model = onnx.load_from_string(content)
    for _ in range(chance.choice((1, 1, 2, 4))):
        _change_field(model, chance)
    return bytes(model.SerializeToString())


def _change_field(message: Any, chance: random.Random) -> None:
    while True:
        field, value = chance.choice(message.ListFields() or [(None, None)])
        if field is None:
            return
        inner = field.type == field.TYPE_MESSAGE
        many = not isinstance(value, str | bytes | int | float | bool) and not hasattr(value, "ListFields")
        if many and chance.random() < 0.15:
            at = chance.randrange(len(value))
            if inner and chance.random() < 0.5:
                value.add().CopyFrom(value[at])
            else:
                del value[at]
            return
        if inner:
            message = chance.choice(value) if many else value
            continue
        new = _other(field, chance)
        if many:
            value[chance.randrange(len(value))] = new
        else:
            setattr(message, field.name, new)
        return


def _other(field: Any, chance: random.Random) -> Any:
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return chance.choice((0.0, float("nan"), float("inf"), 1e30))
    if field.type == field.TYPE_STRING:
        return chance.choice(("", "x", "h", "y", "w0", "Loop", "Cast", "Reshape", "\x1b[2K", "a" * 300, "../x"))
    if field.type == field.TYPE_BYTES:
        return chance.randbytes(chance.choice((0, 1, 4, 64)))
    if field.enum_type:
        return chance.choice([value.number for value in field.enum_type.values])
    low, high = (0, 2**31 - 1) if field.type == field.TYPE_INT32 else (-(2**63), 2**63 - 1)
    return min(max(chance.choice((*range(1, 30), *_NUMBERS)), low), high)


def _places(document: Any) -> Any:
    keys = document if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ()
    for key in keys:
        yield document, key
        yield from _places(document[key])


def _text_changed(content: bytes, chance: random.Random) -> bytes:
    """Put another value behind one of the equals signs of a TOML file."""
    lines = content.decode(errors="replace").splitlines()
    chosen = chance.choice([number for number, line in enumerate(lines) if "=" in line] or [0])
    words = (
        "-1",
        "1e400",
        "nan",
        "[]",
        "{}",
        '""',
        "true",
        '"\\u001b[2K"',
        '"/dev/zero"',
        "[[1]]",
        "99999999999999999999",
    )
    lines[chosen] = f"{lines[chosen].partition('=')[0]}= {chance.choice(words)}" if lines else "="
    return "\n".join(lines).encode()
