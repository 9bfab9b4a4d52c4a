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
