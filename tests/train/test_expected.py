"""What users of other trainers expect of a recipe: metrics, schedules by metric, callbacks, parts, recomputation."""

import json
import sys

import pytest
import torch
from torch import nn

import mpdeploy
from mpdeploy.amp import Level
from mpdeploy.cli import main
from mpdeploy.errors import DependencyError, UsageError
from mpdeploy.train.batch_search import find_batch
from mpdeploy.train.checkpoint import load_checkpoint
from mpdeploy.train.loading import load_recipe
from mpdeploy.train.loop import Settings, Training
from mpdeploy.train.recipe import Recipe
from mpdeploy.train.recomputation import recompute
from mpdeploy.train.telemetry_file import read_telemetry
from mpdeploy.train.world import World

METRIC = "metric=accuracy,"


def run(recipe, folder, settings=None, **options):
    training = Training(load_recipe(recipe), folder, settings or Settings(Level.FP32, 3), **options)
    steps = list(training.steps())
    return training, steps, training.finish()


def change(path, *pairs):
    text = path.read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return path


def call(*words):
    with pytest.raises(SystemExit) as caught:
        main([str(word) for word in words])
    return caught.value.code


def test_without_a_metric_the_held_out_loss_decides(mlp, tmp_path):
    change(mlp, (METRIC, ""))
    _, _, record = run(mlp, tmp_path / "run")
    assert record.metric_name == "held-out loss"
    best = load_checkpoint(tmp_path / "run" / "best.pt").record
    assert best.metric == min(epoch.metric for epoch in record.history)
    model = load_recipe(mlp).recipe.model().eval()
    model.load_state_dict(load_checkpoint(tmp_path / "run" / "model.pt").weights)
    held_out = load_recipe(mlp).recipe.data().held_out.batch(range(297))
    loss = nn.functional.cross_entropy(model(held_out.inputs[0]), held_out.labels)
    assert record.metric == pytest.approx(loss.item(), rel=1e-5)


def test_several_metrics_are_measured_and_the_first_decides(mlp, tmp_path, capsys):
    error = "Metric('cost', lambda o, y: nn.functional.cross_entropy(o, y, reduction='none'), higher_is_better=False)"
    change(mlp, (METRIC, f"metric=({error}, accuracy),"), ("import Arrays,", "import Arrays, Metric,"))
    assert call("train", mlp, "-o", tmp_path / "run", "-q", "--epochs", 2) == 0
    assert "model.pt: cost 1." in (out := capsys.readouterr().out)
    assert ", accuracy 0." in out
    record = load_checkpoint(tmp_path / "run" / "model.pt").record
    assert list(record.metrics) == ["cost", "accuracy"]
    assert record.metric == record.metrics["cost"] < 2.3
    assert all(list(epoch.metrics) == ["cost", "accuracy"] for epoch in record.history)
    change(mlp, ("'cost'", "'accuracy'"))
    with pytest.raises(UsageError, match=r"metrics are named \['accuracy', 'accuracy'\]"):
        load_recipe(mlp)


PLATEAU = 'torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", factor=0.5, patience=0, threshold=0.5)'


def test_a_schedule_by_metric_is_told_it_after_each_epoch_and_goes_on(mlp, tmp_path):
    # No epoch is better by half than the one before: the rate is halved after each but the first two.
    change(mlp, ("torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, steps)", PLATEAU))
    run(mlp, tmp_path / "whole", Settings(Level.FP32, 4))
    _, lines = read_telemetry(tmp_path / "whole" / "telemetry.jsonl")
    rates = [line.learning_rate for line in lines[::15]]
    assert rates[0] == 5e-3
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < rates[0]
    run(mlp, tmp_path / "longer", Settings(Level.FP32, 2))
    run(mlp, tmp_path / "longer", Settings(Level.FP32, 4), resume=True)
    assert (tmp_path / "longer" / "model.pt").read_bytes() == (tmp_path / "whole" / "model.pt").read_bytes()


