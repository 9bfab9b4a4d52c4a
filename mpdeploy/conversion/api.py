"""`mpdeploy.convert`: an FP32 ONNX file in, a mixed-precision one and its plan out."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from mpdeploy import records
from mpdeploy.conversion import stamp
from mpdeploy.conversion.apply import apply
from mpdeploy.conversion.halves import refuse_unheeded, widen_other_half
from mpdeploy.conversion.idle import nothing_lowered, products
from mpdeploy.conversion.record import ConversionResult
from mpdeploy.conversion.repair import Suspects, settled
from mpdeploy.errors import UsageError
from mpdeploy.files import atomic_path, sha256_of
from mpdeploy.graph import io
from mpdeploy.graph.arithmetic import low_share
from mpdeploy.graph.operators import opset_of
from mpdeploy.graph.scope import all_nodes
from mpdeploy.graph.shapes import guessed_size
from mpdeploy.graph.types import element_type
from mpdeploy.graph.written import check_written
from mpdeploy.numerics.formats import LOW_FORMATS, Format
from mpdeploy.numerics.handover import MeasuredRanges
from mpdeploy.plan.calibrate import Calibration, calibrate, handed_over
from mpdeploy.plan.planner import Keep, Planned, apply_plan, make_plan
from mpdeploy.plan.policy import Policy, policy_named
from mpdeploy.plan.record import PrecisionPlan
from mpdeploy.runtime.feeds import Data, Feeds, as_feeds
from mpdeploy.runtime.loadable import described, refusals


def convert(
    source: str | Path,
    output: str | Path,
    *,
    precision: str,
    data: Data | None = None,
    ranges: str | Path | None = None,
    policy: str | None = None,
    plan: str | Path | None = None,
    keep_fp32: tuple[str, ...] = (),
    op_fp32: tuple[str, ...] = (),
    low_io: bool = False,
) -> ConversionResult:
    """Convert the ONNX model ``source`` to FP16 or BF16 and write it to ``output``, its plan beside it.

    ``data`` names feeds as the ``--data`` flag does; ``ranges`` a file of ranges measured in training, which count
    where there is no data; ``plan`` applies a plan instead of making one; the other
    arguments are the flags of `mpdeploy convert`.  Returns what was done.  Raises ``UsageError`` for wrong
    arguments, files or data, ``ModelError`` for a model that is invalid or cannot be converted.
    """
    source, output = Path(source), Path(output)
    low = low_format(precision)
    model = io.load(source)
    feeds = None if data is None else as_feeds(data)
    keep = Keep(keep_fp32, op_fp32)
    if stamp.is_converted(model, low):
        policy_named(policy, with_data=feeds is not None)
        refuse_unheeded(model, low, keep, feeds, low_io=low_io)
        if plan is not None:
            apply_plan(model, _read_plan(Path(plan), low))  # one for another model is a mistake here, too
        return _unchanged(source, output, model, low)
    warnings = widen_other_half(model, low, low_io=low_io)
    if plan is not None:
        planned = apply_plan(model, _read_plan(Path(plan), low))
    else:
        trained = _trained_ranges(Path(ranges), source) if ranges is not None and feeds is None else Calibration()
        chosen = policy_named(policy, with_data=feeds is not None or trained.trained)
        if feeds is None:
            planned = make_plan(model, low, chosen, trained, keep, low_io=low_io)
        else:
            planned = _planned(model, low, chosen, keep, feeds, str(source), low_io=low_io)
    return write(_warning(planned, warnings), source, output)


def _warning(planned: Planned, warnings: tuple[str, ...]) -> Planned:
    plan = planned.plan
    return replace(planned, plan=replace(plan, notes=tuple(dict.fromkeys((*warnings, *plan.notes)))))


def _trained_ranges(path: Path, source: Path) -> Calibration:
    measured = records.load(MeasuredRanges, path)
    if measured.model_sha256 != sha256_of(source):
        raise UsageError(
            "the ranges belong to another model",
            where=str(path),
            remedy=f"export {source.name} anew: its ranges are written beside it",
        )
    return handed_over(measured)


def _planned(
    model: ir.Model, low: Format, policy: Policy, keep: Keep, feeds: Feeds, where: str, *, low_io: bool
) -> Planned:
    calibration = calibrate(model, feeds, where, feeds.name)

    def replan(suspects: Suspects) -> Planned:
        return make_plan(model, low, policy, calibration, keep, low_io=low_io, suspects=suspects)

    return settled(model, replan({}), replan, feeds, where)


def write(planned: Planned, source: Path, output: Path) -> ConversionResult:
    """Carry out a plan and write the converted model and the plan; returns what was done."""
    own = {n for n in all_nodes(planned.model) if _is_cast(n)}
    plan = planned.plan
    before = products(planned.model)
    model = apply(planned)
    casts = [n for n in all_nodes(model) if _is_cast(n) and n not in own]
    stamp.put(model, plan.precision)
    check_written(model)
    io.save(model, output)
    plan_path = plan_path_of(output)
    records.save(plan, plan_path)
    return ConversionResult(
        source=str(source),
        model=str(output),
        plan=str(plan_path),
        precision=plan.precision,
        policy=plan.policy,
        source_bytes=io.size_of(source),
        model_bytes=io.size_of(output),
        operators=len(plan.decisions),
        low_operators=plan.low_count,
        low_flops=low_share(model),
        casts=len(casts),
        bytes_cast=sum(_bytes_read(n) for n in casts),
        opset=opset_of(model, ""),
        weights_with_loss=sum(w.loss.matters for w in plan.weights),
        notes=(*plan.notes, *_corrections(model), *described(refusals(model, output))),
        trial=plan.trial,
        idle=nothing_lowered(before, products(model)),
    )


def _corrections(model: ir.Model) -> Iterator[str]:
    if io.source_of(model).unsorted:
        yield "the source's nodes do not stand in the order in which they run: they were sorted"
    for name in sorted(io.source_of(model).mistaken):
        yield f"output '{name}' is declared with the shape that its operators give: the source declares another"


def low_format(precision: str) -> Format:
    """Return the low format of that name; raises ``UsageError`` for any other."""
    for low in LOW_FORMATS:
        if low.value == precision:
            return low
    raise UsageError(f"unknown precision {precision!r}", remedy="use fp16 or bf16")


def plan_path_of(model: Path) -> Path:
    """Return where the plan of a converted model lies: ``net.onnx`` has ``net.plan.json``."""
    return model.with_name(f"{model.stem}.plan.json")


def _read_plan(path: Path, low: Format) -> PrecisionPlan:
    plan = records.load(PrecisionPlan, path)
    if plan.precision is not low:
        raise UsageError(f"the plan is for {plan.precision.value}, not {low.value}", where=str(path))
    return plan


def _unchanged(source: Path, output: Path, model: ir.Model, low: Format) -> ConversionResult:
    if source.resolve() != output.resolve():
        if io.source_of(model).external:
            io.save(model, output)
        else:
            with atomic_path(output) as scratch:
                shutil.copyfile(source, scratch)
        if plan_path_of(source).is_file():
            with atomic_path(plan_path_of(output)) as scratch:
                shutil.copyfile(plan_path_of(source), scratch)
    return ConversionResult(
        source=str(source),
        model=str(output),
        plan=str(plan_path_of(output)) if plan_path_of(output).is_file() else "",
        precision=low,
        policy="",
        source_bytes=io.size_of(source),
        model_bytes=io.size_of(output),
        operators=0,
        low_operators=0,
        low_flops=low_share(model),
        casts=0,
        bytes_cast=0,
        opset=opset_of(model, ""),
        weights_with_loss=0,
        unchanged=True,
        notes=("the model had been converted before; to decide anew, convert its FP32 source",),
    )


def _is_cast(node: ir.Node) -> bool:
    return node.op_type == "Cast" and not node.domain


def _bytes_read(node: ir.Node) -> int:
    value = node.inputs[0]
    dtype = element_type(value) if value is not None else None
    if value is None or dtype is None:
        return 0
    return guessed_size(value) * dtype.bitwidth // 8
