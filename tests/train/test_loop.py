"""Training on real digits: it learns, it tells, and it goes on where it stopped."""

from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from mpdeploy.amp import Level
from mpdeploy.errors import UsageError
from mpdeploy.train.checkpoint import load_checkpoint
from mpdeploy.train.loading import load_recipe
from mpdeploy.train.loop import Settings, Training
from mpdeploy.train.telemetry_file import read_telemetry

DIGITS_CNN = Path(__file__).parents[2] / "models" / "digits_cnn.py"


def run(recipe: Path, folder: Path, settings: Settings, *, resume: bool = False):
    training = Training(load_recipe(recipe), folder, settings, resume=resume)
    steps = list(training.steps())
    return steps, training.finish()


def test_the_digits_cnn_learns_in_bf16(tmp_path):
    steps, record = run(DIGITS_CNN, tmp_path, Settings(Level.BF16_MIXED, epochs=6))
    assert record.metric_name == "accuracy"
    assert record.metric > 0.97
    assert len(steps) == record.steps_applied == 6 * 22
    assert steps[-1].loss < 0.2 < steps[0].loss
    assert [s.step for s in steps] == list(range(len(steps)))


def test_the_digits_cnn_trains_in_fp16_with_a_dynamic_scale(tmp_path):
    training = Training(load_recipe(DIGITS_CNN), tmp_path, Settings(Level.FP16_MIXED, epochs=1))
    steps = list(islice(training.steps(), 8))
    assert steps[-1].loss < steps[0].loss
    assert all(s.result.scale_before > 1 for s in steps)
    assert sum(s.result.applied for s in steps) >= 6


def test_a_batch_in_parts_teaches_what_it_does_as_a_whole(mlp, tmp_path):
    plain = mlp.read_text().replace("nn.BatchNorm1d(32), ", "").replace("nn.Dropout(0.1), ", "").replace("5e-3", "1e-3")
    losses = []
    for parts in (1, 3):
        mlp.write_text(plain.replace("epochs=3", f"epochs=1, accumulate={parts}"))
        steps, _ = run(mlp, tmp_path / str(parts), Settings(Level.FP32, epochs=1))
        losses.append([step.loss for step in steps])
    assert len(losses[0]) == 15
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)  # 100 examples in parts of 34, 33 and 33
    assert losses[0] != losses[1]


def test_a_recipe_may_bring_a_configuration_of_its_own(mlp, tmp_path):
    text = mlp.read_text().replace(
        "import torch\n", "import torch\nfrom mpdeploy.amp import AmpConfig, Format, LossScaling\n", 1
    )
    text = text.replace("epochs=3", "epochs=1, level=AmpConfig(Format.FP16, scaling=LossScaling.static(128.0))")
    mlp.write_text(text)
    steps, record = run(mlp, tmp_path / "run", Settings(load_recipe(mlp).recipe.level, epochs=1))
    assert {step.result.scale_after for step in steps} == {128.0}
    assert record.level == "fp16-custom"


@pytest.mark.filterwarnings("ignore:weights in .* without FP32 masters:RuntimeWarning")
@pytest.mark.parametrize("level", list(Level))
def test_the_checkpoints_metric_is_that_of_its_fp32_weights(mlp, tmp_path, level):
    mlp.write_text(mlp.read_text().replace("lr=5e-3", "lr=5e-3, eps=1e-4"))
    _, record = run(mlp, tmp_path / "run", Settings(level, epochs=2))
    checkpoint = load_checkpoint(tmp_path / "run" / "model.pt")
    assert checkpoint.record == record
    assert record.metric > 0.8
    assert record.level == level.value
    assert record.recipe.file == "my_mlp.py"

    model = load_recipe(mlp).recipe.model().eval()
    model.load_state_dict(checkpoint.weights)
    feeds = [np.load(f) for f in sorted((tmp_path / "run" / "heldout").iterdir())]
    pixels = torch.from_numpy(np.concatenate([f["pixels"] for f in feeds]))
    labels = np.concatenate([f["labels"] for f in feeds])
    with torch.no_grad():
        found = model(pixels).argmax(-1).numpy()
    assert (found == labels).mean() == pytest.approx(record.metric)
    assert torch.equal(checkpoint.examples["pixels"], pixels[:4])


