"""Random trainings with the engine against the loops that people write by hand: every scale, decision and weight.

    python scripts/equality_amp.py [--trials 200] [--first 0]

Each trial draws an architecture, a level, an optimizer, clipping, accumulation and steps whose gradients overflow, and
trains twice on the same numbers: with the engine, and with ``torch.autocast``, ``torch.amp.GradScaler`` and, at levels
with masters, FP32 copies of the weights.  The hand-written loop multiplies as the engine does on this processor, and
puts buffers back after a skipped step.  Prints what was compared; exits with 1 if something differs.
"""

import argparse
import copy
import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import nn

from mpdeploy.amp import AmpConfig, Engine, Level, LossScaling
from mpdeploy.amp.arithmetic import autocast, products
from mpdeploy.amp.dtypes import TORCH_DTYPES
from mpdeploy.amp.masters import KEPT_FP32
from mpdeploy.numerics.formats import LOW_FORMATS

LEVELS = (Level.FP32, Level.BF16_MIXED, Level.FP16_MIXED, Level.FP16_MIXED, Level.BF16_MASTER, Level.FP16_MASTER)
STEPS = 12


class Tokens(nn.Module):
    """An embedding, a recurrence or attention, and a head."""

    def __init__(self, inner: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 8)
        self.inner = nn.LSTM(8, 8) if inner == "lstm" else nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.inner(self.embedding((x.abs().clamp(max=2.5) * 4).long()) * x[..., None])
        return self.head(hidden[0] if isinstance(hidden, tuple) else hidden)


ARCHITECTURES: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)),
    "mlp with batch norm": lambda: nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 3)),
    "mlp with layer norm": lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)),
    "convolutions": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
    ),
    "lstm": lambda: Tokens("lstm"),
    "transformer": lambda: Tokens("transformer"),
}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "sgd with momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "adam fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
}
CLIPPING = ("none", "norm", "norm by hand", "value", "groups")


@dataclass(frozen=True)
class Trial:
    """What one training is made of; everything follows from ``seed``."""

    seed: int
    level: Level
    architecture: str
    optimizer: str
    clipping: str
    accumulate: int
    limit: float
    scaling: LossScaling
    poisoned: tuple[int, ...]

    @classmethod
    def drawn(cls, seed: int) -> "Trial":
        draw = random.Random(seed)  # noqa: S311 - for trials
        level = draw.choice(LEVELS)
        return cls(
            seed,
            level,
            draw.choice(list(ARCHITECTURES)),
            draw.choice(list(OPTIMIZERS)),
            draw.choice(CLIPPING),
            draw.choice((1, 1, 2, 3)),
            draw.choice((0.01, 0.1, 1.0)),
            LossScaling(initial=2.0 ** draw.choice((8, 16, 24)), interval=draw.choice((2, 4, 2000)), floor=2.0**-40),
            tuple(draw.sample(range(STEPS), draw.randint(0, 3))) if level.config.scaling else (),
        )

    @property
    def config(self) -> AmpConfig:
        return replace(self.level.config, scaling=self.level.config.scaling and self.scaling, patience=10**6)

    def model(self) -> nn.Module:
        torch.manual_seed(self.seed)
        return ARCHITECTURES[self.architecture]()

    def batches(self) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
        source = torch.Generator().manual_seed(self.seed)
        for step in range(STEPS):
            parts = [(torch.randn(8, 6, generator=source), torch.randn((), generator=source))
                     for _ in range(self.accumulate)]  # fmt: skip
            if step in self.poisoned:
                parts[-1][0][0, 0] = math.inf
            yield parts

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output.float() - target).square().mean() / self.accumulate

    def clip(self, parameters: list[torch.Tensor]) -> None:
        if self.clipping == "norm by hand":
            nn.utils.clip_grad_norm_(parameters, self.limit)
        elif self.clipping == "value":
            nn.utils.clip_grad_value_(parameters, self.limit)
        elif self.clipping == "groups":
            nn.utils.clip_grad_norm_(parameters[:2], self.limit)
            nn.utils.clip_grad_norm_(parameters[2:], 2 * self.limit)


