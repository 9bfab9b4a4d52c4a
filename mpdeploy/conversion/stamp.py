"""A converted model says so: converting it again changes nothing."""

import onnx_ir as ir

from mpdeploy.numerics.formats import Format
from mpdeploy.plan.planner import digest

_PRECISION = "mpdeploy.precision"
_DIGEST = "mpdeploy.digest"


def put(model: ir.Model, precision: Format) -> None:
    """Write the precision and the graph's digest into the model's metadata."""
    model.metadata_props.pop(_DIGEST, None)
    model.metadata_props[_PRECISION] = precision.value
    model.metadata_props[_DIGEST] = digest(model)


def is_converted(model: ir.Model, precision: Format) -> bool:
    """Tell whether the model is a conversion to that precision that nobody has changed since."""
    if model.metadata_props.get(_PRECISION) != precision.value or _DIGEST not in model.metadata_props:
        return False
    claimed = model.metadata_props.pop(_DIGEST)
    try:
        return digest(model) == claimed
    finally:
        model.metadata_props[_DIGEST] = claimed
