"""`mpdeploy train --report`: the telemetry as one page, and the file it is drawn from."""

import html.parser
import json
import re
import sys

import pytest

from mpdeploy.cli import main
from mpdeploy.errors import DependencyError, UsageError
from mpdeploy.train.telemetry_file import read_telemetry


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.open = [], "", []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "path"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in self.open:
            while self.open.pop() != tag:
                pass

    def handle_data(self, data):
        self.text += data


def train(*words):
    with pytest.raises(SystemExit) as caught:
        main(["train", *(str(word) for word in words), "-q"])
    return caught.value.code


def test_the_report_shows_what_the_telemetry_says(mlp, tmp_path, capsys):
    # Gradients so small that FP16 needs the scale, and a loss so large at first that the scale must come down.
    mlp.write_text(mlp.read_text().replace("loss=nn.functional.cross_entropy", "loss=small"))
    mlp.write_text(
        mlp.read_text().replace(
            "recipe =", "def small(x, y):\n    return nn.functional.cross_entropy(x, y) * 1e-4\n\n\nrecipe ="
        )
    )
    out = tmp_path / "out"
    assert train(mlp, "--precision", "O1", "--report", "--look-every", 5, "-o", out, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["report"] == str(out / "training.html")
    assert document["configuration"].startswith("compute fp16, weights fp32")
    header, lines = read_telemetry(out / "telemetry.jsonl")
    page = (out / "training.html").read_text()
    parsed = Page(page)
    assert parsed.open == []
    assert not re.search(r"(src|href)=\"(?!data:)", page), "opens offline"
    assert "<script" not in page
    assert header.configuration in parsed.text
    layer = next(layer for layer in [line for line in lines if line.sample][-1].sample.layers if layer.name == "0")
    assert layer.without_scale.zero > layer.with_scale.zero
    for name in ("0", "1", "4", "(the model)", "(input)"):
        assert f"<code>{name}</code>" in page
    assert "Gradient norm" in parsed.text
    assert "Loss scale" in parsed.text


def test_names_from_a_recipe_are_escaped(mlp, tmp_path):
    evil = mlp.with_name("a<b>&.py")
    mlp.rename(evil)
    assert train(evil, "--epochs", 1, "--report", "-o", tmp_path / "out") == 0
    page = (tmp_path / "out" / "training.html").read_text()
    assert "a&lt;b&gt;&amp;" in page
    assert "a<b>" not in page


def test_a_damaged_telemetry_file_is_told_with_the_line(mlp, tmp_path):
    assert train(mlp, "--epochs", 1, "-o", tmp_path / "out") == 0
    path = tmp_path / "out" / "telemetry.jsonl"
    whole = path.read_bytes()
    header, lines = read_telemetry(path)
    path.write_bytes(whole + b'{"step":')  # cut off while it was written
    assert read_telemetry(path) == (header, lines)
    path.write_bytes(whole + b"x\n")
    with pytest.raises(UsageError, match=rf"line {len(lines) + 2}"):
        read_telemetry(path)
    path.write_bytes(whole.replace(b"mpdeploy.telemetry/2", b"mpdeploy.telemetry/9"))
    with pytest.raises(UsageError, match="schema"):
        read_telemetry(path)


def test_tensorboard_gets_events_or_is_named_as_missing(mlp, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert train(mlp, "--tensorboard", "-o", tmp_path / "out") == DependencyError.exit_code
    assert "pip install tensorboard" in capsys.readouterr().err
    monkeypatch.undo()
    pytest.importorskip("tensorboard")
    assert train(mlp, "--epochs", 1, "--tensorboard", "-o", tmp_path / "out") == 0
    assert any((tmp_path / "out" / "tensorboard").iterdir())


def test_weights_and_biases_gets_an_offline_run(mlp, tmp_path):
    pytest.importorskip("wandb")
    assert train(mlp, "--epochs", 1, "--wandb", "-o", tmp_path / "out") == 0
    runs = list((tmp_path / "out" / "wandb").rglob("run-*.wandb"))
    assert len(runs) == 1
    content = runs[0].read_bytes()  # records of a protocol buffer, in which names stand as they are
    assert content.count(b"learning rate") >= 15
    assert content.count(b"held-out/accuracy") >= 1


@pytest.mark.filterwarnings("ignore")  # of MLflow's own use of what is deprecated
def test_mlflow_gets_each_step_and_metric(mlp, tmp_path):
    mlflow = pytest.importorskip("mlflow")
    assert train(mlp, "--epochs", 2, "--mlflow", "-o", tmp_path / "out") == 0
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'out' / 'mlflow' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("mpdeploy")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "my_mlp"
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, "loss")] == list(range(30))
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, "held-out/accuracy")] == [15, 30]
    assert run.data.metrics["learning rate"] < 5e-3
