"""The processes that train together, each started by `torchrun`."""

import os
import sys
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import NoReturn, TypeVar, cast

import torch
from torch import distributed

from mpdeploy.errors import DependencyError, UsageError

PATIENCE = timedelta(minutes=30)  # how long a process waits for another one

Value = TypeVar("Value")
Indices = TypeVar("Indices", list[int], range)


class Sharding(Enum):
    """How several processes share a model: each holds all of it (DDP), or a shard of each parameter (FSDP2)."""

    DDP = "ddp"
    FSDP = "fsdp"


@dataclass(frozen=True)
class World:
    """This process among those that train together; a process alone is rank 0 of 1 and has no group."""

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - immutable
    group: distributed.ProcessGroup | None = None
    joined: bool = False  # whether the group was made for this training alone

    @property
    def leads(self) -> bool:
        """Whether this process writes what all share."""
        return self.rank == 0

    def share(self, batch: Indices) -> Indices:
        """Return the part of a batch's indices that falls to this process; all parts are equally large."""
        if len(batch) % self.size:
            raise UsageError(
                f"a batch of {len(batch)} cannot be shared equally by {self.size} processes",
                remedy="choose a batch size that their number divides",
            )
        return batch[self.rank :: self.size]

    def mean(self, value: float) -> float:
        """Return the mean of a number over the processes."""
        if self.group is None:
            return value
        total = torch.tensor(value, dtype=torch.float64, device=self.device)
        distributed.all_reduce(total, group=self.group)
        return float(total) / self.size

    def gather(self, value: object) -> list[object]:
        """Return the values of all processes, by rank."""
        if self.group is None:
            return [value]
        values: list[object] = [None] * self.size
        distributed.all_gather_object(values, value, group=self.group)
        return values

    def led(self, value: Value) -> Value:
        """Return the leading process's value."""
        return cast(Value, self.gather(value)[0])

    def any(self, value: bool) -> bool:
        """Return whether the value is true in some process."""
        return self.mean(float(value)) > 0

    def wait(self) -> None:
        """Return once all processes have come here."""
        if self.group is not None:
            distributed.barrier(group=self.group)

    def leave(self) -> None:
        """Give up the connection to the other processes, once all have come to the end.

        One that fails alone must not: it would wait for the others, which wait for it.  As it ends without a word to
        them they notice that it is gone.
        """
        if self.joined:
            distributed.destroy_process_group(self.group)


def end_at_once(code: int) -> NoReturn:
    """End this process, one of several that trained together, with an exit code and without finalising Python.

    After a process group was destroyed, threads of gloo may still hold tensors; if Python is being finalised when
    they let go, the process aborts, and torchrun calls the training failed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def join(device: str | None = None, timeout: timedelta = PATIENCE) -> World:
    """Return this process's world: what `torchrun` says in the environment, or one process alone.

    ``device`` is "cpu", "cuda" or "cuda:1"; without it a GPU is used where there is one.  A process that does not
    answer for ``timeout`` is lost.  Raises ``UsageError`` for a device that does not fit, and ``DependencyError`` for
    one that is not there.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return World(device=_device(device, 0))
    chosen = _device(device, int(os.environ.get("LOCAL_RANK", "0")))
    gpu = chosen.type == "cuda"
    if gpu:
        torch.cuda.set_device(chosen)
    joined = not distributed.is_initialized()
    if joined:
        distributed.init_process_group("nccl" if gpu else "gloo", timeout=timeout, device_id=chosen if gpu else None)
    return World(distributed.get_rank(), size, chosen, distributed.group.WORLD, joined)


def _device(word: str | None, place: int) -> torch.device:
    """Return the device for the process at ``place`` on this machine."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    kind, _, number = (word or ("cuda" if count else "cpu")).partition(":")
    if kind not in ("cpu", "cuda") or (number and not (kind == "cuda" and number.isdecimal())):
        raise UsageError(f"there is no device `{word}`", remedy="choose cpu, cuda, or cuda:0 and so on")
    if kind == "cpu":
        return torch.device("cpu")
    if not count:
        why = "" if torch.version.cuda else ": this is a build of torch for CPUs"
        raise DependencyError(
            f"torch finds no CUDA device{why}", remedy="choose --device cpu, or mend the installation"
        )
    if number:
        if place:
            raise UsageError(
                f"several processes cannot all train on {word}",
                remedy="leave the number out: each takes its own",
            )
        place = int(number)
    # A launcher that shows each process one GPU of its own, which torchrun does not, has numbered it 0.
    elif count == 1 and "TORCHELASTIC_RUN_ID" not in os.environ:
        place = 0
    if place >= count:
        raise UsageError(
            f"there is no GPU {place}: this machine shows {count}",
            remedy="start no more processes than GPUs, or choose --device cpu",
        )
    return torch.device("cuda", place)
