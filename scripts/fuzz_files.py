#!/usr/bin/env python3
"""Break files of every kind that a command reads, and let the commands read them.

    python scripts/fuzz_files.py --files 5000 --seed 0 [--kind npz --kind plan] [--keep FOLDER]

Whatever a file holds, a command ends in time with an exit code from 0 to 5 and says what is wrong in one line; no
file that it reads has changed, and no output is half there.  Prints a table of exit codes for each kind, and each
fault with the words that show it again; FOLDER keeps the files that led to faults, which make the exit code 1.
"""

import argparse
import hashlib
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import children
from broken import ways
from sound_files import write_all

SECONDS, BYTES = 60, 3 << 30  # the most that a command may take for a small file
_FINE = range(6)
_DATA = "--data data.npz"
_AGAIN = "export trained/model.pt --recipe recipe.py -o export"
_BUILDS = "-o out/net.engine --shapes x:1x16:4x16:8x16 --sm 86"
# What is broken, and the commands that read it; each stands in the folder of the sound files and writes into out/.
KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "model": ("net.onnx", (
        "inspect net.onnx", f"run net.onnx {_DATA} --timeout 20", "convert net.onnx -o out/o.onnx --precision fp16",
        f"convert net.onnx -o out/o.onnx --precision bf16 {_DATA} --timeout 20",
        f"verify net.onnx low.onnx {_DATA} --timeout 20", f"verify low.onnx net.onnx {_DATA} --timeout 20 --force",
        f"build net.onnx {_BUILDS}", f"export net.onnx -o out/export {_DATA} --timeout 20",
        f"search net.onnx -o out/o.onnx --precision fp16 {_DATA} --trials 2 --timeout 20",
        f"bench net.onnx {_DATA} --rounds 1 --seconds 0.01 --warmup 0 --timeout 20",
        f"run net.onnx {_DATA} --runtime openvino --timeout 20",
    )),
    "converted model": ("low.onnx", (
        "inspect low.onnx", f"verify net.onnx low.onnx {_DATA} --report out/report --timeout 20",
        f"run low.onnx {_DATA} -o out/y.npz --timeout 20", "convert low.onnx -o out/o.onnx --precision fp16",
        f"verify net.onnx low.onnx {_DATA} --layers --timeout 20",
    )),
    "model with external data": ("external/net.onnx", (
        f"run external/net.onnx {_DATA}", "convert external/net.onnx -o out/o.onnx --precision fp16",
    )),
    "external data": ("external/w.bin", (
        f"run external/net.onnx {_DATA}", "convert external/net.onnx -o out/o.onnx --precision fp16",
    )),
    "npz": ("data.npz", (
        f"run net.onnx {_DATA} -o out/y.npz", f"convert net.onnx -o out/o.onnx --precision fp16 {_DATA}",
        f"verify net.onnx low.onnx {_DATA} --report out/report", f"build net.onnx -o out/e.engine --sm 86 {_DATA}",
        f"run script.pt {_DATA}", f"bench net.onnx {_DATA} --rounds 1 --seconds 0.01 --warmup 0",
        f"export net.onnx -o out/export {_DATA}",
    )),
    "packed npz": ("packed.npz", (
        "run net.onnx --data packed.npz -o out/y.npz", "verify net.onnx low.onnx --data packed.npz",
    )),
    "plan": ("low.plan.json", (
        "inspect low.onnx", "inspect low.plan.json", "inspect low.plan.json --node last", "inspect low.onnx --json",
        "convert net.onnx -o out/o.onnx --precision fp16 --plan low.plan.json",
        f"verify net.onnx low.onnx {_DATA} --layers", "inspect low.plan.json --diff export/model.fp16.plan.json",
        f"build low.onnx {_BUILDS} --plan low.plan.json",
    )),
    "ranges": ("export/ranges.json", (
        "convert export/model.onnx -o out/o.onnx --precision fp16 --ranges export/ranges.json",
    )),
    "report": ("report/report.json", (
        "inspect report/report.json", f"verify net.onnx low.onnx {_DATA} --baseline report/report.json",
        f"build low.onnx {_BUILDS} --drift report/report.json",
    )),
    "manifest of an export": ("export/manifest.json", (
        "inspect export/manifest.json", "bundle export -o out/bundle", _AGAIN,
    )),
    "report of an export": ("export/report.json", ("bundle export -o out/bundle",)),
    "manifest of a bundle": ("bundle/manifest.json", (
        "inspect bundle/manifest.json", "bundle verify bundle", "promote bundle --store out/store --why w",
        "run bundle --data data.npz",
    )),
    "history of a store": ("store/history.json", (
        "promote bundle --store store --why w", "rollback --store store --why w",
    )),
    "sidecar": ("net.engine.json", (
        "inspect net.engine", "inspect net.engine.json", f"run net.engine {_DATA}",
        f"verify net.onnx net.engine {_DATA}",
    )),
    "engine": ("net.engine", ("inspect net.engine", f"run net.engine {_DATA}")),
    "checkpoint": ("trained/model.pt", (
        "inspect trained/model.pt", f"run trained/model.pt --recipe recipe.py {_DATA}",
        "export trained/model.pt --recipe recipe.py -o out/export",
    )),
    "state of a training": ("trained/states/0000000008.pt", (
        "train recipe.py -o trained --resume", "run trained/states --recipe recipe.py --data data.npz",
    )),
    "state dict": ("state.pth", (
        "inspect state.pth", f"run state.pth --model recipe.py:build {_DATA}",
        "export state.pth --model recipe.py:build -o out/export --input x:n,16",
    )),
    "old state dict": ("legacy.pth", ("inspect legacy.pth", f"run legacy.pth --model recipe.py:build {_DATA}")),
    "safetensors": ("state.safetensors", (f"run state.safetensors --model recipe.py:build {_DATA}",)),
    "TorchScript": ("script.pt", (f"run script.pt --input x:n,16 {_DATA} --timeout 20", "inspect script.pt")),
    "program": ("program.pt2", ("run program.pt2 --data input.npz --timeout 20",)),
    "Hugging Face configuration": ("bert/config.json", ("export bert -o out/export",)),
    "Hugging Face weights": ("bert/model.safetensors", ("export bert -o out/export",)),
    "deployment": ("deploy.toml", ("pipeline deploy.toml -o out/pipeline",)),
    "settings": ("settings.toml", (
        f"verify net.onnx low.onnx {_DATA} --settings settings.toml",
        f"search net.onnx -o out/o.onnx --precision fp16 {_DATA} --trials 1 --settings settings.toml",
    )),
}  # fmt: skip
_IN_PLACE = (
    "train",
    "promote bundle --store store",
    "rollback",
    "export trained/model.pt --recipe recipe.py -o export",
)


