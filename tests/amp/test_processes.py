"""Two processes under torchrun, on gloo, against one that does the work of both."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from together import accumulating

ROOT = Path(__file__).parents[2]
LEVELS = ["fp32", "bf16-master", "fp16-master", "fp16-mixed"]


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    out = tmp_path_factory.mktemp("together")
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [*words, str(Path(__file__).with_name("together.py")), str(out)],
        capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads((out / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("held_back", [False, True])
def test_gradients_that_no_sync_held_back_are_averaged_all_the_same(together, level, held_back):
    first, second = (found[f"{level} {held_back}"] for found in together)
    assert first == second, "the processes must hold the same weights"
    alone = accumulating(level, False, 0, [0, 1])
    assert first["norms"] == pytest.approx(alone["norms"], rel=2e-2)
    for name, weight in alone["weights"].items():
        torch.testing.assert_close(torch.tensor(first["weights"][name]), torch.tensor(weight), rtol=2e-2, atol=2e-3)


def test_an_overflow_in_what_was_held_back_skips_the_step_everywhere(together):
    first, second = (found["poisoned"] for found in together)
    assert first == second
    assert [norm is None for norm in first["norms"]] == [False, True, False]


@pytest.mark.parametrize("level", ["fp32", "bf16-mixed", "fp16-mixed"])
def test_parameters_smaller_than_the_world_skip_and_train(together, level):
    first, second = (found[f"fsdp {level}"] for found in together)
    assert first == second
    assert first["applied"] == [True, False, True, True]
    assert first["finite"]


def test_a_model_must_be_wrapped_after_it_is_converted(together):
    assert "after making the engine" in together[0]["wrapped"]


def test_modules_in_fp32_are_gathered_in_fp32(together):
    for found in together:
        assert found["fp32 shards"] == {"body": "torch.bfloat16", "head": "torch.float32", "applied": True}
