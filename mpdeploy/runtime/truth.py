"""What the data know of the right answers: classes under ``labels``, other true values under ``targets``."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

from mpdeploy.errors import UsageError
from mpdeploy.numerics.classes import IGNORED
from mpdeploy.numerics.ranking import class_count, class_labels
from mpdeploy.runtime.feeds import LABELS, TARGETS, is_answer
from mpdeploy.runtime.runner import Array

_WAY_OUT = "or leave the right answers out with --ignore-labels"


@dataclass(frozen=True)
class Truth:
    """The right answers of one feed, for the outputs that they belong to.

    ``labels`` are integer classes for each sample, or for each of its tokens or pixels; ``targets`` are the true
    values of an output, in its shape.
    """

    labels: Mapping[str, Array] = field(default_factory=dict)
    targets: Mapping[str, Array] = field(default_factory=dict)


UNKNOWN = Truth()


def truth_in(extras: Mapping[str, Array], outputs: Mapping[str, Array], rows: int, where: str) -> Truth:
    """Return the right answers among ``extras``, the arrays of a feed that are no inputs.

    Args:
        extras: ``labels`` are classes if they are whole numbers; floats in the shape of an output are its targets.
            ``targets`` belong to the first output of their shape, ``targets.NAME`` to the output of that name.
        outputs: The reference's outputs for this feed, by name.
        rows: The feed's number of samples.
        where: The feed's name, for messages.

    Raises:
        UsageError: The right answers do not fit the samples, the outputs, or the number of classes.
    """
    targets: dict[str, Array] = {}
    labels: dict[str, Array] = {}
    for key in filter(is_answer, extras):
        array = extras[key]
        if key != LABELS:
            _require_numbers(key, array, where)
        if key == TARGETS or (key == LABELS and array.dtype.kind == "f" and not _are_classes(array, outputs)):
            name = _home(array, outputs)
            if name is None:
                shapes = ", ".join(f"'{name}' {list(output.shape)}" for name, output in outputs.items())
                raise UsageError(
                    f"'{key}' is {array.dtype.name}{list(array.shape)}, and no output has that shape: {shapes}",
                    where=where,
                    remedy=f"give the true values in the shape of an output, {_WAY_OUT}",
                )
            targets[name] = array.reshape(outputs[name].shape)
        elif key.startswith(f"{TARGETS}."):
            name = key.removeprefix(f"{TARGETS}.")
            if name not in outputs or outputs[name].size != array.size:
                given = f"{list(outputs[name].shape)} there" if name in outputs else f"only {', '.join(outputs)}"
                raise UsageError(
                    f"'{key}' is {array.dtype.name}{list(array.shape)}, the reference gives {given}",
                    where=where,
                    remedy=f"name an output and give its shape, {_WAY_OUT}",
                )
            targets[name] = array.reshape(outputs[name].shape)
        else:
            labels = _labels(array, outputs, rows, where)
    return Truth(labels, targets)


def _require_numbers(key: str, array: Array, where: str) -> None:
    if array.dtype.kind not in "biuf" and array.dtype != ml_dtypes.bfloat16:
        raise UsageError(
            f"'{key}' is {array.dtype.name}{list(array.shape)}, which no output can be held against",
            where=where,
            remedy=f"give real numbers in the shape of an output, {_WAY_OUT}",
        )


def _are_classes(array: Array, outputs: Mapping[str, Array]) -> bool:
    """Whether floats are classes that were saved as floats: whole numbers, and scores of classes are there."""
    scored = any(class_labels(array, o) is not None and class_count(o) is not None for o in outputs.values())
    return (scored or _home(array, outputs) is None) and bool(np.array_equal(array, np.trunc(array)))


def _home(targets: Array, outputs: Mapping[str, Array]) -> str | None:
    """The first output of the targets' shape, axes of length 1 aside; None if there is none."""
    for same in (lambda output: output.shape == targets.shape, lambda output: _plain(output) == _plain(targets)):
        for name, output in outputs.items():
            if output.dtype.kind in "fV" and output.ndim and same(output):
                return name
    return None


def _plain(array: Array) -> tuple[int, ...]:
    return (array.shape[0], *(size for size in array.shape[1:] if size != 1)) if array.ndim else ()


def _labels(array: Array, outputs: Mapping[str, Array], rows: int, where: str) -> dict[str, Array]:
    if not array.ndim or array.shape[0] != rows or array.dtype.kind not in "iubf":
        raise UsageError(
            f"'{LABELS}' is {array.dtype.name}{list(array.shape)}, the feed has {rows} samples",
            where=where,
            remedy=f"give one integer class for each sample, or for each of its tokens or pixels, {_WAY_OUT}",
        )
    classes = array.astype(np.int64)
    classes = classes.reshape(rows) if classes.size == rows else classes
    fitting = {
        name: class_count(output)
        for name, output in outputs.items()
        if output.dtype.kind in "iu" or class_labels(classes, output) is not None
    }
    counted = classes[classes != IGNORED]
    low, high = (int(counted.min()), int(counted.max())) if counted.size else (0, 0)
    right = {name for name, count in fitting.items() if count is None or (low >= 0 and high < count)}
    if fitting and not right:
        name, count = max(fitting.items(), key=lambda item: item[1] or 0)
        raise UsageError(
            f"'{LABELS}' run from {low} to {high}, output '{name}' has {count} classes",
            where=where,
            remedy=f"number the classes from 0 and mark what does not count with {IGNORED}, {_WAY_OUT}",
        )
    return dict.fromkeys(right, classes)
