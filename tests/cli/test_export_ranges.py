"""What training measured decides where a checkpoint comes without data; where there are data, they decide."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from mpdeploy import records
from mpdeploy.plan.record import PrecisionPlan

torch.set_num_threads(1)  # tests share the processor

# Between two layers the values become a million times larger: beyond FP16, and nothing in the graph says so.
RECIPE = """
import numpy as np
import torch
from torch import nn
from mpdeploy.train import Arrays, Data, Recipe, TensorSpec, accuracy


class Loud(nn.Module):
    def forward(self, x):
        return x * 1e3


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.loud, self.last = nn.Linear(8, 16), Loud(), nn.Linear(16, 2)

    def forward(self, point):
        return self.last(self.loud(self.loud(self.first(point))) * 1e-3 * 1e-3)


def data():
    rng = np.random.default_rng(0)
    labels = np.arange(320, dtype=np.int64) % 2
    x = rng.normal(size=(320, 8)).astype(np.float32) + 3 * labels[:, None].astype(np.float32)
    return Data(Arrays((x[:256],), labels[:256]), Arrays((x[256:],), labels[256:]))


recipe = Recipe(
    inputs=(TensorSpec("point", "float32", ("batch", 8)),),
    outputs=("logits",),
    model=Net,
    data=data,
    optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3),
    loss=nn.functional.cross_entropy,
    metric=accuracy,
    epochs=1,
    batch_size=32,
)
"""


@pytest.fixture
def checkpoint(tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    Path("models/loud.py").write_text(RECIPE)
    assert cli("train", "models/loud.py", "--precision", "fp32", "-q").code == 0
    return Path("runs/loud/model.pt")


def loud(cli, checkpoint, *words):
    """Export, and return the plan, with what it says of the operator that makes the values large."""
    done = cli("export", checkpoint, "-o", "out", *words, "-q")
    assert done.code == 0, done.err
    plan = records.load(PrecisionPlan, Path("out/model.fp16.plan.json"))
    return plan, [d for d in plan.decisions if d.op == "Mul"][1]


def test_without_data_the_ranges_of_the_training_decide(cli, checkpoint):
    for name in ("calibration", "heldout"):
        shutil.rmtree(checkpoint.parent / name)
    plan, decision = loud(cli, checkpoint)
    assert plan.data.name == "training of loud.py"
    assert (decision.format.value, decision.code) == ("fp32", "MP106")
    assert "measured in training" in decision.reason


def test_data_decide_before_them(cli, checkpoint):
    plan, decision = loud(cli, checkpoint)
    assert plan.data.name.endswith("calibration")
    assert (decision.format.value, decision.code) == ("fp32", "MP101")
    np.savez("quiet.npz", point=np.zeros((4, 8), np.float32))
    plan, _ = loud(cli, checkpoint, "--data", "quiet.npz")
    assert plan.data.name.endswith("quiet.npz")
