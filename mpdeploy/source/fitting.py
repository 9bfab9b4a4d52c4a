"""Weights into a module: wrappers' prefixes taken off, and differences told so that a person finds them."""

import difflib
import fnmatch
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import nn

from mpdeploy.errors import UsageError
from mpdeploy.source.weights import Weights

_SHOWN = 3
# What DDP, torch.compile, FSDP and activation checkpointing put into the names of what they wrap.
_WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def fit_weights(
    model: nn.Module, weights: Weights, where: str, remedy: str, ignored: Sequence[str] = ()
) -> tuple[str, ...]:
    """Load the weights into the model and return notes on what was done to their names.

    ``ignored`` are patterns of weights that the model need not have.  Raises ``UsageError`` that lists the first
    differences, each with the nearest name, if the others do not fit, or if a pattern matches nothing.
    """
    wanted = model.state_dict()
    left_out = _matching(weights, ignored, where) - wanted.keys()
    weights = {name: tensor for name, tensor in weights.items() if name not in left_out}
    renamed, note = _renamed(weights, wanted.keys())
    tied = _tied(wanted, renamed.keys())
    differences = list(_differences(wanted, renamed, tied))
    if differences:
        more = f" and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
        only_surplus = not any(name not in renamed and name not in tied for name in wanted if not _is_counter(name))
        way = ", or leave those out that the model does not need with --ignore-weights PATTERN" if only_surplus else ""
        raise UsageError(
            f"the weights do not fit the model: {'; '.join(differences[:_SHOWN])}{more}",
            where=where,
            remedy=f"{remedy}{way}",
        )
    model.load_state_dict(renamed, strict=False)
    skipped = f"{len(left_out)} stored weights were ignored: {', '.join(sorted(left_out)[:_SHOWN])}"
    return (*((note,) if note else ()), *((skipped,) if left_out else ()))


def _matching(weights: Weights, patterns: Sequence[str], where: str) -> set[str]:
    found: set[str] = set()
    for pattern in patterns:
        names = {name for name in weights if fnmatch.fnmatchcase(name, pattern)}
        if not names:
            close = difflib.get_close_matches(pattern, list(weights), n=1, cutoff=0.4)
            raise UsageError(
                f"--ignore-weights {pattern} matches no stored weight",
                where=where,
                remedy=f"did you mean {close[0]}?" if close else "look at their names with mpdeploy inspect",
            )
        found |= names
    return found


def _renamed(weights: Weights, wanted: Iterable[str]) -> tuple[Weights, str]:
    """The weights under whichever names fit best: their own, or without prefixes that wrappers put before them."""
    targets = set(wanted)
    best, note = weights, ""
    for prefix in ("", *sorted({f"{name.partition('.')[0]}." for name in weights if "." in name})):
        # Beside a model's own weights a training may keep others, of its loss, say: they have another prefix.
        own = {_unwrapped(n.removeprefix(prefix)): t for n, t in weights.items() if n.startswith(prefix)}
        if len(targets & own.keys()) > len(targets & best.keys()):
            best, note = own, f"prefixes such as `{prefix or _wrapper_in(weights)}` were taken off the weights' names"
    return best, note


def _unwrapped(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _wrapper_in(weights: Weights) -> str:
    return next(f"{part}." for name in weights for part in name.split(".") if part in _WRAPPERS)


def _tied(wanted: Weights, given: Iterable[str]) -> set[str]:
    """Names of tensors that are another name's tensor, too: loading that one loads them."""
    loaded = {_place(wanted[name]) for name in given if name in wanted}
    return {name for name, tensor in wanted.items() if tensor.numel() and _place(tensor) in loaded}


def _place(tensor: torch.Tensor) -> tuple[int, tuple[int, ...]]:
    return tensor.data_ptr(), tuple(tensor.shape)


def _differences(wanted: Weights, given: Weights, tied: set[str]) -> Iterator[str]:
    missing = [name for name in wanted if name not in given and name not in tied and not _is_counter(name)]
    surplus = [name for name in given if name not in wanted and not _is_counter(name)]
    for name in missing:
        alike = [other for other in surplus if given[other].shape == wanted[name].shape]
        yield f"`{name}` is missing{_nearest(name, alike, 'the file has')}"
    for name in surplus:
        alike = [other for other in missing if given[name].shape == wanted[other].shape]
        yield f"`{name}` is not in the model{_nearest(name, alike, 'it has')}"
    for name, tensor in wanted.items():
        if name in given and given[name].shape != tensor.shape:
            yield f"`{name}` has shape {tuple(given[name].shape)}, the model wants {tuple(tensor.shape)}"
        elif name in given and _numbers(given[name]) != _numbers(tensor) and not _is_counter(name):
            yield f"`{name}` holds {_numbers(given[name])} numbers, the model wants {_numbers(tensor)} ones"


def _numbers(tensor: torch.Tensor) -> str:
    return "real" if tensor.is_floating_point() else "complex" if tensor.is_complex() else "whole"


def _is_counter(name: str) -> bool:
    return name.endswith("num_batches_tracked")  # evaluation never reads it


def _nearest(name: str, among: list[str], says: str) -> str:
    close = difflib.get_close_matches(name, among, n=1, cutoff=0.6)
    return f" ({says} `{close[0]}`)" if close else ""
