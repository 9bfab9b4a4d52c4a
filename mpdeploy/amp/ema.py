"""An exponential moving average of a model's weights, in FP32 whatever the level."""

import contextlib
from collections.abc import Iterator

import torch

from mpdeploy.amp.dtypes import widened
from mpdeploy.amp.engine import Engine
from mpdeploy.amp.names import fitted
from mpdeploy.amp.result import StepResult
from mpdeploy.errors import UsageError


class Ema:
    """Averages the FP32 weights and floating-point buffers of an engine's model: a ← decay · a + (1 - decay) · w.

    In half precision an average with a decay of 0.999 never moves: a thousandth of the weight is less than half
    an ulp.  What is infinite in a buffer, as in a mask, has no average and stays what it is.  Raises ``UsageError``
    for a decay outside (0, 1).
    """

    def __init__(self, engine: Engine, decay: float) -> None:
        if not 0 < decay < 1:
            raise UsageError(f"an average with a decay of {decay:g} is none", remedy="choose a decay such as 0.999")
        self._engine = engine
        self._decay = decay
        self._averages = {name: tensor.detach().clone() for name, tensor in self._weights().items()}

    @torch.no_grad()
    def update(self, result: StepResult) -> None:
        """Move the averages after an applied step; after a skipped one they stand still."""
        if not result.applied:
            return
        weights = self._weights()
        for name, tensor in weights.items():
            if name not in self._averages or self._averages[name].shape != tensor.shape:
                self._averages[name] = tensor.detach().clone()  # a buffer that came or grew
        averages = [self._averages[name] for name in weights]
        torch._foreach_lerp_(averages, list(weights.values()), 1 - self._decay)
        names = [name for name in self._engine.named_buffers() if weights[name].numel()]
        _keep_infinite([self._averages[name] for name in names], [weights[name] for name in names])

    @contextlib.contextmanager
    def in_place_of_weights(self) -> Iterator[None]:
        """Let the model hold the averages while the context lasts, to evaluate or save it."""
        with self._engine.full_precision(), self._engine.holding(self._averages):
            yield

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return copies of the averages by the names of the weights."""
        return {name: average.clone() for name, average in self._averages.items()}

    def load_state_dict(self, saved: dict[str, torch.Tensor]) -> None:
        """Go on from saved averages; raise ``UsageError`` if they are of another model."""
        found = fitted(saved, self._averages)
        if not found.keys() >= self._averages.keys():
            raise UsageError("the saved averages are of another model", remedy="resume with the same recipe")
        self._averages = {
            name: found[name].detach().to(average.device, average.dtype, copy=True)
            for name, average in self._averages.items()
        }

    def _weights(self) -> dict[str, torch.Tensor]:
        return {name: widened(tensor) for name, tensor in self._engine.named_weights().items()}


def _keep_infinite(averages: list[torch.Tensor], buffers: list[torch.Tensor]) -> None:
    """Put a buffer's elements where it or its average is not finite; all tensors of a kind at once."""
    kinds: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for place, buffer in enumerate(buffers):
        kinds.setdefault((buffer.device, buffer.dtype), []).append(place)
    for places in kinds.values():
        average = torch.cat([averages[place].flatten() for place in places])
        buffer = torch.cat([buffers[place].flatten() for place in places])
        mended = torch.where(buffer.isfinite() & average.isfinite(), average, buffer)
        parts = torch.split_with_sizes(mended, [buffers[place].numel() for place in places])
        torch._foreach_copy_(
            [averages[place] for place in places],
            [part.view_as(averages[place]) for part, place in zip(parts, places, strict=True)],
        )
