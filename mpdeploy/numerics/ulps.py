"""Errors in units in the last place of a format."""

from typing import Any

import numpy as np

from mpdeploy.numerics.formats import Format

Array = np.ndarray[Any, Any]


def worst_ulp(reference: Array, candidate: Array, target: Format) -> float:
    """Return the largest |r - c| in units of the distance between ``target``'s numbers around r.

    Half a unit is what rounding alone does.  Below the smallest normal number the distance stays that of the
    subnormals.  Pairs that are not both finite are left out; 0 if none is left.
    """
    r, c = reference.astype(np.float64), candidate.astype(np.float64)
    both = np.isfinite(r) & np.isfinite(c)
    r, c = r[both], c[both]
    if not r.size:
        return 0.0
    facts = target.facts
    _, exponent = np.frexp(r)  # |r| = m · 2^exponent with m in [0.5, 1)
    exponent = np.clip(exponent - 1, facts.min_exponent, facts.max_exponent)
    exponent[r == 0] = facts.min_exponent
    return float((np.abs(r - c) * np.exp2(-(exponent - facts.precision + 1.0))).max())
