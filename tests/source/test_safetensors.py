"""Safetensors files: read as they are written by others, and refused where the header lies."""

import json

import numpy as np
import pytest
import torch

from mpdeploy.errors import UsageError
from mpdeploy.source.tensors import read_safetensors


def write(path, header, data=b"", *, length=None):
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def entry(shape=(2, 2), dtype="F32", begin=0, end=16):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def test_it_reads_what_the_library_writes(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    tensors = {
        "a": torch.randn(3, 5),
        "b": torch.arange(7),
        "half": torch.randn(3).half(),
        "brain": torch.randn(4).bfloat16(),
        "flags": torch.tensor([True, False]),
        "scalar": torch.tensor(2.5),
        "none": torch.empty(0, 3),
    }
    safetensors.save_file(tensors, tmp_path / "w.safetensors", metadata={"format": "pt"})
    found = read_safetensors(tmp_path / "w.safetensors")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


def test_tensors_that_lie_unaligned(tmp_path):
    data = b"\x01" + np.float32([1, 2, 3, 4]).tobytes()
    header = {"b": entry((1,), "U8", 0, 1), "w": entry(begin=1, end=17)}
    for padding in range(4):
        path = write(tmp_path / "w.safetensors", json.dumps(header).encode() + b" " * padding, data)
        assert read_safetensors(path)["w"].tolist() == [[1, 2], [3, 4]]


DATA = bytes(16)
LIES = {
    "header longer than the file": ({"w": entry()}, DATA, 10_000),
    "header of 2^63 bytes": ({"w": entry()}, DATA, 1 << 63),
    "no JSON": (b"\x00" * 40, DATA, None),
    "a list": ([1], DATA, None),
    "deeply nested": (b"[" * 200_000, DATA, None),
    "beyond the end": ({"w": entry(end=20, shape=(5,))}, DATA, None),
    "another size than its shape": ({"w": entry(shape=(3, 3))}, DATA, None),
    "a huge shape": ({"w": entry(shape=(1 << 40, 1 << 40))}, DATA, None),
    "a negative shape": ({"w": entry(shape=(-2, -2))}, DATA, None),
    "a negative place": ({"w": entry(begin=-16, end=0)}, DATA, None),
    "a fraction": ({"w": entry(shape=(2.0, 2))}, DATA, None),
    "an unknown type": ({"w": entry(dtype="PICKLE")}, DATA, None),
    "no place": ({"w": {"dtype": "F32", "shape": [2, 2]}}, DATA, None),
    "axes beyond 64 bits": ({"w": entry(shape=(0, 1 << 70), end=0)}, DATA, None),
    "a thousand axes": ({"w": entry(shape=(1,) * 1000, end=4)}, DATA, None),
    "another encoding": ('{"w": []}'.encode("utf-16"), DATA, None),
    "two in one place": ({"w": entry(), "v": entry()}, DATA, None),
}


@pytest.mark.parametrize("name", LIES)
def test_a_header_that_lies(tmp_path, name):
    header, data, length = LIES[name]
    with pytest.raises(UsageError, match="not a sound safetensors file") as caught:
        read_safetensors(write(tmp_path / "w.safetensors", header, data, length=length))
    assert "\n" not in str(caught.value)


def test_files_that_are_cut_short(tmp_path):
    path = write(tmp_path / "w.safetensors", {"w": entry()}, DATA)
    whole = path.read_bytes()
    for keep in (1, 8, 9, len(whole) - 1):
        path.write_bytes(whole[:keep])
        with pytest.raises(UsageError, match="safetensors"):
            read_safetensors(path)