HOOKS = """
seen = []


def after_epoch(epoch, metrics):
    seen.append((epoch, dict(metrics)))
    if metrics["epochs since best"] >= 1 or epoch == STOP:
        raise StopTraining


def after_step(step, loss):
    seen.append((step, loss))
    if step == STOP_STEP:
        raise StopTraining


recipe = Recipe("""


def with_hooks(mlp, stop, stop_step, *hooks):
    text = HOOKS.replace("STOP_STEP", str(stop_step)).replace("STOP", str(stop)).lstrip("\n")
    return change(
        mlp, ("recipe = Recipe(", text + "\n    " + ", ".join(hooks) + ","), ("Recipe,", "Recipe, StopTraining,")
    )


def test_a_recipe_is_told_of_each_epoch_and_may_stop(mlp, tmp_path):
    with_hooks(mlp, 2, -1, "on_epoch_end=after_epoch")
    training, steps, record = run(mlp, tmp_path / "run", Settings(Level.FP32, 5))
    assert (training.stopped, len(steps), record.epochs) == (True, 30, 2)
    seen = training._loaded.recipe.on_epoch_end.__globals__["seen"]
    assert [epoch for epoch, _ in seen] == [1, 2]
    for (_, told), epoch in zip(seen, record.history, strict=True):
        assert told == {"accuracy": epoch.metric, "loss": epoch.train_loss, "epochs since best": 0.0}
    # It is over: resuming finds nothing left, unless more is asked for than before.
    training, steps, again = run(mlp, tmp_path / "run", Settings(Level.FP32, 5), resume=True)
    assert (steps, again) == ([], record)
    training, steps, _ = run(mlp, tmp_path / "run", Settings(Level.FP32, 6), resume=True)
    assert len(steps) >= 15


def test_a_recipe_is_told_of_each_step_and_may_stop_in_the_middle_of_an_epoch(mlp, tmp_path):
    with_hooks(mlp, -1, 20, "on_step_end=after_step")
    training, steps, record = run(mlp, tmp_path / "run", Settings(Level.FP32, 5))
    assert (training.stopped, len(steps), record.steps_applied, record.epochs) == (True, 20, 20, 2)
    seen = training._loaded.recipe.on_step_end.__globals__["seen"]
    assert seen == [(step.step + 1, step.loss) for step in steps]


def test_what_a_callback_does_wrong_is_the_recipes_fault(mlp, tmp_path):
    change(mlp, ("epochs=3", "epochs=3, on_epoch_end=lambda epoch, metrics: metrics['nosuch']"))
    with pytest.raises(UsageError, match="the recipe fails in its on_epoch_end: KeyError: 'nosuch'"):
        run(mlp, tmp_path / "run")


GREEDY = """
class Greedy(nn.Module):
    def forward(self, x):
        if self.training and len(x) > {limit}:
            raise {error}
        return x


recipe = Recipe("""
CPU = 'RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can\'t allocate memory: you tried")'
GPU = 'torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")'


def greedy(mlp, limit, error, *more):
    text = GREEDY.format(limit=limit, error=error).lstrip("\n")
    return change(
        mlp,
        ("recipe = Recipe(", text),
        ("nn.BatchNorm1d(32)", "nn.LayerNorm(32)"),
        ("nn.Dropout(0.1), ", ""),
        ("nn.Sequential(", "nn.Sequential(Greedy(), "),
        *more,
    )


@pytest.mark.parametrize("error", [CPU, GPU])
@pytest.mark.parametrize("level", [Level.FP32, Level.FP16_MASTER])
def test_a_batch_goes_in_parts_once_memory_runs_out_and_teaches_the_same(mlp, tmp_path, error, level):
    greedy(mlp, 30, error)
    _, steps, _ = run(mlp, tmp_path / "auto", Settings(level, 1, accumulate="auto", save_every=7))
    assert {step.parts for step in steps} == {4}, "100, 50, then 25 examples at a time"
    _, expected, _ = run(mlp, tmp_path / "four", Settings(level, 1, accumulate=4, save_every=7))
    assert [step.loss for step in steps] == [step.loss for step in expected]
    weights = [load_checkpoint(tmp_path / name / "model.pt").weights for name in ("auto", "four")]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    greedy_whole = change(mlp, ("len(x) > 30", "len(x) > 3000"))
    _, whole, _ = run(greedy_whole, tmp_path / "whole", Settings(level, 1))
    assert [step.loss for step in steps] == pytest.approx(
        [step.loss for step in whole], rel=2e-2 if level.config.scaling else 1e-4
    )


