"""Where an engine is to run, and what cannot work there: said in plain words before a builder exists."""

import difflib
import math
import shlex
from dataclasses import dataclass

from mpdeploy.engine.gpu import Gpu, driver_fault
from mpdeploy.engine.network import Network, Port
from mpdeploy.engine.options import BuildOptions, Feature, Profile, Shape, ShapeRange, format_shape
from mpdeploy.engine.toolkit import Flavour, Toolkit
from mpdeploy.errors import DependencyError, UsageError
from mpdeploy.numerics.formats import Format

# The first compute capability with the type in hardware.
_FIRST_WITH = {Format.BF16.value: 80, Format.FP8E4M3.value: 89}
_RTX_DEFAULT_FROM = 80  # TensorRT for RTX builds for Ampere and later unless told otherwise
_RTX_NEEDS_GPU = (Feature.STRIP_WEIGHTS, Feature.REFIT)
_RTX_LACKS = {
    Feature.VERSION_COMPATIBLE: "an engine for RTX is rebuilt for each version",
    Feature.HARDWARE_COMPATIBLE: "choose the GPUs with --sm instead",
}
_SUGGESTED_BATCHES = (1, 8, 32)


@dataclass(frozen=True)
class Target:
    """The compute capabilities that an engine is for (8.6 is 86), and the GPU that the build runs on, if any."""

    capabilities: tuple[int, ...]
    gpu: Gpu | None


def choose_target(toolkit: Toolkit, options: BuildOptions, gpus: tuple[Gpu, ...]) -> Target:
    """Return the target that ``options`` ask for.

    Raises ``UsageError`` for what this TensorRT can never do and ``DependencyError`` for what needs a GPU here.
    """
    gpu = gpus[0] if gpus else None
    if toolkit.needs_gpu:
        return _target_of_this_machine(toolkit, options, gpu)
    strange = [str(sm) for sm in options.capabilities if sm not in toolkit.selectable]
    if strange:
        raise UsageError(
            f"{toolkit.title} cannot build for SM {', '.join(strange)}",
            where="--sm",
            remedy=f"it knows {', '.join(map(str, toolkit.selectable))}; for others use --backend tensorrt on that GPU",
        )
    if toolkit.flavour is Flavour.RTX:
        _check_rtx_features(toolkit, options, gpu)
    default = tuple(sm for sm in toolkit.selectable if sm >= _RTX_DEFAULT_FROM)
    if gpu is not None and any(feature in _RTX_NEEDS_GPU for feature in options.features):
        return Target(_one_of(toolkit, options, gpu), gpu)
    return Target(options.capabilities or default, gpu)


def _one_of(toolkit: Toolkit, options: BuildOptions, gpu: Gpu) -> tuple[int, ...]:
    """The one compute capability of an engine whose weights come later: that of this GPU unless told otherwise."""
    if len(options.capabilities) > 1:
        raise UsageError(
            f"{toolkit.title} builds an engine whose weights are given later for one SM, not for "
            f"{', '.join(map(str, options.capabilities))}",
            where="--sm",
            remedy=f"build once for each, as in --sm {options.capabilities[0]}",
        )
    return options.capabilities or (gpu.capability,)


def check_network(network: Network, options: BuildOptions, target: Target, where: str) -> None:
    """Raise ``UsageError`` for what this network asks and the target or the options lack.

    That is: a type that the target's GPUs do not have; a dynamic input without a range, a range for an input
    that does not exist or that is out of its fixed dimensions.
    """
    for kind, first in _FIRST_WITH.items():
        older = [str(sm) for sm in target.capabilities if sm < first]
        if older and kind in network.census.outputs:
            raise UsageError(
                f"SM {', '.join(older)} has no {kind.upper()}, which the model computes in",
                where=where,
                remedy=f"leave SM {', '.join(older)} out of --sm, or convert the model to fp16",
            )
    _check_known_inputs(network, options)
    ports = [port for port in network.inputs if port.is_dynamic]
    for profile in options.profiles or (Profile(()),):
        missing = [port for port in ports if profile.range_of(port.name) is None]
        if missing:
            raise UsageError(
                f"the model has dynamic inputs without a shape range: {', '.join(p.name for p in missing)}",
                where=where,
                remedy="add " + " ".join(map(suggest_shapes, missing)),
            )
        for port in network.inputs:
            _check_range(port, profile)


