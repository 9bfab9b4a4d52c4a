"""One contender of bench_amp.py in a process of its own; prints one line of JSON."""

import argparse
import contextlib
import json
import math
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

MODELS = Path(__file__).parents[1] / "models"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}
WARM_UP = 5


def module_of(recipe: str) -> object:
    from mpdeploy.train.loading import load_recipe

    return sys.modules[type_home(load_recipe(MODELS / f"{recipe}.py").recipe.model)]


def type_home(model: Callable[[], nn.Module]) -> str:
    return model.__module__


def case(name: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor, Callable[..., torch.Tensor]]:
    torch.manual_seed(0)
    if name.startswith("resnet18"):
        model = module_of("resnet18_digits").ResNet18()
        size, pixels = (32, 32) if name == "resnet18" else (4, 224)
        x, y = torch.randn(size, 1, pixels, pixels), torch.randint(0, 10, (size,))
        return model.to(DEVICE), x.to(DEVICE), y.to(DEVICE), functional.cross_entropy
    gpt = module_of("char_gpt")
    model = gpt.Gpt(width=384, heads=6, depth=6)
    x = torch.randint(0, gpt.CHARACTERS, (16, gpt.LENGTH))
    return model.to(DEVICE), x.to(DEVICE), x.roll(-1, 1).to(DEVICE), gpt.cross_entropy


