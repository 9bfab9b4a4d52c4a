"""`mpdeploy inspect`: what a file of ours is, and why it is so."""

import difflib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mpdeploy import records
from mpdeploy.cli.console import say
from mpdeploy.cli.console import show as show_drawn
from mpdeploy.cli.described import show_checkpoint, show_export, show_manifest
from mpdeploy.cli.engines import explain_engine
from mpdeploy.cli.outcome import Outcome, result_options
from mpdeploy.documents import parse_json
from mpdeploy.errors import UsageError
from mpdeploy.files import readable_file

if TYPE_CHECKING:
    from mpdeploy.plan.record import Decision, PrecisionPlan

_SHOWN = 5


@click.command("inspect")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--node", metavar="NAME", help="Explain this node or value (a shell pattern matches several).")
@click.option("--diff", "other", type=click.Path(path_type=Path), help="Compare with another plan.")
@result_options
def command(file: Path, node: str | None, other: Path | None) -> Outcome:
    """Explain FILE: an ONNX model, a plan, an engine or its sidecar, a report, a manifest, or a checkpoint.

    For a converted model, the plan beside it tells which operators are FP32, and why.
    """
    readable_file(file, "file")
    if other is not None or node is not None:
        plan = _plan_of(file)
        return _diff(plan, _plan_of(other)) if other is not None else _explain(plan, str(node), str(file))
    if file.suffix == ".onnx":
        return _model(file)
    if file.suffix in (".pt", ".pth"):
        return _checkpoint(file)
    return _document(file)


def _plan_of(file: Path) -> "PrecisionPlan":
    from mpdeploy.conversion.api import plan_path_of
    from mpdeploy.plan.record import PrecisionPlan

    path = plan_path_of(file) if file.suffix == ".onnx" else file
    if not path.is_file():
        raise UsageError("no plan lies beside the model", where=str(path), remedy="convert writes one: name it instead")
    return records.load(PrecisionPlan, path)


def _explain(plan: "PrecisionPlan", pattern: str, where: str) -> Outcome:
    from mpdeploy.plan.explain import decisions_about

    found = decisions_about(plan, pattern)
    if not found:
        names = [name for decision in plan.decisions for name in (decision.node, *decision.values)]
        near = difflib.get_close_matches(pattern, names, 3, 0.5)
        raise UsageError(
            f"there is no node or value {pattern!r}",
            where=where,
            remedy=f"did you mean {', '.join(near)}?" if near else "'mpdeploy inspect FILE --json' lists them all",
        )

    def show() -> None:
        for decision in found:
            say(*_lines(decision))

    return Outcome(list(found), show)


def _diff(first: "PrecisionPlan", second: "PrecisionPlan") -> Outcome:
    from mpdeploy.plan.explain import differences

    found = differences(first, second)

    def show() -> None:
        for d in found:
            sides = [s.format.value if s else "absent" for s in (d.first, d.second)]
            reason = next((s.reason for s in (d.second, d.first) if s), "")
            say(f"{d.node}: {sides[0]} -> {sides[1]}   {reason}")
        say(f"{len(found)} decisions differ")

    return Outcome(list(found), show)


def _lines(decision: "Decision") -> tuple[str, str]:
    values = f"  ({', '.join(decision.values)})" if decision.values else ""
    return f"{decision.format.value}  {decision.op} '{decision.node}'{values}", f"      {decision.reason}"


def _model(file: Path) -> Outcome:
    from mpdeploy.conversion.api import plan_path_of
    from mpdeploy.graph import io
    from mpdeploy.graph.operators import opset_of
    from mpdeploy.runtime.facts import model_facts
    from mpdeploy.runtime.runner import input_specs, output_specs

    model = io.load(file)
    facts = model_facts(model, file)
    specs = {"inputs": list(map(str, input_specs(model))), "outputs": list(map(str, output_specs(model)))}
    plan = _plan_of(file) if plan_path_of(file).is_file() else None
    document = {"model": facts, **specs, "opset": opset_of(model, ""), "ir_version": model.ir_version, "plan": plan}

    def show() -> None:
        versions = f"opset {document['opset']}, IR {model.ir_version}"
        say(f"{file}: ONNX, {versions}, {facts.nodes} nodes, {facts.bytes:,} bytes")
        for name, lines in specs.items():
            for line in lines:
                say(f"  {name[:-1]:7} {line}")
        say(f"  values  {_counts(facts.values)}")
        say(f"  weights {_counts(facts.weights)}")
        if plan is not None:
            _show_plan(plan)

    return Outcome(document, show)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{n:,} {kind}" for kind, n in counts.items()) or "none"


