#!/usr/bin/env python3
"""Kill each command that writes at random moments, with SIGKILL and SIGTERM in turn, and look at what is left.

    python scripts/kill_commands.py --kills 50 --seed 0 [--command export]

At every moment the output is that of the run before or that of a whole new one, never of both; SIGTERM ends a command
with exit code 143 and leaves nothing behind; no process goes on; and the next run that writes there is whole and
sweeps what SIGKILL left.  Prints a table, and each fault with the number that shows it again; faults make the exit
code 1.
"""

import argparse
import hashlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import children
from sound_files import write_all

SECONDS = 300.0
_TERMINATED = 143
_LEFT_ALONE = 5.0  # seconds that processes get to notice that nobody needs them any more
_DATA = ("data.npz", "packed.npz")


@dataclass(frozen=True)
class Writer:
    """A command in two versions whose outputs differ, what they write, and commands that must find that whole."""

    versions: tuple[str, str]
    outputs: tuple[str, ...]
    checks: tuple[str, ...] = ()
    idle: tuple[int, ...] = ()  # exit codes where there is nothing to do


WRITERS = {
    "convert": Writer(
        tuple(f"convert net.onnx -o out/o.onnx --precision {f} --data data.npz" for f in ("fp16", "bf16")),
        ("out",), ("inspect out/o.onnx",),
    ),
    "search": Writer(
        tuple(f"search net.onnx -o out/o.onnx --precision {f} --data data.npz --trials 3" for f in ("fp16", "bf16")),
        ("out",), ("inspect out/o.onnx",),
    ),
    "verify": Writer(
        tuple(f"verify net.onnx low.onnx --data {d} --report out --junit j.xml --markdown m.md" for d in _DATA),
        ("out",), ("inspect out/report.json",),
    ),
    "run": Writer(tuple(f"run {m} --data data.npz -o out" for m in ("net.onnx", "low.onnx")), ("out",)),
    "bench": Writer(
        tuple(f"bench {m} --rounds 2 --seconds 0.05 --warmup 0 --report out" for m in ("net.onnx", "low.onnx")),
        ("out",),
    ),
    "export": Writer(
        tuple(f"export trained/model.pt --recipe recipe.py --precision {f} -o out" for f in ("fp16", "bf16")),
        ("out",), ("inspect out/manifest.json",),
    ),
    "build": Writer(
        tuple(f"build {m} -o out/net.engine --shapes x:1x16:4x16:8x16 --sm 86" for m in ("net.onnx", "low.onnx")),
        ("out",), ("inspect out/net.engine",),
    ),
    "bundle": Writer(
        tuple(f"bundle export -o out --version {v} --sample data.npz" for v in ("1", "2")),
        ("out",), ("bundle verify out",),
    ),
    "promote": Writer(
        tuple(f"promote {b} --store store --why again" for b in ("bundle1", "bundle2")), (),
        ("bundle verify store/current",), (2,),
    ),
    "rollback": Writer(
        tuple(f"rollback --store store --why again --to {v}" for v in ("1", "2")), (),
        ("bundle verify store/current",), (2,),
    ),
    "pipeline": Writer(
        tuple(f"pipeline {f} -o out" for f in ("deploy.toml", "deploy2.toml")), (),
        ("inspect out/latest/report.json", "bundle verify out/release"),
    ),
    "train": Writer(
        tuple(f"train recipe.py -o out --seed {s} --save-every 1 --report" for s in (0, 1)), (),
        ("inspect out/model.pt", "inspect out/best.pt"),
    ),
}  # fmt: skip


