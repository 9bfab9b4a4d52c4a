"""Examples in torch's own forms, a ``Dataset`` or a ``DataLoader`` around one, as sources that can go on anywhere.

What the examples of an epoch are, their order and what is drawn at random for each follows from seed, epoch and the
example's index, however many processes load them: a training that goes on in the middle of an epoch meets the same.
"""

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, RandomSampler, SequentialSampler

from mpdeploy.errors import UsageError
from mpdeploy.train.data import LABELS, TARGETS, Batch, shuffled
from mpdeploy.train.randomness import Randomness, draw_from, mixed, undisturbed
from mpdeploy.train.world import World

_ANSWERS = (LABELS, TARGETS, "label", "target")
Job = tuple[int, int]  # an epoch and the index of an example


def batch_of(value: Any, inputs: Sequence[str]) -> Batch:
    """Return what a ``collate_fn`` made as a batch: a ``Batch``, a tuple (input, …, labels), or a dict by names."""
    if isinstance(value, Batch):
        return value
    if isinstance(value, Mapping):
        missing = [name for name in inputs if name not in value]
        answers = [name for name in _ANSWERS if name in value]
        if missing or not answers:
            raise UsageError(
                f"a batch of the data has {list(value)}, which lacks {', '.join(missing) or LABELS}",
                remedy=f"let the dataset return the recipe's inputs by their names, and `{LABELS}`",
            )
        return Batch(tuple(value[name] for name in inputs), value[answers[0]])
    if isinstance(value, (tuple, list)) and len(value) > 1:
        *given, labels = value
        nested = len(given) == 1 and isinstance(given[0], (tuple, list))
        return Batch(tuple(given[0] if nested else given), labels)
    raise UsageError(
        f"a batch of the data is a {type(value).__name__}",
        remedy="let the dataset return (input, …, label), or a dict with the inputs' names and `labels`",
    )


