"""Telling what the surroundings did, memory, processes and the network, from what is wrong in somebody's code."""

import torch
from torch import distributed

# Words of gloo, NCCL and the sockets below them when another process is gone or silent.
_LOST = ("gloo/transport", "connection closed by peer", "connection reset by peer", "timed out waiting", "nccl error")
_ALLOCATORS = ("can't allocate memory", "not enough memory", "out of memory")
_WORKER, _ENDED = "DataLoader worker", ("exited unexpectedly", "is killed by signal")


def out_of_memory(error: BaseException) -> bool:
    """Tell whether an allocator of torch, on the CPU or on a GPU, had no more memory to give."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _ALLOCATORS)


def lost_peer(error: BaseException) -> bool:
    """Tell whether another process of the training has ended or does not answer."""
    if isinstance(error, distributed.DistError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _LOST)


def of_surroundings(error: BaseException) -> bool:
    """Tell whether an exception is about the surroundings, whoever's code it came up in."""
    return out_of_memory(error) or lost_peer(error) or lost_worker(error)


def lost_worker(error: BaseException) -> bool:
    """Tell whether a process that loads data for a training has ended."""
    said = str(error)
    return isinstance(error, RuntimeError) and said.startswith(_WORKER) and any(words in said for words in _ENDED)
