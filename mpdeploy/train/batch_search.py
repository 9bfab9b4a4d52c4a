"""The largest batch that memory holds at a precision level, and how fast training goes with it.

A low format is said to allow larger batches: this measures it, with whole training steps of the recipe's model,
optimizer and data.  On a GPU memory ends where its allocator says so; on a CPU, where the system would begin to kill
processes instead, a batch is not tried that would take more than most of what is free, as the batches before tell.
"""

import gc
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from mpdeploy.errors import UsageError
from mpdeploy.train.accumulation import Accumulation
from mpdeploy.train.assembly import Assembly, assemble, load_data
from mpdeploy.train.data import Batch
from mpdeploy.train.faults import surroundings_told
from mpdeploy.train.loading import LoadedRecipe
from mpdeploy.train.randomness import Randomness
from mpdeploy.train.settings import Settings
from mpdeploy.train.surroundings import out_of_memory
from mpdeploy.train.world import World

LARGEST = 1 << 16
_STEPS = 3  # timed at each size, after one that is not
_USABLE = 0.8  # of the memory that is free at the start


@dataclass(frozen=True)
class Tried:
    """One batch size: samples per second, the median of some steps, and the most memory that a step took in bytes.

    ``memory`` is None where the system does not tell it.
    """

    batch: int
    samples_per_second: float
    memory: int | None


@dataclass(frozen=True)
class Found:
    """What was found at a level: each size that went, by size, and why no larger one was tried."""

    level: str
    tried: tuple[Tried, ...]
    ended: str

    @property
    def largest(self) -> Tried:
        """The largest batch that went."""
        return self.tried[-1]

    @property
    def fastest(self) -> Tried:
        """The batch with the most samples per second."""
        return max(self.tried, key=lambda tried: tried.samples_per_second)


def find_batch(
    loaded: LoadedRecipe,
    settings: Settings,
    world: World,
    *,
    largest: int = LARGEST,
    told: Callable[[Tried], None] = lambda tried: None,
) -> Found:
    """Return how large a batch may be at the level of ``settings``, up to ``largest``.

    Sizes are doubled from 1 until memory ends, then the rest is halved until it is known to an eighth.  Raises
    ``UsageError`` if not even one example goes.
    """
    with surroundings_told(loaded.path.parent):
        examples = next(iter(load_data(loaded).train.in_order(loaded.recipe.batch_size)))
    trial = _Trial(loaded, settings, world, examples)
    tried: list[Tried] = []
    ended = f"{largest:,} is the largest that was to be tried"
    too_large: int | None = None
    sizes = (2**exponent for exponent in itertools.count())
    for size in sizes:
        if size > largest:
            break
        if (why := _why_not(size, tried, trial.free)) or (found := trial.of(size)) is None:
            too_large, ended = size, why or "memory ran out"
            break
        tried.append(found)
        told(found)
    if not tried:
        raise UsageError(
            "memory does not hold a step with a single example",
            where=str(loaded.path),
            remedy="take a smaller model, --checkpoint PATTERN, or a device with more memory",
        )
    for size in _between(tried, too_large, largest):
        found = None if _why_not(size, tried, trial.free) else trial.of(size)
        if found is None:
            too_large = size
        else:
            tried.append(found)
            told(found)
    return Found(settings.config.name, tuple(sorted(tried, key=lambda one: one.batch)), ended)


def _between(tried: list[Tried], too_large: int | None, largest: int) -> Iterator[int]:
    """Yield sizes between the largest that goes and the smallest that does not, as they become known."""
    good, bad = tried[-1].batch, too_large if too_large is not None else largest + 1
    while bad - good > max(good // 8, 1):
        size = (good + bad) // 2
        count = len(tried)
        yield size
        good, bad = (size, bad) if len(tried) > count else (good, size)


def _why_not(size: int, tried: list[Tried], free: int | None) -> str:
    """Say why a size had better not be tried; nothing where the device's allocator refuses what does not fit."""
    if free is None or len(tried) < 2 or tried[-1].memory is None or tried[-2].memory is None:
        return ""
    one, two = sorted(tried, key=lambda item: item.batch)[-2:]
    per_example = max((two.memory or 0) - (one.memory or 0), 0) / (two.batch - one.batch)
    wanted = (two.memory or 0) + per_example * (size - two.batch)
    if wanted <= _USABLE * free:
        return ""
    return f"{size:,} would take about {wanted / 2**30:.1f} GiB of the {free / 2**30:.1f} GiB that are free"


class _Trial:
    """Trains some steps with batches of any size, made of the same examples over and over."""

    def __init__(self, loaded: LoadedRecipe, settings: Settings, world: World, examples: Batch) -> None:
        self._loaded, self._settings, self._world, self._examples = loaded, settings, world, examples
        self.free = None if world.device.type == "cuda" else _free_memory()

    def of(self, size: int) -> Tried | None:
        """Return what came of a size; None if memory ran out."""
        try:
            return self._measured(size)
        except Exception as error:
            if not out_of_memory(error):
                raise
        finally:
            gc.collect()
            if self._world.device.type == "cuda":
                torch.cuda.empty_cache()
        return None

    def _measured(self, size: int) -> Tried:
        numbers = Randomness(0)
        assembly = self._assembled(numbers)
        accumulation = Accumulation(self._loaded, assembly, numbers, 1, widening=False)
        batch = _repeated(self._examples, size).to(self._world.device)
        before = _start_measuring(self._world.device)
        seconds = []
        with numbers.active():
            for _ in range(_STEPS + 1):
                start = time.perf_counter()
                accumulation.backward(batch)
                assembly.engine.step(clip_norm=self._loaded.recipe.clip_norm)
                if self._world.device.type == "cuda":
                    torch.cuda.synchronize(self._world.device)
                seconds.append(time.perf_counter() - start)
        peak = _most_memory(self._world.device)
        memory = None if peak is None or before is None else max(peak - before, 0)
        return Tried(size, size / sorted(seconds[1:])[_STEPS // 2], memory)

    def _assembled(self, numbers: Randomness) -> Assembly:
        settings, recipe = self._settings, self._loaded.recipe
        patterns = settings.checkpointing or tuple(recipe.checkpointing)
        config = settings.config_for(recipe)
        return assemble(
            self._loaded, config, 1000, numbers, self._world, settings.sharding, lambda model: None, patterns
        )


def _repeated(examples: Batch, size: int) -> Batch:
    count = len(examples.labels)
    order = torch.arange(size) % count
    return Batch(tuple(value[order] for value in examples.inputs), examples.labels[order])


def _free_memory() -> int | None:
    """Memory that a process may still take: what the system has, or what its control group leaves it."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return None
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        free = min(free, limit - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    except (OSError, ValueError):  # no control group, or one without a limit
        pass
    return free


def _start_measuring(device: torch.device) -> int | None:
    """Forget the most memory so far; return what is in use."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return 0
    try:
        Path("/proc/self/clear_refs").write_text("5")  # https://docs.kernel.org/filesystems/proc.html
    except OSError:
        return None
    return _status("VmRSS")


def _most_memory(device: torch.device) -> int | None:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else _status("VmHWM")


def _status(name: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)
