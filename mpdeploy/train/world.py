"""The processes that train together, each started by `torchrun`."""

import os
import sys
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn

import torch
from torch import distributed

from mpdeploy.errors import UsageError


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

    @property
    def leads(self) -> bool:
        """Whether this process writes what all share."""
        return self.rank == 0

    def share(self, batch: list[int]) -> list[int]:
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

    def wait(self) -> None:
        """Return once all processes have come here."""
        if self.group is not None:
            distributed.barrier(group=self.group)

    def leave(self) -> None:
        """Give up the connection to the other processes."""
        if self.group is not None:
            distributed.destroy_process_group(self.group)


def end_at_once(code: int) -> NoReturn:
    """End this process, one of several that trained together, with an exit code and without finalising Python.

    After a process group was destroyed, threads of gloo may still hold tensors; if Python is being finalised when
    they let go, the process aborts, and torchrun calls the training failed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def join() -> World:
    """Return this process's world: what `torchrun` says in the environment, or one process alone.

    A GPU is used where there is one.
    """
    gpu = torch.cuda.is_available()
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return World(device=torch.device("cuda" if gpu else "cpu"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    if not distributed.is_initialized():
        distributed.init_process_group("nccl" if gpu else "gloo")
    return World(distributed.get_rank(), size, device, distributed.group.WORLD)
