"""``mpdeploy.load``: one callable for arrays and torch tensors, whatever is behind it."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import ml_dtypes
import numpy as np

from mpdeploy.errors import UsageError
from mpdeploy.runtime.fit import fit
from mpdeploy.runtime.runner import Array, Execution, Runner, TensorSpec
from mpdeploy.session.opening import Runtime, open_runner
from mpdeploy.source.given import Given

if TYPE_CHECKING:
    import torch

    from mpdeploy.engine.runner import EngineRunner

    Tensor = Array | torch.Tensor

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def load(
    path: str | Path,
    *,
    runtime: str = "auto",
    threads: int = 0,
    timeout: float | None = None,
    recipe: str | Path | None = None,
    factory: str | None = None,
    inputs: tuple[str, ...] = (),
    weights: str | None = None,
    trust: bool = False,
) -> "Model":
    """Return a callable model from an ONNX file, an engine with its sidecar, or a torch model in any form.

    ``runtime`` is auto, emulator, onnxruntime, openvino, tensorrt or torch (see ``Runtime``); ``threads`` 0 means one
    per core; one run may take ``timeout`` seconds.  The others say of a torch model what its file does not, as in
    ``mpdeploy.export``.  Raises as ``mpdeploy.session.opening.open_runner`` does.
    """
    try:
        chosen = Runtime(runtime)
    except ValueError:
        known = ", ".join(r.value for r in Runtime)
        raise UsageError(f"there is no runtime {runtime!r}", remedy=f"choose from {known}") from None
    given = Given(None if recipe is None else str(recipe), factory, inputs, weights, trust)
    return Model(open_runner(Path(path), chosen, threads=threads, given=given, timeout=timeout), str(path))


class Model:
    """A model that is called like a function.

    ``model(a, b)`` takes the inputs in the model's order, ``model({"a": a, "b": b})`` by name.  Inputs are numpy
    arrays or torch tensors, all of the same kind, and outputs come as that kind.  Nothing is converted on the way:
    memory is shared where the runtime allows (CPU tensors and arrays; CUDA tensors with an engine), and a wrong
    type, device or shape raises ``UsageError``.  Several threads may call it at once.

    ``close()``, or leaving a ``with`` block, gives the memory of the model back; nothing runs after that.
    """

    def __init__(self, runner: Runner, where: str) -> None:
        self._open: Runner | None = runner
        self._where = where

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the memory of the model back, as soon as calls in other threads are through; twice is fine."""
        self._open = None

    @property
    def _runner(self) -> Runner:
        if self._open is None:
            raise UsageError("the model is closed", where=self._where, remedy="load it again")
        return self._open

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Name, type and shape of each input."""
        return self._runner.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Name, type and shape of each output."""
        return self._runner.outputs

    def describe(self) -> Execution:
        """Return exactly what runs, in which arithmetic."""
        return self._runner.describe()

    def __call__(self, *inputs: "Tensor | Mapping[str, Tensor]") -> "Any":
        """Return the outputs: a dict for inputs by name, else the only output, or a tuple of all.

        Raises ``UsageError`` for inputs that do not fit.
        """
        if len(inputs) == 1 and isinstance(inputs[0], Mapping):
            return self._run(inputs[0])
        names = [spec.name for spec in self.inputs]
        if len(inputs) != len(names):
            raise UsageError(
                f"the model takes {len(names)} inputs, {len(inputs)} were given",
                where=self._where,
                remedy=f"give {', '.join(map(str, self.inputs))}",
            )
        results = tuple(self._run(dict(zip(names, cast("Sequence[Tensor]", inputs), strict=True))).values())
        return results[0] if len(results) == 1 else results

    def _run(self, feed: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
        tensors = {name for name, value in feed.items() if _is_tensor(value)}
        if tensors and tensors != set(feed):
            raise UsageError(
                "the inputs mix arrays and torch tensors", where=self._where, remedy="give all as one kind"
            )
        if not tensors:
            return dict(self._runner.run(self._checked({n: np.asarray(value) for n, value in feed.items()})))
        given = {name: self._plain(name, tensor) for name, tensor in cast("Mapping[str, torch.Tensor]", feed).items()}
        runner = self._runner
        if hasattr(runner, "run_tensors"):
            return dict(cast("EngineRunner", runner).run_tensors(given))
        arrays = {name: self._to_array(name, tensor) for name, tensor in given.items()}
        return {name: _to_tensor(array) for name, array in runner.run(self._checked(arrays)).items()}

    def _checked(self, feed: dict[str, Array]) -> dict[str, Array]:
        specs = {spec.name: spec for spec in self.inputs}
        for name, array in feed.items():
            if name not in specs:
                known = ", ".join(map(str, self.inputs))
                raise UsageError(f"the model has no input '{name}'", where=self._where, remedy=f"it takes {known}")
            spec = specs[name]
            if spec.dtype not in ("unknown", "string", array.dtype.name):
                raise UsageError(
                    f"input '{name}' is {array.dtype.name}, the model takes {spec}",
                    where=self._where,
                    remedy=f"convert it to {spec.dtype}",
                )
        return fit(feed, self.inputs, self._where).feed

    def _plain(self, name: str, tensor: "torch.Tensor") -> "torch.Tensor":
        """The tensor as numbers in memory: what torch only notes down (a sign, a conjugate) is carried out."""
        import torch

        if tensor.layout != torch.strided:
            kind = str(tensor.layout).removeprefix("torch.")
            raise UsageError(
                f"input '{name}' is a tensor of layout {kind}, the model reads dense ones",
                where=self._where,
                remedy="convert it with .to_dense()",
            )
        return tensor.detach().resolve_conj().resolve_neg()

    def _to_array(self, name: str, tensor: "torch.Tensor") -> Array:
        if tensor.device.type != "cpu":
            raise UsageError(
                f"input '{name}' is on {tensor.device}, the model runs on the CPU",
                where=self._where,
                remedy="move it with .cpu(), or load an engine",
            )
        import torch

        if tensor.dtype == torch.bfloat16:  # numpy has no name for it of its own; the bits are the same
            return tensor.contiguous().view(torch.int16).numpy().view(_BFLOAT16)
        try:
            return tensor.numpy()
        except TypeError as error:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise UsageError(f"input '{name}' is {kind}, for which arrays have no type", where=self._where) from error


def _is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")  # whoever holds a tensor has imported it
    return torch is not None and isinstance(value, torch.Tensor)


def _to_tensor(array: Array) -> "torch.Tensor":
    import torch

    if array.dtype == _BFLOAT16:
        return torch.from_numpy(np.ascontiguousarray(array).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
