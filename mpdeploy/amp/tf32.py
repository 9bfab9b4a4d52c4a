"""Whether FP32 products may round to TF32, by whichever of torch's two ways of saying so is in use."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def fp32_products(*, tf32: bool) -> Iterator[None]:
    """Let FP32 products round to TF32 while the context lasts, or forbid it.

    Left to itself torch lets cuDNN's convolutions use TF32 and matrix products not.  On a CPU nothing changes.
    """
    try:
        products, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    except RuntimeError:  # the user took the way that came with torch 2.9, and then torch refuses to read the old one
        with _by_backend("tf32" if tf32 else "ieee"):
            yield
        return
    try:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = tf32
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions


@contextlib.contextmanager
def _by_backend(wanted: str) -> Iterator[None]:
    cudnn: Any = torch.backends.cudnn
    backends: tuple[Any, ...] = (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)
    changed = [(backend, backend.fp32_precision) for backend in backends if backend.fp32_precision != wanted]
    try:
        for backend, _ in changed:
            backend.fp32_precision = wanted
        yield
    finally:
        for backend, before in changed:
            backend.fp32_precision = "none"  # what stands above it decides, as perhaps it did
            if backend.fp32_precision != before:
                backend.fp32_precision = before
