"""An LSTM that reads scikit-learn's handwritten digits row by row: 8 steps of 8 pixels."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F

from mpdeploy.train import Arrays, Data, Recipe, TensorSpec, accuracy


class RowReader(nn.Module):
    """Rows (n, 8, 8) to logits (n, 10), from the state after the last row."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, width, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        states, _ = self.lstm(rows)
        return self.head(states[:, -1])


def digits() -> Data:
    """Return the images split 80 : 20, every digit in both parts in proportion, always the same way."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 8, 8)
    labels = labels.astype(np.int64)
    train_x, held_x, train_y, held_y = train_test_split(images, labels, test_size=0.2, stratify=labels, random_state=0)
    return Data(Arrays((train_x,), train_y), Arrays((held_x,), held_y))


recipe = Recipe(
    inputs=(TensorSpec("rows", "float32", ("batch", 8, 8)),),
    outputs=("logits",),
    model=RowReader,
    data=digits,
    optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=5e-3),
    schedule=lambda optimizer, steps: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps),
    loss=F.cross_entropy,
    metric=accuracy,
    epochs=20,
    batch_size=64,
    clip_norm=1.0,
)
