"""Pickles that torch's reader in C++ would die of: deep, out of order, cut short; sound ones pass."""

import io
import pickle
import struct
import zipfile
from collections import OrderedDict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from mpdeploy.errors import UsageError
from mpdeploy.source import Given, open_source
from mpdeploy.source.pickles import require_sound

DEEP = {
    "tuples": b"\x80\x02" + b"(" * 200_000 + b"t" * 200_000 + b".",
    "pairs": b"\x80\x02)" + b"\x85" * 200_000 + b".",
    "lists": b"\x80\x02]" + b"]" * 5_000 + b"a" * 5_000 + b".",
    "dicts": b"\x80\x02" + b"}K\x01" * 5_000 + b"}" + b"s" * 5_000 + b".",
}
BROKEN = {
    "out of order": b"\x80\x02)r" + struct.pack("<I", 2**31 - 1) + b".",
    "cut short": b"\x80\x02X" + struct.pack("<I", 2**32 - 1) + b"abc.",
    "without an end": b"\x80\x02)",
    "nothing on the stack": b"\x80\x02t.",
}
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner) | st.sets(st.integers())
    ),
    max_leaves=30,
)


@pytest.mark.parametrize("content", DEEP.values(), ids=DEEP)
def test_deep_nesting_is_refused(content):
    with pytest.raises(UsageError, match="nests deeper"):
        require_sound(io.BytesIO(content), "here")


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_damaged_or_out_of_order_is_refused(name):
    with pytest.raises(UsageError, match="a pickle in the archive"):
        require_sound(io.BytesIO(BROKEN[name]), "here")


@given(PLAIN, st.integers(2, pickle.HIGHEST_PROTOCOL))
def test_what_python_writes_is_sound(value, protocol):
    require_sound(io.BytesIO(pickle.dumps([value, OrderedDict(a=value)], protocol)), "here")


def test_a_long_list_and_a_thousand_appends_are_no_nesting():
    require_sound(io.BytesIO(pickle.dumps([[i] for i in range(5000)], 2)), "here")
    require_sound(io.BytesIO(b"\x80\x02]" + b"K\x01a" * 5000 + b"."), "here")


@pytest.mark.parametrize("content", [DEEP["tuples"], *BROKEN.values()], ids=["deep", *BROKEN])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch calls TorchScript deprecated; it is what people have
def test_torchscript_with_such_a_pickle_is_refused_in_a_line(content, tmp_path):
    class Deep(nn.Module):
        def __init__(self, depth):
            super().__init__()
            self.inner = Deep(depth - 1) if depth else nn.Linear(2, 2)

        def forward(self, x):
            return self.inner(x)

    source, target = tmp_path / "m.ts", tmp_path / "n.ts"
    torch.jit.trace(Deep(12), torch.ones(1, 2)).save(str(source))
    assert open_source(source, Given(inputs=("x:batch,2",))).outputs == ("output",)
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            new.writestr(name, content if name.endswith("/data.pkl") else old.read(name))
    with pytest.raises(UsageError, match="a pickle in the archive"):
        open_source(target, Given(inputs=("x:batch,2",)))