def _show_plan(plan: "PrecisionPlan") -> None:
    from mpdeploy.numerics.formats import Format
    from mpdeploy.plan.explain import reasons

    data = f", ranges from {plan.data.name} ({plan.data.samples} feeds)" if plan.data else ""
    total = len(plan.decisions)
    say(f"  plan    {plan.precision.value}, policy {plan.policy}{data}: {plan.low_count} of {total} decisions low")
    for row in reasons(plan):
        if row.format is Format.FP32:
            say(f"  {row.count:5} x fp32  e.g. {row.example}")
    for loss in plan.weights[:_SHOWN]:
        parts = [
            f"{count} {what}"
            for count, what in (
                (loss.loss.overflowed, "overflow"),
                (loss.loss.vanished, "vanish"),
                (loss.loss.subnormal, "subnormal"),
            )
            if count
        ]
        of = f"of {loss.loss.size:,} elements {', '.join(parts)}"
        say(f"  weight  {loss.name}: {of}; norm error {loss.loss.norm_error:.1e}")
    if len(plan.weights) > _SHOWN:
        say(f"  … and {len(plan.weights) - _SHOWN} more stored tensors: --json has them all")


def _checkpoint(file: Path) -> Outcome:
    from mpdeploy.train.checkpoint import load_checkpoint

    record = load_checkpoint(file).record
    return Outcome(record, lambda: show_checkpoint(str(file), record))


def _document(file: Path) -> Outcome:
    from mpdeploy.bundle.manifest import Manifest
    from mpdeploy.engine.loading import read_engine
    from mpdeploy.engine.record import EngineRecord, sidecar_of
    from mpdeploy.pipeline.manifest import ExportManifest
    from mpdeploy.plan.record import PrecisionPlan
    from mpdeploy.report.record import Report
    from mpdeploy.verification.record import DriftReport

    path = sidecar_of(file) if sidecar_of(file).is_file() else file
    if path != file:
        read_engine(file)  # a sidecar says nothing of an engine that is not the one it describes
    kinds: dict[str, type[Any]] = {
        "mpdeploy.plan/1": PrecisionPlan,
        "mpdeploy.engine/1": EngineRecord,
        "mpdeploy.drift/1": DriftReport,
        "mpdeploy.report/1": Report,
        "mpdeploy.manifest/1": Manifest,
        "mpdeploy.export-manifest/1": ExportManifest,
    }
    try:
        content = parse_json(path.read_bytes())
        kind = kinds[content["schema"]]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            "not a file that inspect knows",
            where=str(file),
            remedy="give an ONNX model, plan, engine, report, manifest or model.pt",
        ) from error
    record = records.load(kind, path)
    shows: dict[type[Any], Callable[[Any], None]] = {
        PrecisionPlan: _show_plan,
        Report: _show_report,
        EngineRecord: lambda engine: explain_engine(engine, str(path).removesuffix(".json")),
        Manifest: lambda manifest: show_manifest(str(path), manifest),
        ExportManifest: lambda manifest: show_export(str(path), manifest),
    }
    return Outcome(record, lambda: shows.get(kind, lambda r: _show_fields(str(path), records.to_builtins(r)))(record))


def _show_report(report: Any) -> None:
    from mpdeploy.report.terminal import terminal

    show_drawn(terminal(report))


def _show_fields(title: str, fields: dict[str, Any]) -> None:
    say(f"{title}: {fields.get('schema', '')}")
    for name, value in fields.items():
        text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list | tuple) else str(value)
        say(f"  {name:18} {text if len(text) <= 160 else text[:157] + '…'}")