def test_what_was_found_out_about_memory_is_said_and_kept(mlp, tmp_path, capsys):
    greedy(mlp, 30, CPU)
    assert call("train", mlp, "-o", tmp_path / "run", "--epochs", 1, "--accumulate", "auto") == 0
    assert "memory ran out at step 1: batches go through the model in 4 parts now" in capsys.readouterr().err
    assert json.loads((tmp_path / "run" / "training.json").read_text())["sessions"][0]["accumulate"] == 4
    assert call("train", mlp, "-o", tmp_path / "run", "--epochs", 2, "--resume", "--accumulate", "auto") == 0
    assert "memory ran out" not in capsys.readouterr().err
    assert call("train", mlp, "-o", tmp_path / "other", "--accumulate", "some") == 2
    assert "neither a number from 1 nor auto" in capsys.readouterr().err


def test_memory_that_runs_out_names_what_helps(mlp, tmp_path, capsys):
    greedy(mlp, 0, GPU)
    for words in ((), ("--accumulate", "auto")):
        assert call("train", mlp, "-o", tmp_path / "run", "-q", *words) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert "memory ran out: CUDA out of memory" in err
        for what in ("--accumulate", "batch_size", "--checkpoint", "--resume"):
            assert what in err


def test_the_largest_batch_is_found_to_an_eighth(mlp, tmp_path, capsys):
    greedy(mlp, 200, CPU)
    found = find_batch(load_recipe(mlp), Settings(Level.FP32, 1), World())
    assert 200 * 7 / 8 <= found.largest.batch <= 200
    assert [one.batch for one in found.tried][:8] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert "memory ran out" in found.ended
    assert call("train", mlp, "--find-batch", "--json", "--precision", "bf16-mixed", "-q") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["batch_size"] == 100
    assert 175 <= document["levels"][0]["largest"] <= 200
    greedy_none = change(mlp, ("len(x) > 200", "len(x) > 0"))
    with pytest.raises(UsageError, match="does not hold a step with a single example"):
        find_batch(load_recipe(greedy_none), Settings(Level.FP32, 1), World())


def normed():
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5))
    return nn.Sequential(nn.Linear(8, 8), block, nn.Linear(8, 2))


def test_modules_that_compute_again_give_the_same_gradients_and_statistics():
    x, results, kept = torch.randn(16, 8), [], []
    for patterns in ((), ("1",), ("1.*",)):
        model = normed()
        recompute(model, patterns)
        saved = []
        torch.manual_seed(1)
        with torch.autograd.graph.saved_tensors_hooks(lambda t, saved=saved: saved.append(t.numel()) or t, lambda t: t):
            loss = model(x).square().mean()
        kept.append(len(saved))
        loss.backward()
        results.append([loss.detach(), *(p.grad for p in model.parameters()), *model.buffers()])
    assert all(torch.equal(a, b) for a, b in zip(results[0], results[1], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(results[0], results[2], strict=True))
    assert kept[1] < kept[0]
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in normed().named_parameters()]
    with pytest.raises(UsageError, match="no module is named like `blocks"):
        recompute(normed(), ("blocks.*",))


@pytest.mark.parametrize("level", [Level.FP16_MASTER, Level.BF16_MIXED])
def test_a_training_with_recomputation_ends_the_same(mlp, tmp_path, level):
    run(mlp, tmp_path / "plain", Settings(level, 2, look_every=1000))
    run(mlp, tmp_path / "again", Settings(level, 2, look_every=1000, checkpointing=("[0-3]",)))
    one, two = (load_checkpoint(tmp_path / name / "model.pt").weights for name in ("plain", "again"))
    assert all(torch.equal(tensor, two[name]) for name, tensor in one.items())


