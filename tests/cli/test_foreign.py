"""Models that somebody else made, in any form, through the commands that take them: one set of flags for all."""

import json
import os
import pickle
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint

import mpdeploy

torch.set_num_threads(1)  # tests share the processor

CODE = """
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(x).relu()
"""
MODEL = ("--model", "net.py:Net")
FORMS = {
    "state.pth": MODEL,
    "state.pth.tar": MODEL,
    "net.safetensors": MODEL,
    "shards": MODEL,
    "script.pt": (),
    "program.pt2": (),
    "whole.pt": ("--trust",),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One network in all forms, its code, and data with labels beside the input."""
    home, before = tmp_path_factory.mktemp("foreign"), Path.cwd()
    os.chdir(home)
    sys.path.insert(0, str(home))
    try:
        Path("net_code.py").write_text(CODE)
        Path("net.py").write_text("from net_code import Net\n")
        import net_code

        torch.manual_seed(0)
        net, x = net_code.Net().eval(), torch.randn(6, 8)
        for name in ("state.pth", "state.pth.tar"):
            torch.save({"state_dict": net.state_dict()}, name)
        torch.save(net, "whole.pt")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.script(net).save("script.pt")
            torch.distributed.checkpoint.save({"model": net.state_dict()}, checkpoint_id="shards", no_dist=True)
        program = torch.export.export(net, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
        torch.export.save(program, "program.pt2")
        header = {}
        content = b""
        for name, tensor in net.state_dict().items():
            data = tensor.numpy().tobytes()
            places = [len(content), len(content) + len(data)]
            header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": places}
            content += data
        text = json.dumps(header).encode()
        Path("net.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + content)
        np.savez("data.npz", x=x.numpy(), labels=np.zeros(6, np.int64))
        np.savez("expected.npz", output=net(x).detach().numpy())
    finally:
        os.chdir(before)
        sys.path.remove(str(home))
        del sys.modules["net_code"]
    return home


@pytest.fixture
def home(made, monkeypatch):
    monkeypatch.chdir(made)
    yield made
    sys.modules.pop("net_code", None)


@pytest.mark.parametrize("name", FORMS)
def test_every_form_runs_and_loads(cli, home, tmp_path, name):
    done = cli("run", name, *FORMS[name], "--data", "data.npz", "-o", tmp_path / "out.npz", "-q")
    assert done.code == 0, done.err
    expected = np.load("expected.npz")["output"]
    np.testing.assert_allclose(np.load(tmp_path / "out.npz")["output"], expected, atol=1e-6)
    factory = "net.py:Net" if FORMS[name] == MODEL else None
    model = mpdeploy.load(name, factory=factory, inputs=("x:batch,8",), trust=name == "whole.pt")
    np.testing.assert_allclose(model(np.load("data.npz")["x"]), expected, atol=1e-6)


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_exported(cli, home, tmp_path, name):
    words = () if name == "program.pt2" else ("--input", "x:batch,8")
    done = cli("export", name, *FORMS[name], *words, "-o", tmp_path / "out", "--json", "-q")
    assert done.code == 0, done.err
    assert done.document["torch_difference"] < 1e-6
    assert done.document["passed"]


def test_a_torch_model_is_a_reference_and_a_witness(cli, home, tmp_path):
    assert cli("export", "state.pth", *MODEL, "--data", "data.npz", "-o", tmp_path, "-q").code == 0
    low = tmp_path / "model.fp16.onnx"
    done = cli("verify", "state.pth", low, "--data", "data.npz", *MODEL, "--json", "-q")
    assert done.code == 0, done.err
    assert done.document["reference_run"]["runtime"] == "torch"
    assert done.document["verdict"]["passed"]
    assert 0 < done.document["outputs"][0]["norm_relative"] < 1e-3
    with_witness = cli(
        "verify", tmp_path / "model.onnx", low, "--data", "data.npz", "--torch", "state.pth", *MODEL, "--json", "-q"
    )
    assert "in torch" in {noise["way"] for noise in with_witness.document["noise"]}
    layers = cli("verify", "state.pth", low, "--data", "data.npz", *MODEL, "--layers", "-q")
    assert (layers.code, layers.out) == (2, "")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("run", "state.pth", "--data", "data.npz"), 2, "--model FILE.py:FUNCTION"),
        (("run", "whole.pt", "--data", "data.npz"), 3, "net_code.Net, torch.nn.modules.linear.Linear"),
        (("verify", "whole.pt", "whole.pt", "--data", "data.npz"), 3, "load it with --trust"),
        (("run", "script.pt", "--data", "expected.npz", "--input", "x:batch,8"), 2, "lacks input 'x'"),
        (("export", "."), 2, "a folder, not a model [.]; give"),
        (("export", "empty"), 2, "the folder holds no model [empty]"),
        (("run", "empty", "--data", "data.npz"), 2, "the folder holds no model [empty]"),
        (("export", "net.py"), 2, "not a model in any form that is known"),
        (("export", "data.npz"), 2, "the archive holds no model"),
        (("export", "state.pth", "--model", "net:Nat"), 2, "the module net has no function 'Nat'"),
    ],
)
def test_mistakes_are_one_line(cli, home, words, code, says):
    Path("empty").mkdir(exist_ok=True)
    done = cli(*words, "-q")
    assert (done.code, done.out) == (code, "")
    assert says in done.err
    assert done.err.count("\n") == 1


def test_a_file_cut_anywhere_is_one_line_and_never_a_fault_of_ours(cli, home, tmp_path):
    files = [name for name in FORMS if Path(name).is_file()]
    for name in files:
        whole = Path(name).read_bytes()
        cut = tmp_path / f"cut{''.join(Path(name).suffixes)}"
        for share in (0.0, 0.01, 0.3, 0.7, 0.999):
            cut.write_bytes(whole[: int(len(whole) * share)])
            done = cli("export", cut, *MODEL, "--input", "x:batch,8", "-o", tmp_path / "out", "-q")
            assert done.code in (2, 3), (name, share, done.err)
            assert done.err.count("\n") == 1
            assert done.out == ""
    assert not (tmp_path / "out").exists()


class Plant:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("command", ["run", "export", "verify", "bench"])
@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pt2", ".safetensors", ".onnx", ".ts", ""])
def test_s2_a_pickle_never_runs_whatever_its_name(cli, home, tmp_path, command, suffix):
    marker, trap = tmp_path / "marker", tmp_path / f"trap{suffix}"
    trap.write_bytes(pickle.dumps({"x": Plant(marker)}, 2))
    rest = {"verify": (trap, "--data", "data.npz"), "run": ("--data", "data.npz"), "export": ("-o", tmp_path / "o")}
    done = cli(command, trap, *rest.get(command, ()), "-q")
    assert done.code in (2, 3)
    assert done.err.count("\n") == 1
    assert not marker.exists()
