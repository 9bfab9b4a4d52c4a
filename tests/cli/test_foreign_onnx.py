"""ONNX files whose external data lie: refused in one line, nothing read from outside, no memory asked for."""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper


def write(path, location, offset=0, length=64, size=16):
    tensor = TensorProto(name="w", data_type=1, dims=[size], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    value = lambda name: helper.make_tensor_value_info(name, 1, [size])  # noqa: E731
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [value("x")], [value("y")], [tensor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The test stands beside a folder with weights of its own, and a link to a secret outside it."""
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    np.arange(16, dtype=np.float32).tofile("model/w.bin")
    np.full(16, 77, np.float32).tofile("secret.bin")
    Path("model/link.bin").symlink_to("../secret.bin")
    return tmp_path


LIES = {
    "absolute": {"location": "SECRET"},
    "upwards": {"location": "../secret.bin"},
    "a link": {"location": "link.bin"},
    "a device": {"location": "/dev/zero"},
    "negative offset": {"location": "w.bin", "offset": -4},
    "negative length": {"location": "w.bin", "length": -64},
    "past the end": {"location": "w.bin", "offset": 60},
    "longer than the file": {"location": "w.bin", "length": 128, "size": 32},
    "an exabyte": {"location": "w.bin", "length": 1 << 62, "size": 1 << 60},
    "words": {"location": "w.bin", "offset": "here"},
    "a folder": {"location": "."},
    "nothing there": {"location": "none.bin"},
}


@pytest.mark.parametrize("command", ["export", "convert", "run"])
@pytest.mark.parametrize("name", LIES)
def test_external_data_that_lie(cli, home, name, command):
    lie = dict(LIES[name])
    lie["location"] = lie["location"].replace("SECRET", str(home / "secret.bin"))
    path = write(Path("model/m.onnx"), **lie)
    rest = {"export": ("-o", "out"), "convert": ("-o", "out", "--precision", "fp16"), "run": ("--data", "x.npz")}
    np.savez("x.npz", x=np.zeros(16, np.float32))
    done = cli(command, path, *rest[command], "-q")
    assert done.code in (2, 3), done.err
    assert done.out == ""
    assert done.err.count("\n") == 1
    assert "77" not in done.err
    assert not Path("out").exists()


def test_what_lies_within_is_read(cli, home):
    path = write(Path("model/m.onnx"), "w.bin")
    done = cli("export", path, "-o", "out", "-q")
    assert done.code == 0, done.err
    assert sorted(p.name for p in Path("model").iterdir()) == ["link.bin", "m.onnx", "w.bin"]


def test_an_input_that_no_memory_holds(cli, home):
    value = lambda name: helper.make_tensor_value_info(name, 1, [1 << 45])  # noqa: E731
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [value("x")], [value("y")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "m.onnx")
    done = cli("export", "m.onnx", "-o", "out", "-q")
    assert (done.code, done.out) == (2, "")
    assert "no memory for random inputs of x float32[35184372088832]" in done.err


@pytest.mark.parametrize("command", ["export", "convert", "run", "inspect", "verify", "pipeline"])
def test_names_that_are_no_text(cli, home, command):
    path = os.fsdecode(b"caf\xe9.onnx")
    rest = {
        "verify": (path, "--data", "x.npz"),
        "run": ("--data", "x.npz"),
        "convert": ("-o", "o", "--precision", "bf16"),
    }
    for there in (False, True):
        if there:
            np.savez("x.npz", x=np.zeros(16, np.float32))
            write(Path(path), "w.bin")
        done = cli(command, path, *rest.get(command, ()), "-q")
        assert done.code in (2, 3), done.err
        assert done.err.count("\n") == 1
        assert r"caf\udce9.onnx" in done.err
