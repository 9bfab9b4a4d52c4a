"""``mpdeploy.export``: the road, with the words of the command's flags."""

from pathlib import Path

from mpdeploy.errors import UsageError
from mpdeploy.numerics.budget import parse_budget
from mpdeploy.numerics.formats import LOW_FORMATS, Format
from mpdeploy.pipeline.export import export as take
from mpdeploy.pipeline.record import ExportResult, Wishes
from mpdeploy.source.given import Given


def export(
    model: str | Path,
    output: str | Path | None = None,
    *,
    precision: str | tuple[str, ...] = "fp16",
    data: str | None = None,
    budget: str | None = None,
    engine: str | None = None,
    recipe: str | Path | None = None,
    factory: str | None = None,
    inputs: tuple[str, ...] = (),
    weights: str | None = None,
    ignore_labels: bool = False,
    trust: bool = False,
) -> ExportResult:
    """Take a model in any form the whole road and write everything into ``output``, `export/` beside it by default.

    ``precision`` is fp16, bf16 or both; ``engine`` the back end that builds (rtx or tensorrt), if any; ``factory``
    is what the command calls --model, ``inputs`` its --input words.  Returns what was written; ``passed`` tells
    whether every model is within its budget.  Raises ``UsageError`` for wrong words, files or data, ``ModelError``
    for a model that cannot be loaded safely, exported or converted, ``BuildError`` and ``DependencyError`` for
    engines.
    """
    words = (precision,) if isinstance(precision, str) else precision
    known = {low.value: low for low in LOW_FORMATS}
    unknown = [word for word in words if word not in known]
    if unknown or not words:
        raise UsageError(f"unknown precision {(unknown or ['nothing'])[0]!r}", remedy=f"use {' or '.join(known)}")
    formats: tuple[Format, ...] = tuple(known[word] for word in dict.fromkeys(words))
    wishes = Wishes(
        precisions=formats,
        data=data,
        budget=None if budget is None else parse_budget(budget),
        labels=not ignore_labels,
        engines=() if engine is None else tuple((low, engine) for low in formats),
    )
    path = Path(model)
    given = Given(None if recipe is None else str(recipe), factory, inputs, weights, trust)
    return take(path, path.parent / "export" if output is None else Path(output), wishes, given=given)