Course = list[tuple[bool, float]]
Weights = dict[str, torch.Tensor]


def with_the_engine(trial: Trial) -> tuple[Course, Weights]:
    model = trial.model()
    engine = Engine(model, OPTIMIZERS[trial.optimizer](model.parameters()), trial.config)
    course: Course = []
    for parts in trial.batches():
        for x, target in parts:
            with engine.forward():
                output = model(x)
            engine.backward(trial.loss(output, target))
        engine.unscale()
        trial.clip([p for p in model.parameters() if p.grad is not None])
        result = engine.step(clip_norm=trial.limit if trial.clipping == "norm" else None)
        course.append((result.applied, result.scale_after))
    return course, engine.state_dict()["model"]


def by_hand(trial: Trial) -> tuple[Course, Weights]:
    model, config = trial.model(), trial.config
    kept = {id(p) for m in model.modules() if isinstance(m, KEPT_FP32) for p in m.parameters(recurse=False)}
    masters: dict[nn.Parameter, nn.Parameter] = {}
    if config.master_weights:
        for parameter in model.parameters():
            if id(parameter) not in kept:
                masters[parameter] = nn.Parameter(parameter.detach().clone())
                parameter.data = parameter.data.to(TORCH_DTYPES[config.weights])
    moved = [masters.get(p, p) for p in model.parameters()]
    optimizer = OPTIMIZERS[trial.optimizer](moved)
    rule = trial.scaling
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=rule.initial, growth_interval=rule.interval, enabled=config.scaling is not None
    )
    course: Course = []
    for parts in trial.batches():
        buffers = copy.deepcopy(dict(model.named_buffers()))
        for x, target in parts:
            with autocast("cpu", config.compute) if config.compute in LOW_FORMATS else torch.enable_grad():
                output = model(x)
            loss = scaler.scale(trial.loss(output, target))
            with products("cpu", config.compute):
                loss.backward()
            for low, master in masters.items():
                if low.grad is not None:
                    master.grad = low.grad.float() if master.grad is None else master.grad + low.grad.float()
                    low.grad = None
        scaler.unscale_(optimizer)
        skipped = (
            any(float(flag) for flag in scaler._found_inf_per_device(optimizer).values())
            if scaler.is_enabled()
            else False
        )
        if trial.clipping == "norm":
            nn.utils.clip_grad_norm_(moved, trial.limit)
        trial.clip([p for p in moved if p.grad is not None])
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if skipped:
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])
        with torch.no_grad():
            for low, master in masters.items():
                low.copy_(master)
        course.append((not skipped, scaler.get_scale()))
    names = {name: masters.get(p, p).detach() for name, p in model.named_parameters()}
    return course, {**names, **dict(model.named_buffers())}


def main() -> None:
    """Compare as many trials as wanted, and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    worst = 0.0
    for seed in range(options.first, options.first + options.trials):
        trial = Trial.drawn(seed)
        (course, weights), (expected, exact) = with_the_engine(trial), by_hand(trial)
        counts["trainings"] += 1
        counts[f"at {trial.level.value}"] += 1
        counts["steps"] += len(course)
        counts["skipped steps"] += sum(not applied for applied, _ in expected)
        counts["steps with another scale or decision"] += sum(a != b for a, b in zip(course, expected, strict=True))
        differ = [name for name, tensor in exact.items() if not torch.equal(weights[name], tensor)]
        counts["trainings with weights equal bit for bit"] += not differ
        if differ:
            apart = max(float((weights[n].double() - exact[n].double()).abs().max()) for n in differ)
            worst = max(worst, apart)
            print(f"{trial}: {', '.join(differ)} differ by up to {apart:.2g}", file=sys.stderr)
        if course != expected:
            print(f"{trial}: {course} instead of {expected}", file=sys.stderr)
    for what, count in counts.items():
        print(f"{count:6} {what}")
    same = counts["trainings with weights equal bit for bit"] == counts["trainings"]
    if not same:
        print(f"weights differ by up to {worst:.2g}")
    if not same or counts["steps with another scale or decision"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
