"""What a CI gate needs: baselines, settings in a file, verdicts on runs that are no evidence."""

import dataclasses

import numpy as np
import pytest

from mpdeploy import records
from mpdeploy.errors import UsageError
from mpdeploy.graph import io
from mpdeploy.numerics.formats import Format
from mpdeploy.report.record import report_of
from mpdeploy.report.write import write_report
from mpdeploy.runtime.feeds import open_feeds
from mpdeploy.runtime.ort import OrtRunner
from mpdeploy.verification.api import verify
from mpdeploy.verification.settings import Settings, find_settings, load_settings
from mpdeploy.verification.subject import opened

QUICK = {"noise": False}


def codes(report):
    return [reason.code for reason in report.verdict.reasons]


@pytest.fixture
def data(samples, tmp_path):
    np.savez(tmp_path / "data.npz", **samples)
    return str(tmp_path / "data.npz")


def worsened(w):
    """Weights that are 1 % off: within the default budget, and worse than rounding."""
    return w * np.float32(1.01)


def test_drift_that_grew_since_the_last_release_fails(mlp, data, tmp_path):
    good = verify(mlp("ref"), mlp("cand", "fp16"), data)
    write_report(report_of(good), tmp_path / "last")
    last = tmp_path / "last" / "report.json"
    again = verify(mlp("ref"), mlp("cand", "fp16"), data, baseline=last)
    assert again.verdict.passed
    worse = verify(mlp("ref"), mlp("worse", "fp16", worsened), data, baseline=last)
    assert set(codes(worse)) == {"V401"}
    assert "in the baseline and is" in worse.verdict.headline
    assert verify(mlp("ref"), mlp("worse", "fp16", worsened), data).verdict.passed
    # The other way round nothing got worse.
    write_report(report_of(worse), tmp_path / "bad")
    assert verify(mlp("ref"), mlp("cand", "fp16"), data, baseline=tmp_path / "bad" / "report.json").verdict.passed


