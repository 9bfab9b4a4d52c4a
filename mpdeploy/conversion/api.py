"""`mpdeploy.convert`: an FP32 ONNX file in, a mixed-precision one and its plan out."""

import shutil
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from mpdeploy import records
from mpdeploy.arguments import Precision, Words, as_low_format, as_words
from mpdeploy.conversion import stamp
from mpdeploy.conversion.apply import apply
from mpdeploy.conversion.freeing import NOTHING_FREED, Freed
from mpdeploy.conversion.halves import refuse_unheeded, widen_other_half
from mpdeploy.conversion.idle import nothing_lowered, products
from mpdeploy.conversion.record import ConversionResult
from mpdeploy.conversion.repair import Suspects, settled, tried
from mpdeploy.errors import UsageError
from mpdeploy.files import atomic_path, sha256_of
from mpdeploy.graph import io
from mpdeploy.graph.arithmetic import low_share
from mpdeploy.graph.operators import opset_of
from mpdeploy.graph.patience import limited
from mpdeploy.graph.scope import all_nodes
from mpdeploy.graph.types import element_type
from mpdeploy.graph.written import check_written
from mpdeploy.numerics.formats import Format
from mpdeploy.numerics.handover import MeasuredRanges
from mpdeploy.plan.calibrate import Calibration, calibrate, handed_over
from mpdeploy.plan.pins import Keep, Searched
from mpdeploy.plan.planner import Planned, apply_plan, make_plan
from mpdeploy.plan.policy import Policy, policy_named
from mpdeploy.plan.record import PrecisionPlan
from mpdeploy.plan.sizes import Sizes
from mpdeploy.plan.target import Target, target_named
from mpdeploy.runtime.apart import model_outputs, require_apart
from mpdeploy.runtime.doubts import remarking
from mpdeploy.runtime.feeds import Data, Feeds, as_feeds
from mpdeploy.runtime.loadable import described, refusals
from mpdeploy.runtime.runner import input_specs


def convert(
    source: str | Path,
    output: str | Path,
    *,
    precision: Precision,
    data: Data | None = None,
    ranges: str | Path | None = None,
    policy: str | None = None,
    plan: str | Path | None = None,
    keep_fp32: Words = (),
    op_fp32: Words = (),
    low_io: bool = False,
    target: str | None = None,
    timeout: float | None = None,
    trained_fp32: Collection[str] = (),
) -> ConversionResult:
    """Convert the ONNX model ``source`` to FP16 or BF16 and write it to ``output``, its plan beside it.

    ``data`` names feeds as the ``--data`` flag does; ``ranges`` a file of ranges measured in training, which count
    where there is no data; ``plan`` applies a plan instead of making one, with ``keep_fp32`` and ``op_fp32``, and
    tries it on the data; one run of the model may take ``timeout`` seconds; ``trained_fp32`` names nodes that
    computed in FP32 in training, and go on doing so; the other arguments are the flags of `mpdeploy convert`.
    Returns what was done.  Raises ``UsageError`` for wrong arguments, files or data, ``ModelError`` for a model that
    is invalid or cannot be converted.
    """
    source, output = Path(source), Path(output)
    low = as_low_format(precision)
    require_onnx_name(output)
    require_apart(
        (*model_outputs(output), plan_path_of(output)),
        models=(source,),
        others=(plan, ranges, data, plan_path_of(source)),
    )
    model = limited(io.load(source), timeout)
    doubts: dict[str, None] = {}
    feeds = None if data is None else remarking(as_feeds(data), input_specs(model), doubts)
    keep = Keep(as_words(keep_fp32), as_words(op_fp32), frozenset(trained_fp32))
    if stamp.is_converted(model, low):
        policy_named(policy, with_data=feeds is not None)
        refuse_unheeded(model, low, keep, feeds, low_io=low_io)
        if plan is not None:
            # One for another model is a mistake here, too.
            apply_plan(model, _read_plan(Path(plan), low, target, low_io=low_io), keep)
        return _unchanged(source, output, model, low)
    if ranges is not None and feeds is not None:
        raise UsageError(
            "ranges from training count where there is no data", remedy="give --data or --ranges, not both"
        )
    warnings = widen_other_half(model, low, low_io=low_io)
    if plan is not None:
        _refuse_beside_plan(policy, ranges)
        made = _read_plan(Path(plan), low, target, low_io=low_io)
        planned = apply_plan(model, made, keep)
        if feeds is not None:
            planned = tried(model, planned, feeds, str(source))
    else:
        aim = target_named(target)
        trained = _trained_ranges(Path(ranges), source) if ranges is not None else Calibration()
        chosen = policy_named(policy, with_data=feeds is not None or trained.trained)
        if feeds is None:
            planned = make_plan(model, low, chosen, trained, keep, low_io=low_io, target=aim)
        else:
            planned = _planned(model, low, chosen, keep, feeds, str(source), low_io=low_io, target=aim)
    return write(_warning(planned, (*doubts, *warnings)), source, output)


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
    model: ir.Model, low: Format, policy: Policy, keep: Keep, feeds: Feeds, where: str, *, low_io: bool, target: Target
) -> Planned:
    calibration = calibrate(model, feeds, where, feeds.name)

    def replan(suspects: Suspects, freed: Freed) -> Planned:
        searched = Searched(freed=freed)
        return make_plan(
            model, low, policy, calibration, keep, low_io=low_io, target=target, suspects=suspects, searched=searched
        )

    return settled(model, replan({}, NOTHING_FREED), replan, feeds, where)


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
        bytes_cast=sum(_bytes_read(n, planned.sizes) for n in casts),
        opset=opset_of(model, ""),
        weights_with_loss=sum(w.loss.matters for w in plan.weights),
        notes=(*plan.notes, *_corrections(model), *described(refusals(model, output, plan.target))),
        trial=plan.trial,
        idle=nothing_lowered(before, products(model)),
    )