def hand(model: nn.Module, optimizer: torch.optim.Optimizer, level: str, loss_of: Callable) -> Callable:
    """The loop that people write: autocast, for FP16 a GradScaler, clipping."""
    dtype = DTYPES.get(level)
    scaler = torch.amp.GradScaler(DEVICE, enabled=dtype is torch.float16)

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        with torch.autocast(DEVICE, dtype or torch.bfloat16, enabled=dtype is not None):
            output = model(x)
        scaler.scale(loss_of(output.float(), y)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    return step


def ours(model: nn.Module, optimizer: torch.optim.Optimizer, level: str, loss_of: Callable) -> Callable:
    from mpdeploy.amp import Engine, Level, Telemetry
    from mpdeploy.amp.telemetry import format_judged

    config = Level.named(level).config
    telemetry = Telemetry(model, format_judged(config), lambda line: None)
    engine = Engine(model, optimizer, config, observer=telemetry)

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        with engine.forward():
            output = model(x)
        engine.backward(loss_of(output.float(), y))
        engine.step(clip_norm=1.0)

    return step


def fabric(model: nn.Module, optimizer: torch.optim.Optimizer, level: str, loss_of: Callable) -> Callable:
    from lightning_fabric import Fabric

    loop = Fabric(accelerator=DEVICE, devices=1, precision=f"{level[:4].removeprefix('fp')}-mixed")
    wrapped, wrapped_optimizer = loop.setup(model, optimizer)

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        loop.backward(loss_of(wrapped(x).float(), y))
        loop.clip_gradients(wrapped, wrapped_optimizer, max_norm=1.0, error_if_nonfinite=False)
        wrapped_optimizer.step()
        wrapped_optimizer.zero_grad(set_to_none=True)

    return step


def contender(case_name: str, way: str, level: str) -> Callable[[], float]:
    """Return what takes one training step and says how many milliseconds it took."""
    model, x, y, loss_of = case(case_name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    step = {"hand": hand, "ours": ours, "fabric": fabric}[way](model, optimizer, level, loss_of)

    def timed() -> float:
        begin = time.perf_counter()
        step(x, y)
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        return 1000 * (time.perf_counter() - begin)

    return timed


def speed(options: argparse.Namespace) -> dict:
    """Time all ways in one process, a step of each in turn: a machine that gets slower slows all alike."""
    steps = {way: contender(options.case, *way.split(":")) for way in options.ways.split(",")}
    times: dict[str, list[float]] = {way: [] for way in steps}
    order = list(steps)
    for number in range(WARM_UP + options.steps):
        for way in order:
            took = steps[way]()
            if number >= WARM_UP:
                times[way].append(took)
        order = [*order[1:], order[0]]  # no way always comes after the same one
    return {"ms": times}


def memory(options: argparse.Namespace) -> dict:
    """Return the peak memory of a few steps of one way, in a process of its own."""
    step = contender(options.case, *options.ways.split(":"))
    for _ in range(3):
        step()
    if DEVICE == "cuda":
        return {"peak_mb": torch.cuda.max_memory_allocated() / 2**20}
    return {"peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def train(options: argparse.Namespace) -> dict:
    from mpdeploy.amp import Level
    from mpdeploy.train.loading import load_recipe
    from mpdeploy.train.loop import Settings, Training
    from mpdeploy.train.world import join

    loaded = load_recipe(MODELS / f"{options.recipe}.py")
    epochs = options.epochs or loaded.recipe.epochs
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(Level.named(options.level), epochs, options.seed, save_every=10**9)
        training = Training(loaded, Path(folder), settings, world=join())
        for _ in training.steps():
            pass
        return {"metric": training.finish().metric, "skipped": training.skipped}


def scaling(options: argparse.Namespace) -> dict:
    """Train a U-Net on a loss with a weight of 0.01, as one task among several has.

    The loss is a mean over 24576 numbers: its gradients are too small for FP16 unless the loss is scaled.  AdamW's
    steps do not depend on the weight, so that in FP32 it changes nothing.
    """
    from mpdeploy.amp import AmpConfig, Engine, Level, LossScaling, Telemetry
    from mpdeploy.amp.telemetry import format_judged
    from mpdeploy.numerics.formats import Format
    from mpdeploy.train.data import shuffled
    from mpdeploy.train.evaluation import held_out_scores
    from mpdeploy.train.loading import load_recipe

    recipe = load_recipe(MODELS / "unet_denoise.py").recipe
    data = recipe.data()
    if options.level == "fp16-mixed-unscaled":
        config = AmpConfig(Format.FP16, scaling=LossScaling.static(1.0))
    else:
        config = Level.named(options.level).config
    torch.manual_seed(options.seed)
    model = recipe.model().to(DEVICE)
    lines = []
    telemetry = Telemetry(model, format_judged(config), lines.append, interval=max(options.steps - 1, 1))
    optimizer = recipe.optimizer(model)
    engine = Engine(model, optimizer, config, observer=telemetry)
    batches = [b for e in range(10**3) for b in shuffled(len(data.train), 8, seed=options.seed, epoch=e)][
        : options.steps
    ]
    for indices in batches:
        batch = data.train.batch(indices).to(torch.device(DEVICE))
        with engine.forward():
            output = model(*batch.inputs)
        engine.backward(0.01 * recipe.loss(output.float(), batch.labels))
        engine.step()
    layers = lines[-1].sample.layers if lines[-1].sample else ()
    elements = sum(layer.elements for layer in layers)
    zero = sum(layer.elements * layer.with_scale.zero for layer in layers) / elements if elements else None
    with engine.full_precision():
        metric = held_out_scores(model, data.held_out, recipe, 8)[0]
    return {"metric": metric if metric is not None and math.isfinite(metric) else None, "zero": zero}


def operators(options: argparse.Namespace) -> dict:
    """Time products forward and backward: by torch's own kernels, in FP32 rounded once, and as the engine does."""
    from mpdeploy.amp.arithmetic import products
    from mpdeploy.amp.dtypes import TORCH_DTYPES
    from mpdeploy.amp.low_products import Fp32Sums
    from mpdeploy.amp.recurrences import Fp32Recurrences
    from mpdeploy.numerics.formats import Format

    @contextlib.contextmanager
    def rounded(dtype: torch.dtype) -> Iterator[None]:
        with Fp32Recurrences(dtype), Fp32Sums(dtype):
            yield

    rows = []
    for compute in (Format.FP16, Format.BF16):
        dtype = TORCH_DTYPES[compute]
        for name, (function, *shapes) in PRODUCTS.items():
            torch.manual_seed(0)
            operands = [torch.randn(shape).mul_(0.1).to(dtype).requires_grad_() for shape in shapes]
            ways = {"native": contextlib.nullcontext(), "rounded": rounded(dtype), "engine": products("cpu", compute)}
            found = {way: product(context, function, operands, options.steps) for way, context in ways.items()}
            rows.append({"format": compute.value, "operator": name, **found})
    return {"rows": rows}


def product(
    context: AbstractContextManager[None],
    function: Callable[..., torch.Tensor],
    operands: list[torch.Tensor],
    passes: int,
) -> dict | None:
    """Return the milliseconds that a product takes forward and backward, and its error; None without a kernel."""
    exact = function(*(operand.detach().double() for operand in operands))

    def run() -> torch.Tensor:
        for operand in operands:
            operand.grad = None
        output = function(*operands)
        output.backward(torch.ones_like(output))
        return output.detach()

    with context:
        try:
            error = float((run().double() - exact).norm() / exact.norm())
        except RuntimeError:
            return None
        return {"ms": 1000 * per_pass(run, passes), "error": error}


def recurrence(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    state = (x.new_zeros(1, x.shape[1], u.shape[1]),) * 2
    return torch.lstm(x, state, [w, u, b, b], True, 1, 0.0, True, False, False)[0]


PRODUCTS: dict[str, tuple] = {
    "linear": (functional.linear, (256, 512), (512, 512), (512,)),
    "batched product": (torch.matmul, (16, 128, 64), (16, 64, 128)),
    "matrix and vector": (torch.matmul, (512, 512), (512,)),
    "convolution 2d": (lambda x, w: functional.conv2d(x, w, padding=1), (2, 64, 32, 32), (64, 64, 3, 3)),
    "convolution 1d": (lambda x, w: functional.conv1d(x, w, padding=1), (2, 64, 128), (64, 64, 3)),
    "depthwise": (lambda x, w: functional.conv2d(x, w, padding=1, groups=64), (2, 64, 32, 32), (64, 1, 3, 3)),
    "transposed": (functional.conv_transpose2d, (2, 64, 16, 16), (64, 32, 2, 2)),
    "attention": (functional.scaled_dot_product_attention, (4, 4, 64, 32), (4, 4, 64, 32), (4, 4, 64, 32)),
    "lstm": (recurrence, (16, 8, 64), (256, 64), (256, 64), (256,)),
}


def per_pass(run: Callable[[], object], passes: int) -> float:
    """Return the least seconds that a pass took, of at most so many, in about half a second."""
    run()
    found, begin = [], time.perf_counter()
    while len(found) < passes and (len(found) < 3 or time.perf_counter() - begin < 0.5):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return min(found)


def machine(options: argparse.Namespace) -> dict:
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    name = next((line.partition(":")[2].strip() for line in flags.splitlines() if "model name" in line), "")
    units = [label for flag, label in (("avx512_bf16", "AVX512-BF16"), ("amx_bf16", "AMX")) if flag in flags]
    gpu = torch.cuda.get_device_name() if DEVICE == "cuda" else ""
    return {"cpu": name or platform.processor(), "bf16_units": units, "gpu": gpu, "torch": str(torch.__version__)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["speed", "memory", "train", "scaling", "operators", "machine"])
    parser.add_argument("--ways", help="WAY:LEVEL,…")
    parser.add_argument("--level")
    parser.add_argument("--case")
    parser.add_argument("--recipe")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=0)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    run = {
        "speed": speed,
        "memory": memory,
        "train": train,
        "scaling": scaling,
        "operators": operators,
        "machine": machine,
    }[options.what]
    print(json.dumps(run(options)))


if __name__ == "__main__":
    main()
