"""Records in words: what `mpdeploy inspect` prints of a checkpoint, a release, an export."""

from typing import TYPE_CHECKING

from mpdeploy.cli.console import add_row, plain_table, say, show
from mpdeploy.texts import one_line

if TYPE_CHECKING:
    from rich.table import Table

    from mpdeploy.bundle.manifest import Manifest
    from mpdeploy.pipeline.manifest import ExportManifest
    from mpdeploy.train.checkpoint import CheckpointRecord

_HASH = 12  # leading hexadecimal digits that are shown of a hash


def show_checkpoint(name: str, record: "CheckpointRecord") -> None:
    """Print where the weights come from, what they take and give, and how the training went."""
    say(
        f"{name}: trained by {record.recipe.file} ({record.recipe.sha256[:_HASH]}…) in {record.level}, "
        f"seed {record.seed}, by mpdeploy {record.mpdeploy_version}, torch {record.torch_version}"
    )
    for spec in record.inputs:
        say(f"  input   {spec.name} {spec.dtype}[{','.join(map(str, spec.shape))}]")
    for output in record.outputs:
        say(f"  output  {output}")
    averaged = f", the average of the weights with decay {record.ema_decay:g}" if record.ema_decay is not None else ""
    metrics = record.metrics or {record.metric_name: record.metric}
    words = ", ".join(f"{name} {_number(value)}" for name, value in metrics.items())
    say(f"  weights fp32{averaged}: {words} on held-out examples")
    if record.fp32_modules:
        say(f"  fp32    modules that computed so in training: {', '.join(record.fp32_modules)}")
    say(f"  steps   {record.steps_applied} applied, {record.steps_skipped} skipped, in {record.epochs} epochs")
    ends = {r.module: (r.low, r.high) for r in record.ranges if r.low is not None and r.high is not None}
    if ends:
        module, (low, high) = max(ends.items(), key=lambda item: max(map(abs, item[1])))
        say(f"  ranges  {len(record.ranges)} measured in training, widest that of {module}: {low:.4g} to {high:.4g}")
    table = _table("epoch", "loss", *metrics, "skipped")
    for number, epoch in enumerate(record.history, 1):
        values = epoch.metrics or {record.metric_name: epoch.metric}
        measured = [_number(values.get(name)) for name in metrics]
        add_row(table, (f"  {number}", _number(epoch.train_loss), *measured, str(epoch.skipped)))
    show(table)


def show_manifest(name: str, manifest: "Manifest") -> None:
    """Print a release: what it holds, whether it may be promoted, where it comes from."""
    say(f"{name}: {manifest.name} {manifest.version}, made {manifest.created} by {manifest.tool}")
    say(f"  {'may be promoted' if manifest.passed else 'may NOT be promoted: ' + '; '.join(manifest.reasons)}")
    for model in manifest.models:
        verdict = f": {model.verdict.headline}" if model.verdict else ""
        say(f"  {model.path}  {model.format}{verdict}")
    for engine in manifest.engines:
        runs_on = ", ".join(map(str, engine.capabilities))
        say(f"  {engine.path}  from {engine.model}, {engine.backend} {engine.backend_version}, SM {runs_on}")
    if manifest.training:
        facts = manifest.training
        say(
            f"  trained by {facts.recipe} ({facts.recipe_sha256[:_HASH]}…) in {facts.level}, seed {facts.seed}, "
            f"{facts.metric_name} {_number(facts.metric)}"
        )
    for note in manifest.notes:
        say(f"  note    {note}")
    say(f"  {len(manifest.files)} files; `mpdeploy bundle verify` holds them against their hashes")


def show_export(name: str, manifest: "ExportManifest") -> None:
    """Print what an export wrote, from what, and its verdict."""
    of = f" ({manifest.source_sha256[:_HASH]}…)" if manifest.source_sha256 else ""
    say(f"{name}: an export of {manifest.source}{of} by {manifest.tool}, {'pass' if manifest.passed else 'FAIL'}")
    table = _table("file", "what", "bytes", "sha256")
    for file in manifest.files:
        add_row(table, (f"  {file.path}", file.role.value, f"{file.bytes:,}", f"{file.sha256[:_HASH]}…"))
    show(table)


def _table(first: str, *columns: str) -> "Table":
    from rich.markup import escape

    table = plain_table()
    table.add_column(f"  {first}", overflow="fold")
    for name in columns:
        table.add_column(escape(one_line(name)), justify="right", no_wrap=True)
    return table


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4f}"
