"""The gradients of one step's batch: as a whole, or in parts where memory does not hold it."""

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from mpdeploy.train.assembly import Assembly
from mpdeploy.train.checks import check_outputs
from mpdeploy.train.data import Batch
from mpdeploy.train.evaluation import in_fp32
from mpdeploy.train.loading import LoadedRecipe, blamed_on
from mpdeploy.train.randomness import Randomness
from mpdeploy.train.surroundings import out_of_memory


class Accumulation:
    """Sends each batch through the model in ``parts`` parts, which give the gradients of the whole.

    With ``widening`` there are twice as many parts each time that memory runs out, and the step starts anew.
    """

    def __init__(
        self, loaded: LoadedRecipe, assembly: Assembly, randomness: Randomness, parts: int, *, widening: bool
    ) -> None:
        self._loaded, self._assembly, self._randomness = loaded, assembly, randomness
        self.widening, self.parts = widening, parts

    def backward(self, batch: Batch) -> float:
        """Give the engine the gradients of a batch; return its loss."""
        with blamed_on(self._loaded.path, "in a training step"):
            while True:
                try:
                    with self._randomness.again() if self.widening else contextlib.nullcontext():
                        return self._backward(batch)
                except Exception as error:
                    if not (self.widening and out_of_memory(error) and self.parts < len(batch.labels)):
                        raise
                self._assembly.engine.discard()  # outside: the exception held on to what takes the memory
                self.parts = min(2 * self.parts, len(batch.labels))

    def _backward(self, batch: Batch) -> float:
        recipe, parts = self._loaded.recipe, self._assembly
        losses: list[torch.Tensor] = []
        cut = batch.parts(self.parts)
        for place, part in enumerate(cut):
            with self._shared(last=place == len(cut) - 1):
                with parts.engine.forward():
                    outputs = parts.call(*part.inputs)
                check_outputs(outputs, recipe.outputs)
                share = recipe.loss(in_fp32(outputs), part.labels) * (len(part.labels) / len(batch.labels))
                parts.engine.backward(share)
                losses.append(share.detach())
        return float(sum(torch.stack(losses).tolist()))  # one transfer for all

    def _shared(self, *, last: bool) -> AbstractContextManager[Any]:
        # The processes' gradients are added up once a step, with the last part's.
        call = self._assembly.call
        return call.no_sync() if isinstance(call, DistributedDataParallel) and not last else contextlib.nullcontext()
