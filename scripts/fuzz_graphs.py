#!/usr/bin/env python3
"""Convert random graphs to FP16 and BF16, with data and without, and hold every result to what is promised.

    python scripts/fuzz_graphs.py --count 2000           # the figures of the changelog
    python scripts/fuzz_graphs.py --only 17 --keep DIR   # one graph again, its files kept

Of each result: it is a valid model with the inputs and outputs of its source, and another conversion leaves it as it
is.  With data, nothing becomes NaN or infinite under true rounding, and what drifts over the default
budget is said.  Exit code 1 if anything else happens; the graph is saved then.
"""

import contextlib
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import click
import numpy as np
import onnx
import onnx.checker
import onnxruntime
from random_graphs import Arrays, grow

from mpdeploy import convert, verify
from mpdeploy.cli.progress import track
from mpdeploy.errors import ModelError

OUTCOMES = {
    "within": "within budget",
    "told": "over budget with data, and said so",
    "blind": "over budget without data, which only data could tell: verify says so",
    "broken": "NaN or infinite without data, which only data could tell: verify says so",
    "refused": "refused: NaN or infinite whatever the formats",
    "invalid graph": "graphs that ONNX Runtime does not run, or not to finite numbers: left out",
}


@click.command()
@click.option("--count", default=100, show_default=True, help="Graphs to make.")
@click.option("--seed", default=0, show_default=True)
@click.option("--only", type=int, help="One graph, by its number.")
@click.option(
    "--keep", type=click.Path(path_type=Path), help="Folder for what fails  [fuzz_graphs in the temporary one]."
)
def main(count: int, seed: int, only: int | None, keep: Path | None) -> None:
    """Run the conversions and print what became of them."""
    onnxruntime.set_default_logger_severity(4)
    keep = keep or Path(tempfile.gettempdir()) / "fuzz_graphs"
    counts: Counter[str] = Counter()
    faults: list[str] = []
    numbers = range(count) if only is None else [only]
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(KeyboardInterrupt):  # what is done is told
        for number in track(list(numbers), "converting"):
            if not is_sound(*(made := grow((seed, number)))):
                counts["invalid graph"] += 1
                continue
            model, feeds = made
            onnx.save(model, Path(folder) / "source.onnx")
            for precision in ("fp16", "bf16"):
                with_data = (number % 2 == 0) == (precision == "fp16")
                word, fault = outcome(Path(folder), precision, feeds, with_data=with_data)
                counts[word] += 1
                if fault:
                    faults.append(f"graph {number} {precision}{' with data' if with_data else ''}: {fault}")
                    print(faults[-1], file=sys.stderr)
                if fault or only is not None:
                    kept = keep / f"{seed}-{number}-{precision}{'-data' if with_data else ''}"
                    shutil.copytree(folder, kept, dirs_exist_ok=True)
                    np.savez(kept / "feed.npz", **feeds[0])
    for word, meaning in OUTCOMES.items():
        print(f"{counts[word]:6}  {meaning}")
    print(f"{len(faults):6}  faults", *faults, sep="\n  ")
    if faults:
        print(f"kept in {keep}")
        sys.exit(1)


def is_sound(model: onnx.ModelProto, feeds: tuple[Arrays, ...]) -> bool:
    """Tell whether a graph is valid and gives finite numbers."""
    try:
        onnx.checker.check_model(model, full_check=True)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return all(np.isfinite(array).all() for feed in feeds for array in session.run(None, feed))
    except Exception:  # noqa: BLE001 - whatever they raise, this is no model
        return False


def outcome(folder: Path, precision: str, feeds: tuple[Arrays, ...], *, with_data: bool) -> tuple[str, str]:
    """Convert source.onnx in the folder to low.onnx, verify it; return a word of ``OUTCOMES`` and what is wrong."""
    source, low = folder / "source.onnx", folder / "low.onnx"
    before = source.read_bytes()
    try:
        result = convert(source, low, precision=precision, data=list(feeds) if with_data else None)
    except ModelError as error:
        return "refused", "" if "NaN or infinite" in str(error) else f"refused: {error}"
    except Exception as error:  # noqa: BLE001 - every other end is a fault
        return "within", f"{type(error).__name__}: {error}"
    if source.read_bytes() != before:
        return "within", "the source changed"
    fault = what_is_wrong(source, low, precision)
    if fault:
        return "within", fault
    report = verify(source, low, list(feeds), noise=False)
    if report.passed:
        return "within", ""
    if not with_data:
        return "broken" if any(output.broken for output in report.outputs) else "blind", ""
    return "told", "" if not result.passed else f"over budget without a word: {report.verdict.headline}"


def what_is_wrong(source: Path, low: Path, precision: str) -> str:
    """Return what makes a converted file invalid, in a line."""
    model = onnx.load(low)
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # noqa: BLE001 - the checker's and the inference's own errors
        return f"invalid: {error}"
    first = onnx.load(source)
    for one, two in ((first.graph.input, model.graph.input), (first.graph.output, model.graph.output)):
        if [(v.name, v.type.tensor_type.elem_type) for v in one] != [
            (v.name, v.type.tensor_type.elem_type) for v in two
        ]:
            return "its inputs or outputs are not those of the source"
    again = low.with_name("again.onnx")
    if not convert(low, again, precision=precision).unchanged or again.read_bytes() != low.read_bytes():
        return "converted again it changes"
    return ""


if __name__ == "__main__":
    main()
