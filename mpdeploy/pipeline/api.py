"""``mpdeploy.export``: the road, with the words of the command's flags."""

from collections.abc import Iterable
from pathlib import Path

from mpdeploy.arguments import Precision, Words, as_low_format, as_words
from mpdeploy.errors import UsageError
from mpdeploy.numerics.budget import parse_budget
from mpdeploy.numerics.formats import Format
from mpdeploy.pipeline.export import export as take
from mpdeploy.pipeline.record import ExportResult, Wishes
from mpdeploy.runtime.feeds import Data
from mpdeploy.source.given import Given


def export(
    model: str | Path,
    output: str | Path | None = None,
    *,
    precision: Precision | Iterable[Precision] = "fp16",
    data: Data | None = None,
    budget: str | None = None,
    engine: str | None = None,
    recipe: str | Path | None = None,
    factory: str | None = None,
    inputs: Words = (),
    weights: str | None = None,
    ignore_weights: Words = (),
    outputs: Words = (),
    ignore_labels: bool = False,
    trust: bool = False,
    timeout: float | None = None,
    policy: str | None = None,
    keep_fp32: Words = (),
    op_fp32: Words = (),
    low_io: bool = False,
    target: str | None = None,
) -> ExportResult:
    """Take a model in any form the whole road and write everything into ``output``, `export/` beside it by default.

    ``precision`` is fp16, bf16 or both; ``engine`` the back end that builds (rtx or tensorrt), if any; ``factory`` is
    what the command calls --model, ``inputs`` its --input words, ``outputs`` its --keep-output words.  ``data`` is
    what ``--data`` names, or arrays; one run of a model may take ``timeout`` seconds.  ``policy``, ``keep_fp32``,
    ``op_fp32``, ``low_io`` and ``target`` are those of ``mpdeploy.convert``.  Returns what was written;
    ``passed`` tells whether every model is within its budget.  Raises ``UsageError`` for wrong words, files or data,
    ``ModelError`` for a model that cannot be loaded safely, exported or converted, ``BuildError`` and
    ``DependencyError`` for engines.
    """
    words = (precision,) if isinstance(precision, str | Format) else tuple(precision)
    if not words:
        raise UsageError("no precision is asked for", remedy="give fp16, bf16 or both")
    formats = tuple(dict.fromkeys(map(as_low_format, words)))
    wishes = Wishes(
        precisions=formats,
        data=data,
        budget=None if budget is None else parse_budget(budget),
        labels=not ignore_labels,
        timeout=timeout,
        policy=policy,
        keep_fp32=as_words(keep_fp32),
        op_fp32=as_words(op_fp32),
        low_io=low_io,
        target=target,
        engines=() if engine in (None, "none") else tuple((low, engine) for low in formats),
    )
    path = Path(model)
    given = Given(
        None if recipe is None else str(recipe),
        factory,
        as_words(inputs),
        weights,
        trust,
        as_words(ignore_weights),
        as_words(outputs),
    )
    return take(path, path.parent / "export" if output is None else Path(output), wishes, given=given)
