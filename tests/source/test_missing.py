"""All that a file of weights leaves open is told at once, before torch is imported; nothing in the file is run."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from mpdeploy.errors import UsageError
from mpdeploy.source.given import NOTHING, Given
from mpdeploy.source.missing import require_complete
from mpdeploy.source.outline import Marked, outline_of

STATE = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)).state_dict()
BOTH = r"nor which to take: it holds both raw weights and their average: `model`, `ema`"
ALL_THREE = (
    rf"not the model .*, {BOTH}, nor what it takes .*--model .*, and --weights ema or --weights model, and --input"
)


def test_all_that_is_missing_is_one_message(tmp_path):
    path = tmp_path / "two.pth"
    torch.save({"epoch": 3, "model": STATE, "ema": STATE, "best": np.float64(0.5)}, path)
    with pytest.raises(UsageError, match=ALL_THREE):
        require_complete(path, NOTHING, with_data=False)
    with pytest.raises(UsageError, match=rf"{BOTH} \["):
        require_complete(path, NOTHING, with_data=True)
    with pytest.raises(UsageError, match=r"\(7: 0.weight, 0.bias, 1.weight…\) but not the model they belong to \["):
        require_complete(path, Given(weights="ema", inputs=("x:batch,8",)), with_data=False)
    with pytest.raises(UsageError, match=r"but not which to take: .*, nor what it takes"):
        require_complete(path, Given(factory="net.py:make"), with_data=False)
    require_complete(path, Given(factory="net.py:make", weights="ema", inputs=("x:batch,8",)), with_data=False)


@pytest.mark.parametrize("form", ["state dict", "safetensors", "OrderedDict in an entry", "parameters"])
def test_weights_in_any_form_are_looked_into(form, tmp_path):
    path = tmp_path / "weights.pt"
    if form == "safetensors":
        save_file(STATE, path)
    else:
        content = {"parameters": {k: nn.Parameter(v) for k, v in STATE.items() if v.is_floating_point()}}
        torch.save(content.get(form, {"state_dict": STATE, "step": 1} if "entry" in form else STATE), path)
    with pytest.raises(UsageError, match=r"weights \([67]: .* but not the model they belong to, nor what it takes"):
        require_complete(path, NOTHING, with_data=False)


@pytest.mark.parametrize("command", [("export",), ("run", "--data", "x.npz"), ("bench",)])
def test_it_is_told_before_torch_is_imported(command, tmp_path):
    torch.save(STATE, tmp_path / "weights.pth")
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 8), np.float32))
    words = [command[0], "weights.pth", *command[1:]]
    code = f"import sys\nfrom mpdeploy.cli.app import main\nsys.argv = {['mpdeploy', *words]!r}\n"
    code += "try:\n    main()\nexcept SystemExit as end:\n    print(end.code, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "False"], done.stderr
    assert "not the model they belong to" in done.stderr


class Runs:
    """What a hostile pickle asks for."""

    def __reduce__(self):
        return exec, ("raise SystemExit('it ran')",)


def test_an_outline_runs_nothing_and_marks_tensors(tmp_path):
    path = tmp_path / "odd.pt"
    torch.save({"state_dict": STATE, "callback": Runs(), "dtype": torch.float32, "list": [1, torch.ones(2)]}, path)
    outline = outline_of(path)
    assert isinstance(outline, dict)
    assert outline["state_dict"].keys() == STATE.keys()
    assert all(isinstance(mark, Marked) for mark in outline["state_dict"].values())
    assert [type(x) for x in outline["list"]] == [int, Marked]


def test_what_makes_no_sense_without_its_classes_has_no_outline(tmp_path):
    path = tmp_path / "model.pt"
    torch.save(nn.Linear(2, 2), path)
    require_complete(path, NOTHING, with_data=False)  # the reader of such files says what it wants
    path.write_bytes(pickle.dumps({"a": 1}))
    require_complete(path, NOTHING, with_data=False)
