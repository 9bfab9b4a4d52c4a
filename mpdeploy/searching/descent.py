"""How far down a set of operators can go: the largest part of it, found by asking as little as may be.

Delta debugging (Zeller, Hildebrandt, "Simplifying and isolating failure-inducing input", TSE 2002), turned round: all
that is left is tried at once, then what is alike, then halves, down to single operators.  What works stays, and the
next question is asked on top of it, so that the answer always stands for a whole that was tried.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Unit:
    """One operator that may go down: the decision's node, and its type."""

    name: str
    op: str


@dataclass
class Descent:
    """What may go down, in the order found, and what may not.  ``asked`` counts the questions.

    What is in neither could not be asked any more.
    """

    freed: list[Unit] = field(default_factory=list)
    refused: list[Unit] = field(default_factory=list)
    asked: int = 0


def widest(
    units: Sequence[Unit], works: Callable[[Sequence[Unit]], bool], trials: int, *, whole_fails: bool = False
) -> Descent:
    """Return which ``units`` ``works`` holds with, asking it ``trials`` times at most.

    It is asked of all that shall be down together.  What comes first in ``units`` is lowered first.  ``whole_fails``:
    that all at once do not work is known.
    """
    found = Descent()
    _descend(list(units), works, trials, found, known_bad=whole_fails)
    return found


def _descend(
    block: list[Unit], works: Callable[[Sequence[Unit]], bool], trials: int, found: Descent, *, known_bad: bool = False
) -> None:
    if not block or found.asked >= trials:
        return
    if not known_bad:
        found.asked += 1
        if works([*found.freed, *block]):
            found.freed += block
            return
    if len(block) == 1:
        found.refused += block
        return
    *parts, last = _parts(block)
    before = len(found.freed)
    for part in parts:
        _descend(part, works, trials, found)
    # Where all others went down whole, the last one makes up what has just failed.
    went_down = len(found.freed) - before == sum(map(len, parts))
    _descend(last, works, trials, found, known_bad=went_down)


def _parts(block: list[Unit]) -> list[list[Unit]]:
    """Operators of one type each, or, where they are alike, two halves."""
    by_type: dict[str, list[Unit]] = {}
    for unit in block:
        by_type.setdefault(unit.op, []).append(unit)
    if len(by_type) > 1:
        return list(by_type.values())
    middle = len(block) // 2
    return [block[:middle], block[middle:]]
