"""A tiny vision transformer (Dosovitskiy et al., 2021) on scikit-learn's handwritten digits, 16 patches of 2 × 2."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F

from mpdeploy.train import Arrays, Data, Recipe, TensorSpec, accuracy


class Block(nn.Module):
    """Attention over the patches, then an MLP on each; both add to what goes in, (n, patches, width)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the patches after attention and MLP."""
        parts = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        x = x + self.project(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """Images (n, 1, 8, 8) to logits (n, 10)."""

    def __init__(self, width: int = 64, heads: int = 4, depth: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, 2)
        self.positions = nn.Parameter(torch.randn(16, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return the logits, from the mean over all patches."""
        x = self.patches(image).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


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
    model=VisionTransformer,
    data=digits,
    optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=5e-2),
    schedule=lambda optimizer, steps: torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps + 1),
    loss=F.cross_entropy,
    metric=accuracy,
    epochs=20,
    batch_size=64,
    clip_norm=1.0,
)
