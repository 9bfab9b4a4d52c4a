"""A disk that fills up at any moment of a run, or is read-only: what was there stays, and the next run goes on."""

import subprocess
from pathlib import Path

import pytest

from mpdeploy.errors import UsageError
from mpdeploy.files import sha256_of
from mpdeploy.pipeline import deploy, read_deployment

ROOM = 4 << 20  # enough for two runs of the deployment
PAGE = 4096


@pytest.fixture
def disk(tmp_path):
    """A file system of its own, where there may be one."""
    place = tmp_path / "disk"
    place.mkdir()
    try:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", str(place)], capture_output=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if done.returncode:
        pytest.skip("only the superuser may mount")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def leave(disk: Path, room: int) -> None:
    """Fill the disk but for ``room`` bytes."""
    filler = disk / "filler"
    filler.unlink(missing_ok=True)
    if room >= ROOM:
        return
    taken = sum(file.stat().st_blocks * 512 for file in disk.rglob("*") if not file.is_symlink())
    filler.write_bytes(bytes(max(0, ROOM - taken - room)))


def shown(output: Path) -> dict[str, str]:
    return {
        str(file.relative_to(output)): sha256_of(file)
        for link in ("latest", "release")
        for file in (output / link).resolve().rglob("*")
        if file.is_file()
    }


def variant(home: Path, seed: int, disk: Path):
    text = (home / "deploy.toml").read_text().replace("seed = 1", f"seed = {seed}")
    path = home / f"{seed}.toml"
    path.write_text(text.replace('"out"', f'"{disk / "out"}"'))
    return read_deployment(path)


@pytest.mark.slow
def test_a_disk_that_fills_up_or_may_not_be_written(home, disk):
    deploy(variant(home, 1, disk))
    before, faults = shown(disk / "out"), []
    for room in (0, *(PAGE << step for step in range(1, 9)), ROOM):
        leave(disk, room)
        try:
            deploy(variant(home, 2, disk))
        except UsageError as error:
            faults.append(error.what)
        else:
            break
        assert shown(disk / "out") == before
    assert set(faults) == {"cannot write the output: No space left on device"}
    assert len(faults) >= 4
    assert shown(disk / "out") != before
    after = shown(disk / "out")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(UsageError, match="cannot write the output: Read-only file system"):
        deploy(variant(home, 1, disk))
    assert shown(disk / "out") == after
