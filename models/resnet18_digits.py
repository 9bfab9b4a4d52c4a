"""ResNet-18 (He et al., 2016) with a stem for small images, on scikit-learn's handwritten digits, 8 × 8 pixels."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F

from mpdeploy.train import Arrays, Data, Recipe, TensorSpec, accuracy


class BasicBlock(nn.Module):
    """Two 3 × 3 convolutions around a shortcut; halves the image where ``stride`` is 2."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.shortcut = nn.Sequential()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return relu(shortcut(x) + branch(x))."""
        branch = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(self.shortcut(x) + branch)


class ResNet18(nn.Module):
    """Images (n, 1, h, w) to logits (n, 10); 11.2 million weights."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        widths = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
        blocks = [(BasicBlock(a, b, s), BasicBlock(b, b, 1)) for a, b, s in widths]
        self.stages = nn.Sequential(*(block for pair in blocks for block in pair))
        self.head = nn.Linear(512, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        return self.head(self.stages(self.stem(image)).mean((2, 3)))


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
    model=ResNet18,
    data=digits,
    optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2),
    schedule=lambda optimizer, steps: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps),
    loss=F.cross_entropy,
    metric=accuracy,
    epochs=6,
    batch_size=64,
)
