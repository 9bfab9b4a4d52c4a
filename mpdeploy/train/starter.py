"""A recipe to start from: it trains as it stands.  Put your own model and data in the place of these.

mpdeploy train RECIPE            trains it
mpdeploy train RECIPE --resume   goes on where a training was stopped
"""

import math

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, Dataset

from mpdeploy.train import Data, Recipe, TensorSpec, accuracy

BATCH = 64


class Spirals(Dataset[tuple[torch.Tensor, int]]):
    """Points of three spirals in the plane: (x, y), and which spiral it is.  Any map-style Dataset will do."""

    def __init__(self, count: int, seed: int) -> None:
        numbers = torch.Generator().manual_seed(seed)
        self.classes = torch.arange(count) % 3
        radius = torch.rand(count, generator=numbers)
        angle = 4 * radius + 2 * math.pi / 3 * self.classes + 0.1 * torch.randn(count, generator=numbers)
        self.points = torch.stack((radius * angle.cos(), radius * angle.sin()), 1)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        # What is drawn at random here, to augment, follows from seed, epoch and index: --resume draws it again.
        return self.points[index], int(self.classes[index])


class Net(nn.Module):
    """Points (n, 2) to logits (n, 3)."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, 3)

    def forward(self, point: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        logits: torch.Tensor = self.head(self.body(point))
        return logits


def data() -> Data:
    """Return what to learn from, and what to measure with.

    The loop shuffles by itself.  A DataLoader adds workers, pinned memory, a sampler or a collate_fn, as in
    DataLoader(Spirals(3000, 0), BATCH, num_workers=4, pin_memory=True).
    """
    return Data(DataLoader(Spirals(3000, seed=0), BATCH), Spirals(600, seed=1))


recipe = Recipe(
    # What the exported model takes and returns: names, types, and shapes with a name for each axis that may change.
    inputs=(TensorSpec("point", "float32", ("batch", 2)),),
    outputs=("logits",),
    model=Net,
    data=data,
    loss=nn.functional.cross_entropy,  # gets FP32 outputs and the labels
    metric=accuracy,  # Metric("name", score) of your own; several in (…); without one the held-out loss decides
    optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
    schedule=lambda optimizer, steps: CosineAnnealingLR(optimizer, steps),  # or a ReduceLROnPlateau
    epochs=8,
    batch_size=BATCH,
    level="bf16-mixed",  # fp32, fp16-mixed, bf16-master, …; --precision says another
    # clip_norm=1.0,                   the gradient's 2-norm is at most this
    # ema_decay=0.999,                 an average of the weights is kept, measured and shipped
    # accumulate="auto",               a batch goes through the model in parts once memory runs out
    # checkpointing=("body.*",),       these modules compute activations again instead of keeping them
    # fp32_modules=("head",),          these compute in FP32, in training and after conversion
    # on_epoch_end=lambda epoch, metrics: print(epoch, metrics),  may raise mpdeploy.train.StopTraining
)
