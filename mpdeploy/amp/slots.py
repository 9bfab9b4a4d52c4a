"""The places in a model that hold its parameters, and putting others there for a while."""

import contextlib
from collections.abc import Iterator, Mapping

from torch import nn


class Slots:
    """Where in a model's modules each parameter stands; one that is shared stands in several places.

    Whole parameters change places, not their data: a parameter whose data changes its dtype loses the hooks by
    which DistributedDataParallel knows of its gradient.
    """

    def __init__(self, model: nn.Module) -> None:
        self._places: dict[int, list[tuple[nn.Module, str, nn.Parameter]]] = {}
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
                self._places.setdefault(id(parameter), []).append((module, name, parameter))

    @contextlib.contextmanager
    def holding(self, others: Mapping[int, nn.Parameter]) -> Iterator[None]:
        """Let the model hold ``others``, by the ids of the parameters that they stand in for, in the context."""
        places = [(place, other) for key, other in others.items() for place in self._places.get(key, ())]
        try:
            for (module, name, _), other in places:
                setattr(module, name, other)  # by attribute: recurrent modules keep a list of their own up to date
            yield
        finally:
            for (module, name, own), _ in places:
                setattr(module, name, own)
