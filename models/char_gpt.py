"""A character-level GPT on the manual that ships with Python: half a million characters of `pydoc_data.topics`."""

from pydoc_data.topics import topics

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from mpdeploy.train import Arrays, Data, Metric, Recipe, TensorSpec

LENGTH = 64
CHARACTERS = 97  # printable ASCII, the line's end, and one for all others


class Block(nn.Module):
    """Causal attention, then an MLP on each position; both add to what goes in, (n, time, width)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the positions after attention and MLP."""
        parts = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.project(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """Characters (n, time) to logits of the next one (n, time, 97)."""

    def __init__(self, width: int = 96, heads: int = 4, depth: int = 3) -> None:
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, width)
        self.positions = nn.Parameter(torch.randn(LENGTH, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CHARACTERS, bias=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        x = self.characters(text) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def manual() -> Data:
    """Return the manual in pieces of 64 characters and their successors; every tenth piece is held out."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    codes = np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int64)
    numbers = np.where(codes == ord("\n"), 95, np.where((codes >= 32) & (codes < 127), codes - 32, 96))
    count = (len(numbers) - 1) // LENGTH
    pieces = numbers[: count * LENGTH].reshape(count, LENGTH)
    after = numbers[1 : count * LENGTH + 1].reshape(count, LENGTH)
    held = np.arange(count) % 10 == 9
    return Data(Arrays((pieces[~held],), after[~held]), Arrays((pieces[held],), after[held]))


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean over all positions, in nats."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def bits_per_character(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean over the positions of each piece, in bits."""
    return F.cross_entropy(logits.transpose(1, 2), labels, reduction="none").mean(1) / np.log(2)


recipe = Recipe(
    inputs=(TensorSpec("text", "int64", ("batch", LENGTH)),),
    outputs=("logits",),
    model=Gpt,
    data=manual,
    optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2),
    schedule=lambda optimizer, steps: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps),
    loss=cross_entropy,
    metric=Metric("bits per character", bits_per_character, higher_is_better=False),
    epochs=3,
    batch_size=32,
    clip_norm=1.0,
)
