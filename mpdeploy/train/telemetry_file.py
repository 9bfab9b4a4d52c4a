"""`telemetry.jsonl`: a header, then one JSON record a line, appended as the training goes."""

from pathlib import Path

import msgspec

from mpdeploy import records
from mpdeploy.files import readable_file, write_bytes
from mpdeploy.numerics.telemetry import StepLine, TelemetryHeader


class TelemetryFile:
    """Appends lines to a telemetry file.

    Made with ``keep_bytes`` it goes on after that many: what steps wrote that are done again is cut off.
    """

    def __init__(self, path: Path, header: TelemetryHeader, keep_bytes: int = 0) -> None:
        kept = path.read_bytes()[:keep_bytes] if keep_bytes and path.is_file() else b""
        if not keep_bytes or len(kept) < keep_bytes:
            kept = msgspec.json.encode(header) + b"\n"
        write_bytes(path, kept)
        self._path = path
        self.bytes = len(kept)

    def write(self, line: StepLine) -> None:
        """Append one line."""
        content = msgspec.json.encode(line) + b"\n"
        with self._path.open("ab") as stream:
            stream.write(content)
        self.bytes += len(content)


def read_telemetry(path: Path) -> tuple[TelemetryHeader, list[StepLine]]:
    """Return the header and the lines of a telemetry file; a last line that was cut off is left out.

    Raises ``UsageError`` if the file is missing or is none.
    """
    first, *rest = readable_file(path, "telemetry").read_bytes().split(b"\n")
    header = records.from_json(TelemetryHeader, first, str(path))
    # What follows the last newline was cut off while it was written.
    lines = [records.from_json(StepLine, line, f"{path}, line {n}") for n, line in enumerate(rest[:-1], 2)]
    return header, lines
