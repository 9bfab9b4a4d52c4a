"""Low-precision products that a processor has no good kernel for: computed in FP32 and rounded once.

That is what a GPU's tensor cores do: they sum in FP32.  Which products those are is asked of the processor, operator
by operator.  Without units for a format torch's own kernels are 18 to 62 times slower than its FP32 ones (matrix
products and convolutions, FP16 on an AVX-512 processor, BF16 on one with AVX2), and oneDNN has no recurrences.
Products with vectors sum in FP32 as they are, and are as fast as memory.  With FP16 units (AVX512-FP16, AMX) oneDNN's
matrix products are right and fast, its convolutions forward and backward take 100 times as long as in FP32, and it
takes an LSTM and then finds that it has no kernel.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mpdeploy.amp.dtypes import TORCH_DTYPES
from mpdeploy.amp.recurrences import Fp32Recurrences
from mpdeploy.numerics.formats import LOW_FORMATS, Format


def _operators(names: str) -> frozenset[Any]:
    return frozenset(getattr(torch.ops.aten, name).default for name in names.split())


# What torch hands to oneDNN's FP16 matrix product where the processor has units for it.
_MATRIX_PRODUCTS = _operators("mm addmm bmm baddbmm")
_PRODUCTS = _MATRIX_PRODUCTS | _operators(
    "addbmm addr _trilinear convolution convolution_backward mkldnn_rnn_layer"
    " mkldnn_rnn_layer_backward _scaled_dot_product_flash_attention_for_cpu"
    " _scaled_dot_product_flash_attention_for_cpu_backward"
)
# Attention hands the logarithm of its softmax's sum to its backward pass, in FP32 whatever its inputs are.
_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_ATTENTION_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
_LOGSUMEXP = 1


class Fp32Sums(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's class is not typed
    """While active, products of low-precision tensors are computed in FP32 and rounded once, at their end.

    Args:
        dtype: The format of the tensors and of the results.
        products: The operators, as ``replaced_products`` gives them; others are left to the processor.
        autocast: Whether it is active around a region of autocast to ``dtype``.
    """

    def __init__(
        self,
        dtype: torch.dtype = torch.float16,
        products: frozenset[Any] = _PRODUCTS,
        *,
        autocast: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dtype, self._products, self._autocast = dtype, products, autocast

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Compute one operator; see the class."""
        named = kwargs or {}
        if torch.is_inference_mode_enabled() and func not in self._products:
            # There, operators that are made of others arrive whole, and with autocast switched off beneath them.
            with self, torch.autocast("cpu", self._dtype, enabled=self._autocast):
                results = func.decompose(*args, **named)
            return func(*args, **named) if results is NotImplemented else results
        if func not in self._products or not self._all_low(func, (*args, *named.values())):
            return func(*args, **named)
        results = func(*map(self._widened, args), **{name: self._widened(value) for name, value in named.items()})
        if isinstance(results, torch.Tensor):
            return results.to(self._dtype)
        kept = _LOGSUMEXP if func is _ATTENTION else None
        return tuple(
            result.to(self._dtype) if i != kept and _is_float(result) else result for i, result in enumerate(results)
        )

    def _all_low(self, product: Any, arguments: Sequence[Any]) -> bool:
        """Whether a product is of low tensors alone; one that mixes formats is left to torch, which refuses it."""
        mixed = any(_is_float(value) for value in arguments) and product is not _ATTENTION_BACKWARD
        return not mixed and any(self._is_low(value) for value in arguments)

    def _is_low(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.dtype == self._dtype

    def _widened(self, value: Any) -> Any:
        return value.float() if self._is_low(value) else value


@contextlib.contextmanager
def low_products(device: str, compute: Format, *, autocast: bool) -> Iterator[None]:
    """Run a forward or backward pass on ``device`` in ``compute`` inside; nothing changes elsewhere."""
    products = replaced_products(compute) if device == "cpu" else frozenset[Any]()
    if not products:
        yield
        return
    # torch's short cut through attention is one operator, beneath which there is neither autocast nor this mode.
    short_cut = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with Fp32Recurrences(TORCH_DTYPES[compute]), Fp32Sums(TORCH_DTYPES[compute], products, autocast=autocast):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(short_cut)


def replaced_products(compute: Format) -> frozenset[Any]:
    """Return the operators that this processor has no good kernel for in ``compute``."""
    if compute not in LOW_FORMATS:
        return frozenset()
    if not has_units(compute):
        return _PRODUCTS
    return _PRODUCTS - _MATRIX_PRODUCTS if compute is Format.FP16 else frozenset()


def has_units(compute: Format) -> bool:
    """Whether oneDNN computes in FP16 or BF16 on this processor."""
    if compute is Format.FP16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32
