import pytest
import torch

torch.set_num_threads(1)

# A user's own recipe: an MLP on real digits, with dropout so that random numbers matter.
MLP = """
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from mpdeploy.train import Arrays, Data, Recipe, TensorSpec, accuracy


def data():
    x, y = load_digits(return_X_y=True)
    x, y = (x / 16).astype(np.float32), y.astype(np.int64)
    return Data(Arrays((x[:1500],), y[:1500]), Arrays((x[1500:],), y[1500:]))


recipe = Recipe(
    inputs=(TensorSpec("pixels", "float32", ("batch", 64)),),
    outputs=("logits",),
    model=lambda: nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10)),
    data=data,
    optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=5e-3),
    schedule=lambda optimizer, steps: torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, steps),
    loss=nn.functional.cross_entropy,
    metric=accuracy,
    epochs=3,
    batch_size=100,
    clip_norm=5.0,
)
"""


@pytest.fixture(scope="session")
def mlp_text():
    return MLP


@pytest.fixture
def mlp(tmp_path):
    path = tmp_path / "my_mlp.py"
    path.write_text(MLP)
    return path
