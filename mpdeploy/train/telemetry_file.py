"""`telemetry.jsonl`: a header, then one JSON record a line, appended as the training goes."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from mpdeploy import records
from mpdeploy.files import disk_faults, readable_file, write_bytes
from mpdeploy.numerics.telemetry import StepLine, TelemetryHeader


class TelemetryFile:
    """Appends lines to a telemetry file, of which it knows how many ``bytes`` are good.

    Nothing is written before ``begin``.  Made with ``keep_bytes`` it goes on after that many: what steps wrote that
    are done again is cut off.
    """

    def __init__(self, path: Path, header: TelemetryHeader, keep_bytes: int = 0) -> None:
        kept = path.read_bytes()[:keep_bytes] if keep_bytes and path.is_file() else b""
        lines = kept.partition(b"\n")[2] if len(kept) == keep_bytes else b""
        self._path, self._kept = path, msgspec.json.encode(header) + b"\n" + lines
        self.bytes = len(self._kept)

    def begin(self) -> None:
        """Make the file hold what is kept, and no more."""
        write_bytes(self._path, self._kept)
        self._kept = b""

    def write(self, line: StepLine) -> None:
        """Append one line."""
        content = msgspec.json.encode(line) + b"\n"
        with disk_faults(self._path), self._path.open("ab") as stream:
            stream.write(content)
        self.bytes += len(content)


@dataclass(frozen=True)
class _Header1:
    """The first line of files that tell only of some steps, and of no learning rate."""

    name: str
    configuration: str
    format: str
    interval: int
    schema: str = "mpdeploy.telemetry/1"


def read_telemetry(path: Path) -> tuple[TelemetryHeader, list[StepLine]]:
    """Return the header and the lines of a telemetry file; a last line that was cut off is left out.

    Raises ``UsageError`` if the file is missing or is none.
    """
    first, *rest = readable_file(path, "telemetry").read_bytes().split(b"\n")
    if b'"mpdeploy.telemetry/1"' in first:
        old = records.from_json(_Header1, first, str(path))
        header = TelemetryHeader(old.name, old.configuration, old.format, old.interval)
    else:
        header = records.from_json(TelemetryHeader, first, str(path))
    # What follows the last newline was cut off while it was written.
    lines = [records.from_json(StepLine, line, f"{path}, line {n}") for n, line in enumerate(rest[:-1], 2)]
    return header, lines
