"""How much memory there is."""

import contextlib
from pathlib import Path

_MEMORY = Path("/proc/meminfo")


def free_memory() -> float:
    """Return the bytes that a process may still take; infinite where the system does not tell."""
    with contextlib.suppress(OSError, StopIteration):
        line = next(line for line in _MEMORY.read_text().splitlines() if line.startswith("MemAvailable"))
        return float(line.split()[1]) * 1024
    return float("inf")
