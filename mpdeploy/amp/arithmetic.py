"""The arithmetic in which forward and backward passes run."""

import contextlib
from collections.abc import Iterator

import torch

from mpdeploy.amp.dtypes import TORCH_DTYPES
from mpdeploy.amp.low_products import low_products
from mpdeploy.amp.tf32 import fp32_products
from mpdeploy.numerics.formats import LOW_FORMATS, Format


@contextlib.contextmanager
def autocast(device: str, compute: Format) -> Iterator[None]:
    """Run a forward pass inside: matrix products and convolutions compute in ``compute``."""
    low = torch.autocast(device, TORCH_DTYPES[compute], enabled=compute in LOW_FORMATS)
    with _products(device, compute, autocast=True), low:
        yield


@contextlib.contextmanager
def products(device: str, compute: Format) -> Iterator[None]:
    """Decide how products are computed while the context lasts, without autocast: a backward pass."""
    with _products(device, compute, autocast=False):
        yield


@contextlib.contextmanager
def _products(device: str, compute: Format, *, autocast: bool) -> Iterator[None]:
    # At low-precision levels what is left in FP32 stays as the user has set it.
    wide = contextlib.nullcontext() if compute in LOW_FORMATS else fp32_products(tf32=compute is Format.TF32)
    with wide, low_products(device, compute, autocast=autocast):
        yield
