"""The torch dtype of each number format that training uses."""

import torch

from mpdeploy.numerics.formats import Format

# TF32 is a way to multiply; its operands and results are stored as float32.
TORCH_DTYPES = {
    Format.FP32: torch.float32,
    Format.TF32: torch.float32,
    Format.BF16: torch.bfloat16,
    Format.FP16: torch.float16,
}


def is_low(tensor: torch.Tensor) -> bool:
    """Return whether a tensor holds floating-point numbers of less than FP32's precision."""
    return tensor.is_floating_point() and tensor.dtype.itemsize < torch.float32.itemsize


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as FP32 if its own format is lower, else as it is."""
    return tensor.float() if is_low(tensor) else tensor
