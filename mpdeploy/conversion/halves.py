"""Sources that hold half precision already: FP16 models to BF16 and back, and what was converted before."""

import fnmatch
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from mpdeploy.errors import UsageError
from mpdeploy.graph.scope import all_nodes
from mpdeploy.graph.types import element_type
from mpdeploy.graph.widening import holds, stored, widen
from mpdeploy.numerics.formats import Format
from mpdeploy.plan.groups import ONNX_TYPE
from mpdeploy.plan.pins import Keep
from mpdeploy.runtime.feeds import Feeds
from mpdeploy.runtime.fit import fit
from mpdeploy.runtime.runner import input_specs

_OTHER = {Format.FP16: Format.BF16, Format.BF16: Format.FP16}
_CHUNK = 1 << 20
_AGAIN = "convert its FP32 source to decide anew"


def widen_other_half(model: ir.Model, low: Format, *, low_io: bool) -> tuple[str, ...]:
    """Bring a model that holds the other half format back to FP32, in place; return what to warn of.

    Nothing happens to a model that does not.  Raises ``ModelError`` for sequences of halves at its border.
    """
    other = _OTHER[low]
    half = ONNX_TYPE[other]
    if not holds(model, half):
        return ()
    warning = (
        f"the source holds {other.value.upper()} numbers: what they lost to that format is not restored "
        f"({_lost(list(stored(model, half)), other)}); where its FP32 source still is, convert that"
    )
    widen(model, half, low_io=low_io)
    return (warning,)


def _lost(tensors: Sequence[ir.TensorProtocol], half: Format) -> str:
    """Say what stored numbers show of the format that they were rounded to."""
    total = infinite = largest = tiny = 0
    for tensor in tensors:
        flat = np.asarray(tensor.numpy()).reshape(-1)
        for start in range(0, flat.size, _CHUNK):
            size = np.abs(flat[start : start + _CHUNK].astype(np.float32))
            total += size.size
            infinite += int(np.isinf(size).sum())
            largest += int((size == half.max).sum())
            tiny += int(((size > 0) & (size < half.smallest_normal)).sum())
    shown = {"infinite": infinite, "the largest that there is": largest, "below its normal range": tiny}
    counts = ", ".join(f"{count:,} {what}" for what, count in shown.items() if count)
    return f"{half.facts.precision} bits of each of {total:,} stored numbers are left{f'; {counts}' if counts else ''}"


def refuse_unheeded(model: ir.Model, low: Format, keep: Keep, feeds: Feeds | None, *, low_io: bool) -> None:
    """Raise ``UsageError`` for what cannot be asked of a model that has been converted before.

    Data that do not fit are a mistake there, too; so are nodes to keep in FP32 that are not there, or not in FP32.
    """
    if feeds is not None:
        for label, feed in feeds.first(1).labelled():
            fit(feed, input_specs(model), label)
    nodes = list(all_nodes(model))
    for pattern in keep.nodes:
        _refuse_low([n for n in nodes if fnmatch.fnmatchcase(str(n.name), pattern) or n.name == pattern], pattern, low)
    for operator in keep.operators:
        _refuse_low([n for n in nodes if n.op_type == operator], operator, low)
    if low_io and any(element_type(v) is ir.DataType.FLOAT for v in (*model.graph.inputs, *model.graph.outputs)):
        raise UsageError("the model was converted before, its inputs and outputs in FP32", remedy=_AGAIN)


def _refuse_low(matching: Sequence[ir.Node], pattern: str, low: Format) -> None:
    if not matching:
        raise UsageError(f"no operator of the model matches {pattern!r}", remedy="see `mpdeploy inspect`")
    half = ONNX_TYPE[low]
    for node in matching:
        if any(v is not None and element_type(v) is half for v in (*node.inputs, *node.outputs)):
            raise UsageError(f"'{node.name}' is {low.value} in this model, which was converted before", remedy=_AGAIN)
