"""FP16 products that a processor has no good FP16 kernel for: computed in FP32 and rounded to FP16.

That is what a GPU's tensor cores do: they sum in FP32.  Which products those are is asked operator by operator.
Without FP16 units torch's own FP16 kernels are 18 to 58 times slower than its FP32 ones (matrix products and
convolutions, measured on an AVX-512 processor).  With them (AVX512-FP16, AMX) its matrix products are right and fast,
its convolutions forward and backward take 100 times as long as in FP32, and on either kind oneDNN takes an LSTM in FP16
and then finds that it has no kernel.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mpdeploy.numerics.formats import Format


def _operators(names: str) -> frozenset[Any]:
    return frozenset(getattr(torch.ops.aten, name).default for name in names.split())


# What torch hands to oneDNN's FP16 matrix product where the processor has units for it.
_MATRIX_PRODUCTS = _operators("mm addmm bmm baddbmm")
_PRODUCTS = _MATRIX_PRODUCTS | _operators(
    "addbmm mv addmv dot vdot addr _trilinear convolution convolution_backward mkldnn_rnn_layer"
    " mkldnn_rnn_layer_backward _scaled_dot_product_flash_attention_for_cpu"
    " _scaled_dot_product_flash_attention_for_cpu_backward"
)
# Attention hands the logarithm of its softmax's sum to its backward pass, in FP32 whatever its inputs are.
_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_ATTENTION_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
_LOGSUMEXP = 1


class Fp32Sums(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's class is not typed
    """While active, products of FP16 tensors are computed in FP32 and rounded to FP16 once, at their end.

    ``autocast`` tells that it is active around a region of FP16 autocast, ``matrix_units`` that the processor
    multiplies FP16 matrices itself: those products are left to it.
    """

    def __init__(self, *, autocast: bool = False, matrix_units: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._autocast = autocast
        self._products = _PRODUCTS - _MATRIX_PRODUCTS if matrix_units else _PRODUCTS

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Compute one operator; see the class."""
        named = kwargs or {}
        if torch.is_inference_mode_enabled() and func not in self._products:
            # There, operators that are made of others arrive whole, and with autocast switched off beneath them.
            with self, torch.autocast("cpu", torch.float16, enabled=self._autocast):
                results = func.decompose(*args, **named)
            return func(*args, **named) if results is NotImplemented else results
        if func not in self._products or not _all_half(func, (*args, *named.values())):
            return func(*args, **named)
        results = func(*map(_widened, args), **{name: _widened(value) for name, value in named.items()})
        if isinstance(results, torch.Tensor):
            return results.half()
        kept = _LOGSUMEXP if func is _ATTENTION else None
        return tuple(result.half() if i != kept and _is_float(result) else result for i, result in enumerate(results))


@contextlib.contextmanager
def half_products(device: str, compute: Format, *, autocast: bool) -> Iterator[None]:
    """Run a forward or backward pass on ``device`` in ``compute`` inside; nothing changes elsewhere."""
    if device != "cpu" or compute is not Format.FP16:
        yield
        return
    # torch's short cut through attention is one operator, beneath which there is neither autocast nor this mode.
    short_cut = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with Fp32Sums(autocast=autocast, matrix_units=has_matrix_units()):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(short_cut)


def has_matrix_units() -> bool:
    """Whether this processor multiplies FP16 matrices itself (AVX512-FP16 or AMX-FP16), as oneDNN finds."""
    return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


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
