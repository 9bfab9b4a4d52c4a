"""Does the parsed network compute in the types that the plan promises?  Answered before anything is built."""

from collections.abc import Mapping
from enum import Enum

from mpdeploy.engine.network import Network
from mpdeploy.errors import BuildError
from mpdeploy.numerics.formats import LOW_FORMATS, Format
from mpdeploy.plan.record import PrecisionPlan
from mpdeploy.runtime.facts import ModelFacts

_SHOWN = 3  # culprits named in a message


class ProductFormat(Enum):
    """What the products of an engine multiply, by the word of ``--expect``."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"
    FP8 = "fp8"
    FP4 = "fp4"

    @property
    def is_quantised(self) -> bool:
        """Whether it takes QuantizeLinear and DequantizeLinear in the model."""
        return self in (ProductFormat.INT8, ProductFormat.FP8, ProductFormat.FP4)

    def covers(self, kind: str) -> bool:
        """Tell whether a type's word in a census is of this format: fp8e4m3 is FP8."""
        return kind.startswith(self.value)


def check_kept(network: Network, model: ModelFacts) -> None:
    """Raise ``BuildError`` if the model computes in a low-precision format that the network lacks altogether."""
    lost = [
        kind.value for kind in LOW_FORMATS if kind.value in model.values and kind.value not in network.census.outputs
    ]
    if lost:
        raise BuildError(
            f"the model computes in {' and '.join(lost)}, but the parser made a network without it",
            where=model.path,
            remedy="see with 'mpdeploy doctor' which TensorRT this is, and which formats it computes in",
        )


def narrowed(network: Network, model: ModelFacts) -> tuple[str, ...]:
    """Return a warning if the model computes in FP64 and the network, as TensorRT's parser makes it, in FP32."""
    wide = model.values.get("fp64", 0)
    if not wide or "double" in network.census.outputs:
        return ()
    return (f"{wide} float64 values of the model are float32 in the engine",)


def check_lowered(network: Network, expected: ProductFormat, where: str) -> None:
    """Raise ``BuildError`` unless most of the network's arithmetic is in ``expected``.

    Judged by what its products multiply, or by all floating-point values in a network without any.
    """
    floats = {f.value: network.census.outputs[f.value] for f in Format if network.census.outputs.get(f.value)}
    counts = network.census.compute or floats
    total, lowered = sum(counts.values()), sum(count for kind, count in counts.items() if expected.covers(kind))
    if 2 * lowered <= total:
        have = ", ".join(f"{count} in {name}" for name, count in counts.items()) or "none with a float type"
        raise BuildError(
            f"the engine would not compute in {expected.value}: of its arithmetic layers, {have}",
            where=where,
            remedy=_convert_first(expected),
        )


def promises_of(plan: PrecisionPlan, network: Network) -> dict[str, Format]:
    """Return the format that each value of the plan must have in the network, by the value's name there.

    A low value that is also an output which stays FP32 for its readers bears the name ``OUTPUT_fp16``.
    """
    formats: dict[str, set[Format]] = {}
    for decision in plan.decisions:
        for name in decision.values:
            formats.setdefault(name, set()).add(decision.format)
    wide = {port.name for port in network.outputs if port.type == Format.FP32.value}
    promised = {}
    for name, chosen in formats.items():
        if len(chosen) > 1:  # computed in one format, read in another: no single type to look for
            continue
        (kind,) = chosen
        promised[f"{name}_{kind.value}" if name in wide and kind in LOW_FORMATS else name] = kind
    return promised


def check_plan(network: Network, promised: Mapping[str, Format], where: str) -> None:
    """Raise ``BuildError`` if a value has another type in the network than the plan promises.

    ``promised`` maps names of values to formats; values that the parser folded away are not looked at, but a
    plan none of whose low-precision values is found proves nothing and is refused, too.
    """
    found = {name: kind for name, kind in network.types.items() if name in promised}
    wrong = [
        f"{name!r} is {kind}, planned {promised[name].value}"
        for name, kind in found.items()
        if kind != promised[name].value
    ]
    if wrong:
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise BuildError(
            f"the network does not follow the plan: {'; '.join(wrong[:_SHOWN])}{more}",
            where=where,
            remedy="convert the model with this plan again, or build without --plan",
        )
    promises_low = any(planned in LOW_FORMATS for planned in promised.values())
    if promises_low and not any(promised[name] in LOW_FORMATS for name in found):
        raise BuildError(
            "no low-precision value of the plan is found in the model",
            where=where,
            remedy="give the plan that this model was converted with",
        )


def _convert_first(expected: ProductFormat) -> str:
    if expected is ProductFormat.FP32:
        return "build from the FP32 model"
    if expected.is_quantised:
        return "both operands of a product must come from DequantizeLinear in the ONNX graph: quantise it first"
    return f"precision stands in the ONNX graph: run 'mpdeploy convert --precision {expected.value}' first"
