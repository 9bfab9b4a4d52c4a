"""One decision for all processes: whether a step's gradients are finite."""

import torch
from torch import distributed


def agree(flags: torch.Tensor, group: distributed.ProcessGroup | None) -> None:
    """Raise each flag, a positive number, that any process of the group has raised.

    Gradients are usually reduced before, and then all processes see the same; where some parameter's are not,
    one process must not skip a step that the others take.
    """
    if group is None:
        return
    own = flags.cuda() if distributed.get_backend(group) == "nccl" else flags.cpu()
    distributed.all_reduce(own, distributed.ReduceOp.MAX, group=group)
    flags.copy_(own)