class Campaign:
    """One command that is killed again and again in a folder of its own."""

    def __init__(self, home: Path, log: Path, writer: Writer) -> None:
        self.home, self.log, self.writer = home, log, writer
        self.counts: Counter[str] = Counter()
        self.finished: list[dict[str, str]] = []  # what a whole run of each version writes
        self.seconds = 0.0

    def faults(self, kills: int, seed: str) -> Iterator[str]:
        """Yield what is wrong after each kill, and after a whole run at the end."""
        try:
            self._prepare()
            for number in range(kills):
                chance = random.Random(f"{seed} {number}")  # noqa: S311
                yield from (f"{number}: {fault}" for fault in self._kill(number, chance))
            self._whole_run(0)
        except SystemExit as fault:
            yield str(fault)
            return
        if strays := self._strays():
            yield f"the next run left {strays[0]}"
        yield from self._checked("the next run")

    def _prepare(self) -> None:
        """Run both versions to their end: what they write, and how long that takes."""
        for version in (0, 1):
            started = time.monotonic()
            self._whole_run(version)
            self.seconds = time.monotonic() - started
            self.finished.append(self._state())

    def _kill(self, number: int, chance: random.Random) -> Iterator[str]:
        """Start a version, send it a signal at a random moment, and yield what is wrong then."""
        before, strayed, version = self._state(), self._strays(), number % 2
        pid = children.start(children.command(self._words(version)), self.home, self.log)
        time.sleep(chance.random() * self.seconds * 1.05)
        sent = (signal.SIGKILL, signal.SIGTERM)[number // 2 % 2]
        os.kill(pid, sent)
        ended = children.wait(pid, SECONDS, self.log)
        self.counts[sent.name] += 1
        self.counts["done"] += ended.code == 0
        if ended.code is None:
            yield f"{sent.name}: it does not end"
        if ended.code not in (0, -sent, _TERMINATED, *self.writer.idle) or "Traceback" in ended.text:
            yield f"{sent.name}: exit code {ended.code}: {ended.text[-300:]!r}"
        if ended.code in (0, _TERMINATED) and (strays := set(self._strays(kept=ended.text)) - set(strayed)):
            yield f"{sent.name}: left {strays.pop()}"
        if (mixed := self._mixture(before, version)) is not None:
            yield f"{sent.name}: files of two runs: {mixed}"
        if left := _processes_of(pid):
            yield f"{sent.name}: processes {left} go on"
        yield from self._checked(sent.name)

    def _whole_run(self, version: int) -> None:
        ended = children.run(children.command(self._words(version)), self.home, self.log, SECONDS)
        if ended.code not in (0, 1, *self.writer.idle):
            raise SystemExit(f"a run that nobody killed fails with {ended.code}: {ended.text[-400:]}")

    def _words(self, version: int) -> list[str]:
        return self.writer.versions[version].split()

    def _checked(self, when: str) -> Iterator[str]:
        for check in self.writer.checks:
            ended = children.run(children.command(check.split()), self.home, self.log, SECONDS)
            if ended.code != 0:
                yield f"{when}: {check}: exit code {ended.code}: {ended.text[-300:]!r}"

    def _state(self) -> dict[str, str]:
        """The digests of all files of the output, by path."""
        files = (path for output in self.writer.outputs for path in (self.home / output).rglob("*") if path.is_file())
        shown = (path for path in files if ".mpdeploy-" not in str(path))
        return {str(path.relative_to(self.home)): hashlib.sha256(path.read_bytes()).hexdigest() for path in shown}

    def _mixture(self, before: dict[str, str], version: int) -> str | None:
        """A file that shows that the output is neither the old one nor a whole new one."""
        after = self._state()
        if after == before:
            return None
        self.counts["new"] += 1
        new, other = self.finished[version], self.finished[1 - version]
        if after.keys() != new.keys():
            return ", ".join(sorted(after.keys() ^ new.keys()))
        differing = [name for name in new if new[name] != other.get(name) and before.get(name) != new[name]]
        return next((name for name in differing if after[name] == before.get(name)), None)

    def _strays(self, kept: str = "") -> list[str]:
        found = [*self.home.rglob(".mpdeploy-*"), *self.home.rglob("*.part")]
        return [str(path.relative_to(self.home)) for path in found if path.name not in kept]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10, help="how often to kill each command")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--command", action="append", choices=WRITERS, help="only this one; may be repeated")
    options = parser.parse_args()
    children.warm()
    faults = 0
    columns = ("SIGKILL", "SIGTERM", "new", "done", "faults")
    print(f"{'command':16} {'s':>5} " + " ".join(f"{column:>8}" for column in columns))
    with tempfile.TemporaryDirectory(prefix="mpdeploy-kills-") as made:
        log, sound = Path(made) / "log", Path(made) / "sound"
        write_all(sound, log)
        _add_second_versions(sound, log)
        for name in options.command or WRITERS:
            home = Path(made) / name
            shutil.copytree(sound, home, symlinks=True)
            campaign = Campaign(home, log, WRITERS[name])
            for fault in campaign.faults(options.kills, f"{options.seed} {name}"):
                campaign.counts["faults"] += 1
                print(f"{name} {fault}", flush=True)
            faults += campaign.counts["faults"]
            row = " ".join(f"{campaign.counts[column] or '':>8}" for column in columns)
            print(f"{name:16} {campaign.seconds:5.1f} {row}", flush=True)
    return int(faults > 0)


def _add_second_versions(home: Path, log: Path) -> None:
    (home / "deploy2.toml").write_text((home / "deploy.toml").read_text().replace('"fp16"', '"bf16"'))
    for version in ("1", "2"):
        bundle = f"bundle{version}"
        for words in (f"bundle export -o {bundle} --version {version}", f"promote {bundle} --store store --why w"):
            made = children.run(children.command(words.split()), home, log)
            if made.code != 0:
                raise SystemExit(made.text)


def _processes_of(session: int) -> list[int]:
    """Return the processes that a command started and that go on without it, after a while."""
    until = time.monotonic() + _LEFT_ALONE
    while (found := list(_in_session(session))) and time.monotonic() < until:
        time.sleep(0.1)
    return found


def _in_session(session: int) -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            yield int(entry.parent.name)


if __name__ == "__main__":
    sys.exit(main())
