"""What every conversion is held to, whatever the graph: see ``faults``."""

import contextlib
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnx.checker
import onnx.shape_inference
import onnxruntime
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi import onnxruntime_pybind11_state as runtime_faults

from mpdeploy.conversion.api import convert
from mpdeploy.errors import MpdeployError
from mpdeploy.graph import io
from mpdeploy.graph.scope import all_nodes
from mpdeploy.graph.traits import builder_refuses
from mpdeploy.graph.types import element_type
from mpdeploy.numerics.formats import Format
from mpdeploy.runtime.emulator import EmulatorRunner
from mpdeploy.runtime.feeds import feeds_of
from tests.conversion.graphs import Case, graphs_of

TOLERANCE = {"fp16": 0.02, "bf16": 0.05}  # of the largest reference magnitude
LOW_TYPES = {"fp16": "FLOAT16", "bf16": "BFLOAT16"}
_STAMP = "mpdeploy."


def faults(case: Case, precision: str, folder: Path) -> list[str]:
    """Convert a case without data and with; return what is wrong with the results, one line each."""
    source, path = case.build(), folder / "source.onnx"
    onnx.save(source, path)
    expected = run_source(path, case.arrays()) if case.runs else None
    found = _faults_of_one(case, precision, path, None, expected)
    if expected is not None:
        found += _faults_of_one(case, precision, path, feeds_of([case.arrays()]), expected)
    return found


def faults_with_data(case: Case, precision: str, folder: Path) -> list[str]:
    """Convert a case with data; return what is wrong with the result's types and numbers."""
    source, path, target = case.build(), folder / "source.onnx", folder / "result.onnx"
    onnx.save(source, path)
    feed = case.arrays()
    expected = run_source(path, feed)
    try:
        convert(path, target, precision=precision, data=feeds_of([feed]))
    except MpdeployError as error:
        return [f"refused: {error}"]
    model = onnx.load(target)
    if found := invalid(model):
        return found
    return wrong_numbers(source, model, target, feed, expected, precision)


def _faults_of_one(case, precision, path, data, expected):
    folder, how = path.parent, "without data" if data is None else "with data"
    target = folder / f"{how}.onnx"
    try:
        result = convert(path, target, precision=precision, data=data)
    except MpdeployError as error:
        return [f"{how}: refused: {error}"]
    source, model = onnx.load(path), onnx.load(target)
    found = invalid(model)
    if not found:
        found += broken_contract(source, model)
        if expected is not None and (case.blind or data is not None):
            found += wrong_numbers(source, model, target, case.arrays(), expected, precision)
        found += not_lowered(case, precision, target)
        found += _changes_when_repeated(case, precision, path, target, Path(result.plan), data)
    return [f"{how}: {f}" for f in found]


# --- the source's own numbers ---------------------------------------------------------------------------------


def run_source(path, feed):
    """The source in ONNX Runtime; in ONNX's reference where that has no kernel; a BF16 source in the emulator."""
    model = onnx.load(path)
    try:
        return run_ort(model, feed)
    except runtime_faults.NotImplemented:
        return run_reference(model, feed)
    except runtime_faults.InvalidGraph:
        return list(EmulatorRunner(io.load(path), str(path)).run(feed).values())


def run_ort(model, feed):
    model = onnx.ModelProto.FromString(model.SerializeToString())
    seen = set()
    for graph in graphs_of(model.graph):  # ONNX Runtime refuses two nodes of one name
        for i, node in enumerate(graph.node):
            if node.name in seen:
                node.name += f"_{i}"
            seen.add(node.name)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.disable_quant_qdq", "1")  # as the graph says, on any processor
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return flat(session.run(None, feed))


def run_reference(model, feed):
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return flat(ReferenceEvaluator(model).run(None, feed))


def flat(results):
    arrays = []
    for result in results:
        arrays += [np.asarray(r) for r in result] if isinstance(result, list) else [np.asarray(result)]
    return arrays


# --- checks ---------------------------------------------------------------------------------------------------


def is_known(model):
    local = {f.domain for f in model.functions}
    return all(o.domain in ("", "ai.onnx", "ai.onnx.ml") or o.domain in local for o in model.opset_import)


