"""Gradient arithmetic: units, norms, and what is not finite, for dense, sparse, complex and sharded gradients.

Nothing here waits for the device but ``look``, which does so once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed

from mpdeploy.amp.agreement import agree

_NO_VALUES = torch.zeros(0)


@dataclass(frozen=True)
class Look:
    """What one look at gradients shows.

    ``flagged`` tells for each flag that was handed in whether it is up in any process, ``norm`` is the 2-norm over
    all elements, None where one is not finite in any process, ``nonfinite`` counts out this process's gradients
    with such elements, in the order in which they were given.
    """

    flagged: tuple[bool, ...]
    norm: float | None
    nonfinite: tuple[int, ...]


def coalesce(parameters: Sequence[torch.Tensor]) -> None:
    """Make sparse gradients say one thing of each row: what several indices say of one is added up."""
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse and not parameter.grad.is_coalesced():
            parameter.grad = parameter.grad.coalesce()


def values_of(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return real tensors of this process that hold the gradients' values; writing to them writes to the gradients.

    Sparse gradients must be coalesced.
    """
    return [_values(parameter.grad) for parameter in parameters if parameter.grad is not None]


@torch.no_grad()
def scale_(values: Sequence[torch.Tensor], factor: float) -> None:
    """Multiply the gradients by ``factor`` in place."""
    if factor != 1.0 and values:
        torch._foreach_mul_(list(values), factor)


@torch.no_grad()
def unscale_(values: Sequence[torch.Tensor], scale: float, flag: torch.Tensor) -> None:
    """Divide the gradients by ``scale`` in place, and put ``flag`` to 1 if an element is not finite.

    This is the operator that ``torch.amp.GradScaler`` calls.
    """
    for (device, *_), group in _groups(values).items():
        raised = flag if flag.device == device else torch.zeros_like(flag, device=device)
        inverse = torch.full((), 1 / scale, dtype=torch.float32, device=device)
        torch._amp_foreach_non_finite_check_and_unscale_([values[place] for place in group], raised, inverse)
        if raised is not flag:
            flag.copy_(torch.maximum(flag, raised.to(flag.device, non_blocking=True)))


@torch.no_grad()
def look(
    parameters: Sequence[torch.Tensor], flags: Sequence[torch.Tensor], group: distributed.ProcessGroup | None
) -> Look:
    """Look at the parameters' gradients and at flags, agreed with the other processes of ``group``.

    Waits for the device once.  Where nothing is NaN and a norm is infinite though, it takes a second look: squares
    of finite FP32 numbers overflow from about 1.8e19 on.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norms = _norms(gradients)
    bad = (~norms.isfinite()).any()
    shared = torch.stack([bad.float(), norms.isnan().any().float(), *(flag.to(bad.device) for flag in flags)])
    agree(shared, group)
    host = torch.cat([shared, norms]).cpu()  # the one transfer
    (some_bad, some_nan, *raised), each = host[: len(shared)].tolist(), host[len(shared) :]
    flagged = tuple(flag > 0 for flag in raised)
    if not some_bad:
        return Look(flagged, torch.linalg.vector_norm(each).tolist(), ())
    if some_nan or any(flagged):
        return Look(flagged, None, tuple(place for place, norm in enumerate(each.tolist()) if not math.isfinite(norm)))
    return Look(flagged, *_second_look(gradients, group))


def clipping(norm: float, limit: float | None) -> float:
    """Return the factor that brings gradients of this norm down to the limit, in FP32 as torch's clipping has it."""
    if limit is None:
        return 1.0
    factor: Any = (limit / (torch.tensor(norm, dtype=torch.float32) + 1e-6)).tolist()
    return min(1.0, float(factor))


def all_finite(tensor: torch.Tensor) -> torch.Tensor:
    """Return whether every element of this process's part is finite, as a tensor: nothing waits for the device."""
    return tensor.detach().isfinite().all()


def _second_look(
    gradients: Sequence[torch.Tensor], group: distributed.ProcessGroup | None
) -> tuple[float | None, tuple[int, ...]]:
    finite = [all_finite(_values(gradient)) for gradient in gradients]
    device = finite[0].device
    squares = [_norm(gradient.double()).square().to(device) for gradient in gradients]
    flags = torch.stack([flag.to(device) for flag in finite])
    bad = (~flags.all()).double()[None]
    agree(bad, group)
    (some_bad,), own, sums = (part.tolist() for part in (bad, flags, torch.stack(squares)))
    if some_bad:
        return None, tuple(place for place, fine in enumerate(own) if not fine)
    return math.sqrt(sum(sums)), ()


def _norms(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the 2-norm of each gradient, in FP32, on one device; of sharded ones over all shards."""
    whole = [_values(gradient) if not _is_sharded(gradient) else gradient for gradient in gradients]
    norms: list[torch.Tensor] = [_NO_VALUES] * len(whole)
    for (_, dtype, _), places in _groups(whole).items():
        accumulated = torch.float32 if dtype.itemsize < torch.float32.itemsize else None
        found = torch._foreach_norm([whole[place] for place in places], 2, dtype=accumulated)
        if _is_sharded(found[0]):
            found = tuple(torch.stack(found).full_tensor())  # type: ignore[attr-defined]  # one exchange for all
        for place, norm in zip(places, found, strict=True):
            norms[place] = norm
    device = norms[0].device
    return torch.stack([norm.to(device, torch.float32, non_blocking=True) for norm in norms])


def _norm(gradient: torch.Tensor) -> torch.Tensor:
    norm = torch.linalg.vector_norm(gradient if _is_sharded(gradient) else _values(gradient))
    return norm.full_tensor() if _is_sharded(norm) else norm  # type: ignore[no-any-return]


def _values(gradient: torch.Tensor) -> torch.Tensor:
    if gradient.is_sparse:
        gradient = gradient._values()
    local: torch.Tensor = gradient.to_local() if _is_sharded(gradient) else gradient  # type: ignore[attr-defined]
    local = local.detach()
    return torch.view_as_real(local) if local.is_complex() else local


def _is_sharded(tensor: torch.Tensor) -> bool:
    # Of a DTensor, whose module takes long to import and is not needed for others.
    return hasattr(tensor, "full_tensor")


def _groups(tensors: Sequence[torch.Tensor]) -> dict[tuple[Any, torch.dtype, Any], list[int]]:
    """Return the places of the tensors that one kernel can take together, by device, dtype and mesh."""
    groups: dict[tuple[Any, torch.dtype, Any], list[int]] = {}
    for place, tensor in enumerate(tensors):
        mesh = getattr(tensor, "device_mesh", None)
        groups.setdefault((tensor.device, tensor.dtype, mesh), []).append(place)
    return groups
