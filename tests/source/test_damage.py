"""Files with random bytes changed or cut off are refused in one line, or are still whole: never a crash of ours."""

import random
from collections import Counter

import pytest
import torch

from mpdeploy.errors import MpdeployError
from mpdeploy.source import Given, open_source

TRIES = 80


@pytest.fixture
def files(tmp_path, net, scripts, program):
    torch.save(net.state_dict(), tmp_path / "state.pt")
    torch.save(net.state_dict(), tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    torch.save(net, tmp_path / "whole.pt")
    found = {path.stem: path for path in tmp_path.glob("*.pt")}
    return found | {"script": scripts / "scripted.pt", "program": program}


def refusal(path, given):
    """Why a file is refused, empty if it is not."""
    try:
        open_source(path, given)
    except MpdeployError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", ["state", "legacy", "whole", "script", "program"])
def test_damage_of_any_kind(tmp_path, files, factory, name):
    whole = files[name].read_bytes()
    words = () if name == "program" else ("image:batch,3,8,8",)
    given = Given(factory=factory, inputs=words)
    path = tmp_path / f"damaged{files[name].suffix}"
    chance = random.Random(name)
    outcomes: Counter[str] = Counter()
    for _ in range(TRIES):
        content = bytearray(whole)
        for _ in range(chance.choice((1, 3, 10))):
            content[chance.randrange(len(content))] = chance.randrange(256)
        if chance.random() < 0.2:
            content = content[: chance.randrange(len(content))]
        path.write_bytes(content)
        outcomes[refusal(path, given)] += 1
    assert outcomes[""] < TRIES * 3 / 4
    assert not any("\n" in line or "fault of mpdeploy" in line for line in outcomes)
