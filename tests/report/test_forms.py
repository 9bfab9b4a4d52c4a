"""The report's other forms: JUnit, Markdown, JSON schema; its pictures; what it says of the inside."""

import base64
import dataclasses
import json
import re
import struct
import zlib
from importlib import resources
from xml.etree import ElementTree

import numpy as np
import pytest

from mpdeploy import records
from mpdeploy.errors import UsageError
from mpdeploy.numerics.formats import Format
from mpdeploy.numerics.rounding import loss_of
from mpdeploy.plan.record import Decision, PrecisionPlan, WeightLoss
from mpdeploy.report.compose import composed, plan_table, weight_table
from mpdeploy.report.depth import HEIGHT, WIDTH, depth_picture
from mpdeploy.report.images import image_in, png_uri
from mpdeploy.report.inside_view import noise_text
from mpdeploy.report.junit import junit
from mpdeploy.report.markdown import markdown
from mpdeploy.report.page import page
from mpdeploy.report.record import Report, report_of
from mpdeploy.report.schema import PUBLISHED, json_schema
from mpdeploy.report.values import value_pictures
from mpdeploy.runtime.feeds import feeds_of
from mpdeploy.verification.layers import Layer


def layer(index, error=1e-3, **changes):
    made = Layer(
        value=f"v{index}",
        partner=f"v{index}",
        node=f"/encoder/layer.{index}/MatMul",
        op="MatMul",
        format="fp16",
        narrowed=False,
        exact=False,
        elements=10,
        error=error,
        added=error,
        max_abs=error,
        largest=1.0,
        broken=0 if error is not None else 3,
        vanished=0,
        sample="",
        sources=(),
        readers=(),
    )
    return dataclasses.replace(made, **changes)


# --- JUnit --------------------------------------------------------------------------------------------------


def test_junit_has_a_case_for_each_limit_and_a_failure_for_each_broken_one(full):
    root = ElementTree.fromstring(junit(full))  # noqa: S314 - our own document
    suites = list(root)
    assert [s.get("name") for s in suites] == ["digits_bf16.onnx", "digits_fp16.onnx", "digits_broken.onnx"]
    for suite, drift in zip(suites, full.drifts, strict=True):
        cases = suite.findall("testcase")
        assert len(cases) == int(suite.get("tests"))
        failed = [c for c in cases if c.find("failure") is not None]
        assert len(failed) == int(suite.get("failures"))
        assert bool(failed) == (not drift.verdict.passed)
        limits = {f"{check.output}: {check.limit}" for check in drift.verdict.checks}
        assert limits <= {c.get("name") for c in cases}
        told = {c.find("failure").get("type") for c in failed}
        assert told == {r.code for r in drift.verdict.reasons}


# What the schema that Jenkins publishes for JUnit allows, and what it and GitLab read.
ALLOWED = {
    "testsuites": {"name", "time", "tests", "failures", "errors", "disabled"},
    "testsuite": {"name", "tests", "failures", "errors", "skipped", "time", "timestamp", "hostname", "id", "package"},
    "testcase": {"name", "classname", "time", "status", "file", "line"},
    "failure": {"message", "type"},
}
NEEDED = {"testsuite": {"name", "tests", "failures"}, "testcase": {"name", "classname"}, "failure": {"message"}}
CHILDREN = {"testsuites": {"testsuite"}, "testsuite": {"testcase"}, "testcase": {"failure"}, "failure": set()}


def test_junit_is_what_ci_servers_read(full, drift):
    for report in (full, report_of(drift())):
        for element in ElementTree.fromstring(junit(report)).iter():  # noqa: S314
            assert NEEDED.get(element.tag, set()) <= set(element.attrib) <= ALLOWED[element.tag]
            assert {child.tag for child in element} <= CHILDREN[element.tag]
            for name in ("time", "tests", "failures", "errors", "skipped"):
                assert float(element.get(name, "0")) >= 0
            if stamp := element.get("timestamp"):
                assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", stamp)
        assert len(ElementTree.fromstring(junit(report)).findall("testsuite")) == len(report.drifts)  # noqa: S314


def test_junit_survives_any_name(drift):
    odd = 'a<b>&"c"\x00\x1b'
    root = ElementTree.fromstring(junit(report_of(drift(error=0.5, names=(odd,), file=odd))))  # noqa: S314
    assert any("a<b>&" in c.get("name") for c in root.iter("testcase"))


# --- Markdown -----------------------------------------------------------------------------------------------


def test_markdown_is_a_summary_for_a_pull_request(full):
    text = markdown(full)
    assert text.startswith("### ❌ 1 of 3 candidates drift over budget")
    assert text.count("**✅") == 2
    assert text.count("**❌") == 1
    assert "| ❌ | `logits` | norm_relative |" in text
    assert "`V201`" in text
    assert len(text) < 10_000


