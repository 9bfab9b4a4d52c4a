"""Recipes that people write by mistake: each is refused in one line that names it, before or as it fails."""

import json
import subprocess
import sys

import pytest
import torch

from mpdeploy.amp import Level
from mpdeploy.errors import UsageError
from mpdeploy.train.checkpoint import load_checkpoint
from mpdeploy.train.loading import load_recipe
from mpdeploy.train.loop import Settings, Training
from mpdeploy.train.states import newest

DATA = "return Data(Arrays((x[:1500],), y[:1500]), Arrays((x[1500:],), y[1500:]))"
MODEL = "lambda: nn.Sequential("
METRIC = "metric=accuracy"
SCHEDULE = "torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, steps)"
LOSS = "loss=nn.functional.cross_entropy"
OPTIMIZER = "torch.optim.AdamW(model.parameters(), lr=5e-3)"
SET = "torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))"


def train(recipe, folder, settings=None, **options):
    training = Training(load_recipe(recipe), folder, settings or Settings(Level.BF16_MIXED, 1), **options)
    list(training.steps())
    return training.finish()


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")  # as torch.compile is imported
@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (DATA, "return x, y", r"data\(\) returns a tuple \["),
        (DATA, "pass", r"data\(\) returns None \["),
        (DATA, f"return Data({SET}[0], {SET})", r"training examples are a tuple, .* use Arrays"),
        (DATA, "return Data(((x, y) for _ in range(3)), 1)", r"training examples are a generator"),
        (DATA, DATA.replace("(x[:1500],)", "x[:1500]"), r"write Arrays\(\(images,\), labels\)"),
        (DATA, DATA.replace("(x[:1500],)", "(torch.from_numpy(x[:1500]),)"), r"numpy arrays, not a Tensor \["),
        (DATA, DATA.replace("y[:1500])", "y[:1500].tolist())"), r"numpy arrays, not a list"),
        (MODEL, "lambda: torch.compile(nn.Sequential(", r"what torch\.compile\(\) made.*call model\.compile\(\)"),
        (MODEL, "lambda: print(", r"model\(\) returns None"),
        (MODEL, "lambda: nn.DataParallel(nn.Sequential(", r"returns a DataParallel, .* the plain module"),
        (OPTIMIZER, "None", r"optimizer\(model\) returns None"),
        (OPTIMIZER, "torch.optim.LBFGS(model.parameters())", r"LBFGS .* \[.*my_mlp\.py\]; use"),
        (
            SCHEDULE,
            "torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)",
            r"waits for a minimum of `accuracy` .*mode=\"max\"",
        ),
        (SCHEDULE, '{"scheduler": 1}', r"schedule\(optimizer, steps\) returns a dict"),
        (
            SCHEDULE,
            "torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 3)",
            "fails when its schedule steps: .*4 times",
        ),
        (LOSS, "loss=lambda o, y: nn.functional.cross_entropy(o, y, reduction='none')", r"shape \[100\]"),
        (LOSS, "loss=lambda o, y: nn.functional.cross_entropy(o, y).item()", r"the loss is \d\.\d+ \["),
        (LOSS, "loss=lambda o, y: nn.functional.cross_entropy(o.detach(), y)", "no gradient flows from the loss"),
        (
            METRIC,
            "metric=Metric('a', lambda o, y: (o.argmax(-1) == y).float().mean())",
            r"score is \[\] for 100 examples",
        ),
        (METRIC, "metric=Metric('a', lambda o, y: o)", r"score is \[100, 10\] for 100"),
        (METRIC, "metric=Metric('a', lambda o, y: 1.0)", r"score is a float for 100"),
        ('outputs=("logits",)', 'outputs="logits"', r'outputs=\("name",\)'),
        ('outputs=("logits",)', 'outputs=("logits", "more")', r"returns 1 tensors, .* \['logits', 'more'\]"),
        (
            'inputs=(TensorSpec("pixels", "float32", ("batch", 64)),)',
            "inputs=TensorSpec('x', 'float32', (1,))",
            "inputs=",
        ),
        ("epochs=3", "epochs='3'", "epochs is '3' "),
        ("batch_size=100", "batch_size=1e2", r"batch_size is 100\.0"),
        ("clip_norm=5.0", "clip_norm=0", "clip_norm is 0 "),
        ("clip_norm=5.0", "ema_decay=2.0", r"ema_decay is 2\.0"),
        ("clip_norm=5.0", "level='fp16'", r"no precision level `fp16` \["),
        ("clip_norm=5.0", "level=torch.bfloat16", r"torch\.bfloat16 is not a precision"),
    ],
)
def test_a_mistake_is_told_with_the_recipe_and_the_remedy(mlp, tmp_path, old, new, says):
    text = mlp.read_text()
    assert old in text
    opened = new.count("(") - new.count(")") - old.count("(") + old.count(")")
    text = text.replace("nn.Linear(32, 10))", "nn.Linear(32, 10))" + ")" * opened)
    mlp.write_text(text.replace(old, new).replace("import Arrays,", "import Arrays, Metric,"))
    with pytest.raises(UsageError, match=says) as raised:
        train(mlp, tmp_path / "run")
    assert raised.value.where == str(mlp)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_a_buffer_of_another_format_goes_through_checkpoint_and_resumption(mlp, tmp_path, dtype):
    mlp.write_text(
        mlp.read_text().replace(
            "\n\nrecipe =",
            f"\n\ndef model():\n    m = nn.Sequential(nn.Linear(64, 10))\n"
            f"    m.register_buffer('third', torch.full((2,), 1 / 3, dtype=torch.{dtype}))\n    return m\n\n\nrecipe =",
        )
    )
    text = mlp.read_text()
    start, end = text.index("    model=lambda"), text.index("    data=data")
    mlp.write_text(text[:start] + "    model=model,\n" + text[end:])
    train(mlp, tmp_path / "run")
    exact = torch.full((2,), 1 / 3, dtype=getattr(torch, dtype))
    assert torch.equal(load_checkpoint(tmp_path / "run" / "model.pt").weights["third"].to(exact.dtype), exact)
    train(mlp, tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (lambda state: state["engine"].pop("scales"), "the saved state lacks scales"),
        (lambda state: state.pop("random"), "damaged: KeyError: 'random'"),
        (lambda state: state["random"][0]["torch"].fill_(255), "damaged: RuntimeError: .*mt19937"),
        (lambda state: state["random"][0]["python"].pop(), "damaged: "),
        (lambda state: state.pop("schedule"), "damaged: KeyError: 'schedule'"),
        (lambda state: state["engine"]["model"].pop("0.weight"), "of another model: it lacks `0.weight`"),
        (
            lambda state: state["engine"]["optimizers"][0]["param_groups"].pop(),
            r"has groups of \[\] parameters",
        ),
    ],
)
def test_a_state_that_lacks_something_is_refused_by_name(mlp, tmp_path, break_it, says):
    settings = Settings(Level.FP16_MIXED, 1)
    train(mlp, tmp_path, settings)
    path = newest(tmp_path / "states")
    content = torch.load(path, weights_only=True)
    break_it(content["state"])
    torch.save(content, path)
    with pytest.raises(UsageError, match=says) as raised:
        train(mlp, tmp_path, settings, resume=True)
    assert raised.value.where == str(path)


def test_what_a_recipe_prints_is_no_result(mlp, tmp_path):
    mlp.write_text(mlp.read_text() + "\nprint('hello from the recipe')\n")
    words = [sys.executable, "-m", "mpdeploy", "train", mlp, "--json", "--epochs", "1", "-o", tmp_path / "run"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["record"]["steps_applied"] == 15
    assert "hello from the recipe" in done.stderr


def test_a_training_that_ends_in_skips_says_so(mlp, tmp_path):
    mlp.write_text(mlp.read_text().replace("lr=5e-3", "lr=1e30"))
    words = [sys.executable, "-m", "mpdeploy", "train", mlp, "--epochs", "1", "-o", tmp_path / "run"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "warning: the last 14 steps were skipped" in done.stderr
    assert "loss scale" not in done.stderr.partition("steps\n")[2].partition("skipped in a row")[2]