def _corrections(model: ir.Model) -> Iterator[str]:
    if io.source_of(model).unsorted:
        yield "the source's nodes do not stand in the order in which they run: they were sorted"
    for name in sorted(io.source_of(model).mistaken):
        yield f"output '{name}' is declared with the shape that its operators give: the source declares another"


def require_onnx_name(output: Path) -> None:
    """Raise ``UsageError`` if a model is to be written under a name that says it is something else."""
    if output.suffix.lower() != ".onnx" and not output.is_dir():  # a folder has a fault of its own
        raise UsageError("the output is an ONNX model", where=str(output), remedy="give it a name that ends in .onnx")


def plan_path_of(model: Path) -> Path:
    """Return where the plan of a converted model lies: ``net.onnx`` has ``net.plan.json``."""
    return model.parent / f"{model.stem}.plan.json"


def _refuse_beside_plan(policy: str | None, ranges: str | Path | None) -> None:
    """Refuse what only making a plan heeds."""
    for flag, given in (("--policy", policy), ("--ranges", ranges)):
        if given is not None:
            raise UsageError(
                f"{flag} has no effect when a plan is applied",
                where=str(given),
                remedy=f"leave {flag} out, or plan anew without --plan",
            )


def _read_plan(path: Path, low: Format, target: str | None, *, low_io: bool) -> PrecisionPlan:
    plan = records.load(PrecisionPlan, path)
    if plan.precision is not low:
        raise UsageError(f"the plan is for {plan.precision.value}, not {low.value}", where=str(path))
    if low_io and not plan.low_io:
        raise UsageError(
            "the plan keeps the types of inputs and outputs, --low-io does not",
            where=str(path),
            remedy="leave --low-io out, or plan anew without --plan",
        )
    if target is not None and target_named(target).value != plan.target:
        raise UsageError(
            f"the plan is for target {plan.target}, not {target}",
            where=str(path),
            remedy="leave --target out, or plan anew without --plan",
        )
    return plan


def _unchanged(source: Path, output: Path, model: ir.Model, low: Format) -> ConversionResult:
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


def _bytes_read(cast: ir.Node, sizes: Sizes) -> int:
    value, made = cast.inputs[0], cast.outputs[0]
    dtype = element_type(value) if value is not None else None
    if value is None or dtype is None:
        return 0
    graph = cast.graph if isinstance(cast.graph, ir.Graph) else None
    return sizes.elements(value, made) * sizes.runs(graph) * dtype.bitwidth // 8
