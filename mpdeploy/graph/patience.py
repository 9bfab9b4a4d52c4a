"""How long one run of a model may take: noted on the model, and carried on to all that is made of it."""

import math

import onnx_ir as ir

from mpdeploy.errors import UsageError

_SECONDS = "mpdeploy.seconds"  # the key of the note in ``ir.Model.meta``


def require_seconds(seconds: float | None) -> float | None:
    """Return a time limit that is one, or None; raise ``UsageError`` for any other number."""
    if seconds is not None and not 0 < seconds < math.inf:
        raise UsageError(f"{seconds} seconds are no time limit", where="--timeout", remedy="give more than 0, or none")
    return seconds


def limited(model: ir.Model, seconds: float | None) -> ir.Model:
    """Return the model itself, one run of which may take ``seconds`` from now on; None: as long as it takes."""
    model.meta[_SECONDS] = require_seconds(seconds)
    return model


def limit_of(model: ir.Model) -> float | None:
    """Return the seconds that one run of a model may take; None if nobody said."""
    seconds: float | None = model.meta.get(_SECONDS)
    return seconds


def carried(source: ir.Model, made: ir.Model) -> ir.Model:
    """Return ``made``, a model that was made of ``source``, with the limit of that."""
    made.meta[_SECONDS] = limit_of(source)
    return made