def test_a_baseline_of_other_data_or_another_format_is_refused(mlp, data, samples, tmp_path):
    records.save(verify(mlp("ref"), mlp("cand", "fp16"), data, **QUICK), tmp_path / "drift.json")
    np.savez(tmp_path / "other.npz", **{k: v[:50] for k, v in samples.items()})
    other = str(tmp_path / "other.npz")
    with pytest.raises(UsageError, match="measured on other data"):
        verify(mlp("ref"), mlp("cand", "fp16"), other, **QUICK, baseline=tmp_path / "drift.json")
    with pytest.raises(UsageError, match="holds no bf16 candidate"):
        verify(mlp("ref"), mlp("cand", "bf16"), data, **QUICK, baseline=tmp_path / "drift.json")
    good = (tmp_path / "drift.json").read_text()
    wrong = (
        ("{", "not a JSON"),
        ("[1]", "not a valid DriftReport"),
        ("[" * 100_000, "not a JSON"),
        ('{"schema": "x"}', "schema 'x', this version reads 'mpdeploy.drift/1'"),
        ('{"schema": "mpdeploy.report/2", "drifts": []}', "schema 'mpdeploy.report/2'"),
        ('{"schema": "mpdeploy.report/1", "drifts": 3}', "schema 'mpdeploy.report/1', this version reads"),
        (good.replace("mpdeploy.drift/1", "mpdeploy.drift/2"), "schema 'mpdeploy.drift/2'"),
        (good.replace(' "schema": "mpdeploy.drift/1"', ' "other": 1'), "it has no schema"),
        (good[: len(good) // 2], "not a JSON"),
    )
    for content, says in wrong:
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(UsageError, match=says):
            verify(mlp("ref"), mlp("cand", "fp16"), data, **QUICK, baseline=tmp_path / "bad.json")


def test_a_run_that_is_no_evidence_passes_only_if_forced(mlp, data):
    """O2: half precision on ONNX Runtime's CPU provider."""
    path = mlp("cand", "fp16")
    runner = OrtRunner(io.load(path), "cand")
    plain = verify(mlp("ref"), opened(path, lambda: runner), data, **QUICK)
    assert codes(plain) == ["V301"]
    assert "computes half-precision operators in float32" in plain.verdict.headline
    forced = verify(mlp("ref"), opened(path, lambda: runner), data, **QUICK, force=True)
    assert forced.verdict.passed
    assert forced.verdict.forced
    assert "no evidence" in forced.verdict.headline
    honest = verify(mlp("ref"), path, data, **QUICK, force=True)
    assert not honest.verdict.forced
    broken = mlp("broken", "fp16", np.zeros_like)
    runner = OrtRunner(io.load(broken), "cand")
    assert not verify(mlp("ref"), opened(broken, lambda: runner), data, **QUICK, force=True).verdict.passed


TOML = """
[verify]
budget = ["cosine>=0.99", "logits:top1>=0.9"]
tasks = []
metrics = ["m.py:f"]
baseline = "last/report.json"

[verify.bf16]
budget = "cosine>=0.9"

[other]
anything = 1
"""


def test_settings_in_a_file(tmp_path, mlp, data):
    assert find_settings(tmp_path) == Settings()
    (tmp_path / "mpdeploy.toml").write_text(TOML)
    settings = find_settings(tmp_path)
    assert str(settings.budget_for(Format.FP16)) == "cosine>=0.99, logits:top1>=0.9"
    assert str(settings.budget_for(Format.BF16)) == "cosine>=0.9"
    assert settings.budget_for(Format.FP16).origin == "from mpdeploy.toml"
    assert settings.metrics == (str(tmp_path / "m.py:f"),)
    assert settings.baseline == tmp_path / "last/report.json"
    report = verify(mlp("ref"), mlp("cand", "bf16"), data, settings, **QUICK)
    assert str(report.budget) == "cosine>=0.9"
    plain = verify(mlp("ref"), mlp("cand", "bf16"), data, Settings(), **QUICK)
    assert plain.budget.origin == "default for bf16 classifiers"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[verify", "not valid TOML"),
        ("verify = 1", "not a table"),
        ("[verify]\nbuget = 'x'", "has no setting 'buget'"),
        ("[verify]\nbudget = 3", "a budget is a string"),
        ("[verify]\nbudget = 'beauty>=1'", "unknown metric"),
        ("[verify.fp16]\ntasks = []", "takes a budget and nothing else"),
        ("[verify]\ntasks = 'x'", "not a list of strings"),
    ],
)
def test_wrong_settings_are_refused(tmp_path, text, says):
    (tmp_path / "mpdeploy.toml").write_text(text)
    with pytest.raises(UsageError, match=says):
        load_settings(tmp_path / "mpdeploy.toml")


def test_500_samples_are_all_run_and_only_the_third_overflows(layer_norm, all_low, tmp_path):
    """V3: an .npz whose first axis holds the samples; none is left out, memory stays bounded."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((500, 64)).astype(np.float32)
    x[2] *= 600
    np.savez(tmp_path / "many.npz", x=x)
    report = verify(layer_norm, all_low(layer_norm), str(tmp_path / "many.npz"), **QUICK)
    assert report.data.samples == 500
    assert not report.verdict.passed
    assert report.outputs[0].worst_samples[0].sample.endswith("row 2")
    x[2], x[450] = x[3], x[450] * 600  # in the second slice
    np.savez(tmp_path / "many.npz", x=x)
    report = verify(layer_norm, all_low(layer_norm), str(tmp_path / "many.npz"), **QUICK)
    assert report.outputs[0].worst_samples[0].sample.endswith("many.npz row 450")
    assert (report.data.feeds, report.data.samples) == (1, 500)
    assert open_feeds(str(tmp_path / "many.npz")).count == 1


def test_every_number_that_people_quote_is_in_the_report(mlp, data):
    """V10."""
    (output,) = verify(mlp("ref"), mlp("cand", "fp16"), data, **QUICK).outputs
    for name in ("cosine", "max_abs", "mean_abs", "norm_relative", "sqnr_db", "top1", "divergence", "worst_ulp"):
        assert getattr(output, name) is not None, name
    assert (output.candidate_nan, output.candidate_inf) == (0, 0)
    low, high = output.accuracy.candidate_interval
    assert low < output.accuracy.candidate < high
    assert dataclasses.asdict(output.quantiles)["half"] > 0
