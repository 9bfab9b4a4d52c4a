"""Run by torchrun: engines in loops of several processes; each writes what it saw to a file of its own."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from mpdeploy.amp import Engine, Level, LossScaling
from mpdeploy.amp.levels import AmpConfig
from mpdeploy.errors import UsageError
from mpdeploy.numerics.formats import Format
from mpdeploy.train.sharding import shard

STEPS = 3


def data(step: int, micro: int, rank: int) -> torch.Tensor:
    source = torch.Generator().manual_seed(100 * step + 10 * micro + rank)
    return torch.randn(4, 6, generator=source)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 1))


def config(level: str) -> AmpConfig:
    of = Level.named(level).config
    return AmpConfig(of.compute, of.weights, scaling=of.scaling and LossScaling(initial=256.0))


def accumulating(level: str, held_back: bool, rank: int, ranks: list[int], poison: bool = False) -> dict:
    """Train with two micro-batches a step; alone, one process takes what several share."""
    model = net()
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), config(level))
    call = DistributedDataParallel(model) if len(ranks) == 1 else model
    norms = []
    for step in range(STEPS):
        for micro in range(2):
            for share in ranks:
                x = data(step, micro, share)
                if poison and step == 1 and micro == 0 and share == 1:
                    x = x * math.inf
                context = call.no_sync() if held_back and micro == 0 else torch.enable_grad()
                with context:
                    with engine.forward():
                        output = call(x)
                    engine.backward((output.float() - 1).square().mean() / 2 / len(ranks))
        norms.append(engine.step(clip_norm=1.0).grad_norm)
    return {"norms": norms, "weights": {n: t.tolist() for n, t in engine.state_dict()["model"].items()}}


def small_shards(level: str, rank: int, group: distributed.ProcessGroup) -> dict:
    """Skip and go on with parameters of which some processes hold nothing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    model.scale = nn.Parameter(torch.ones(1))
    fully_shard(model)
    engine = Engine(model, torch.optim.AdamW(model.parameters(), lr=1e-3), config(level), group=group)
    applied, before = [], model[1].running_mean.clone()
    for step in range(4):
        x = data(step, 0, rank)[:, :4] * (math.inf if step == 1 and rank == 1 else 1)
        with engine.forward():
            output = model(x)
        engine.backward((output.float() * 0.1 - 1).square().mean())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        result = engine.step()
        applied.append(result.applied)
        if step == 1:
            assert torch.equal(model[1].running_mean, before)
        before = model[1].running_mean.clone()
    finite = all(bool(p.to_local().isfinite().all()) for p in model.parameters())
    return {"applied": applied, "finite": finite, "norm": result.grad_norm}


def fp32_shards(level: str) -> dict:
    """Train at a master level, with a head that computes in FP32."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)))
    of = replace(config(level), fp32_modules=("2",))
    shard(model, of)
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), replace(of, weights=Format.FP32))
    gathered: dict[str, torch.dtype] = {}

    def note(name: str, layer: nn.Linear, inputs: object, output: torch.Tensor) -> None:
        gathered[name] = output.dtype

    model[0].register_forward_hook(lambda *seen: note("body", *seen))
    model[2][0].register_forward_hook(lambda *seen: note("head", *seen))
    with engine.forward():
        output = model(torch.ones(2, 4))
    engine.backward(output.float().sum())
    return {name: str(dtype) for name, dtype in gathered.items()} | {"applied": engine.step().applied}


def wrapped_first(level: str) -> str:
    model = DistributedDataParallel(net())
    try:
        Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), level)
    except UsageError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    found: dict[str, object] = {"wrapped": wrapped_first("bf16-master")}
    for level in ("fp32", "bf16-master", "fp16-master", "fp16-mixed"):
        for held_back in (False, True):
            found[f"{level} {held_back}"] = accumulating(level, held_back, rank, [rank])
    found["poisoned"] = accumulating("fp16-master", True, rank, [rank], poison=True)
    for level in ("fp32", "bf16-mixed", "fp16-mixed"):
        found[f"fsdp {level}"] = small_shards(level, rank, distributed.group.WORLD)
    found["fp32 shards"] = fp32_shards("bf16-master")
    (Path(sys.argv[1]) / f"{rank}.json").write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()