def test_a_recipe_to_start_from_trains(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert call("init") == 0
    assert capsys.readouterr().out == (
        "recipe.py: a recipe to start from; it trains as it stands\nnext: mpdeploy train recipe.py\n"
    )
    trained = mpdeploy.train("recipe.py", seed=1)
    assert trained.record.metric > 0.95
    before = (tmp_path / "recipe.py").read_bytes()
    assert call("init") == 2
    assert "there is a file already" in capsys.readouterr().err
    assert (tmp_path / "recipe.py").read_bytes() == before
    assert call("init", "notes.txt") == 2


def test_training_from_python_takes_the_words_of_the_command(mlp, tmp_path):
    trained = mpdeploy.train(mlp, output=tmp_path / "run", precision="fp32", epochs=1, report=True, seed=5)
    assert (trained.record.level, trained.record.seed, trained.record.epochs) == ("fp32", 5, 1)
    assert trained.report == str(tmp_path / "run" / "training.html")
    assert load_checkpoint(tmp_path / "run" / "model.pt").record == trained.record
    # What is not given stays as it was: the level, the seed, and here but the epochs.
    longer = mpdeploy.train(mlp, output=tmp_path / "run", resume=True, epochs=2)
    assert (longer.record.level, longer.record.seed, longer.record.epochs) == ("fp32", 5, 2)
    assert mpdeploy.train(mlp, output=tmp_path / "run", resume=True).record == longer.record
    assert mpdeploy.train.Recipe is type(load_recipe(mlp).recipe), "the package is one as before"
    with pytest.raises(UsageError, match="no precision level `fp7`"):
        mpdeploy.train(mlp, output=tmp_path / "other", precision="fp7")


@pytest.mark.parametrize("kind", ["tensorboard", "wandb", "mlflow"])
def test_a_log_whose_library_is_missing_is_named(mlp, tmp_path, monkeypatch, capsys, kind):
    monkeypatch.setitem(sys.modules, {"tensorboard": "torch.utils.tensorboard"}.get(kind, kind), None)
    assert call("train", mlp, f"--{kind}", "-o", tmp_path / "out", "-q") == DependencyError.exit_code
    assert f"pip install {kind}" in capsys.readouterr().err


def test_devices_that_are_not_there_are_told(mlp, tmp_path, capsys):
    if torch.cuda.is_available():
        assert call("train", mlp, "-o", tmp_path / "out", "-q", "--device", f"cuda:{torch.cuda.device_count()}") == 2
    else:
        assert call("train", mlp, "-o", tmp_path / "out", "-q", "--device", "cuda") == DependencyError.exit_code
        assert "torch finds no CUDA device" in capsys.readouterr().err
    assert call("train", mlp, "-o", tmp_path / "out", "-q", "--device", "tpu") == 2
    assert "there is no device `tpu`" in capsys.readouterr().err


def test_modules_that_trained_in_fp32_are_kept_there_by_the_conversion(mlp, tmp_path):
    from mpdeploy.plan.record import PrecisionPlan
    from mpdeploy.records import load

    change(mlp, ("epochs=3", 'epochs=1, fp32_modules=("4",), level="bf16-master"'))
    trained = mpdeploy.train(mlp, output=tmp_path / "run")
    assert trained.record.fp32_modules == ("4",)
    assert trained.record.level == "bf16-master"
    assert "4 in fp32" in trained.configuration
    mpdeploy.export(tmp_path / "run" / "model.pt", tmp_path / "out", precision="bf16", recipe=mlp)
    plan = load(PrecisionPlan, tmp_path / "out" / "model.bf16.plan.json")
    formats = {decision.node: decision.format.value for decision in plan.decisions if decision.op == "Gemm"}
    assert sorted(formats.values()) == ["bf16", "fp32"]


def test_a_recipe_may_be_written_in_the_order_of_its_parts(mlp):
    made = load_recipe(mlp).recipe
    parts = (made.inputs, made.outputs, made.model, made.data, made.optimizer, made.loss, made.metric, 3, 4)
    recipe = Recipe(*parts)
    assert (recipe.metric, recipe.epochs, recipe.batch_size) == (made.metric, 3, 4)
    with pytest.raises(UsageError, match="epochs is 0"):
        Recipe(*parts[:6])