@dataclass(frozen=True)
class Case:
    """A file that was broken, and the words that read it."""

    kind: str
    path: Path
    way: str
    words: list[str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1000, help="how many files to break")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", choices=KINDS, help="only this kind; may be repeated")
    parser.add_argument("--keep", type=Path, help="where to keep the files that led to faults")
    options = parser.parse_args()
    children.warm()
    counts: dict[str, Counter[str]] = {}
    faults = 0
    with tempfile.TemporaryDirectory(prefix="mpdeploy-fuzz-") as made:
        home, log = Path(made) / "home", Path(made) / "log"
        write_all(home, log)
        shutil.copytree(home, Path(made) / "sound", symlinks=True)
        kinds = options.kind or list(KINDS)
        for number in range(options.files):
            chance = random.Random(f"{options.seed} {number}")  # noqa: S311
            case = _broken(home, kinds[number % len(kinds)], chance)
            before = _digests(home)
            started = time.monotonic()
            limit = children.command(case.words)
            ended = children.run(limit, home, log, SECONDS)
            outcome = "hang" if ended.code is None else str(ended.code)
            counts.setdefault(case.kind, Counter())[outcome] += 1
            for fault in _faults(case, ended, home, before):
                faults += 1
                counts[case.kind]["faults"] += 1
                print(f"{number}: {case.kind} {case.way}: {fault}: mpdeploy {' '.join(case.words)}", flush=True)
                if options.keep:
                    options.keep.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(case.path, options.keep / f"{number}-{case.path.name}")
                    (options.keep / f"{number}.txt").write_text(f"{case}\n{time.monotonic() - started}\n{ended.text}")
            if number % 100 == 99:
                print(f"{number + 1} files", file=sys.stderr, flush=True)
            _restore(Path(made) / "sound", home, case, before)
    _print_table(counts)
    return int(faults > 0)


def _broken(home: Path, kind: str, chance: random.Random) -> Case:
    name, commands = KINDS[kind]
    path = home / name
    content = path.read_bytes()
    way = chance.choice(ways(path))
    path.write_bytes(way(content, chance))
    return Case(kind, path, way.__name__, chance.choice(commands).split())


def _faults(case: Case, ended: children.Ended, home: Path, before: dict[str, str]) -> Iterator[str]:
    if ended.code is None:
        yield f"no end after {SECONDS} seconds"
    elif ended.code not in _FINE:
        last = ended.text.strip().splitlines()[-1:] or [""]
        yield f"exit code {ended.code}: {last[0][:300]}"
    if "Traceback" in ended.text:
        yield "a traceback"
    if ended.peak > BYTES:
        yield f"{ended.peak >> 20} MiB of memory"
    if not " ".join(case.words).startswith(_IN_PLACE):
        changed = [name for name, digest in _digests(home).items() if before.get(name) != digest]
        outputs = [name for name in changed if name.startswith("out/")]
        if len(outputs) < len(changed):
            yield f"changed {', '.join(sorted(set(changed) - set(outputs)))}"
        if outputs and ended.code not in (0, 1) and case.words[0] != "pipeline":
            yield f"left {', '.join(outputs[:3])}"
    strays = [str(path.relative_to(home)) for path in home.rglob(".mpdeploy-*")]
    if strays and ended.code is not None:
        yield f"left {strays[0]}"


def _digests(home: Path) -> dict[str, str]:
    files = (path for path in home.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(home)): hashlib.md5(path.read_bytes()).hexdigest() for path in files}  # noqa: S324


def _restore(sound: Path, home: Path, case: Case, before: dict[str, str]) -> None:
    shutil.rmtree(home / "out", ignore_errors=True)
    if _digests(home) != before or " ".join(case.words).startswith(_IN_PLACE):
        shutil.rmtree(home)
        shutil.copytree(sound, home, symlinks=True)
    else:
        shutil.copyfile(sound / case.path.relative_to(home), case.path)


def _print_table(counts: dict[str, Counter[str]]) -> None:
    columns = [*sorted({outcome for row in counts.values() for outcome in row} - {"faults"}), "faults"]
    print(f"{'kind':28} {'files':>6} " + " ".join(f"{column:>6}" for column in columns))
    total: Counter[str] = Counter()
    for kind, row in counts.items():
        total += row
        print(_line(kind, row, columns))
    print(_line("all", total, columns))


def _line(kind: str, row: Counter[str], columns: list[str]) -> str:
    files = row.total() - row["faults"]
    return f"{kind:28} {files:6} " + " ".join(f"{row[column] or '':>6}" for column in columns)


if __name__ == "__main__":
    sys.exit(main())
