"""Transformers on torch's plain road: the arithmetic that an export has."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def plain_attention() -> Iterator[None]:
    """Run a module inside without the short cut that torch takes through ``nn.TransformerEncoder`` in evaluation.

    With a padding mask the short cut leaves out padded positions and fills them with zeros, which the layers as
    written, and so an export, do not (pytorch issues 86120 and 97111).
    """
    import torch

    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)
