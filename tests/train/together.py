"""Run by torchrun: does one training after the other together, and writes how they went, one file per process."""

import json
import sys
from pathlib import Path

import torch

from mpdeploy.amp import Level
from mpdeploy.amp.agreement import agree
from mpdeploy.train.loading import load_recipe
from mpdeploy.train.loop import Settings, Training
from mpdeploy.train.world import Sharding, end_at_once, join

if __name__ == "__main__":
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    world = join()
    skipped: dict[str, list[int]] = {}
    for recipe, folder, level, sharding, stop_after, resume in json.loads(sys.argv[2]):
        settings = Settings(Level.named(level), 2, save_every=4, keep=2, look_every=5, sharding=Sharding(sharding))
        training = Training(load_recipe(Path(recipe)), out / folder, settings, resume=resume, world=world)
        for step in training.steps():
            if step.result.skipped:
                skipped.setdefault(folder, []).append(step.step)
            if step.step + 1 == stop_after:
                break
        else:
            training.finish()
    flags = torch.tensor([float(world.rank), 0.0])
    agree(flags, world.group)
    (out / f"{world.rank}.json").write_text(json.dumps({"skipped": skipped, "agreed": flags.tolist()}))
    world.leave()
    end_at_once(0)
