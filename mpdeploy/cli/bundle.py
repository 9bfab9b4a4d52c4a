"""`mpdeploy bundle`: pack a release, or verify one."""

from pathlib import Path

import click

from mpdeploy.bundle.manifest import BundledModel, Manifest, TrainingFacts
from mpdeploy.cli.console import say
from mpdeploy.cli.examples import with_examples
from mpdeploy.cli.outcome import Outcome, result_options
from mpdeploy.cli.words import Group, nearest
from mpdeploy.numerics.formats import Format


class _PackByDefault(Group):
    """`mpdeploy bundle DIR` packs; `mpdeploy bundle verify DIR` verifies."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        first = args[0] if args else ""
        if first and first not in self.commands and first not in ctx.help_option_names:
            if nearest(first, self.commands) and not Path(first).exists():
                return super().parse_args(ctx, args)  # a mistyped command, rather than a folder that is not there
            args = ["pack", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_PackByDefault)
def command() -> None:
    """Pack the folder that an export wrote into a release that stands alone, or verify a release.

    `mpdeploy bundle DIR -o BUNDLE` is short for `mpdeploy bundle pack DIR -o BUNDLE`.
    """


@command.command("pack")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The bundle to write  [default: DIR-bundle].")
@click.option("--name", help="The release's name  [default: the folder's, or of .../NAME/export, NAME].")
@click.option("--version", default="", help="Its version  [default: 12 digits of a hash over its files].")
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path),
    help="Where the models come from  [default: what the export was made from, if it is still there].",
)
@click.option(
    "--sample", metavar="D", help="Data whose first feed goes along  [default: heldout/ beside the checkpoint]."
)
@click.option("--licence", "licences", multiple=True, type=click.Path(path_type=Path), help="A licence or notice file.")
@click.option("--sign", "key", type=click.Path(path_type=Path), help="Sign with this ed25519 private key (PEM).")
@click.option("--triton", is_flag=True, help="Lay out a model repository for Triton Inference Server, too.")
@click.option(
    "--triton-version",
    type=click.IntRange(min=1),
    help="Its version folder  [default: one above those of --triton-after, else 1].",
)
@click.option(
    "--triton-after",
    metavar="BUNDLE",
    type=click.Path(path_type=Path),
    help="An earlier bundle whose versions of the same models stay in service, too.",
)
@click.option(
    "--triton-keep", type=click.IntRange(min=1), default=2, show_default=True, help="Versions of a model, at most."
)
@click.option(
    "--triton-batch", type=click.IntRange(min=0), default=32, show_default=True, help="Largest batch; 0: none."
)
@click.option(
    "--triton-delay", type=click.IntRange(min=0), default=100, show_default=True, help="Wait for more, in µs."
)
@click.option("--triton-instances", type=click.IntRange(min=1), default=1, show_default=True, help="Of each model.")
@click.option("--triton-gpu", is_flag=True, help="Serve ONNX models on GPUs.")
@result_options
def pack_command(
    folder: Path,
    output: Path | None,
    name: str | None,
    version: str,
    checkpoint: Path | None,
    sample: str | None,
    licences: tuple[Path, ...],
    key: Path | None,
    triton: bool,
    triton_version: int | None,
    triton_after: Path | None,
    triton_keep: int,
    triton_batch: int,
    triton_delay: int,
    triton_instances: int,
    triton_gpu: bool,
) -> Outcome:
    """Pack DIR, the folder that an export wrote: models, plans, engines, reports, provenance.

    A release whose models did not all pass verification is packed, too, but `mpdeploy promote` refuses it.
    """
    from mpdeploy.bundle.pack import Packing, pack
    from mpdeploy.bundle.triton import Serving
    from mpdeploy.bundle.triton_config import Batching
    from mpdeploy.runtime.apart import require_apart
    from mpdeploy.runtime.feeds import open_feeds

    source = checkpoint or _source_of(folder)
    held_out = source.parent / "heldout"  # where training leaves it
    data = sample or (str(held_out) if held_out.is_dir() else None)
    serving = Serving(
        Batching(triton_batch, triton_delay), triton_instances, triton_version, triton_gpu, triton_after, triton_keep
    )
    packing = Packing(
        name=name or _usual_name(folder),
        version=version,
        sample=None if data is None else open_feeds(data),
        licences=licences,
        training=_training(source, required=checkpoint is not None),
        serving=serving if triton or triton_after else None,
        key=key,
    )
    home = folder.resolve()
    target = output or (home if folder.name in ("", "..") else folder).parent / f"{home.name}-bundle"
    require_apart((), folders=(target,), others=(checkpoint,))
    manifest = pack(folder, target, packing)
    return Outcome(manifest, lambda: _show(manifest, target))


@command.command("verify")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--key", type=click.Path(path_type=Path), help="Its signature must be by this ed25519 public key (PEM).")
@result_options
def verify_command(bundle: Path, key: Path | None) -> Outcome:
    """Tell whether any byte of BUNDLE changed since it was packed: exit code 0 if none did, 1 otherwise."""
    from mpdeploy.bundle.check import check_bundle

    manifest = check_bundle(bundle, key)
    return Outcome(manifest, lambda: _show(manifest, bundle))


with_examples(pack_command, "pack")
with_examples(verify_command, "bundle verify")


def _show(manifest: Manifest, folder: Path) -> None:
    size = sum(file.bytes for file in manifest.files)
    say(f"{folder}: {manifest.name} {manifest.version}, {len(manifest.files)} files, {size / 1e6:.1f} MB")
    for model in manifest.models:
        say(f"  {model.path}  {model.format}  {_verdict(model)}")
    for engine in manifest.engines:
        say(f"  {engine.path}  {engine.backend} {engine.backend_version}, from {engine.model or 'an unknown model'}")
    for note in manifest.notes:
        say(f"  note: {note}")
    say("  may be promoted" if manifest.passed else f"  may NOT be promoted: {'; '.join(manifest.reasons)}")


def _verdict(model: BundledModel) -> str:
    if model.verdict is not None:
        return "pass" if model.verdict.passed else "FAIL"
    return "reference" if model.format == Format.FP32.value else "not verified"


def _usual_name(folder: Path) -> str:
    home = folder.resolve()
    return home.parent.name if home.name == "export" and home.parent.name else home.name


def _source_of(folder: Path) -> Path:
    """The checkpoint that an export was made from, told by its hash in the export's manifest; or DIR/model.pt."""
    from mpdeploy import records
    from mpdeploy.bundle.manifest import MANIFEST
    from mpdeploy.errors import UsageError
    from mpdeploy.files import sha256_of
    from mpdeploy.pipeline.manifest import ExportManifest

    usual = folder / "model.pt"
    try:
        export = records.load(ExportManifest, folder / MANIFEST)
    except UsageError:  # not the folder of an export
        return usual
    name = Path(export.source).name
    near = (home / name for home in (folder, folder.resolve().parent))
    return next((path for path in near if path.is_file() and sha256_of(path) == export.source_sha256), usual)


def _training(path: Path, *, required: bool) -> TrainingFacts | None:
    if not required and not path.is_file():
        return None
    from mpdeploy.errors import ModelError, UsageError
    from mpdeploy.pipeline.release import training_facts
    from mpdeploy.train.checkpoint import load_checkpoint

    try:
        record = load_checkpoint(path).record
    except (ModelError, UsageError):
        if required:
            raise
        return None  # a model from elsewhere tells nothing of its training
    return training_facts(path, record)