def test_markdown_makes_names_harmless(drift):
    evil = report_of(drift(error=0.5, names=("<img src=x>|`[a](b)",), file="*x*|y.onnx"))
    text = markdown(evil)
    assert "<img" not in text.replace("`<img src=x>¦'[a](b)`", "")
    for line in text.splitlines():
        if line.startswith("|"):
            assert line.count("|") == 6, line


# --- JSON schema --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_schema_is_that_of_the_records(name):
    published = json.loads(resources.files("mpdeploy.report").joinpath("schemas", name).read_text("utf-8"))
    assert published == json.loads(json.dumps(json_schema(PUBLISHED[name]))), "run scripts/update_report_schemas.py"


def faults(value, schema, definitions, where="$"):
    """A validator of what our schemas use."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        tried = [list(faults(value, s, definitions, where)) for s in schema["anyOf"]]
        if all(tried):
            yield f"{where}: fits none of {len(tried)}"
        return
    if "const" in schema and value != schema["const"]:
        yield f"{where}: {value!r} is not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: {value!r} is not in the list"
    kinds = {
        "object": dict,
        "array": list,
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
        "null": type(None),
    }
    if "type" in schema and not isinstance(value, kinds[schema["type"]]):
        yield f"{where}: {type(value).__name__} is no {schema['type']}"
        return
    if isinstance(value, dict):
        for key in schema.get("required", ()):
            if key not in value:
                yield f"{where}.{key}: missing"
        for key, item in value.items():
            inner = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
            if not isinstance(inner, dict):
                yield f"{where}.{key}: unknown"
            else:
                yield from faults(item, inner, definitions, f"{where}.{key}")
    if isinstance(value, list):
        for i, item in enumerate(value):
            inner = schema["prefixItems"][i] if i < len(schema.get("prefixItems", ())) else schema.get("items")
            if isinstance(inner, dict):
                yield from faults(item, inner, definitions, f"{where}[{i}]")


def test_a_written_report_fits_its_schema(full):
    schema = json_schema(Report)
    document = json.loads(records.to_json(full))
    assert list(faults(document, schema, schema["$defs"])) == []
    document["drifts"][0]["outputs"][0]["samples"] = "many"
    document["schema"] = "other/1"
    assert len(list(faults(document, schema, schema["$defs"]))) == 2


# --- pictures -----------------------------------------------------------------------------------------------


def numbers(path):
    return [float(n) for n in re.findall(r"-?\d+\.?\d*", path)]


def test_the_line_rises_where_the_error_does():
    picture = depth_picture([layer(i, 10.0 ** (i - 6)) for i in range(5)])
    heights = [float(y) for _, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", picture.line)]
    assert heights == sorted(heights, reverse=True)
    assert heights[0] == HEIGHT
    assert [t.text for t in picture.ticks] == ["10⁻⁶", "10⁻⁵", "10⁻⁴", "10⁻³", "10⁻²"]
    assert "the largest at /encoder/layer.4/MatMul" in picture.summary


def test_what_broke_is_marked_and_interrupts_the_line():
    picture = depth_picture([layer(0), layer(1, None), layer(2), layer(3, 0.0)])
    assert len(picture.broken) == 1
    assert WIDTH / 4 < picture.broken[0] < WIDTH / 2
    assert picture.line.count("M") == 2
    assert "1 are NaN or infinite" in picture.summary


def test_stretches_in_fp32_are_bands():
    formats = ["fp16", "fp32", "fp32", "fp16", "fp32"]
    picture = depth_picture([layer(i, format=f) for i, f in enumerate(formats)])
    step = WIDTH / 5
    assert [(b.left, b.width) for b in picture.fp32] == [(step, 2 * step), (4 * step, step)]


def test_inputs_casts_and_integers_are_not_in_the_picture():
    assert depth_picture([layer(0), layer(1, exact=True), layer(2, narrowed=True), layer(3, node="")]) is None
    assert depth_picture([layer(0, None), layer(1, None)]).line == ""


def test_values_are_drawn_within_their_frame():
    pairs = [(float(r), float(r) + 0.1) for r in np.linspace(-3, 5, 100)]
    picture = value_pictures("y", pairs)
    assert (picture.low, picture.high) == ("-3", "5.1")
    for path in (picture.reference, picture.candidate, picture.points):
        assert all(0 <= n <= picture.width for n in numbers(path))
    assert picture.points.count("M") == 100
    assert value_pictures("y", [(1.0, 1.0)] * 5) is None
    assert value_pictures("y", []) is None


def decoded(uri):
    raw = base64.b64decode(uri.partition(",")[2])
    assert raw.startswith(b"\x89PNG\r\n\x1a\n")
    at, parts = 8, {}
    while at < len(raw):
        (length,) = struct.unpack(">I", raw[at : at + 4])
        kind, body = raw[at + 4 : at + 8], raw[at + 8 : at + 8 + length]
        assert struct.unpack(">I", raw[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + body)
        parts[kind], at = body, at + 12 + length
    width, height, depth, color = struct.unpack(">IIBB", parts[b"IHDR"][:10])
    assert depth == 8
    rows = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(height, -1)
    assert (rows[:, 0] == 0).all()
    return rows[:, 1:].reshape(height, width, {0: 1, 2: 3}[color])


@pytest.mark.parametrize("channels", [1, 3])
def test_a_png_holds_the_pixels(channels):
    image = np.random.default_rng(0).integers(0, 256, (9, 14, channels), dtype=np.uint8)
    np.testing.assert_array_equal(decoded(png_uri(image)), image)


@pytest.mark.parametrize(
    ("shape", "row", "want"),
    [
        ((4, 3, 32, 24), 2, (32, 24, 3)),
        ((4, 32, 24, 3), 0, (32, 24, 3)),
        ((1, 1, 28, 28), None, (28, 28, 1)),
        ((3, 64, 64), None, (64, 64, 3)),
        ((2, 3, 500, 300), 1, (84, 50, 3)),
    ],
)
def test_images_are_found_and_thinned_out(shape, row, want):
    image = image_in({"ids": np.zeros((4, 7)), "x": np.random.default_rng(0).standard_normal(shape)}, row)
    assert image.shape == want
    assert (image.min(), image.max()) <= (5, 255)


def test_what_is_no_image_is_none():
    assert image_in({"x": np.zeros((4, 16)), "y": np.zeros((3, 4, 4)), "z": np.zeros((2, 5, 32, 32))}, 0) is None
    assert image_in({"x": np.zeros((1, 8, 8), np.float32)}, None).max() == 0


# --- the whole ----------------------------------------------------------------------------------------------


@pytest.fixture
def plan():
    decisions = (
        Decision("softmax", "Softmax", ("s",), Format.FP32, "MP101", "MP101 range: it reaches 7e4"),
        Decision("matmul", "MatMul", ("m",), Format.FP16, "MP001", "MP001"),
    )
    weights = tuple(
        WeightLoss(name, ("matmul",), loss_of(np.float32(values), Format.FP16))
        for name, values in (("tiny", [1e-9, 1, 2, 3e-6]), ("huge", [1e9, 1]))
    )
    return PrecisionPlan(Format.FP16, "default", "0" * 64, 17, decisions, weights)


def test_plan_and_ledger_become_tables(plan):
    (row,) = plan_table(plan, "x.onnx").rows
    assert (row.node, row.code, row.text) == ("softmax", "MP101", "range: it reaches 7e4")
    rows = weight_table(plan, "x.onnx").rows
    assert [r.name for r in rows] == ["huge", "tiny"]
    assert rows[0].lost == "of 2: 1 became infinite"
    assert rows[1].lost == "of 4: 1 became 0, 1 kept fewer bits"


def test_a_composed_report_holds_images_plan_ledger_and_environment(drift, plan):
    found = drift(error=1e-3)
    images = {"x": np.random.default_rng(0).random((200, 1, 16, 16)).astype(np.float32)}
    (output,) = found.outputs
    assert output.worst_samples[0].row is not None
    feeds = feeds_of([images], "test.npz")
    named = [dataclasses.replace(s, feed="test.npz #0") for s in output.worst_samples]
    found = dataclasses.replace(found, outputs=(dataclasses.replace(output, worst_samples=tuple(named)),))
    report = composed(found, plan, feeds, ("mpdeploy verify",))
    html = page(report)
    assert html.count("data:image/png;base64,") == len(report.pictures) == 5
    for text in ("MP101", "1 became infinite", "Packages", "numpy"):
        assert text in html, text
    assert records.from_json(Report, records.to_json(report), "r") == report


def test_noise_is_told_by_its_largest(drift):
    from mpdeploy.verification.noise import Noise

    noise = tuple(
        Noise(way, name, 1.0, size, size, size, None)
        for way, name, size in (("run again", "a", 0.0), ("in one thread", "a", 1e-7), ("in one thread", "b", 3e-7))
    )
    assert noise_text(dataclasses.replace(drift(), noise=noise)) == "0 (run again), 3.0e-7 (in one thread)"


def test_the_schema_of_a_drift_inside_a_report_counts_too(full):
    content = records.to_json(full)
    inner = b'"schema": "mpdeploy.drift/1"'
    assert content.count(inner) == 3
    assert records.from_json(Report, content, "here") == full
    with pytest.raises(UsageError, match=r"schema 'mpdeploy.drift/7', this version reads 'mpdeploy.drift/1'"):
        records.from_json(Report, content.replace(inner, inner.replace(b"/1", b"/7")), "here")
