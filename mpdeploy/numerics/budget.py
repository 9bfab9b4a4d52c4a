"""How much drift is allowed: limits, by default or as the user writes them."""

import difflib
import math
import re
from dataclasses import dataclass

from mpdeploy.errors import UsageError
from mpdeploy.numerics.limits import SCORE_PREFIX, Limit, Metric, ScoreLimit


@dataclass(frozen=True)
class Budget:
    """Limits that all must hold, and where they come from.  NaN, collapse and the like fail under any budget.

    ``strict``: a limit whose metric no output has is broken (the user asked for it), not idle.  ``scores`` are limits
    on the user's own metrics and on those of tasks.
    """

    limits: tuple[Limit, ...]
    origin: str
    strict: bool
    scores: tuple[ScoreLimit, ...] = ()

    def __str__(self) -> str:
        return ", ".join(map(str, (*self.limits, *self.scores)))


_LIMIT = re.compile(r"^(?:(?P<output>.+):)?(?P<metric>[\w.]+)\s*(?P<sign>>=|<=)\s*(?P<value>\S+(?:\s*%)?)$")


def parse_budget(text: str, origin: str = "as given") -> Budget:
    """Return the budget that ``cosine>=0.999,logits:top1>=0.995,score.map>=0.5`` spells.

    Raises ``UsageError`` if the text is no budget.
    """
    parsed = [_parse_limit(part.strip(), text) for part in text.split(",") if part.strip()]
    if not parsed:
        raise UsageError("the budget is empty", where=text, remedy="write METRIC>=NUMBER, as in cosine>=0.999")
    limits = tuple(limit for limit in parsed if isinstance(limit, Limit))
    scores = tuple(limit for limit in parsed if isinstance(limit, ScoreLimit))
    return Budget(limits, origin, strict=True, scores=scores)


def _parse_limit(part: str, text: str) -> Limit | ScoreLimit:
    match = _LIMIT.match(part)
    if not match:
        raise UsageError(f"'{part}' is not a limit", where=text, remedy="write METRIC>=NUMBER or METRIC<=NUMBER")
    value = _number(match["value"], text)
    if match["metric"].startswith(SCORE_PREFIX):
        return ScoreLimit(match["metric"].removeprefix(SCORE_PREFIX), value, match["sign"] == ">=")
    try:
        metric = Metric(match["metric"])
    except ValueError:
        raise UsageError(f"unknown metric '{match['metric']}'", where=text, remedy=_known(match["metric"])) from None
    wanted = ">=" if metric.more_is_better else "<="
    if match["sign"] != wanted:
        raise UsageError(
            f"'{part}' would ask for a bad result", where=text, remedy=f"write {metric.value}{wanted}{match['value']}"
        )
    if metric.is_share and value > 1:
        raise UsageError(
            f"'{part}' can never hold: {metric.value} is 1 at most", where=text, remedy="write 0.99 for 99 %"
        )
    return Limit(metric, value, match["output"] or "")


def _known(wrong: str) -> str:
    names = [metric.value for metric in Metric]
    near = difflib.get_close_matches(wrong.lower(), names, 1)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"{meant}use one of {', '.join(names)}, or {SCORE_PREFIX}NAME"


def _number(text: str, where: str) -> float:
    percent = text.endswith("%")
    try:
        value = float(text.removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        raise UsageError(f"'{text}' is not a number", where=where) from None
    if math.isnan(value):
        raise UsageError("nothing is within NaN", where=where, remedy="write a number")
    return value
