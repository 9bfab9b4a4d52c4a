#!/usr/bin/env python3
"""What the verifier costs, and what it sees.

    scripts/bench_verify.py                      # both tables, ResNet-50 and BERT-base
    scripts/bench_verify.py --tiny --repeat 3    # small models, to try it out
    scripts/bench_verify.py --only broken

Cost: the time of a run under true rounding over that of the FP32 model in ONNX Runtime, each in a process of its own,
the median of several runs; and the memory that it took at most.  Sight: eleven conversions that are broken, what
ONNX Runtime's CPU provider says of them, and what `mpdeploy verify` says.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import numpy as np
import onnx
from broken_conversions import BROKEN, Broken, naive_half

MODELS = ("resnet50", "bert-base")
PRECISIONS = ("fp16", "bf16")


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--only", type=click.Choice(["cost", "broken"]), help="One of the two tables.")
@click.option("--repeat", default=11, show_default=True, help="Runs that are timed.")
@click.option("--batch", default=8, show_default=True, help="Samples in a run.")
@click.option("--tiny", is_flag=True, help="Small models.")
@click.option("--folder", type=click.Path(path_type=Path), help="Keep the models here.")
@click.option("--json", "target", type=click.Path(path_type=Path), help="Write the figures here, too.")
@click.pass_context
def main(
    context: click.Context,
    only: str | None,
    repeat: int,
    batch: int,
    tiny: bool,
    folder: Path | None,
    target: Path | None,
) -> None:
    """Measure the verifier."""
    if context.invoked_subcommand:
        return
    figures: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as scratch:
        place = folder or Path(scratch)
        place.mkdir(parents=True, exist_ok=True)
        if only != "broken":
            figures["cost"] = costs(place, repeat, batch, tiny=tiny)
        if only != "cost":
            figures["broken"] = [sight(case, place) for case in BROKEN]
            print_sight(figures["broken"])
    if target:
        target.write_text(json.dumps(figures, indent=1) + "\n")


# --- cost ---------------------------------------------------------------------------------------------------


def costs(folder: Path, repeat: int, batch: int, *, tiny: bool) -> list[dict[str, object]]:
    rows = []
    print(
        f"{'model':<12}{'format':<8}{'FP32 ms':>9}{'ours ms':>9}{'ratio':>7}{'open s':>8}{'peak MB':>9}{'file MB':>9}"
    )
    for name in MODELS:
        source, feed = prepared(name, folder, batch, tiny=tiny)
        plain = timed(source, feed, repeat)
        for precision in PRECISIONS:
            candidate = converted(source, precision)
            ours = timed(candidate, feed, repeat)
            row = {
                "model": name,
                "precision": precision,
                "fp32_ms": plain["ms"],
                "emulated_ms": ours["ms"],
                "ratio": ours["ms"] / plain["ms"],
                "open_s": ours["open_s"],
                "peak_mb": ours["peak_mb"],
                "file_mb": candidate.stat().st_size / 1e6,
            }
            rows.append(row)
            print(
                f"{name:<12}{precision:<8}{row['fp32_ms']:9.1f}{row['emulated_ms']:9.1f}{row['ratio']:7.2f}"
                f"{row['open_s']:8.1f}{row['peak_mb']:9.0f}{row['file_mb']:9.0f}"
            )
    return rows


def timed(model: Path, feed: Path, repeat: int) -> dict[str, float]:
    """Run in a process of its own, so that memory is counted from nothing."""
    words = [sys.executable, __file__, "child", str(model), str(feed), str(repeat)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(done.stderr.strip().splitlines()[-1])
    return json.loads(done.stdout)


@main.command(hidden=True)
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("feed", type=click.Path(path_type=Path))
@click.argument("repeat", type=int)
def child(model: Path, feed: Path, repeat: int) -> None:
    from mpdeploy.graph import io
    from mpdeploy.runtime.choose import truthful_runner
    from mpdeploy.runtime.npz import read_npz

    started = time.perf_counter()
    runner = truthful_runner(io.load(model), str(model))
    opened = time.perf_counter() - started
    arrays = read_npz(feed)
    runner.run(arrays)
    times = []
    for _ in range(repeat):
        started = time.perf_counter()
        runner.run(arrays)
        times.append(time.perf_counter() - started)
    print(json.dumps({"ms": 1000 * statistics.median(times), "open_s": opened, "peak_mb": peak_mb()}))


def peak_mb() -> float:
    """This process's largest resident set; ``getrusage`` would count that of its parent before it was started."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise click.ClickException("this system does not tell a process's memory")


