"""Reports under test: real records of comparisons, good and broken."""

import dataclasses

import numpy as np
import pytest

from mpdeploy.numerics.default_budget import default_budget
from mpdeploy.numerics.drift import DriftMeter
from mpdeploy.numerics.formats import Format
from mpdeploy.numerics.scores import Score
from mpdeploy.report.environment import environment
from mpdeploy.report.record import EngineRow, Fact, PlanRow, PlanTable, Report
from mpdeploy.runtime.compare import Comparison
from mpdeploy.runtime.facts import FileFacts, ModelFacts
from mpdeploy.runtime.runner import Execution
from mpdeploy.verification.blame import Blame, Repair, culprits_of
from mpdeploy.verification.layers import Layer
from mpdeploy.verification.record import DataFacts, DriftReport
from mpdeploy.verification.verdict import judge


@pytest.fixture
def drift():
    """Return a function: format, relative size of the errors, output names -> a drift report."""

    def build(kind=Format.FP16, error=1e-3, names=("logits",), file="model_fp16.onnx"):
        rng = np.random.default_rng(0)
        labels = rng.integers(0, 10, 200)
        outputs = []
        for name in names:
            meter = DriftMeter(name, kind)
            r = rng.standard_normal((200, 10)) + 8 * np.eye(10)[labels]
            meter.add(r, r * (1 + error * rng.standard_normal(r.shape)), 200, "test.npz", labels)
            outputs.append(meter.result())
        budget = default_budget(kind, outputs)
        emulator = Execution(
            "mpdeploy emulator", "onnxruntime 1.31.1", "CPUExecutionProvider", "rounded", evidence=True
        )

        def facts(path, size):
            return ModelFacts(path, (FileFacts(path, size, "ab" * 32),), 12, {"fp16": 11}, {"fp16": 1000})

        return DriftReport(
            reference=facts("model.onnx", 104_000),
            candidate=facts(file, 52_000),
            data=DataFacts("test.npz", 1, 200, "cd" * 32),
            reference_run=Execution("onnxruntime", "1.31.1", "CPUExecutionProvider", "float32", evidence=True),
            candidate_run=emulator,
            outputs=tuple(outputs),
            budget=budget,
            verdict=judge(Comparison(tuple(outputs), (), 1, 200, ()), budget, emulator),
            notes=("a note on the run",),
            created="2026-11-29T22:00:00+00:00",
            seconds=1.5,
            tool="mpdeploy 0",
        )

    return build


def blame_on_1000_nodes():
    rng = np.random.default_rng(1)
    layers = []
    for i in range(1000):
        error = None if i > 900 else float(10 ** (-5 + i / 400 + rng.normal() / 5))
        layers.append(
            Layer(
                value=f"/encoder/layer.{i}/MatMul_output_0",
                partner=f"/encoder/layer.{i}/MatMul_output_0",
                node=f"/encoder/layer.{i}/MatMul",
                op="MatMul",
                format="fp32" if 300 < i < 360 or i % 97 == 0 else "fp16",
                narrowed=False,
                exact=False,
                elements=1000,
                error=error,
                added=error,
                max_abs=error,
                largest=7.1e4,
                broken=0 if error else 12,
                vanished=3,
                sample="test.npz row 3",
                sources=(f"/encoder/layer.{i - 1}/MatMul_output_0",),
                readers=(f"/encoder/layer.{i + 1}/MatMul",),
            )
        )
    layers = tuple(layers)
    culprits = culprits_of(layers, None)
    nodes = tuple(n for c in culprits for n in c.keep)
    command = "mpdeploy convert model.onnx -o repaired.onnx --precision fp16 " + " ".join(
        f"--keep-fp32 {n}" for n in nodes
    )
    return Blame(layers, culprits, layers[901].value, 3, 12, Repair(nodes, command, True, 3e-3, 990, 1000, 2))


@pytest.fixture
def full(drift):
    """Return a report with three candidates, one of them broken, a plan and a blame of 1,000 nodes, an engine."""
    rows = tuple(
        PlanRow(f"/encoder/layer.{i}/attention/Softmax_{i}", "Softmax", "fp32", "MP101", "a sum of 7.1e4 is too large")
        for i in range(1000)
    )
    return Report(
        title="Digits CNN",
        created="2026-11-29T22:00:00+00:00",
        drifts=(
            drift(Format.BF16, 4e-3, file="digits_bf16.onnx"),
            drift(Format.FP16, 5e-4, file="digits_fp16.onnx"),
            dataclasses.replace(
                drift(Format.FP16, 0.4, file="digits_broken.onnx"),
                blame=blame_on_1000_nodes(),
                scores=(Score("map", 0.5, "as metrics.py:map says"),),
            ),
        ),
        facts=(Fact("Training", "bf16-mixed, 12 epochs"),),
        plans=(PlanTable("digits_fp16.onnx", rows), PlanTable("digits_bf16.onnx", ())),
        engines=(EngineRow("digits.engine", "digits_fp16.onnx", 812_345, ("SM 80", "SM 86")),),
        commands=("scripts/quickstart",),
        environment=environment(),
    )
