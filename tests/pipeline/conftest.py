"""A recipe that trains in a moment, and deployments of it."""

from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)

# Two clouds of points that a small network tells apart at once.
RECIPE = """
import numpy as np
import torch
from torch import nn
from mpdeploy.train import Arrays, Data, Recipe, TensorSpec, accuracy


def data():
    rng = np.random.default_rng(0)
    labels = np.arange(160, dtype=np.int64) % 2
    x = rng.normal(size=(160, 8)).astype(np.float32) + 3 * labels[:, None].astype(np.float32)
    return Data(Arrays((x[:128],), labels[:128]), Arrays((x[128:],), labels[128:]))


recipe = Recipe(
    inputs=(TensorSpec("point", "float32", ("batch", 8)),),
    outputs=("logits",),
    model=lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)),
    data=data,
    optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
    loss=nn.functional.cross_entropy,
    metric=accuracy,
    epochs=2,
    batch_size=32,
)
"""

DEPLOY = """
output = "out"

[train]
recipe = "clouds.py"
seed = 1

[convert]
precision = ["fp16"]

[bundle]
name = "clouds"
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with `clouds.py` and `deploy.toml`; the test stands in it."""
    monkeypatch.chdir(tmp_path)
    Path("clouds.py").write_text(RECIPE)
    Path("deploy.toml").write_text(DEPLOY)
    return tmp_path