class Loader:
    """The examples of a ``DataLoader`` over a dataset with indices.

    Its dataset, sampler, workers, ``collate_fn`` and pinned memory are used; its order is ours, as it must be the same
    when the training goes on.  A last batch that is not whole is left out.
    """

    def __init__(self, loader: "DataLoader[Any]", inputs: Sequence[str], batch_size: int, seed: int) -> None:
        if isinstance(loader.sampler, DistributedSampler):
            raise UsageError(
                "a DistributedSampler shares out examples, which training does by itself",
                remedy="leave the sampler out, or take shuffle=True",
            )
        self._given, self._inputs, self._size, self._seed = loader, inputs, batch_size, seed
        self._examples = _Seeded(loader.dataset, loader.collate_fn, seed)
        self._jobs = _Jobs()
        self._loader: DataLoader[Any] | None = None

    def steps(self) -> int:
        """Return how many batches an epoch has."""
        given = self._given
        if type(given.batch_sampler) is BatchSampler:
            return max(len(given.sampler) // self._size, 1)  # type: ignore[arg-type]
        return len(given.batch_sampler)  # type: ignore[arg-type]

    def epoch(self, epoch: int, first: int, world: World) -> Iterator[Batch]:
        """Yield this process's share of the batches of an epoch, from the batch ``first`` on."""
        if self._loader is None:
            self._loader = self._over(self._jobs, self._given.persistent_workers)
        self._jobs.batches = [[(epoch, i) for i in world.share(batch)] for batch in self._batches(epoch)[first:]]
        with undisturbed():
            draw_from(self._seed, epoch)
            loaded = iter(self._loader)
        for value in loaded:
            yield batch_of(value, self._inputs)

    def in_order(self, size: int, limit: int | None = None) -> Iterator[Batch]:
        """Yield the examples, or the first ``limit`` of them, in batches of ``size``."""
        jobs = [(0, index) for index in self._all()[:limit]]
        with undisturbed():
            draw_from(self._seed)
            batches = _Jobs([jobs[start : start + size] for start in range(0, len(jobs), size)])
            loaded = iter(self._over(batches, persistent=False))
        for value in loaded:
            yield batch_of(value, self._inputs)

    def peek(self, count: int) -> Batch:
        """Return the first ``count`` examples, or fewer if there are fewer."""
        jobs = [(0, index) for index in self._all()[:count]]
        if not jobs:
            raise UsageError("the recipe's data has no examples")
        return batch_of(self._examples.__getitems__(jobs), self._inputs)

    def _over(self, jobs: "_Jobs", persistent: bool) -> "DataLoader[Any]":
        given = self._given
        return DataLoader(
            self._examples,
            batch_sampler=jobs,
            collate_fn=_as_it_is,
            num_workers=given.num_workers,
            pin_memory=given.pin_memory and torch.cuda.is_available(),
            timeout=given.timeout,
            worker_init_fn=_Start(given.worker_init_fn),
            multiprocessing_context=_context(given),
            prefetch_factor=given.prefetch_factor,
            persistent_workers=persistent,
        )

    def _batches(self, epoch: int) -> list[list[int]]:
        sampler, batches = self._given.sampler, self._given.batch_sampler
        with undisturbed():
            draw_from(self._seed, epoch)
            for drawing in (sampler, batches):
                _prepare(drawing, mixed(self._seed, epoch), epoch)
            if type(batches) is not BatchSampler:
                return [list(batch) for batch in batches]  # type: ignore[union-attr]
            if _is_plain_shuffle(sampler, self._examples):
                return shuffled(len(self._examples), self._size, seed=self._seed, epoch=epoch)
            order = list(sampler)
        whole = max(len(order) // self._size, 1)
        return [order[i * self._size : (i + 1) * self._size] for i in range(whole)]

    def _all(self) -> list[int]:
        sampler, batches = self._given.sampler, self._given.batch_sampler
        if type(batches) is not BatchSampler:
            return [index for batch in self._batches(0) for index in batch]
        if isinstance(sampler, (RandomSampler, SequentialSampler)):
            return list(range(len(self._examples)))
        with undisturbed():
            draw_from(self._seed, 0)
            _prepare(sampler, mixed(self._seed, 0), 0)
            return list(sampler)


class Stream:
    """The examples of a ``DataLoader`` over an ``IterableDataset``, which come in an order of their own.

    Each epoch reads from the start; a training that goes on reads again what it has learned from, and skips it.  Of
    several processes each reads all and takes its share.
    """

    def __init__(
        self, loader: "DataLoader[Any]", inputs: Sequence[str], batch_size: int, seed: int, steps: int | None
    ) -> None:
        self._given, self._inputs, self._size, self._seed, self._steps = loader, inputs, batch_size, seed, steps

    def steps(self) -> int:
        """Return how many batches an epoch has; raise ``UsageError`` if nobody knows."""
        if self._steps is not None:
            return self._steps
        try:
            count = len(self._given.dataset)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError) as error:
            raise UsageError(
                "an IterableDataset without __len__() does not say how long an epoch is",
                remedy="give the recipe steps_per_epoch=…, or the dataset __len__()",
            ) from error
        return max(count // self._size, 1) if self._given.batch_size is not None else count

    def epoch(self, epoch: int, first: int, world: World) -> Iterator[Batch]:
        """Yield this process's share of the batches of an epoch, from the batch ``first`` on."""
        _prepare(self._given.dataset, mixed(self._seed, epoch), epoch)
        count = self.steps()
        for number, batch in enumerate(self._read(epoch, self._size, self._given.num_workers, whole=True)):
            if number >= first:
                yield batch.share(world)
            if number + 1 >= count:
                return

    def in_order(self, size: int, limit: int | None = None) -> Iterator[Batch]:
        """Yield the examples, or the first ``limit`` of them, in batches of ``size``."""
        left = limit
        for batch in self._read(0, size, self._given.num_workers, whole=False):
            yield batch if left is None else batch.first(left)
            left = None if left is None else left - len(batch.labels)
            if left is not None and left <= 0:
                return

    def peek(self, count: int) -> Batch:
        """Return the first ``count`` examples, or fewer if there are fewer."""
        for batch in self._read(0, count, workers=0, whole=False):
            return batch.first(count)
        raise UsageError("the recipe's data has no examples")

    def _read(self, epoch: int, size: int, workers: int, *, whole: bool) -> Iterator[Batch]:
        """Yield batches of ``size``; the last may be smaller unless all are to be ``whole``."""
        read = self._loaded(epoch, size, workers)
        if self._given.batch_size is None:  # the dataset makes batches by itself
            yield from read
            return
        held: Batch | None = None
        for batch in read:  # each process that loads ends with one that is not full
            held = batch if held is None else held.and_then(batch)
            if len(held.labels) >= size:
                yield held.first(size)
                held = held.after(size)
        if held is not None and len(held.labels) and not whole:
            yield held

    def _loaded(self, epoch: int, size: int, workers: int) -> Iterator[Batch]:
        given, numbers = self._given, Randomness(mixed(self._seed, epoch))
        loader = DataLoader(
            given.dataset,
            batch_size=None if given.batch_size is None else size,
            collate_fn=given.collate_fn,
            num_workers=workers,
            pin_memory=given.pin_memory and torch.cuda.is_available(),
            timeout=given.timeout if workers else 0,
            worker_init_fn=_Start(given.worker_init_fn),
            multiprocessing_context=_context(given) if workers else None,
            prefetch_factor=given.prefetch_factor if workers else None,
        )
        with numbers.active():
            loaded = iter(loader)
        while True:
            with numbers.active():  # without workers the dataset draws here
                value = next(loaded, None)
            if value is None:
                return
            yield batch_of(value, self._inputs)


class _Seeded(Dataset[Any]):
    """A dataset whose examples draw what follows from seed, epoch and index; several come as one collated batch."""

    def __init__(self, dataset: "Dataset[Any]", collate: Callable[[list[Any]], Any], seed: int) -> None:
        self._dataset, self._collate, self._seed = dataset, collate, seed

    def __len__(self) -> int:
        return len(self._dataset)  # type: ignore[arg-type]

    def __getitems__(self, jobs: list[Job]) -> Any:
        together = getattr(self._dataset, "__getitems__", None)
        with undisturbed():
            if together is not None:
                draw_from(self._seed, *jobs[0])
                samples = together([index for _, index in jobs])
            else:
                samples = [self._sample(job) for job in jobs]
            draw_from(self._seed, *jobs[0], len(jobs))
            return self._collate(samples)

    def _sample(self, job: Job) -> Any:
        draw_from(self._seed, *job)
        return self._dataset[job[1]]


@dataclass
class _Jobs:
    """What a loader is to load, batch by batch; it may change between two epochs."""

    batches: Sequence[list[Job]] = ()

    def __iter__(self) -> Iterator[list[Job]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


@dataclass(frozen=True)
class _Start:
    """What a process that loads data does first.  A request to stop is for the one that trains; it will end this."""

    own: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self.own is not None:
            self.own(worker)


def _as_it_is(value: Any) -> Any:
    return value


def _context(loader: "DataLoader[Any]") -> Any:
    """How its processes are started: forked where that can be, since a recipe's classes have no module to import."""
    if not loader.num_workers or loader.multiprocessing_context is not None:
        return loader.multiprocessing_context
    return "fork" if "fork" in torch.multiprocessing.get_all_start_methods() else None


def _prepare(drawing: Any, seed: int, epoch: int) -> None:
    """Let a sampler or a dataset begin an epoch: by the conventions of torch and Hugging Face."""
    generator = getattr(drawing, "generator", None)
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    begin = getattr(drawing, "set_epoch", None)
    if callable(begin):
        begin(epoch)


def _is_plain_shuffle(sampler: Any, examples: _Seeded) -> bool:
    return type(sampler) is RandomSampler and not sampler.replacement and len(sampler) == len(examples)
