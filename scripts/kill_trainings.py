"""Kill `mpdeploy train` again and again, resume it each time, and compare the end with a training left alone.

    python scripts/kill_trainings.py --kills 30

The recipe draws from every kind of random numbers in workers and in the model, has a schedule and an average of the
weights, and trains in fp16-master.  All files but the record of where and when must be equal byte by byte.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RECIPE = """
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from mpdeploy.train import Data, Recipe, TensorSpec, accuracy


class Blobs(Dataset):
    def __init__(self, count, noisy):
        self.count, self.noisy = count, noisy

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        x = torch.zeros(16)
        x[index % 4] = 1.0
        if self.noisy:
            x = x + 0.3 * torch.randn(16) + 0.1 * random.random() + 0.1 * np.random.rand()
        return x, index % 4


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 4))

    def forward(self, x):
        if self.training:
            x = x * (1 + 0.1 * random.random() + 0.1 * np.random.rand())
        return self.body(x)


recipe = Recipe(
    inputs=(TensorSpec("x", "float32", ("n", 16)),),
    outputs=("y",),
    model=Net,
    data=lambda: Data(DataLoader(Blobs(1600, True), 32, shuffle=True, num_workers=2), Blobs(200, False)),
    loss=nn.functional.cross_entropy,
    metric=accuracy,
    optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=3e-3),
    schedule=lambda optimizer, steps: torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, steps),
    epochs=6,
    batch_size=32,
    ema_decay=0.95,
    level="fp16-master",
)
"""
FILES = ("model.pt", "best.pt", "telemetry.jsonl")
MAIN = "import sys, torch; torch.set_num_threads(1); from mpdeploy.cli import main; main(sys.argv[1:])"


def start(recipe: Path, folder: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", MAIN, "train", str(recipe), "-o", str(folder), "-q", "--save-every", "3"]
    resume = ["--resume"] if any((folder / "states").glob("[0-9]*.pt")) else []
    return subprocess.Popen(
        [*words, *resume], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def steps_in(folder: Path) -> int:
    return max((int(path.stem) for path in (folder / "states").glob("[0-9]*.pt")), default=-1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    moments = random.Random(options.seed)  # noqa: S311 - no secret
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = folder / "recipe.py"
        recipe.write_text(RECIPE)
        whole = start(recipe, folder / "whole")
        _, err = whole.communicate()
        if whole.returncode:
            sys.exit(err)
        total, kills = steps_in(folder / "whole"), 0
        while True:
            process = start(recipe, folder / "killed")
            # Far enough to leave something to do for all the kills that are to come.
            goal = total * (kills + 1) // (options.kills + 1) - 3
            while kills < options.kills and process.poll() is None and steps_in(folder / "killed") < goal:
                time.sleep(0.005)
            if kills < options.kills and process.poll() is None:
                time.sleep(moments.uniform(0, 0.2))
                os.killpg(process.pid, signal.SIGKILL)
            _, err = process.communicate()
            if process.returncode == 0:
                break
            if process.returncode != -signal.SIGKILL:
                sys.exit(err)
            kills += 1
            print(f"kill {kills}: at step {steps_in(folder / 'killed')} of {total}", flush=True)
        ends = [[(folder / run / name).read_bytes() for name in FILES] for run in ("whole", "killed")]
        equal = {name: one == two for name, one, two in zip(FILES, *ends, strict=True)}
    print(f"{kills} kills; equal byte by byte: " + ", ".join(f"{name} {same}" for name, same in equal.items()))
    return 0 if all(equal.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
