#!/usr/bin/env python3
"""Converters side by side: wall time, peak memory, file size, FLOPs low, casts, drift under true rounding.

    python scripts/bench_convert.py                       # the ordinary networks, all peers
    python scripts/bench_convert.py bert decoder_1b --runs 5 --precision fp16
    python scripts/bench_convert.py model.onnx model.npz  # your own

Every converter runs as a whole process in an environment of its own (made once under build/bench), on the same
files, in turn: A B C A B C …  Figures are medians, ratios are to mpdeploy in the same run.
"""

import argparse
import glob
import json
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from rich.console import Console
from rich.table import Table

from mpdeploy.conversion.api import convert
from mpdeploy.conversion.trial import distance
from mpdeploy.errors import MpdeployError
from mpdeploy.graph import io
from mpdeploy.graph.arithmetic import low_share
from mpdeploy.graph.scope import all_graphs, all_nodes
from mpdeploy.graph.shapes import guessed_size
from mpdeploy.graph.types import element_type
from mpdeploy.runtime.choose import truthful_runner
from mpdeploy.runtime.fit import fit

BUILD = Path(__file__).parent.parent / "build" / "bench"
ORDINARY = ("bert", "gpt2", "t5", "llama", "vit", "resnet50", "unet", "yolo", "lstm")

PEERS = {
    "onnxconverter-common": (
        ("onnxconverter-common==1.16.0", "onnx<1.20", "onnxruntime"),
        """
import sys, onnx
from onnxconverter_common import float16
model = onnx.load(sys.argv[1])
large = len(sys.argv) > 4 and sys.argv[4] == "external"
low = float16.convert_float_to_float16(model, keep_io_types=True, disable_shape_infer=large)
external = len(sys.argv) > 4 and sys.argv[4] == "external"
onnx.save(low, sys.argv[2], save_as_external_data=external, location="low.data" if external else None)
""",
    ),
    "onnxruntime float16": (
        ("onnxruntime==1.32.0", "onnx"),
        """
import sys, onnx
from onnxruntime.transformers.float16 import convert_float_to_float16
model = onnx.load(sys.argv[1])
large = len(sys.argv) > 4 and sys.argv[4] == "external"
low = convert_float_to_float16(model, keep_io_types=True, disable_shape_infer=large)
external = len(sys.argv) > 4 and sys.argv[4] == "external"
onnx.save(low, sys.argv[2], save_as_external_data=external, location="low.data" if external else None)
""",
    ),
    "AutoCast": (
        ("torch==2.13.0", "nvidia-modelopt[onnx]==0.47.0"),
        """
import sys, onnx
from modelopt.onnx.autocast import convert_to_mixed_precision
data = sys.argv[3] if len(sys.argv) > 3 and sys.argv[3] else None
precision = sys.argv[5] if len(sys.argv) > 5 else "fp16"
low = convert_to_mixed_precision(sys.argv[1], low_precision_type=precision, keep_io_types=True, calibration_data=data)
external = len(sys.argv) > 4 and sys.argv[4] == "external"
onnx.save(low, sys.argv[2], save_as_external_data=external, location="low.data" if external else None)
""",
    ),
}
ONLY_FP16 = frozenset({"onnxconverter-common", "onnxruntime float16"})

# The floor: read the bytes, round them, write them.
PLAIN = """
import sys, numpy as np
with open(sys.argv[1], "rb") as given, open(sys.argv[2], "wb") as made:
    while len(chunk := np.fromfile(given, np.float32, 1 << 20)):
        chunk.astype(np.float16).tofile(made)
"""


@dataclass
class Row:
    """One converter on one network, without or with data."""

    name: str
    walls: list[float] = field(default_factory=list)
    peaks: list[float] = field(default_factory=list)
    fault: str = ""
    facts: dict[str, float | str] = field(default_factory=dict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=list(ORDINARY), help="names, or MODEL.onnx DATA.npz")
    parser.add_argument("--precision", choices=("fp16", "bf16"), default="fp16")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--json", type=Path)
    words = parser.parse_args()
    pythons = {name: environment(name) for name in words.peers}
    document = {}
    for source, data in sources(words.networks):
        for feed in (None, data):
            rows = measure(source, feed, words.precision, words.runs, pythons)
            title = f"{source.stem} {words.precision}, {'with' if feed else 'without'} data"
            show(title, rows, size_of(source))
            document[title] = [vars(row) for row in rows]
    if words.json:
        words.json.write_text(json.dumps(document, indent=1))


