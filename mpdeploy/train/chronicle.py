"""`training.json`: how a training is set up, what came of it so far, where and when it ran."""

import os
import platform
import re
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import torch

from mpdeploy import records
from mpdeploy.errors import UsageError
from mpdeploy.numerics.training import Session, TrainingRecord

RECORD = "training.json"


class Chronicle:
    """Keeps the record of a training: one session more with each run, none twice.

    Times stand here and in no other file of a training: all others are the same whenever it ran.
    """

    def __init__(self, path: Path, first_step: int, *, resumed: bool) -> None:
        self._path, self._first = path, first_step
        self._started, self._clock = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
        self._earlier = _sessions(path, first_step) if resumed else ()

    def save(self, record: TrainingRecord, session: Session) -> None:
        """Write the record with the sessions so far; ``session`` holds what is not about time or steps done before."""
        now = replace(
            session,
            started=self._started,
            seconds=round(time.monotonic() - self._clock, 3),
            first_step=self._first,
        )
        records.save(replace(record, sessions=(*self._earlier, now)), self._path)


def read_record(path: Path) -> TrainingRecord | None:
    """Return a training's record, None if there is none, as of a training by an earlier version."""
    return records.load(TrainingRecord, path) if path.is_file() else None


def device_words(device: torch.device) -> str:
    """Return which device it is, as ``cuda:0, NVIDIA H200``."""
    return f"{device}, {torch.cuda.get_device_name(device)}" if device.type == "cuda" else str(device)


def processor() -> str:
    """Return the processor's name."""
    listing = Path("/proc/cpuinfo")
    found = None
    if listing.is_file():
        found = re.search(r"^model name\s*:\s*(.+)$", listing.read_text(errors="replace"), re.MULTILINE)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return f"{found[1] if found else platform.processor() or platform.machine()}, {cores} cores"


def _sessions(path: Path, step: int) -> tuple[Session, ...]:
    """The sessions before a resumption at ``step``; what one did beyond it is done again."""
    try:
        record = read_record(path)
    except UsageError:  # damaged or foreign: the training itself does not need it
        return ()
    kept = [session for session in record.sessions if session.first_step < step] if record else []
    return tuple(replace(session, last_step=min(session.last_step, step)) for session in kept)
