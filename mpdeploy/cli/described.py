"""Records in words: what `mpdeploy inspect` prints of a checkpoint, a release, an export."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from mpdeploy.bundle.manifest import Manifest
    from mpdeploy.pipeline.manifest import ExportManifest
    from mpdeploy.train.checkpoint import CheckpointRecord

_HASH = 12  # leading hexadecimal digits that are shown of a hash


def show_checkpoint(name: str, record: "CheckpointRecord") -> None:
    """Print where the weights come from, what they take and give, and how the training went."""
    print(
        f"{name}: trained by {record.recipe.file} ({record.recipe.sha256[:_HASH]}…) in {record.level}, "
        f"seed {record.seed}, by mpdeploy {record.mpdeploy_version}, torch {record.torch_version}"
    )
    for spec in record.inputs:
        print(f"  input   {spec.name} {spec.dtype}[{','.join(map(str, spec.shape))}]")
    for output in record.outputs:
        print(f"  output  {output}")
    averaged = f", the average of the weights with decay {record.ema_decay:g}" if record.ema_decay is not None else ""
    print(f"  weights fp32{averaged}: {record.metric_name} {_number(record.metric)} on held-out examples")
    print(f"  steps   {record.steps_applied} applied, {record.steps_skipped} skipped, in {record.epochs} epochs")
    ends = {r.module: (r.low, r.high) for r in record.ranges if r.low is not None and r.high is not None}
    if ends:
        module, (low, high) = max(ends.items(), key=lambda item: max(map(abs, item[1])))
        print(f"  ranges  {len(record.ranges)} measured in training, widest that of {module}: {low:.4g} to {high:.4g}")
    table = _table("epoch", "loss", record.metric_name, "skipped")
    for number, epoch in enumerate(record.history, 1):
        table.add_row(f"  {number}", _number(epoch.train_loss), _number(epoch.metric), str(epoch.skipped))
    _print(table)


def show_manifest(name: str, manifest: "Manifest") -> None:
    """Print a release: what it holds, whether it may be promoted, where it comes from."""
    print(f"{name}: {manifest.name} {manifest.version}, made {manifest.created} by {manifest.tool}")
    print(f"  {'may be promoted' if manifest.passed else 'may NOT be promoted: ' + '; '.join(manifest.reasons)}")
    for model in manifest.models:
        verdict = f": {model.verdict.headline}" if model.verdict else ""
        print(f"  {model.path}  {model.format}{verdict}")
    for engine in manifest.engines:
        runs_on = ", ".join(map(str, engine.capabilities))
        print(f"  {engine.path}  from {engine.model}, {engine.backend} {engine.backend_version}, SM {runs_on}")
    if manifest.training:
        facts = manifest.training
        print(
            f"  trained by {facts.recipe} ({facts.recipe_sha256[:_HASH]}…) in {facts.level}, seed {facts.seed}, "
            f"{facts.metric_name} {_number(facts.metric)}"
        )
    for note in manifest.notes:
        print(f"  note    {note}")
    print(f"  {len(manifest.files)} files; `mpdeploy bundle verify` holds them against their hashes")


def show_export(name: str, manifest: "ExportManifest") -> None:
    """Print what an export wrote, from what, and its verdict."""
    of = f" ({manifest.source_sha256[:_HASH]}…)" if manifest.source_sha256 else ""
    print(f"{name}: an export of {manifest.source}{of} by {manifest.tool}, {'pass' if manifest.passed else 'FAIL'}")
    table = _table("file", "what", "bytes", "sha256")
    for file in manifest.files:
        table.add_row(f"  {file.path}", file.role.value, f"{file.bytes:,}", f"{file.sha256[:_HASH]}…")
    _print(table)


def _print(table: "Table") -> None:
    from rich.console import Console

    Console(highlight=False).print(table)


def _table(first: str, *columns: str) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(f"  {first}", overflow="fold")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4f}"
