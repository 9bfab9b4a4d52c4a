"""What every source turns into: a module ready for export, with its inputs, outputs and examples."""

from dataclasses import dataclass
from typing import Any

import torch

from mpdeploy.train.checkpoint import CheckpointRecord
from mpdeploy.train.specs import TensorSpec


@dataclass(frozen=True)
class LoadedModule:
    """A module ready for export: in eval mode, FP32, on the CPU, without gradients.

    ``module`` takes the ``inputs`` in order as positional arguments and returns a tensor or a tuple of them, named
    by ``outputs``.  ``examples`` holds a tensor by input name; ``inputs`` gives names, dtypes and shapes with the
    names of dynamic axes.  ``made_up`` tells that the examples are random numbers and no data.  ``origin`` names the
    file or recipe for people; ``record`` is there for checkpoints of ours.  ``program`` is the ``ExportedProgram`` that
    ``module`` runs, if the model came as one.  ``notes`` are what a person should know.
    """

    module: Any
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]
    examples: dict[str, torch.Tensor]
    origin: str
    record: CheckpointRecord | None = None
    made_up: bool = False
    program: Any = None
    notes: tuple[str, ...] = ()

    @property
    def arguments(self) -> tuple[torch.Tensor, ...]:
        """The examples in the order in which the module takes them."""
        return tuple(self.examples[spec.name] for spec in self.inputs)
