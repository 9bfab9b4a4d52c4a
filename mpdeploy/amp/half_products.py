"""FP16 products on a processor without FP16 units: computed in FP32 and rounded to FP16.

That is what a GPU's tensor cores do: they sum in FP32.  torch's own FP16 kernels for such a processor are 18 to 58
times slower than its FP32 ones (matrix products and convolutions, measured on an AVX-512 processor), and oneDNN takes
an LSTM in FP16 and then finds that it has no kernel.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mpdeploy.numerics.formats import Format

_PRODUCTS = {
    getattr(torch.ops.aten, name).default
    for name in (
        "mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "addr", "_trilinear",
        "convolution", "convolution_backward", "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward",
        "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward",
    )
}  # fmt: skip
# Attention hands the logarithm of its softmax's sum to its backward pass, in FP32 whatever its inputs are.
_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_ATTENTION_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
_LOGSUMEXP = 1


class Fp32Sums(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's class is not typed
    """While active, products of FP16 tensors are computed in FP32 and rounded to FP16 once, at their end.

    ``autocast`` tells that it is active around a region of FP16 autocast.
    """

    def __init__(self, *, autocast: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._autocast = autocast

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Compute one operator; see the class."""
        named = kwargs or {}
        if torch.is_inference_mode_enabled() and func not in _PRODUCTS:
            # There, operators that are made of others arrive whole, and with autocast switched off beneath them.
            with self, torch.autocast("cpu", torch.float16, enabled=self._autocast):
                results = func.decompose(*args, **named)
            return func(*args, **named) if results is NotImplemented else results
        if func not in _PRODUCTS or not _all_half(func, (*args, *named.values())):
            return func(*args, **named)
        results = func(*map(_widened, args), **{name: _widened(value) for name, value in named.items()})
        if isinstance(results, torch.Tensor):
            return results.half()
        kept = _LOGSUMEXP if func is _ATTENTION else None
        return tuple(result.half() if i != kept and _is_float(result) else result for i, result in enumerate(results))


@contextlib.contextmanager
def half_products(device: str, compute: Format, *, autocast: bool) -> Iterator[None]:
    """Run a forward or backward pass on ``device`` in ``compute`` inside; nothing changes elsewhere."""
    lacks_units = device == "cpu" and compute is Format.FP16 and not torch.ops.mkldnn._is_mkldnn_fp16_supported()
    if not lacks_units:
        yield
        return
    # torch's short cut through attention is one operator, beneath which there is neither autocast nor this mode.
    short_cut = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with Fp32Sums(autocast=autocast):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(short_cut)


def _all_half(product: Any, arguments: Sequence[Any]) -> bool:
    """Whether a product is of FP16 tensors alone; one that mixes formats is left to torch, which refuses it."""
    mixed = any(_is_float(value) for value in arguments) and product is not _ATTENTION_BACKWARD
    return not mixed and any(_is_half(value) for value in arguments)


def _is_half(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.float16


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32


def _widened(value: Any) -> Any:
    return value.float() if _is_half(value) else value
