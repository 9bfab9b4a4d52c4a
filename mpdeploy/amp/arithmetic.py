"""The arithmetic in which forward and backward passes run."""

import contextlib
from collections.abc import Iterator

import torch

from mpdeploy.amp.dtypes import TORCH_DTYPES
from mpdeploy.amp.half_products import half_products
from mpdeploy.numerics.formats import LOW_FORMATS, Format


@contextlib.contextmanager
def autocast(device: str, compute: Format) -> Iterator[None]:
    """Run a forward pass inside: matrix products and convolutions compute in ``compute``."""
    low = torch.autocast(device, TORCH_DTYPES[compute], enabled=compute in LOW_FORMATS)
    with products(device, compute), low:
        yield


@contextlib.contextmanager
def products(device: str, compute: Format) -> Iterator[None]:
    """Decide how products are computed while the context lasts: a forward pass, or a backward pass."""
    with _fp32_products(compute), half_products(device, compute):
        yield


@contextlib.contextmanager
def _fp32_products(compute: Format) -> Iterator[None]:
    """Decide whether FP32 products may round to TF32 while the context lasts: for TF32 they may, for FP32 not.

    Left to itself torch lets cuDNN's convolutions use TF32 and matrix products not.  On a CPU nothing changes.
    At low-precision levels what is left in FP32 stays as the user has set it.
    """
    if compute in LOW_FORMATS:
        yield
        return
    products, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    allowed = compute is Format.TF32
    try:
        torch.set_float32_matmul_precision("high" if allowed else "highest")
        torch.backends.cudnn.allow_tf32 = allowed
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions
