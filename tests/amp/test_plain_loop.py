"""The engine in somebody's own loop: five lines in place of autocast, scaler, clipping and their order."""

from pathlib import Path

import pytest
import torch

from mpdeploy.amp import Engine, Level
from mpdeploy.amp.low_products import low_products
from mpdeploy.numerics.formats import Format
from mpdeploy.train.loading import load_recipe

torch.set_num_threads(1)
RECIPE = load_recipe(Path(__file__).parents[2] / "models" / "char_gpt.py").recipe
ACCUMULATED, STEPS = 2, 4


@pytest.fixture(scope="module")
def batches():
    train = RECIPE.data().train
    return [train.batch(range(8 * i, 8 * i + 8)) for i in range(ACCUMULATED * STEPS)]


def fresh():
    torch.manual_seed(0)
    model = RECIPE.model()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def test_a_loop_with_accumulation_and_clipping_is_the_one_people_write(batches):
    model, optimizer = fresh()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for step in range(STEPS):
        for batch in batches[step * ACCUMULATED : (step + 1) * ACCUMULATED]:
            with low_products("cpu", Format.BF16, autocast=True):  # as the engine multiplies on this processor
                with torch.autocast("cpu", torch.bfloat16):
                    logits = model(*batch.inputs)
                scaler.scale(RECIPE.loss(logits.float(), batch.labels) / ACCUMULATED).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
    expected = model.state_dict()

    model, optimizer = fresh()
    engine = Engine(model, optimizer, Level.BF16_MIXED)
    for step in range(STEPS):
        for batch in batches[step * ACCUMULATED : (step + 1) * ACCUMULATED]:
            with engine.forward():
                logits = model(*batch.inputs)
            engine.backward(RECIPE.loss(logits.float(), batch.labels) / ACCUMULATED)
        assert engine.step(clip_norm=1.0).applied
    # The clipping factor may differ in its last bit, which BF16 passes on; nothing else may.
    start = fresh()[0].state_dict()
    moved = torch.cat([(expected[name] - start[name]).flatten() for name in start]).norm()
    apart = torch.cat([(expected[name] - tensor).flatten() for name, tensor in model.state_dict().items()]).norm()
    assert apart < 1e-2 * moved


def test_its_state_is_one_entry_of_the_loops_own_checkpoint(batches, tmp_path):
    model, optimizer = fresh()
    engine = Engine(model, optimizer, Level.BF16_MASTER)

    def step(engine, model, batch):
        with engine.forward():
            logits = model(*batch.inputs)
        engine.backward(RECIPE.loss(logits.float(), batch.labels))
        return engine.step(clip_norm=1.0).grad_norm

    step(engine, model, batches[0])
    torch.save({"engine": engine.state_dict(), "step": 1}, tmp_path / "ckpt.pt")
    went_on = [step(engine, model, batch) for batch in batches[1:3]]

    model, optimizer = fresh()
    engine = Engine(model, optimizer, Level.BF16_MASTER)
    engine.load_state_dict(torch.load(tmp_path / "ckpt.pt", weights_only=True)["engine"])
    assert [step(engine, model, batch) for batch in batches[1:3]] == went_on


@pytest.mark.parametrize("level", [Level.BF16_MASTER, Level.FP16_MIXED])
def test_a_compiled_model_trains_like_the_plain_one(level):
    def train(compiled):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4))
        called = torch.compile(model, backend="aot_eager") if compiled else model
        engine = Engine(called, torch.optim.AdamW(called.parameters(), lr=1e-2), level)
        results = []
        for step in range(4):
            with engine.forward():
                output = called(torch.randn(32, 8))
            loss = output.float().square().mean()
            engine.backward(loss * float("inf") if step == 1 else loss)
            results.append(engine.step(clip_norm=0.1))
        return [(r.applied, r.grad_norm, r.scale_after) for r in results], model[1].running_mean.tolist()

    steps, statistics = train(compiled=False)
    assert [applied for applied, _, _ in steps] == [True, False, True, True]
    assert (steps, statistics) == train(compiled=True)
