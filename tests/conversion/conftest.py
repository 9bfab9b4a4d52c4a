"""The harness and the graphs are modules beside the tests."""

import sys
import tempfile
from pathlib import Path

import pytest

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

_MEMORY = Path("/dev/shm")  # noqa: S108 - a thousand conversions wait for the disk; here they need not


@pytest.fixture
def folder(tmp_path):
    """An empty folder, in memory where the system has such a place."""
    if not _MEMORY.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=_MEMORY) as made:
        yield Path(made)
