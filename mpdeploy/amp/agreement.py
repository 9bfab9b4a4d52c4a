"""One decision for all processes: whether a step's gradients are finite."""

import math

import torch
from torch import distributed


def agreed_norm(norm: float, group: distributed.ProcessGroup | None) -> float:
    """Return ``norm``, or NaN if any process of the group found its own not to be finite.

    Gradients are usually reduced before, and then all processes see the same; where some parameter's are not,
    one process must not skip a step that the others take.
    """
    if group is None:
        return norm
    device = "cuda" if distributed.get_backend(group) == "nccl" else "cpu"
    bad = torch.tensor(float(not math.isfinite(norm)), device=device)
    distributed.all_reduce(bad, distributed.ReduceOp.MAX, group=group)
    return math.nan if float(bad) else norm
