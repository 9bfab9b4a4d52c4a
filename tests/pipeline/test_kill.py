"""A pipeline that is killed at any moment goes on where it was, and never shows files of two runs.

A helper process imports everything once and forks a child for each run, so that a kill costs a second, not ten.
"""

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mpdeploy import records
from mpdeploy.bundle.check import check_bundle
from mpdeploy.files import sha256_of
from mpdeploy.pipeline.stages import RECORD, StageRecord, _hashes

KILLS = 50

HELPER = """
import json, os, signal, sys, time
import torch
torch.set_num_threads(1)
import warnings
warnings.simplefilter("ignore")
import onnxruntime, scipy.stats
from pathlib import Path
from mpdeploy.pipeline import deploy, read_deployment
import mpdeploy.source.opening, mpdeploy.train.loop
torch.onnx.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),), dynamo=True, verbose=False)  # loads its registry

print("ready", flush=True)
for line in sys.stdin:
    order = json.loads(line)
    started = time.monotonic()
    child = os.fork()
    if not child:
        result = deploy(read_deployment(Path(order["file"])))
        os._exit(0 if result.passed else 1)
    status = None
    while status is None:
        done, code = os.waitpid(child, os.WNOHANG)
        if done:
            status = code
        elif time.monotonic() - started > order["seconds"]:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            status = -9
        else:
            time.sleep(0.002)
    print(json.dumps({"status": status, "seconds": time.monotonic() - started}), flush=True)
"""


class Helper:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HELPER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        while (line := self.process.stdout.readline()).strip() != "ready":
            assert line, "the helper died"

    def run(self, file: Path, seconds: float = 60.0) -> dict[str, float]:
        self.process.stdin.write(json.dumps({"file": str(file), "seconds": seconds}) + "\n")
        self.process.stdin.flush()
        while not (line := self.process.stdout.readline()).startswith("{"):
            assert line, "the helper died"
        return json.loads(line)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def helper():
    helper = Helper()
    yield helper
    helper.close()


def variant(home: Path, seed: int, output: str) -> Path:
    path = home / f"{output}-{seed}.toml"
    text = (home / "deploy.toml").read_text()
    path.write_text(text.replace("seed = 1", f"seed = {seed}").replace('"out"', f'"{output}"'))
    return path


def finished(output: Path) -> dict[str, int]:
    """The finished stages, each whole, with what tells whether one was made anew."""
    found = {}
    for folder in output.glob("stages/*"):
        if folder.suffix not in (".part", ".gone"):
            record = records.load(StageRecord, folder / RECORD)
            assert _hashes(folder) == record.files, folder
            found[folder.name] = (folder / RECORD).stat().st_ino
    return found


def shown(output: Path) -> tuple[str, ...]:
    """The hashes of the released models, after a check that all of the release is of one run."""
    manifest = check_bundle(output / "release")
    low = next(model for model in manifest.models if model.verdict)
    full = next(file for file in manifest.files if file.path.endswith("/model.onnx"))
    assert low.verdict.reference_sha256 == full.sha256
    return str(manifest.training.seed), full.sha256, sha256_of(output / "release" / low.path)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_fifty_times_it_never_mixes_and_never_does_a_finished_stage_again(home, helper):
    random.seed(7)
    clean, took = {}, 0.0
    for seed in (1, 2):
        took = helper.run(variant(home, seed, f"clean{seed}"))["seconds"]
        clean[seed] = shown(home / f"clean{seed}")
    assert clean[1] != clean[2]

    output, seed, kills, completed = home / "out", 1, 0, 0
    in_a_row = 0
    known: dict[str, int] = {}
    while kills < KILLS:
        # A machine that has become slower would never let it end: after some kills it may take its time.
        patience = random.uniform(0, took) if in_a_row < KILLS // 4 else 200.0
        ended = helper.run(variant(home, seed, "out"), patience)
        now = finished(output)
        for name, inode in known.items():
            assert now.get(name, inode) == inode, f"{name} was done again"
        if (output / "release").exists():
            assert shown(output) in clean.values()
        known = now
        if ended["status"] == -9:
            kills, in_a_row = kills + 1, in_a_row + 1
        else:
            in_a_row = 0
            assert ended["status"] == 0
            assert shown(output) == clean[seed]
            completed += 1
            seed, known = 3 - seed, {}
            if completed % 3 == 0:
                shutil.rmtree(output)
    assert helper.run(variant(home, seed, "out"))["status"] == 0
    assert shown(output) == clean[seed]
    assert completed >= 3
    left = {path.name.partition("-")[0] for path in (output / "stages").iterdir()}
    assert left == {"train", "export", "convert", "verify", "report", "bundle"}, "nothing half-made is left"
