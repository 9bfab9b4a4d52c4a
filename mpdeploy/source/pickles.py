"""What a pickle would import, read from its instructions; nothing is executed."""

import pickletools
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from mpdeploy.source.archive import is_archive, opened

_STRINGS = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "UNICODE", "BINUNICODE8", "SHORT_BINSTRING", "BINSTRING"})
_LONGEST = 1 << 24  # bytes; no name and no plain value in a model file is longer
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


class _Bounded:
    """A stream that is never asked for more at once than a pickle's instructions can need."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.readline, self.tell, self._stream = stream.readline, stream.tell, stream

    def read(self, size: int) -> bytes:
        return self._stream.read(min(size, _LONGEST))


def _harmless() -> frozenset[str]:
    from torch._weights_only_unpickler import _get_allowed_globals

    return frozenset(_get_allowed_globals())
