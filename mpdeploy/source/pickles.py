"""What a pickle would import, read from its instructions; nothing is executed."""

import pickletools
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from mpdeploy.archive import is_archive, opened
from mpdeploy.errors import UsageError

_STRINGS = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "UNICODE", "BINUNICODE8", "SHORT_BINSTRING", "BINSTRING"})
_LONGEST = 1 << 24  # bytes; no name and no plain value in a model file is longer
_DEEPEST = 400  # levels; modules within modules within lists take some tens
_REMEMBERS = frozenset({"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"})
_RECALLS = frozenset({"GET", "BINGET", "LONG_BINGET"})
_FILLS = frozenset({"APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD"})  # what is in the stack already
_LEGACY_PICKLES = 8  # torch's old format: magic, protocol, system, object, keys; some to spare

# Numbers and paths that trainers note down beside the weights.  Nothing here needs them, so nothing of them is made.
NOTED = (
    "numpy.dtype numpy.ndarray numpy.core.multiarray.scalar numpy._core.multiarray.scalar "
    "numpy.core.multiarray._reconstruct numpy._core.multiarray._reconstruct "
    "pathlib.Path pathlib.PosixPath pathlib.WindowsPath pathlib.PurePosixPath pathlib.PureWindowsPath "
    "pathlib._local.PosixPath pathlib._local.WindowsPath "
).split() + [f"numpy.dtypes.{name}DType" for name in "Float64 Float32 Float16 Int64 Int32 Bool".split()]


def wanted_globals(path: Path) -> tuple[str, ...]:
    """Return the Python objects that the pickles in a torch file or a bare pickle ask for, sorted by name.

    Only what is not loaded as plain weights, nor left out as a trainer's note, counts.
    """
    found: set[str] = set()
    if is_archive(path):
        with opened(path) as archive:
            for name in archive.namelist():
                if name.endswith(".pkl"):
                    with archive.open(name) as stream:
                        found.update(_globals(stream))
    else:
        with path.open("rb") as stream:
            for _ in range(_LEGACY_PICKLES):
                before = stream.tell()
                found.update(_globals(stream))
                if stream.tell() == before:
                    break
    return tuple(sorted(found - _harmless() - set(NOTED)))


def globals_of(stream: IO[bytes]) -> tuple[str, ...]:
    """Return what the one pickle in a stream asks for beyond plain weights, sorted by name."""
    return tuple(sorted(set(_globals(stream)) - _harmless()))


def _globals(stream: IO[bytes]) -> Iterator[str]:
    strings: list[str] = []
    memo: list[str | None] = []
    try:
        for opcode, argument, _ in pickletools.genops(cast(IO[bytes], _Bounded(stream))):
            if opcode.name in ("GLOBAL", "INST"):
                yield ".".join(str(argument).split(" ", 1)).replace("__builtin__.", "builtins.")
            elif opcode.name in _STRINGS:
                strings.append(str(argument))
            elif opcode.name == "MEMOIZE":
                memo.append(strings[-1] if strings else None)
            elif opcode.name in ("BINGET", "LONG_BINGET") and isinstance(argument, int) and argument < len(memo):
                remembered = memo[argument]
                if remembered is not None:
                    strings.append(remembered)
            elif opcode.name == "STACK_GLOBAL" and len(strings) > 1:
                yield ".".join(strings[-2:])
    except (ValueError, IndexError, EOFError, UnicodeDecodeError, OverflowError):
        return  # what is no pickle asks for nothing more


def require_sound(stream: IO[bytes], where: str) -> None:
    """Refuse a pickle that a reader in C++ would not survive, which follows nesting by recursion and believes sizes.

    Args:
        stream: One pickle.
        where: What it lies in, for the message.

    Raises:
        UsageError: It ends early, nests deeper than ``_DEEPEST``, or counts what it remembers out of order.
    """
    reason = ""
    try:
        reason = _unsound(stream)
    except (ValueError, IndexError, EOFError, UnicodeDecodeError, OverflowError):
        reason = "ends early or is damaged"
    if reason:
        raise UsageError(
            f"a pickle in the archive {reason}", where=where, remedy="write it again, or ask who made it for another"
        )


def _unsound(stream: IO[bytes]) -> str:
    """What is wrong with a pickle, empty if nothing: its stack is followed with the depth of each object on it."""
    stack: list[int | None] = []  # None is a mark
    memo: dict[int, int] = {}
    for count, (opcode, argument, _) in enumerate(pickletools.genops(cast(IO[bytes], _Bounded(stream)))):
        name = opcode.name
        if name == "MARK":
            stack.append(None)
        elif name in _REMEMBERS:
            index = len(memo) if name == "MEMOIZE" else int(str(argument))
            if index > count:
                return f"remembers its object {index} where there are {count}"
            memo[index] = _depth(stack[-1])
        elif name in _RECALLS:
            stack.append(memo.get(int(str(argument)), 0))
        elif name == "DUP":
            stack.append(stack[-1])
        else:
            taken = _taken(stack, opcode)
            held = taken[:1] if name in _FILLS else []
            inside = [depth + 1 for depth in taken[len(held) :]]
            made = max([*held, *inside], default=0)
            if made > _DEEPEST:
                return f"nests deeper than {_DEEPEST} levels"
            stack += [made] * len(opcode.stack_after)
    return ""


def _taken(stack: list[int | None], opcode: pickletools.OpcodeInfo) -> list[int]:
    """Take from the stack what an instruction does, down to the mark where it asks for one; return it in order."""
    wanted = [slot.name for slot in opcode.stack_before]
    taken: list[int] = []
    if "mark" in wanted or opcode.name == "POP_MARK":
        while stack[-1] is not None:
            taken.append(_depth(stack.pop()))
        stack.pop()
        wanted = wanted[: wanted.index("mark")] if "mark" in wanted else []
    taken += [_depth(stack.pop()) for _ in wanted]
    return taken[::-1]


def _depth(slot: int | None) -> int:
    return slot or 0


class _Bounded:
    """A stream that is never asked for more at once than a pickle's instructions can need."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.readline, self.tell, self._stream = stream.readline, stream.tell, stream

    def read(self, size: int) -> bytes:
        return self._stream.read(min(size, _LONGEST))


def _harmless() -> frozenset[str]:
    from torch._weights_only_unpickler import _get_allowed_globals

    return frozenset(_get_allowed_globals())
