"""Weights into a module: wrappers' prefixes taken off, and differences told so that a person finds them."""

import difflib
from collections.abc import Callable, Iterable

import torch
from torch import nn

from mpdeploy.errors import UsageError
from mpdeploy.source.weights import Weights

_SHOWN = 3
# What DDP, torch.compile, FSDP and activation checkpointing put into the names of what they wrap.
_WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def fit_weights(model: nn.Module, weights: Weights, where: str, remedy: str) -> tuple[str, ...]:
    """Load the weights into the model and return notes on what was done to their names.

    Raises ``UsageError`` that lists the first differences, each with the nearest name, if they do not fit.
    """
    wanted = model.state_dict()
    renamed, note = _renamed(weights, wanted.keys())
    tied = _tied(wanted, renamed.keys())
    differences = list(_differences(wanted, renamed, tied))
    if differences:
        more = f" and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
        raise UsageError(
            f"the weights do not fit the model: {'; '.join(differences[:_SHOWN])}{more}", where=where, remedy=remedy
        )
    model.load_state_dict(renamed, strict=False)
    return (note,) if note else ()


def _renamed(weights: Weights, wanted: Iterable[str]) -> tuple[Weights, str]:
    """The weights under whichever names fit best: their own, or without the prefixes of wrappers."""
    targets = set(wanted)
    best, note = weights, ""
    first = {name.partition(".")[0] for name in weights}
    attempts: list[tuple[Callable[[str], str], str]] = [
        (_unwrapped, "the names of wrappers (module., _orig_mod.) were taken off the weights' names"),
        *((_without(word), f"the prefix `{word}.` was taken off the weights' names") for word in sorted(first)),
    ]
    for rename, words in attempts:
        named = {rename(name): tensor for name, tensor in weights.items()}
        if len(targets & named.keys()) > len(targets & best.keys()):
            # Beside a model's own weights a training may keep others, of its loss, say.
            prefixed = {rename(name): tensor for name, tensor in weights.items() if rename(name) != name}
            best, note = prefixed if targets <= prefixed.keys() else named, words
    return best, note


def _unwrapped(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _without(word: str) -> Callable[[str], str]:
    return lambda name: name.removeprefix(f"{word}.")


def _tied(wanted: Weights, given: Iterable[str]) -> set[str]:
    """Names of tensors that are another name's tensor, too: loading that one loads them."""
    loaded = {_place(wanted[name]) for name in given if name in wanted}
    return {name for name, tensor in wanted.items() if tensor.numel() and _place(tensor) in loaded}


def _place(tensor: torch.Tensor) -> tuple[int, tuple[int, ...]]:
    return tensor.data_ptr(), tuple(tensor.shape)


def _differences(wanted: Weights, given: Weights, tied: set[str]) -> Iterable[str]:
    missing = [name for name in wanted if name not in given and name not in tied]
    surplus = [name for name in given if name not in wanted]
    for name in missing:
        if not name.endswith("num_batches_tracked"):  # a counter that evaluation never reads
            yield f"`{name}` is missing{_nearest(name, surplus, 'the file has')}"
    for name in surplus:
        if not name.endswith("num_batches_tracked"):
            yield f"`{name}` is not in the model{_nearest(name, missing, 'it has')}"
    for name, tensor in wanted.items():
        if name in given and given[name].shape != tensor.shape:
            yield f"`{name}` has shape {tuple(given[name].shape)}, the model wants {tuple(tensor.shape)}"


def _nearest(name: str, among: list[str], says: str) -> str:
    close = difflib.get_close_matches(name, among, n=1, cutoff=0.7)
    return f" ({says} `{close[0]}`)" if close else ""
