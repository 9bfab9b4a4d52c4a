"""Does an array fit an engine's input?  A buffer of another type would be reinterpreted, not converted."""

from collections.abc import Mapping, Sequence

from mpdeploy.engine.network import Port
from mpdeploy.engine.options import Profile, Shape
from mpdeploy.errors import UsageError
from mpdeploy.numerics.formats import Format
from mpdeploy.runtime.runner import TensorSpec

_DTYPES = {
    Format.FP32.value: "float32",
    Format.FP16.value: "float16",
    Format.BF16.value: "bfloat16",
    Format.FP8E4M3.value: "float8_e4m3fn",
}


def spec_of(port: Port) -> TensorSpec:
    """Return a port as a runner describes it: numpy's name of its type."""
    return TensorSpec(port.name, _DTYPES.get(port.type, port.type), port.shape)


def check_types(given: Mapping[str, tuple[str, Shape]], inputs: Sequence[Port], where: str) -> None:
    """Raise ``UsageError`` unless every input is there in exactly its type and fixed dimensions.

    ``given`` maps names to numpy's name of the element type and the shape.
    """
    for spec in map(spec_of, inputs):
        if spec.name not in given:
            raise UsageError(
                f"the engine's input '{spec.name}' is missing",
                where=where,
                remedy=f"it takes {', '.join(str(spec_of(port)) for port in inputs)}",
            )
        dtype, shape = given[spec.name]
        if dtype != spec.dtype:
            raise UsageError(
                f"input '{spec.name}' is {dtype}, the engine reads {spec.dtype}",
                where=where,
                remedy=f"convert it to {spec.dtype} first: its bytes would be read as other numbers",
            )
        wanted = spec.shape or ()
        fits = len(shape) == len(wanted) and all(
            size == dim or not isinstance(dim, int) for size, dim in zip(shape, wanted, strict=True)
        )
        if not fits:
            raise UsageError(f"input '{spec.name}' has shape {list(shape)}, the engine takes {spec}", where=where)
    unknown = sorted(set(given) - {port.name for port in inputs})
    if unknown:
        raise UsageError(f"the engine has no input '{unknown[0]}'", where=where, remedy="leave it out")


def choose_profile(shapes: Mapping[str, Shape], profiles: Sequence[Profile], where: str) -> int:
    """Return the number of the first profile that holds all shapes; 0 for an engine without profiles.

    Raises ``UsageError`` that names the input and the ranges if there is none.
    """
    for index, profile in enumerate(profiles):
        if all(_inside(profile, name, shape) for name, shape in shapes.items()):
            return index
    if not profiles:
        return 0
    alone = (name for name, shape in shapes.items() if not any(_inside(p, name, shape) for p in profiles))
    outside = next(alone, next(iter(shapes)))  # or each fits some profile, but no profile fits all of them
    ranges = " or ".join(str(found) for profile in profiles if (found := profile.range_of(outside)))
    raise UsageError(
        f"input '{outside}' of shape {list(shapes[outside])} is outside the engine's profiles ({ranges})",
        where=where,
        remedy="give it such a shape, or build with --shapes that include it",
    )


def _inside(profile: Profile, name: str, shape: Shape) -> bool:
    found = profile.range_of(name)
    return found is None or (
        len(shape) == len(found.min)
        and all(low <= size <= high for low, size, high in zip(found.min, shape, found.max, strict=True))
    )