def prepared(name: str, folder: Path, batch: int, *, tiny: bool) -> tuple[Path, Path]:
    """Export a model with random weights once; returns the file and its feed."""
    path, feed = folder / f"{name}{'-tiny' if tiny else ''}.onnx", folder / f"{name}-{batch}.npz"
    if not path.exists():
        export(name, path, tiny=tiny)
    rng = np.random.default_rng(0)
    if name == "resnet50":
        np.savez(feed, x=rng.standard_normal((batch, 3, 224, 224)).astype(np.float32))
    else:
        np.savez(feed, x=rng.integers(0, 30522, (batch, 128)))
    return path, feed


def export(name: str, path: Path, *, tiny: bool) -> None:
    import torch
    import transformers

    torch.manual_seed(0)
    if name == "resnet50":
        small = {"depths": [1, 1, 1, 1], "hidden_sizes": [64, 128, 256, 512]} if tiny else {}
        model = transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000, **small))
        x, field = torch.randn(2, 3, 224, 224), "logits"
    else:
        small = {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 512}
        config = transformers.BertConfig(attn_implementation="eager", **(small if tiny else {}))
        model, x, field = transformers.BertModel(config), torch.randint(0, 30522, (2, 128)), "last_hidden_state"

    class Single(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model.eval()

        def forward(self, x: "torch.Tensor") -> "torch.Tensor":
            return getattr(self.model(x), field)

    shapes = ({0: torch.export.Dim("batch")},)
    torch.onnx.export(
        Single(), (x,), str(path), input_names=["x"], output_names=["y"], dynamic_shapes=shapes, dynamo=True,
        external_data=False, verbose=False,
    )  # fmt: skip


def converted(source: Path, precision: str) -> Path:
    from mpdeploy.conversion.api import convert

    target = source.with_name(f"{source.stem}.{precision}.onnx")
    if not target.exists():
        convert(source, target, precision=precision)
    return target


# --- sight --------------------------------------------------------------------------------------------------


def sight(case: Broken, folder: Path) -> dict[str, object]:
    """What ONNX Runtime's CPU provider and the verifier say of one broken conversion."""
    from mpdeploy.runtime.feeds import feeds_of
    from mpdeploy.session.compared import ARITHMETIC, subject_in
    from mpdeploy.verification.api import verify
    from mpdeploy.verification.subject import emulated, opened

    reference, half = folder / "broken.onnx", folder / "broken.half.onnx"
    onnx.save(case.model(), reference)
    onnx.save(naive_half(case.model()), half)
    feeds = feeds_of([case.feed()], "the case's own data")
    hidden = verify(reference, subject_in(half, "onnxruntime"), feeds, noise=False, force=True)
    subject = emulated(half, ARITHMETIC[case.emulate]) if case.emulate else opened(half)
    seen = verify(reference, subject, feeds, noise=False, layers=True)
    blame = seen.blame
    return {
        "case": case.name,
        "fault": case.fault,
        "onnxruntime_passes": hidden.verdict.passed,
        "onnxruntime_error": hidden.outputs[0].norm_relative,
        "mpdeploy_passes": seen.verdict.passed,
        "mpdeploy_error": seen.outputs[0].norm_relative,
        "arithmetic": case.emulate or "as declared",
        "blamed": blame.culprits[0].node if blame and blame.culprits else "",
        "repaired": bool(blame and blame.repair and blame.repair.passed),
    }


def print_sight(rows: object) -> None:
    print(f"\n{'broken conversion':<26}{'ONNX Runtime CPU':<22}{'mpdeploy verify':<24}{'blames':<26}repair")
    for row in rows:  # type: ignore[attr-defined]
        hidden = said(row["onnxruntime_passes"], row["onnxruntime_error"])
        seen = said(row["mpdeploy_passes"], row["mpdeploy_error"])
        print(f"{row['case']:<26}{hidden:<22}{seen:<24}{row['blamed']:<26}{'works' if row['repaired'] else 'none'}")


def said(passes: bool, error: float | None) -> str:
    return f"{'passes' if passes else 'FAILS'}, error {'not finite' if error is None else f'{error:.2g}'}"


if __name__ == "__main__":
    main()
