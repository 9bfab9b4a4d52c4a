"""A torch module as a runner."""

import copy
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from mpdeploy.errors import ModelError
from mpdeploy.numerics.formats import Format
from mpdeploy.runtime.attended import Attendant
from mpdeploy.runtime.attention import plain_attention
from mpdeploy.runtime.runner import Array, Execution, Feed, TensorSpec

if TYPE_CHECKING:
    import torch

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class TorchModuleRunner:
    """A module, given in eval mode, on the CPU, in FP32 or, weights and all, in FP16 or BF16.

    ``inputs`` are its positional arguments in order, ``outputs`` names for its results in order.  Float inputs are
    cast to the module's format, float outputs come as float32.  ``where`` names the module in errors.  One run may take
    ``timeout`` seconds; what takes longer is given up, though nothing can stop it.
    """

    def __init__(
        self,
        module: "torch.nn.Module",
        inputs: Sequence[TensorSpec],
        outputs: Sequence[str],
        where: str,
        target: Format = Format.FP32,
        timeout: float | None = None,
    ) -> None:
        self._inputs, self._outputs, self._where, self._target = tuple(inputs), tuple(outputs), where, target
        self._dtype = _torch_dtype(target)
        self._attendant = None if timeout is None else Attendant(where, timeout)
        self._module = module if target is Format.FP32 else copy.deepcopy(module).to(self._dtype)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs that a feed must hold."""
        return self._inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs in order; only a run tells their types and shapes."""
        return tuple(TensorSpec(name, "unknown", None) for name in self._outputs)

    def run(self, feed: Feed) -> dict[str, Array]:
        """Return the outputs by name; ``ModelError`` if the module fails on the feed."""
        arguments = [self._tensor(np.asarray(feed[spec.name])) for spec in self._inputs]
        try:
            call = functools.partial(self._call, arguments)
            results = call() if self._attendant is None else self._attendant.call(call, lambda: None)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise ModelError(f"the module fails on the data: {error}", where=self._where) from error
        if isinstance(results, dict):
            results = tuple(results.values())
        results = results if isinstance(results, (tuple, list)) else (results,)
        if len(results) != len(self._outputs):
            raise ModelError(f"the module gives {len(results)} outputs, not {len(self._outputs)}", where=self._where)
        return {name: _array(result) for name, result in zip(self._outputs, results, strict=True)}

    def _call(self, arguments: "list[torch.Tensor]") -> Any:
        import torch

        with torch.inference_mode(), plain_attention():
            return self._module(*arguments)

    def describe(self) -> Execution:
        """Return exactly what runs."""
        import torch

        return Execution(
            runtime="torch",
            version=str(torch.__version__),
            provider="CPU",
            precision=f"{self._target.value}, weights and all operators, with torch's own kernels",
            evidence=True,
        )

    def _tensor(self, array: Array) -> "torch.Tensor":
        import torch

        if array.dtype == _BFLOAT16:
            array = array.astype(np.float32)
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor.to(self._dtype) if tensor.is_floating_point() else tensor


def _torch_dtype(target: Format) -> "torch.dtype":
    import torch

    return {Format.FP32: torch.float32, Format.FP16: torch.float16, Format.BF16: torch.bfloat16}[target]


def _array(result: Any) -> Array:
    tensor = result.detach()
    return np.asarray((tensor.float() if tensor.is_floating_point() else tensor).cpu().numpy())
