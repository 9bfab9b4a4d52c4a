"""Checkpoints with bytes changed anywhere are refused in one line, or still whole: in either form of torch's files."""

import random
from collections import Counter

import pytest
import torch

from mpdeploy.errors import MpdeployError
from mpdeploy.train.checkpoint import load_tensors

TRIES = 300


@pytest.mark.parametrize("zipped", [True, False])
def test_damage_of_any_kind(tmp_path, zipped):
    path = tmp_path / "state.pt"
    torch.save({"a": torch.zeros(8, 4), "b": {"c": [1, 2.5, "d"]}}, path, _use_new_zipfile_serialization=zipped)
    whole = path.read_bytes()
    chance = random.Random(5)
    outcomes: Counter[str] = Counter()
    for _ in range(TRIES):
        content = bytearray(whole)
        for _ in range(chance.choice((1, 3, 10))):
            content[chance.randrange(len(content))] = chance.randrange(256)
        start, length = chance.randrange(len(content)), chance.choice((0, 0, 4, 60))
        path.write_bytes(content[: start + length] + content[start:])
        outcomes[refusal(path)] += 1
    assert outcomes[""] < TRIES * 3 / 4
    assert not any("\n" in line for line in outcomes)


def refusal(path):
    try:
        load_tensors(path, "checkpoint")
    except MpdeployError as error:
        return str(error)
    return ""