def suggest_shapes(port: Port) -> str:
    """Return a ``--shapes`` flag for a dynamic input: its first dynamic dimension grows, further ones are free.

    It is quoted as a shell takes it.  For an input that holds a shape the flag gives ranges of its values.
    """

    def shape(batch: int) -> Shape:
        if port.holds_shape:  # as many values as it has elements; how many a vector of open length has is not known
            return (batch,) * _elements(port) if port.shape else (batch,)
        sizes, free = [], batch
        for size in port.shape:
            if isinstance(size, int):
                sizes.append(size)
            else:
                sizes.append(free)
                free = _SUGGESTED_BATCHES[1]
        return tuple(sizes)

    word = ":".join((port.name, *(format_shape(shape(batch)) for batch in _SUGGESTED_BATCHES)))
    return f"--shapes {shlex.quote(word)}"


def _elements(port: Port) -> int:
    return math.prod(size if isinstance(size, int) else 1 for size in port.shape)


def _target_of_this_machine(toolkit: Toolkit, options: BuildOptions, gpu: Gpu | None) -> Target:
    if gpu is None:
        raise DependencyError(
            f"{toolkit.title} builds on the GPU that the engine is for, and this machine has none{_why()}",
            remedy="build on that GPU, or use --backend rtx, which needs none",
        )
    if options.capabilities and options.capabilities != (gpu.capability,):
        raise UsageError(
            f"{toolkit.title} builds for the GPU of this machine only, SM {gpu.capability}",
            where="--sm",
            remedy="leave --sm out",
        )
    return Target((gpu.capability,), gpu)


def _check_rtx_features(toolkit: Toolkit, options: BuildOptions, gpu: Gpu | None) -> None:
    if options.timing_cache is not None:
        raise UsageError(
            f"{toolkit.title} has no timing cache: it measures nothing at build time",
            where="--timing-cache",
            remedy="leave it out; --cache DIR keeps whole engines, and kernels are compiled on the GPU at first use",
        )
    for feature in options.features:
        if feature in _RTX_LACKS:
            raise UsageError(
                f"{toolkit.title} has no {feature.value} engines", where="--feature", remedy=_RTX_LACKS[feature]
            )
        if feature in _RTX_NEEDS_GPU and gpu is None:
            raise DependencyError(
                f"{toolkit.title} needs a GPU to build with {feature.value}, and this machine has none{_why()}",
                where="--feature",
                remedy="build on a machine with a GPU, or leave the feature out",
            )


def _why() -> str:
    fault = driver_fault()
    return f" that works: {fault}" if fault else ""


def _check_known_inputs(network: Network, options: BuildOptions) -> None:
    known = [port.name for port in network.inputs]
    for name in (r.name for profile in options.profiles for r in profile.ranges):
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise UsageError(
                f"the model has no input {name!r}", where="--shapes", remedy=f"{hint}Its inputs are {', '.join(known)}"
            )


def _check_range(port: Port, profile: Profile) -> None:
    found = profile.range_of(port.name)
    if found is None:
        return
    if port.holds_shape:
        _check_values(port, found)
        return
    fits = len(found.min) == len(port.shape) and all(
        not isinstance(fixed, int) or low == fixed == high
        for fixed, low, high in zip(port.shape, found.min, found.max, strict=True)
    )
    if not fits:
        shape = ", ".join("?" if size is None else str(size) for size in port.shape)
        raise UsageError(
            f"the range does not fit the input {port.name!r} of shape [{shape}]",
            where=f"--shapes {found}",
            remedy=(
                f"keep its rank and its fixed dimensions, as in {suggest_shapes(port)}"
                if port.is_dynamic
                else "leave it out, the shape is fixed"
            ),
        )


def _check_values(port: Port, found: ShapeRange) -> None:
    known, count = all(isinstance(size, int) for size in port.shape), _elements(port)
    if known and len(found.min) != count:
        raise UsageError(
            f"the input {port.name!r} holds {count} values that decide shapes, the range gives {len(found.min)}",
            where=f"--shapes {found}",
            remedy=f"give the smallest, usual and largest of each value, as in {suggest_shapes(port)}",
        )