def sources(names: list[str]) -> list[tuple[Path, Path]]:
    if names and names[0].endswith(".onnx"):
        return [(Path(model), Path(data)) for model, data in zip(names[::2], names[1::2], strict=True)]
    folder, found = BUILD / "networks", []
    for name in names:
        model = folder / f"{name}.onnx"
        if not model.exists():
            script = Path(__file__).with_name("bench_networks.py")
            subprocess.run([sys.executable, script, str(folder), name], check=True, stderr=subprocess.DEVNULL)
        found.append((model, model.with_suffix(".npz")))
    return found


def environment(name: str) -> Path:
    """Return the interpreter of a peer's own environment, made on first use."""
    home = BUILD / name.replace(" ", "-")
    python = home / "bin" / "python"
    if not (home / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PEERS[name][0]], check=True)
        (home / "ready").touch()
    return python


def measure(source: Path, data: Path | None, precision: str, runs: int, pythons: dict[str, Path]) -> list[Row]:
    external = "external" if size_of(source) > 1 << 31 else ""
    folder = BUILD / "out"
    commands: dict[str, list[str]] = {}

    def target(name: str) -> Path:
        return folder / name.replace(" ", "-") / "low.onnx"

    words = ["convert", str(source), "-o", str(target("mpdeploy")), "--precision", precision, "--quiet"]
    commands["mpdeploy"] = [sys.executable, "-m", "mpdeploy", *words, *(["--data", str(data)] if data else [])]
    for name, python in pythons.items():
        # Only AutoCast uses data, and only it knows BF16.
        if (data is None and precision == "fp16") or name not in ONLY_FP16:
            words = [str(source), str(target(name)), str(data or ""), external, precision]
            commands[name] = [str(python), "-c", PEERS[name][1], *words]
    if data is None:
        commands["read, round, write"] = [sys.executable, "-c", PLAIN, str(raw_weights(source)), str(target("plain"))]
        target("plain").parent.mkdir(parents=True, exist_ok=True)
    rows = {name: Row(name) for name in commands}
    for _ in range(runs):
        for name, command in commands.items():
            if rows[name].fault:
                continue
            if name != "read, round, write":
                shutil.rmtree(target(name).parent, ignore_errors=True)
                target(name).parent.mkdir(parents=True)
            wall, peak, fault = run(command)
            rows[name].walls.append(wall)
            rows[name].peaks.append(peak)
            rows[name].fault = fault
    for name, row in rows.items():
        if not row.fault and name != "read, round, write":
            row.facts = facts_of(source, target(name), data or source.with_suffix(".npz"))
            if name == "AutoCast" and "invalid" not in row.facts:
                row.facts["our_casts"] = casts_on_the_same_set(source, target(name), precision)
    return list(rows.values())


# A child's peak memory starts at its parent's size; this parent is small.
LAUNCHER = """
import json, os, subprocess, sys, time
started = time.monotonic()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(json.dumps([time.monotonic() - started, usage.ru_maxrss / 1e3, os.waitstatus_to_exitcode(status)]))
"""


def raw_weights(source: Path) -> Path:
    """Return a file that holds the model's float32 weights and nothing else."""
    path = source.with_suffix(".raw")
    if not path.exists():
        with path.open("wb") as stream:
            for graph in all_graphs(io.load(source)):
                for value in graph.initializers.values():
                    if is_fp32(value) and value.const_value is not None:
                        value.const_value.tofile(stream)
    return path


