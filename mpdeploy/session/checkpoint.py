"""A checkpoint of ours as a runner: torch in FP32 on the CPU."""

from pathlib import Path

import numpy as np
import torch

from mpdeploy.errors import ModelError
from mpdeploy.runtime.runner import Array, Execution, Feed, TensorSpec
from mpdeploy.source.loading import load_module


class TorchRunner:
    """The model of a checkpoint, in eval mode.  ``recipe`` and faults as in ``mpdeploy.source.load_module``."""

    def __init__(self, path: Path, recipe: Path | None = None) -> None:
        self._where = str(path)
        self._loaded = load_module(path, recipe)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs that a feed must hold."""
        return tuple(TensorSpec(spec.name, spec.dtype, spec.shape) for spec in self._loaded.inputs)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs in the recipe's order; only a run tells their types and shapes."""
        return tuple(TensorSpec(name, "unknown", None) for name in self._loaded.outputs)

    def run(self, feed: Feed) -> dict[str, Array]:
        """Return the outputs by name; ``ModelError`` if the model fails on the feed."""
        arguments = [torch.from_numpy(np.ascontiguousarray(feed[spec.name])) for spec in self._loaded.inputs]
        try:
            with torch.inference_mode():
                results = self._loaded.module(*arguments)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise ModelError(f"the model fails on the data: {error}", where=self._where) from error
        results = results if isinstance(results, tuple) else (results,)
        return {name: tensor.numpy() for name, tensor in zip(self._loaded.outputs, results, strict=True)}

    def describe(self) -> Execution:
        """Return exactly what runs."""
        return Execution("torch", str(torch.__version__), "CPU", "fp32", evidence=True)