def invalid(model):
    """The file must pass ONNX's own checker and strict type inference; nodes have names of their own."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    for value in (*model.graph.input, *model.graph.output):
        if value.type.HasField("tensor_type"):  # an unknown rank offends nobody but the checker
            value.type.tensor_type.shape.SetInParent()
    try:
        onnx.checker.check_model(model, full_check=is_known(model))
        onnx.shape_inference.infer_shapes(
            model, check_type=True, strict_mode=is_known(model), data_prop=is_known(model)
        )
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return [f"invalid: {' '.join(str(error).split())[:200]}"]
    names = [node.name for graph in graphs_of(model.graph) for node in graph.node]
    double = {name for name in names if names.count(name) > 1}
    return [f"invalid: nodes share the names {sorted(double)}"] if double else []


def broken_contract(source, model):
    """Inputs, outputs, metadata, texts and domains are what they were."""
    found = []
    for field in ("input", "output"):
        was, now = ([_declared(v) for v in getattr(m.graph, field)] for m in (source, model))
        if was != now:
            found.append(f"contract: {field}s were {was}, are {now}")
    props, before = ({p.key: p.value for p in m.metadata_props} for m in (model, source))
    lost = {key for key, value in before.items() if props.get(key) != value and not key.startswith(_STAMP)}
    if lost:
        found.append(f"contract: metadata {sorted(lost)} lost")
    for field in ("producer_name", "producer_version", "domain", "model_version", "doc_string"):
        if getattr(source, field) != getattr(model, field):
            found.append(f"contract: {field} changed")
    if source.graph.name != model.graph.name or source.graph.doc_string != model.graph.doc_string:
        found.append("contract: the graph's name or doc string changed")
    versions = {o.domain: o.version for o in model.opset_import}
    for o in source.opset_import:
        if o.domain not in ("", "ai.onnx") and versions.get(o.domain) != o.version:
            found.append(f"contract: domain {o.domain!r} lost")
    return found


def _declared(value):
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return value.name, value.type.SerializeToString()
    tensor = value.type.tensor_type
    dims = tuple(d.dim_param or (d.dim_value if d.HasField("dim_value") else "?") for d in tensor.shape.dim)
    return value.name, tensor.elem_type, dims if tensor.HasField("shape") else None, value.doc_string


def wrong_numbers(source, model, path, feed, expected, precision):
    """Under true rounding, and for FP16 with sums in half as well, the numbers are the source's within tolerance."""
    loaded = io.load(path)
    runner = EmulatorRunner(loaded, str(path))
    found = compare(expected, list(runner.run(feed).values()), TOLERANCE[precision], "rounded")
    if precision == "fp16" and is_known(model) and _reference_agrees(source, feed, expected):
        with contextlib.suppress(TypeError):  # some of its operators compute in FP32 only
            found += compare(expected, run_reference(model, feed), TOLERANCE[precision], "half sums")
    return found


def _reference_agrees(source, feed, expected):
    """Whether the reference implements this graph at all; it lacks many older operators."""
    try:
        return not compare(expected, run_reference(source, feed), 1e-3, "")
    except Exception:  # noqa: BLE001 - whatever it stumbles over, it is no reference then
        return False


def compare(expected, got, tolerance, how):
    if len(expected) != len(got):
        return [f"numbers: {how}: {len(got)} outputs, were {len(expected)}"]
    found = []
    for i, (was, now) in enumerate(zip(expected, got, strict=True)):
        fault = _difference(was, now, tolerance)
        if fault:
            found.append(f"numbers: {how}: output {i} {fault}")
    return found


def _difference(was, now, tolerance):
    if was.shape != now.shape:
        return f"has shape {now.shape}, was {was.shape}"
    if was.dtype.kind not in "fV":
        return "" if np.array_equal(was, now) else f"changed from {was.ravel()[:8]} to {now.ravel()[:8]}"
    was, now = was.astype(np.float64), now.astype(np.float64)
    broken = np.isfinite(was) & ~np.isfinite(now)
    if broken.any():
        return f"has {int(broken.sum())} new NaN or inf of {was.size}"
    if not np.array_equal(was[np.isinf(was)], now[np.isinf(was)]):
        return "lost infinities"
    real = np.isfinite(was)
    if not real.any():
        return ""
    drift = np.abs(was[real] - now[real]).max() / max(np.abs(was[real]).max(), 1e-30)
    return f"drifts by {drift:.2%} of its largest value" if drift > tolerance else ""


def not_lowered(case, precision, path):
    """The nodes that the case names read and make low floats only."""
    low = LOW_TYPES[precision]
    found, nodes = [], {node.name: node for node in all_nodes(io.load(path))}
    for name in case.low:
        if name not in nodes:
            found.append(f"lowered: there is no node {name}")
            continue
        if builder_refuses(nodes[name], Format(precision)):
            continue  # FP32 is what an engine can be built from
        values = [v for v in (*nodes[name].inputs, *nodes[name].outputs) if v is not None and v.name]
        kinds = {kind.name for v in values if (kind := element_type(v)) is not None and kind.is_floating_point()}
        if kinds != {low}:
            found.append(f"lowered: {name} computes in {sorted(kinds)}")
    return found


def _changes_when_repeated(case, precision, source, target, plan, data):
    """Converting the result again, and applying its plan to the source, gives the same bytes."""
    content, folder, found = target.read_bytes(), target.parent, []
    again = folder / "again.onnx"
    try:
        convert(target, again, precision=precision, data=data)
        if again.read_bytes() != content:
            found.append("twice: converting the result changed it")
        if case.natural and data is None:
            found += changes_without_stamp(precision, target)
    except MpdeployError as error:
        found.append(f"twice: refused: {error}")
    try:
        convert(source, again, precision=precision, plan=plan)
        if again.read_bytes() != content:
            found.append("plan: applying the plan gives another file")
    except MpdeployError as error:
        found.append(f"plan: refused: {error}")
    return found


def changes_without_stamp(precision, target):
    model = onnx.load(target)
    kept = [p for p in model.metadata_props if not p.key.startswith(_STAMP)]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    bare, again = target.with_name("bare.onnx"), target.with_name("bare_again.onnx")
    onnx.save(model, bare)
    convert(bare, again, precision=precision)
    was, now = anatomy(onnx.load(bare)), anatomy(onnx.load(again))
    changed = {*was.items()} ^ {*now.items()}
    return [f"twice: without its stamp, the result changed: {sorted(changed)[:3]}"] if changed else []


def anatomy(model):
    """Count a model's operators and stored tensors by type."""
    parts = {}
    for graph in graphs_of(model.graph):
        for node in graph.node:
            key = f"{node.domain}::{node.op_type} {len(node.input)} -> {len(node.output)}"
            parts[key] = parts.get(key, 0) + 1
        for tensor in graph.initializer:
            key = f"initializer {tensor.data_type}"
            parts[key] = parts.get(key, 0) + 1
    return parts