def run(command: list[str]) -> tuple[float, float, str]:
    """Return wall seconds, peak memory in MB, and the last line of what went wrong."""
    launched = [sys.executable, "-I", "-S", "-c", LAUNCHER, *command]
    done = subprocess.run(launched, capture_output=True, text=True, check=True)
    wall, peak, code = json.loads(done.stdout)
    lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
    if code == 0:
        return wall, peak, ""
    return wall, peak, f"killed by signal {-code}" if code < 0 else (lines[-1][:90] if lines else f"exit {code}")


def facts_of(source: Path, made: Path, data: Path) -> dict[str, float | str]:
    facts: dict[str, float | str] = {"size": size_of(made) / size_of(source)}
    try:
        model = io.load(made)
        own = sum(n.op_type == "Cast" for n in all_nodes(io.load(source)))
        casts = [n for n in all_nodes(model) if n.op_type == "Cast"]
        facts["casts"] = len(casts) - own
        facts["cast_mb"] = sum(bytes_read(n) for n in casts) / 1e6
        facts["flops_low"] = low_share(model) or 0.0
        if size_of(source) < 1 << 31:
            facts["drift"] = drift(source, made, data)
    except MpdeployError as error:
        facts["invalid"] = error.what[:80]
    return facts


def casts_on_the_same_set(source: Path, made: Path, precision: str) -> int:
    """How many Casts mpdeploy puts in when it keeps exactly the nodes in FP32 that the other converter kept."""
    # By a node's data, not by operands that are FP32 in any case, as the scales of Resize.
    fp32 = {n.name for n in all_nodes(io.load(made)) if any(is_fp32(v) for v in (*n.inputs[:1], *n.outputs))}
    floats = {n.name for n in all_nodes(io.load(source)) if any(is_fp32(v) for v in (*n.inputs, *n.outputs))}
    kept = [n.name for n in all_nodes(io.load(source)) if n.name in fp32 & floats and n.op_type != "Constant"]
    ours = BUILD / "out" / "same-set" / "low.onnx"
    return convert(source, ours, precision=precision, policy="fast", keep_fp32=tuple(map(glob.escape, kept))).casts


def is_fp32(value: object) -> bool:
    return value is not None and element_type(value) is ir.DataType.FLOAT


def bytes_read(node: "onnx.NodeProto") -> int:
    value = node.inputs[0]
    return guessed_size(value) * element_type(value).bitwidth // 8


def drift(source: Path, made: Path, data: Path) -> float:
    """The largest error of any output over that output's largest magnitude, under true rounding."""
    ours, theirs = (truthful_runner(io.load(p), str(p)) for p in (source, made))
    feed = dict(np.load(data))
    a, b = (r.run(fit(feed, r.inputs, str(data)).feed) for r in (ours, theirs))
    return max(distance(a[name], b[name]) for name in a)


def size_of(path: Path) -> int:
    beside = [p for p in path.parent.glob("*.data") if path.stem in p.name or p.name == "low.data"]
    return path.stat().st_size + sum(p.stat().st_size for p in beside)


def show(title: str, rows: list[Row], size: int) -> None:
    table = Table(title=f"{title} ({size / 1e6:,.0f} MB)", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in (
        "",
        "wall s",
        "ratio",
        "peak MB",
        "of file",
        "size",
        "FLOPs low",
        "casts",
        "ours",
        "cast MB",
        "drift",
        "",
    ):
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    base = statistics.median(rows[0].walls)
    for row in rows:
        if row.fault:
            table.add_row(row.name, *[""] * 10, row.fault)
            continue
        wall, peak, facts = statistics.median(row.walls), statistics.median(row.peaks), row.facts
        cells = [f"{wall:.2f}", f"{wall / base:.2f}", f"{peak:,.0f}", f"{peak * 1e6 / size:.2f}"]
        if "invalid" in facts:
            cells += [f"{facts['size']:.2f}", "", "", "", "", "", "invalid: " + str(facts["invalid"])]
        elif facts:
            cells += [f"{facts['size']:.2f}", f"{facts['flops_low']:.1%}", f"{facts['casts']}"]
            cells += [str(facts.get("our_casts", "")), f"{facts['cast_mb']:.2f}"]
            cells.append(f"{facts['drift']:.1e}" if "drift" in facts else "")
        table.add_row(row.name, *cells)
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
