"""A module of any calling habit as one that takes tensors in order and returns tensors in order."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import nn

from mpdeploy.errors import ModelError, MpdeployError, UsageError
from mpdeploy.runtime.attended import within
from mpdeploy.runtime.attention import plain_attention
from mpdeploy.source.inputs import Inputs, parameter_names

Named = dict[str, torch.Tensor]


class Adapted(nn.Module):
    """Calls ``module`` with its inputs by name where it has such parameters, and returns its tensors as a tuple."""

    def __init__(self, module: nn.Module, keywords: tuple[str, ...], results: tuple[str, ...]) -> None:
        super().__init__()
        self.module, self.keywords, self.results = module, keywords, results

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the results' tensors, in the order of ``results``."""
        found = named_outputs(call(self.module, self.keywords, tensors))
        return tuple(found[name] for name in self.results)


def call(module: Any, keywords: tuple[str, ...], tensors: tuple[torch.Tensor, ...]) -> Any:
    """Call a module by keyword where names are given, else by position."""
    return module(**dict(zip(keywords, tensors, strict=True))) if keywords else module(*tensors)


def adapt(
    module: Any, inputs: Inputs, where: str, keep: Sequence[str] = (), *, timeout: float | None = None
) -> tuple[Any, tuple[str, ...]]:
    """Return a module that takes the inputs in order and returns tensors only, with the names of its outputs.

    It is the module itself where that is how it works.  The module is run once.

    Args:
        module: A module, or what TorchScript and ``torch.export`` give for one.
        inputs: Its inputs, with an example of each.
        where: The file, for messages.
        keep: The only outputs to return, in their order; all if empty.
        timeout: The seconds that the run may take.

    Raises:
        UsageError: The module fails on the examples, or has no output that ``keep`` names.
        ModelError: It asks for a GPU, returns no tensor, or takes too long.
    """
    names = tuple(spec.name for spec in inputs.specs)
    parameters = parameter_names(module)
    in_order = parameters[: len(names)] == names or not set(names) <= set(parameters)
    keywords = () if in_order else names
    tensors = tuple(inputs.examples[name] for name in names)

    def run() -> Any:
        with torch.no_grad(), plain_attention():
            return call(module, keywords, tensors)

    try:
        result = within(timeout, where, run)
    except MpdeployError:
        raise
    except Exception as error:
        shown = ", ".join(f"{name} {list(t.shape)}" for name, t in zip(names, tensors, strict=True))
        if "CUDA" in str(error):
            raise ModelError(
                f"forward() asks for a GPU: {type(error).__name__}: {error}",
                where=where,
                remedy="the export runs on the CPU: take the device from the inputs, instead of .cuda()",
            ) from error
        raise UsageError(
            f"the model fails on {shown}: {type(error).__name__}: {error}",
            where=where,
            remedy=f"check --input or --data: forward() takes {', '.join(parameters) or 'other inputs'}",
        ) from error
    found = tuple(named_outputs(result))
    results = _kept(found, keep, where)
    if not results:
        raise ModelError(f"the model returns a {type(result).__name__} without a tensor", where=where)
    outputs = tuple(f"{name}_out" if name in names else name for name in results)
    flat = isinstance(result, torch.Tensor) or (type(result) is tuple and len(result) == len(found))
    if flat and in_order and results == found:
        return module, outputs
    return Adapted(module, keywords, results).eval(), outputs


def _kept(found: tuple[str, ...], keep: Sequence[str], where: str) -> tuple[str, ...]:
    unknown = [name for name in keep if name not in found]
    if unknown:
        raise UsageError(
            f"the model has no output `{unknown[0]}`", where=where, remedy=f"it returns {', '.join(found)}"
        )
    return tuple(name for name in found if name in keep) if keep else found


def named_outputs(result: Any) -> Named:
    """Return the tensors in what a module returned: by their keys or fields, else as ``output``, ``output_1``…"""
    found: Named = {}
    _collect(result, "", found)
    return found


def _collect(value: Any, name: str, found: Named) -> None:
    if isinstance(value, torch.Tensor):
        found[name or "output"] = value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _collect(item, _joined(name, str(key)), found)
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for key in value._fields:
            _collect(getattr(value, key), _joined(name, key), found)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            _collect(getattr(value, field.name), _joined(name, field.name), found)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            single = len(value) == 1 and not name
            _collect(item, name if single else f"{name or 'output'}_{index}", found)


def _joined(name: str, key: str) -> str:
    return f"{name}_{key}" if name else key