def test_equal_seeds_give_equal_weights_and_the_callers_random_numbers_are_left_alone(mlp, tmp_path):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    runs = [run(mlp, tmp_path / str(i), Settings(Level.BF16_MIXED, 1, seed))[0] for i, seed in enumerate((1, 1, 2))]
    assert torch.equal(torch.get_rng_state(), before)
    losses = [[s.loss for s in steps] for steps in runs]
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize("level", [Level.BF16_MASTER, Level.FP16_MIXED])
def test_a_resumed_training_ends_bit_for_bit_like_one_that_was_not_stopped(mlp, tmp_path, level):
    settings = Settings(level, epochs=3)
    run(mlp, tmp_path / "whole", settings)

    stopped = Training(load_recipe(mlp), tmp_path / "halves", settings)
    for _ in islice(stopped.steps(), 20):  # in the middle of the second epoch
        pass
    again = Training(load_recipe(mlp), tmp_path / "halves", settings, resume=True)
    assert again.steps_left == 30
    assert next(iter(again.steps())).epoch == 1
    again = Training(load_recipe(mlp), tmp_path / "halves", settings, resume=True)
    list(again.steps())
    again.finish()

    left, right = (load_checkpoint(tmp_path / name / "model.pt") for name in ("whole", "halves"))
    assert left.record == right.record
    assert all(torch.equal(left.weights[name], right.weights[name]) for name in left.weights)


