"""Telemetry: what the loss scale rescues, layer by layer, and what the activations reach; cheap by sampling."""

import contextlib
import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from mpdeploy.amp.levels import AmpConfig
from mpdeploy.amp.ranges import RangeMeter, plain
from mpdeploy.amp.result import StepResult
from mpdeploy.errors import UsageError
from mpdeploy.numerics.formats import LOW_FORMATS, Format
from mpdeploy.numerics.telemetry import LayerGradients, Sample, Shares, StepLine

INTERVAL = 100  # steps from one close look to the next
_ELEMENTS = 2048  # looked at in each parameter's gradient
_LOWEST, _HIGHEST = -60, 16  # exponents with a bin of their own

Sink = Callable[[StepLine], None]


def format_judged(config: AmpConfig) -> Format:
    """Return the format that gradients are held against: the level's own, or FP16 where it has no low one."""
    return config.compute if config.compute in LOW_FORMATS else Format.FP16


class Telemetry:
    """Looks closely at every ``interval``-th step, and tells ``sink`` of these and of every skip or scale change.

    Hand it to the engine as its ``observer``.  A look takes samples of each parameter's gradient, evenly spread,
    and the range of each module's output.  ``place`` returns the step's number and the skips
    before it, where somebody else counts them.
    """

    def __init__(
        self,
        model: nn.Module,
        judged: Format,
        sink: Sink,
        *,
        interval: int = INTERVAL,
        place: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        if interval < 1:
            raise UsageError(f"telemetry every {interval} steps", remedy="choose an interval of at least 1")
        self._model, self._format, self._sink, self._interval = model, judged, sink, interval
        self._place, self._step, self._skips = place, 0, 0
        self._losses: list[torch.Tensor] = []
        self._meter: RangeMeter | None = None
        self._looking = contextlib.ExitStack()
        self._gradients: list[tuple[Mapping[str, NDArray[np.float32]], dict[str, int], float]] = []

    def begin_step(self) -> None:
        """Start a close look if this step is due for one."""
        self._looking.close()  # at a step that was broken off
        self._losses, self._gradients, self._meter = [], [], None
        if self._place:
            self._step, self._skips = self._place()
        if self._step % self._interval == 0:
            self._meter = RangeMeter(self._model)
            self._looking.enter_context(self._meter.watching())

    def saw_loss(self, loss: torch.Tensor) -> None:
        """Keep the loss, without waiting for it."""
        self._losses.append(loss)

    def saw_gradients(self, gradients: Mapping[str, torch.Tensor], scale: float) -> None:
        """Take samples of the gradients in a step that is looked at."""
        if self._meter is not None:
            sizes = {name: gradient.numel() for name, gradient in gradients.items() if gradient.numel()}
            self._gradients.append((_sampled({name: gradients[name] for name in sizes}), sizes, scale))

    def end_step(self, result: StepResult) -> None:
        """Tell the sink, if there is something to tell."""
        self._looking.close()
        self._skips += not result.applied
        moved = any(outcome.scale_before != outcome.scale_after for outcome in result.losses)
        if self._meter is not None or moved or not result.applied:
            loss = sum(float(loss) for loss in self._losses)
            self._sink(
                StepLine(
                    step=self._step,
                    loss=loss if math.isfinite(loss) else None,
                    grad_norm=result.grad_norm,
                    scale_before=result.scale_before,
                    scale_after=result.scale_after,
                    skipped=not result.applied,
                    skips=self._skips,
                    streak=result.streak,
                    sample=self._sample(self._meter) if self._meter is not None else None,
                )
            )
        self._losses = []
        self._step += 1

    def _sample(self, meter: RangeMeter) -> Sample:
        layers: dict[str, list[tuple[int, Shares, Shares]]] = {}
        counts = np.zeros(_HIGHEST - _LOWEST + 1)
        for samples, sizes, scale in self._gradients:
            for name, values in samples.items():
                magnitude = np.abs(values.astype(np.float64))
                shares = shares_of(magnitude * scale, self._format), shares_of(magnitude, self._format)
                layers.setdefault(name.rpartition(".")[0] or name, []).append((sizes[name], *shares))
                counts += _exponents(magnitude) * (sizes[name] / len(values))
        return Sample(
            layers=tuple(
                LayerGradients(name, sum(size for size, *_ in parts), _mean(parts, 1), _mean(parts, 2))
                for name, parts in layers.items()
            ),
            lowest=_LOWEST,
            exponents=tuple((counts / max(counts.sum(), 1.0)).round(6).tolist()),
            activations=meter.ranges(),
        )


def shares_of(magnitude: NDArray[np.float64], target: Format) -> Shares:
    """Return how magnitudes fit a format; what is not finite counts as overflow.

    Half the smallest subnormal and less rounds to zero, ties to even.
    """
    overflow = ~(magnitude < target.overflow_threshold)
    zero = magnitude <= target.smallest_subnormal / 2
    subnormal = ~zero & (magnitude < target.smallest_normal)
    return Shares(float(zero.mean()), float(subnormal.mean()), float(overflow.mean()))


def _exponents(magnitude: NDArray[np.float64]) -> NDArray[np.float64]:
    finite = magnitude[np.isfinite(magnitude) & (magnitude > 0)]
    floor_log2 = np.frexp(finite)[1] - 1
    places = np.clip(floor_log2, _LOWEST, _HIGHEST) - _LOWEST
    return np.bincount(places, minlength=_HIGHEST - _LOWEST + 1).astype(np.float64)


def _sampled(gradients: Mapping[str, torch.Tensor]) -> dict[str, NDArray[np.float32]]:
    chosen = []
    for gradient in gradients.values():
        whole = plain(gradient).detach()
        whole = torch.view_as_real(whole) if whole.is_complex() else whole
        chosen.append(whole.flatten()[:: _stride(whole)].float())
    if not chosen:
        return {}
    together = torch.cat(chosen).cpu().numpy()  # one transfer for all
    ends = np.cumsum([len(part) for part in chosen])[:-1]
    return dict(zip(gradients, np.split(together, ends), strict=True))


def _stride(tensor: torch.Tensor) -> int:
    """Return a distance between samples that meets every column: one with no divisor in common with the row."""
    stride = max(1, tensor.numel() // _ELEMENTS)
    while math.gcd(stride, tensor.shape[-1] if tensor.dim() else 1) != 1:
        stride += 1
    return stride


def _mean(parts: list[tuple[int, Shares, Shares]], which: int) -> Shares:
    total = sum(size for size, *_ in parts)

    def mean(name: str) -> float:
        return round(sum(part[0] * float(getattr(part[which], name)) for part in parts) / total, 6)

    return Shares(mean("zero"), mean("subnormal"), mean("overflow"))
