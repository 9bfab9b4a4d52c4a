#!/usr/bin/env python3
"""Time FP32 and BF16 on every CPU runtime, for a convolutional network and a transformer of usual size.

Both have random weights: times do not depend on them.  Normalisation is calibrated so that activations are of
ordinary size, and the drift that stands beside the times is meant as a check, not as an accuracy result.
"""

import argparse
import logging
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from mpdeploy.cli.machine import describe_machine
from mpdeploy.cli.progress import meter, note
from mpdeploy.conversion.api import convert
from mpdeploy.errors import DependencyError
from mpdeploy.session.bench import bench
from mpdeploy.session.bench_record import BenchReport
from mpdeploy.session.contest import BenchSettings, Contestant
from mpdeploy.session.opening import Runtime
from mpdeploy.session.picture import table_cells, write_bench

WANTED = 1.7  # how many times as fast as FP32 on ONNX Runtime BF16 on OpenVINO has to be


class Bottleneck(nn.Module):
    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *conv(before, width, 1), nn.ReLU(), *conv(width, width, 3, stride), nn.ReLU(), *conv(width, 4 * width, 1)
        )
        keeps = stride == 1 and before == 4 * width
        self.shortcut = nn.Identity() if keeps else nn.Sequential(*conv(before, 4 * width, 1, stride))

    def forward(self, x):
        return torch.relu(self.body(x) + self.shortcut(x))


def conv(before: int, after: int, size: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(before, after, size, stride, size // 2, bias=False), nn.BatchNorm2d(after)


def resnet(depths: tuple[int, ...], classes: int = 1000) -> nn.Module:
    layers: list[nn.Module] = [*conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    before = 64
    for stage, depth in enumerate(depths):
        width = 64 * 2**stage
        for index in range(depth):
            layers.append(Bottleneck(before, width, 2 if stage and not index else 1))
            before = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        attended = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.second(x))


class ViT(nn.Module):
    def __init__(self, pixels: int, depth: int, width: int, heads: int, patch: int = 16, classes: int = 1000) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.positions = nn.Parameter(0.02 * torch.randn(1, (pixels // patch) ** 2, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.blocks(x)).mean(1))


@dataclass(frozen=True)
class Subject:
    """A network to time: how to make it, and the side of its square images."""

    name: str
    make: Callable[[], nn.Module]
    pixels: int


SUBJECTS = (
    Subject("resnet50", lambda: resnet((3, 4, 6, 3)), 224),
    Subject("vit_b16", lambda: ViT(224, 12, 768, 12), 224),
)
SMALL = (
    Subject("resnet_small", lambda: resnet((1, 1)), 64),
    Subject("vit_small", lambda: ViT(64, 2, 192, 3), 64),
)


def main() -> int:
    words = parse_words()
    subjects = SMALL if words.small else SUBJECTS
    machine = describe_machine()
    described = f"{machine.cpu}, {machine.cores} cores, {', '.join(machine.cpu_features)}"
    settings = BenchSettings(tuple(words.batch), words.rounds, words.seconds, words.warmup, words.threads)
    short = []
    for subject in subjects:
        note(f"── {subject.name}")
        folder = words.output / subject.name
        entrants = contestants(*prepare(subject, folder))
        try:
            with meter(subject.name) as progress:
                report = bench(entrants, settings, machine=described, progress=progress)
        except DependencyError as error:
            print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
            return error.exit_code
        note(f"   {write_bench(report, folder)}")
        show(report)
        short += [
            f"{subject.name} batch {batch}: {ratio:.2f}" for batch, ratio in bf16_ratios(report) if ratio < WANTED
        ]
    if short:
        print(f"BF16 on OpenVINO is less than {WANTED} times as fast as FP32 on ONNX Runtime: {'; '.join(short)}")
    return 1 if short and words.check else 0


def parse_words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/bench_runtime"))
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a turn")
    parser.add_argument("--warmup", type=float, default=2.0)
    parser.add_argument("--threads", type=int, default=0, help="CPU threads, 0 for one per core")
    parser.add_argument("--small", action="store_true", help="tiny networks, to try the script itself")
    parser.add_argument("--check", action="store_true", help=f"exit with 1 if BF16 gains less than {WANTED} times")
    return parser.parse_args()


def prepare(subject: Subject, folder: Path) -> tuple[Path, Path]:
    """Return the FP32 and the BF16 model; what an earlier run left is used again."""
    full, low = folder / f"{subject.name}.onnx", folder / f"{subject.name}.bf16.onnx"
    if not full.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(0)
        module = subject.make()
        images = torch.randn(4, 3, subject.pixels, subject.pixels)
        with torch.no_grad():
            for _ in range(10):  # running statistics move by a tenth each time
                module.train()(images)
        batch = torch.export.Dim("batch")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it reports packages that nobody needs here
        warnings.simplefilter("ignore", FutureWarning)
        program = torch.onnx.export(
            module.eval(), (images,), dynamo=True, input_names=["images"], output_names=["logits"],
            dynamic_shapes=({0: batch},), opset_version=22, verbose=False,
        )  # fmt: skip
        program.save(str(full), external_data=False)
    if not low.is_file():
        convert(full, low, precision="bf16")
    return full, low


def contestants(full: Path, low: Path) -> tuple[Contestant, ...]:
    return (
        Contestant(full, Runtime.ONNXRUNTIME),
        Contestant(full, Runtime.OPENVINO),
        Contestant(low, Runtime.OPENVINO),
    )


def bf16_ratios(report: BenchReport) -> list[tuple[int, float]]:
    return [(timing.batch, timing.ratio) for timing in report.rows[-1].timings if timing.ratio is not None]


def show(report: BenchReport) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("contestant", "batch", "ms", "p95", "p99", "samples/s", "× fp32", "MB", "cold s", "drift"):
        table.add_column(title, no_wrap=True)
    for row in report.rows:
        for timing in row.timings:
            table.add_row(*table_cells(row, timing))
    Console(width=None if sys.stdout.isatty() else 200, highlight=False).print(table)


if __name__ == "__main__":
    sys.exit(main())
