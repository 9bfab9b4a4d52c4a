"""A small residual CNN on scikit-learn's handwritten digits: 1797 real images of 8 × 8 pixels, ten classes."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F

from mpdeploy.train import Arrays, Data, Recipe, TensorSpec, accuracy


class ResidualBlock(nn.Module):
    """Two 3 × 3 convolutions that add to what goes in; shape stays (n, channels, h, w)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return relu(x + branch(x))."""
        branch = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(x + branch)


class DigitsCnn(nn.Module):
    """Images (n, 1, 8, 8) in [0, 1] to logits (n, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
        self.block1 = ResidualBlock(32)
        self.widen = nn.Sequential(nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        self.block2 = ResidualBlock(64)
        self.head = nn.Linear(64, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        x = self.block2(self.widen(self.block1(self.stem(image))))
        return self.head(x.mean((2, 3)))


def digits() -> Data:
    """Return the images split 80 : 20, every digit in both parts in proportion, always the same way."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    labels = labels.astype(np.int64)
    train_x, held_x, train_y, held_y = train_test_split(images, labels, test_size=0.2, stratify=labels, random_state=0)
    return Data(Arrays((train_x,), train_y), Arrays((held_x,), held_y))


recipe = Recipe(
    inputs=(TensorSpec("image", "float32", ("batch", 1, 8, 8)),),
    outputs=("logits",),
    model=DigitsCnn,
    data=digits,
    optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2),
    schedule=lambda optimizer, steps: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps),
    loss=F.cross_entropy,
    metric=accuracy,
    epochs=12,
    batch_size=64,
)
