"""What a user may ask of an engine build.  Nothing here knows TensorRT; contradictions die on construction."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from mpdeploy.errors import UsageError

_SHAPE = re.compile(r"\d{1,30}([x,]\d{1,30})*|scalar", re.ASCII)
_SIZE = re.compile(r"(\d+)([KMG]?)(?:iB|B)?", re.IGNORECASE | re.ASCII)
_SIZE_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_LEVELS = range(6)
_LARGEST = (1 << 63) - 1  # TensorRT counts bytes and dimensions in 64 bits

Shape = tuple[int, ...]


class Feature(Enum):
    """Something that an engine can additionally be, by the word that the flag uses."""

    STRIP_WEIGHTS = "strip-weights"
    REFIT = "refit"
    VERSION_COMPATIBLE = "version-compatible"
    HARDWARE_COMPATIBLE = "hardware-compatible"
    WEIGHT_STREAMING = "weight-streaming"
    SPARSE_WEIGHTS = "sparse-weights"
    STRICT_NANS = "strict-nans"


@dataclass(frozen=True)
class ShapeRange:
    """The shapes that one dynamic input may take: smallest, the one to optimise for, largest."""

    name: str
    min: Shape
    opt: Shape
    max: Shape

    def __post_init__(self) -> None:
        if not len(self.min) == len(self.opt) == len(self.max):
            raise UsageError("minimum, optimum and maximum differ in rank", where=f"--shapes {self}")
        if any(size > _LARGEST for size in self.max):
            raise UsageError("a dimension is larger than TensorRT can count", where=f"--shapes {self}")
        if any(not low <= best <= high for low, best, high in zip(self.min, self.opt, self.max, strict=True)):
            raise UsageError(
                "a range must satisfy minimum <= optimum <= maximum in every dimension",
                where=f"--shapes {self}",
            )

    def __str__(self) -> str:
        return ":".join((self.name, *map(format_shape, (self.min, self.opt, self.max))))


@dataclass(frozen=True)
class Profile:
    """One shape range for every dynamic input; an engine runs inside one of its profiles."""

    ranges: tuple[ShapeRange, ...]

    def range_of(self, name: str) -> ShapeRange | None:
        """Return the range of the input called ``name``, None where there is none."""
        return next((r for r in self.ranges if r.name == name), None)


@dataclass(frozen=True)
class BuildOptions:
    """How an engine is built, apart from its precision: that stands in the ONNX graph.

    ``capabilities`` are compute capabilities as integers (8.6 is 86), empty for the back end's default.
    ``workspace`` is in bytes, None for the builder's default; ``optimization_level`` is 0 to 5.  ``tf32``
    allows FP32 convolutions and products to round their operands to TF32; off, because a value that a plan
    keeps in FP32 is there for its precision.  ``timing_cache`` is a file with measured kernels that the build reads
    and adds to; it speeds builds up and decides nothing else.
    """

    profiles: tuple[Profile, ...] = ()
    capabilities: tuple[int, ...] = ()
    workspace: int | None = None
    optimization_level: int | None = None
    tf32: bool = False
    timing_cache: str | None = None
    features: tuple[Feature, ...] = ()

    def __post_init__(self) -> None:
        # Both are sets; in one order equal wishes are equal records, and a plan's bytes depend on that of its targets.
        object.__setattr__(self, "capabilities", tuple(sorted(set(self.capabilities))))
        object.__setattr__(self, "features", tuple(sorted(set(self.features), key=lambda feature: feature.value)))
        if self.workspace is not None and self.workspace <= 0:
            raise UsageError("the workspace must be larger than zero bytes", where=f"--workspace {self.workspace}")
        if self.workspace is not None and self.workspace > _LARGEST:
            raise UsageError(
                "the workspace is larger than TensorRT can count",
                where=f"--workspace {self.workspace}",
                remedy="leave it out for all the memory of the GPU",
            )
        if self.optimization_level is not None and self.optimization_level not in _LEVELS:
            raise UsageError("the optimisation level goes from 0 to 5", where=f"--opt-level {self.optimization_level}")


def parse_shapes(words: Sequence[str]) -> tuple[Profile, ...]:
    """Return the profiles that ``--shapes NAME:MIN:OPT:MAX`` words describe, with shapes as 1x3x224x224 or 1,3,224,224.

    The second word for the same input opens a second profile, and so on; an input with fewer words than
    another keeps its last range in the further profiles.  Raises ``UsageError`` on a malformed word.
    """
    by_name: dict[str, list[ShapeRange]] = {}
    for word in words:
        found = _parse_range(word)
        by_name.setdefault(found.name, []).append(found)
    count = max(map(len, by_name.values()), default=0)
    return tuple(
        Profile(tuple(ranges[min(index, len(ranges) - 1)] for ranges in by_name.values())) for index in range(count)
    )


def parse_capabilities(words: Sequence[str]) -> tuple[int, ...]:
    """Return compute capabilities from ``--sm`` words such as ``86,89`` or ``8.6``; ``UsageError`` otherwise."""
    found = []
    for text in (part.strip() for word in words for part in word.split(",")):
        digits = text.removeprefix("sm_").removeprefix("sm").replace(".", "")
        if not digits.isdecimal() or not 10 <= int(digits) < 1000:
            raise UsageError(f"not a compute capability: {text!r}", where="--sm", remedy="write it as --sm 86,89")
        found.append(int(digits))
    return tuple(found)


def features_named(words: Sequence[str]) -> tuple[Feature, ...]:
    """Return the features of these names; ``UsageError`` for one that there is not."""
    known = {feature.value: feature for feature in Feature}
    for word in words:
        if word not in known:
            raise UsageError(
                f"there is no feature {word!r}", where="--feature", remedy=f"choose from {', '.join(known)}"
            )
    return tuple(known[word] for word in words)


def parse_size(text: str) -> int:
    """Return bytes from text such as ``4G``, ``512M`` or a plain number; ``UsageError`` otherwise."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise UsageError(f"not a size: {text!r}", where="--workspace", remedy="write it as 512M or 4G")
    return int(match[1]) * _SIZE_FACTORS[match[2].upper()]


def format_shape(shape: Shape) -> str:
    """Return a shape as ``--shapes`` takes it: 1x3x224x224."""
    return "x".join(map(str, shape)) or "scalar"


def _parse_range(word: str) -> ShapeRange:
    # Input names may hold colons ("input:0"), shapes cannot.
    name, *shapes = word.rsplit(":", 3)
    if not name or len(shapes) != 3 or not all(_SHAPE.fullmatch(shape) for shape in shapes):
        raise UsageError(
            f"not a shape range: {word!r}",
            where="--shapes",
            remedy="write NAME:MIN:OPT:MAX, as in --shapes images:1x3x224x224:8x3x224x224:32x3x224x224",
        )
    low, best, high = (_parse_shape(shape) for shape in shapes)
    return ShapeRange(name, low, best, high)


def _parse_shape(text: str) -> Shape:
    return () if text == "scalar" else tuple(map(int, text.replace(",", "x").split("x")))