def test_only_the_same_training_is_resumed(mlp, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(UsageError, match="no interrupted training"):
        run(mlp, folder, Settings(Level.FP32, 1), resume=True)
    run(mlp, folder, Settings(Level.FP32, 2))
    for other, says in [
        (Settings(Level.FP32, 2, seed=1), "had seed 0, this one has 1"),
        (Settings(Level.FP32, 1), r"is in its epoch 2, this one is to have 1 .*--epochs 2 or more"),
    ]:
        with pytest.raises(UsageError, match=says):
            run(mlp, folder, other, resume=True)
    mlp.write_text(mlp.read_text() + "\n# changed\n")
    with pytest.raises(UsageError, match=r"had recipe my_mlp\.py \("):
        run(mlp, folder, Settings(Level.FP32, 2), resume=True)


def checkpoints(*folders: Path):
    return [(folder / name).read_bytes() for folder in folders for name in ("model.pt", "best.pt", "telemetry.jsonl")]


@pytest.mark.parametrize("schedule", ["StepLR(optimizer, 20)", "CosineAnnealingLR(optimizer, 100)"])
def test_a_longer_training_goes_on_as_if_it_had_been_meant_so(mlp, tmp_path, schedule):
    # A schedule that does not depend on the number of steps: all of it is the same, bit for bit.  (C10, C13)
    start, end = mlp.read_text().index("    schedule="), mlp.read_text().index("    loss=")
    new = f"    schedule=lambda optimizer, steps: torch.optim.lr_scheduler.{schedule},\n"
    mlp.write_text(mlp.read_text()[:start] + new + mlp.read_text()[end:])
    run(mlp, tmp_path / "whole", Settings(Level.BF16_MIXED, 4))
    run(mlp, tmp_path / "longer", Settings(Level.BF16_MIXED, 2))
    training = Training(load_recipe(mlp), tmp_path / "longer", Settings(Level.BF16_MIXED, 4), resume=True)
    assert training.differences == ("epochs 4, was 2",)
    assert (training.steps_left, training.total_steps) == (30, 60)
    list(training.steps())
    assert training.finish().epochs == 4
    assert checkpoints(tmp_path / "longer") == checkpoints(tmp_path / "whole")


def test_the_rest_of_a_longer_training_takes_the_schedule_of_its_new_length(mlp, tmp_path):
    run(mlp, tmp_path / "run", Settings(Level.FP32, 1))
    run(mlp, tmp_path / "run", Settings(Level.FP32, 2), resume=True)
    run(mlp, tmp_path / "whole", Settings(Level.FP32, 2))
    (_, longer), (_, whole) = (read_telemetry(tmp_path / n / "telemetry.jsonl") for n in ("run", "whole"))
    rates = [line.learning_rate for line in longer[15:]]
    assert rates == pytest.approx([line.learning_rate for line in whole[15:]], rel=1e-9)
    assert len(longer) == len(whole) == 30
    assert min(line.learning_rate for line in longer[:15]) < rates[0], "the shorter one had come to its end"


@pytest.mark.parametrize(
    ("before", "after"),
    [(Level.FP16_MASTER, Level.BF16_MIXED), (Level.BF16_MIXED, Level.FP16_MIXED), (Level.FP32, Level.FP16_MASTER)],
)
def test_a_training_goes_on_at_another_level_from_the_same_fp32_weights(mlp, tmp_path, before, after):
    mlp.write_text(mlp.read_text().replace("nn.Dropout(0.1), ", ""))
    run(mlp, tmp_path / "run", Settings(before, 1))
    earlier = load_checkpoint(tmp_path / "run" / "model.pt").weights
    training = Training(load_recipe(mlp), tmp_path / "run", Settings(after, 2), resume=True)
    now = training._assembly.engine.state_dict()["model"]
    assert all(torch.equal(tensor, now[name]) for name, tensor in earlier.items()), "the state is FP32 at both"
    assert f"precision {after.value}, was {before.value}" in training.differences
    assert training._assembly.engine.scale.scale == (65536 if after.config.scaling else 1)
    list(training.steps())
    record = training.finish()
    assert record.level == after.value
    assert record.metric > 0.8
    header, lines = read_telemetry(tmp_path / "run" / "telemetry.jsonl")
    assert header.configuration == str(after.config)
    assert [line.step for line in lines] == list(range(30))


def test_a_training_goes_on_with_another_patience(mlp, tmp_path):
    patient = replace(Level.FP16_MIXED.config, patience=30)
    run(mlp, tmp_path / "run", Settings(Level.FP16_MIXED, 1))
    run(mlp, tmp_path / "run", Settings(patient, 2), resume=True)
    run(mlp, tmp_path / "plain", Settings(Level.FP16_MIXED, 1))
    run(mlp, tmp_path / "plain", Settings(Level.FP16_MIXED, 2), resume=True)
    one, two = (load_checkpoint(tmp_path / name / "model.pt").weights for name in ("run", "plain"))
    assert all(torch.equal(tensor, two[name]) for name, tensor in one.items())


def test_a_schedule_stands_still_on_skipped_steps(mlp, tmp_path):
    # Labels that push the loss beyond FP16 for the first scales: the first steps are skipped.
    mlp.write_text(mlp.read_text().replace("loss=nn.functional.cross_entropy", "loss=huge") + "\n")
    mlp.write_text(
        mlp.read_text().replace(
            "recipe =", "def huge(x, y):\n    return nn.functional.cross_entropy(x, y) * 1e4\n\n\nrecipe ="
        )
    )
    training = Training(load_recipe(mlp), tmp_path / "run", Settings(Level.FP16_MIXED, 1))
    rates = []
    for step in training.steps():
        rates.append((step.result.applied, training._assembly.schedule.get_last_lr()[0]))
    skipped = [rate for applied, rate in rates if not applied]
    assert skipped
    assert set(skipped) == {rates[0][1]}
    assert rates[-1][1] < rates[0][1]


def test_a_failed_training_leaves_the_old_checkpoint(mlp, tmp_path):
    run(mlp, tmp_path / "run", Settings(Level.FP32, 1))
    before = (tmp_path / "run" / "model.pt").read_bytes()
    mlp.write_text(mlp.read_text().replace("loss=nn.functional.cross_entropy", "loss=lambda x, y: 1 / 0"))
    with pytest.raises(UsageError, match="the recipe fails in a training step: ZeroDivisionError"):
        run(mlp, tmp_path / "run", Settings(Level.FP32, 1))
    assert (tmp_path / "run" / "model.pt").read_bytes() == before


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"float32", ("batch", 64)', '"float32", ("batch", 63)', r"input pixels float32\[batch, 63\] was given"),
        ('"float32", ("batch", 64)', '"float64", ("batch", 64)', "was given float32"),
        ("x[1500:],), y[1500:]", "x[:0],), y[:0]", "no held-out examples"),
        ('outputs=("logits",)', 'outputs=("labels",)', "none of them `labels`"),
        ("epochs=3", "epochs=0", "the recipe's epochs is 0"),
        ("epochs=3", "epochs=1, accumulate=101", "batches of 100 cannot be taken in 101 parts"),
        ("x[:1500],), y[:1500]", "x[:1500], x[:1500]), y[:1500]", "2 arrays of training examples for 1 inputs"),
        ("model.parameters()", "nn.Linear(2, 2).parameters()", "holds no parameter of the model"),
    ],
)
def test_a_recipe_that_contradicts_itself_is_told_so(mlp, tmp_path, old, new, says):
    text = mlp.read_text()
    assert old in text
    mlp.write_text(text.replace(old, new))
    with pytest.raises(UsageError, match=says):
        run(mlp, tmp_path / "run", Settings(Level.FP32, 1))
