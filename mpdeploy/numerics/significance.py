"""What accuracies on a finite sample can and cannot tell."""

import math
from dataclasses import dataclass

_Z95 = 1.959963984540054  # the 97.5 % point of the normal distribution


@dataclass(frozen=True)
class Accuracy:
    """How often two classifiers were right on the same ``labelled`` samples, and how sure that is.

    The intervals are Wilson's at 95 %.  ``lost``: the reference was right and the candidate wrong; ``gained``: the
    other way round.  ``p_value`` is McNemar's, exact and two-sided: how likely a split at least as uneven is if
    both classifiers are equally good.
    """

    labelled: int
    reference: float
    candidate: float
    reference_interval: tuple[float, float]
    candidate_interval: tuple[float, float]
    lost: int
    gained: int
    p_value: float


def accuracy(labelled: int, reference: int, candidate: int, lost: int, gained: int) -> Accuracy:
    """Return the record of ``reference`` and ``candidate`` right answers among ``labelled`` samples, at least one."""
    return Accuracy(
        labelled=labelled,
        reference=reference / labelled,
        candidate=candidate / labelled,
        reference_interval=wilson(reference, labelled),
        candidate_interval=wilson(candidate, labelled),
        lost=lost,
        gained=gained,
        p_value=mcnemar(lost, gained),
    )


def wilson(right: int, total: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval for a share (E. B. Wilson, 1927), which holds for small samples, too."""
    share, z2 = right / total, _Z95 * _Z95
    centre = (share + z2 / (2 * total)) / (1 + z2 / total)
    half = _Z95 / (1 + z2 / total) * math.sqrt(share * (1 - share) / total + z2 / (4 * total * total))
    return max(0.0, centre - half), min(1.0, centre + half)


def mcnemar(lost: int, gained: int) -> float:
    """Return the exact two-sided p-value of McNemar's test: a fair coin's, thrown ``lost + gained`` times."""
    from scipy.stats import binomtest

    return float(binomtest(lost, lost + gained).pvalue) if lost + gained else 1.0
