"""A U-Net (Ronneberger et al., 2015) that removes noise from scikit-learn's two sample photographs."""

import numpy as np
import torch
from sklearn.datasets import load_sample_images
from torch import nn
from torch.nn import functional as F

from mpdeploy.train import Arrays, Data, Metric, Recipe, TensorSpec

SIDE = 32  # pixels of a crop
NOISE = 0.1  # standard deviation, of a range from 0 to 1


class Convolutions(nn.Sequential):
    """Two 3 × 3 convolutions; (n, before, h, w) to (n, after, h, w)."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__(
            nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.Conv2d(after, after, 3, padding=1), nn.ReLU()
        )


class UNet(nn.Module):
    """Noisy images (n, 3, h, w) to clean ones of the same shape; height and width are multiples of 4."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.down1, self.down2 = Convolutions(3, width), Convolutions(width, 2 * width)
        self.bottom = Convolutions(2 * width, 4 * width)
        self.widen2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.widen1 = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.up2, self.up1 = Convolutions(4 * width, 2 * width), Convolutions(2 * width, width)
        self.noise = nn.Conv2d(width, 3, 1)

    def forward(self, noisy: torch.Tensor) -> torch.Tensor:
        """Return the image less the noise that was found in it."""
        fine = self.down1(noisy)
        coarse = self.down2(F.max_pool2d(fine, 2))
        x = self.widen2(self.bottom(F.max_pool2d(coarse, 2)))
        x = self.widen1(self.up2(torch.cat((x, coarse), 1)))
        return noisy - self.noise(self.up1(torch.cat((x, fine), 1)))


def photographs() -> Data:
    """Return crops with noise and without; the left three quarters of each photograph are to learn from."""
    learned, held = [], []
    for photograph in load_sample_images().images:
        image = photograph.astype(np.float32).transpose(2, 0, 1) / 255
        rows, columns = image.shape[1] // SIDE, image.shape[2] // SIDE
        for row in range(rows):
            for column in range(columns):
                crop = image[:, row * SIDE : (row + 1) * SIDE, column * SIDE : (column + 1) * SIDE]
                (learned if column < columns * 3 // 4 else held).append(crop)
    noise = np.random.default_rng(0)

    def noisy(crops: list[np.ndarray]) -> Arrays:
        clean = np.stack(crops)
        return Arrays((clean + NOISE * noise.standard_normal(clean.shape, dtype=np.float32),), clean)

    return Data(noisy(learned), noisy(held))


def decibels(image: torch.Tensor, clean: torch.Tensor) -> torch.Tensor:
    """Return the peak signal-to-noise ratio of each image, in dB."""
    return -10 * (image - clean).square().mean((1, 2, 3)).log10()


recipe = Recipe(
    inputs=(TensorSpec("noisy", "float32", ("batch", 3, SIDE, SIDE)),),
    outputs=("clean",),
    model=UNet,
    data=photographs,
    optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=3e-3),
    schedule=lambda optimizer, steps: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps),
    loss=F.mse_loss,
    metric=Metric("PSNR in dB", decibels),
    epochs=10,
    batch_size=8,
    ema_decay=0.95,
)
