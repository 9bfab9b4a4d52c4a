"""Search against rules: at half of the drift that the rules' plan has, how much is still in the low format?

    python scripts/bench_search.py FOLDER [--precision bf16] [--trials 40]

FOLDER holds models and data: NAME.onnx and NAME.npz (one feed), as `scripts/bench_networks.py` writes them.  For each
model the budget is half of the norm-relative error that `mpdeploy convert --data` comes to on the same data.  Two ways
meet it, or do not: the list that `mpdeploy verify --layers` gives, and `mpdeploy search`.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from mpdeploy.conversion.api import convert
from mpdeploy.errors import VerificationFailed
from mpdeploy.searching.api import search
from mpdeploy.verification.api import verify


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--precision", choices=["fp16", "bf16"], default="bf16")
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = [compared(source, options) for source in sorted(options.folder.glob("*.onnx"))]
    print(f"{'model':12} {'rules':>9} {'budget':>9} | {'repair':>8} {'FLOPs':>6} {'casts':>6} | "
          f"{'search':>8} {'FLOPs':>6} {'casts':>6} {'low':>9} {'plans':>6} {'s':>6}")  # fmt: skip
    for row in rows:
        ways = f"{part(row['repair'])} | {part(row['search'])}"
        print(
            f"{row['model']:12} {row['rules']:9.2e} {row['budget']:9.2e} | {ways} "
            + (f"{row['low']:>9} {row['plans']:6} {row['seconds']:6.1f}" if row["search"] else "")
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


def compared(source: Path, options: argparse.Namespace) -> dict:
    data = str(source.with_suffix(".npz"))
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made.onnx"
        convert(source, made, precision=options.precision, data=data)
        rules = worst(verify(source, made, data))
        budget = f"norm_relative<={rules / 2:.3e}"
        row = {"model": source.stem, "rules": rules, "budget": rules / 2, "repair": None, "search": None}
        blame = verify(source, made, data, budget, layers=True).blame
        if blame and blame.repair and blame.repair.passed:
            done = convert(source, made, precision=options.precision, data=data, keep_fp32=blame.repair.nodes)
            row["repair"] = [blame.repair.error, done.low_flops, done.casts]
        began = time.monotonic()
        try:
            found = search(source, made, precision=options.precision, data=data, budget=budget, trials=options.trials)
        except VerificationFailed as fault:
            print(f"{source.stem}: {fault}", file=sys.stderr)
            return row
        low = f"{found.conversion.low_operators}/{found.conversion.operators}"
        error = worst(verify(source, made, data))
        row |= {
            "search": [error, found.conversion.low_flops, found.conversion.casts],
            "low": low, "plans": len(found.steps), "seconds": time.monotonic() - began,
        }  # fmt: skip
    return row


def part(cells: list | None) -> str:
    if cells is None:
        return f"{'none':>8} {'':>6} {'':>6}"
    error, share, casts = cells
    return f"{error:8.1e} {share:6.1%} {casts:6}"


def worst(report: object) -> float:
    return max(output.norm_relative for output in report.outputs)


if __name__ == "__main__":
    main()
