"""The arithmetic in which forward and backward passes run."""

import contextlib
from collections.abc import Iterator

import torch

from mpdeploy.amp.dtypes import TORCH_DTYPES
from mpdeploy.numerics.formats import LOW_FORMATS, Format


@contextlib.contextmanager
def autocast(device: str, compute: Format) -> Iterator[None]:
    """Run a forward pass inside: matrix products and convolutions compute in ``compute``."""
    low = torch.autocast(device, TORCH_DTYPES[compute], enabled=compute in LOW_FORMATS)
    with fp32_products(compute), _kernels_that_exist(device, compute), low:
        yield


@contextlib.contextmanager
def _kernels_that_exist(device: str, compute: Format) -> Iterator[None]:
    """Keep oneDNN out of FP16 on a processor without FP16 units: it takes an LSTM, then finds that it has no kernel.

    torch's own kernels are as fast there, and complete.
    """
    torch_alone = device == "cpu" and compute is Format.FP16 and not torch.ops.mkldnn._is_mkldnn_fp16_supported()
    # None leaves TF32 as it is; to set it, either way, brings a warning where there is no Intel GPU.
    with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None) if torch_alone else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def fp32_products(compute: Format) -> Iterator[None]:
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
