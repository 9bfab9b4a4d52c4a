"""Sharded checkpoints as FSDP trainings leave them."""

import os
import pickle
import warnings
from enum import Enum

import pytest
import torch
import torch.distributed.checkpoint as dcp

from mpdeploy.errors import ModelError, UsageError
from mpdeploy.source import Given, Kind, kind_of, open_source
from mpdeploy.source.sharded import read_sharded
from mpdeploy.train.shard_reader import SafeReader

IMAGE = ("image:batch,3,8,8",)


@pytest.fixture
def folder(tmp_path, net):
    content = {"model": net.state_dict(), "optim": {"state": {"exp_avg": torch.ones(3)}}, "epoch": 3}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(content, checkpoint_id=str(tmp_path / "step-100"), no_dist=True)
    return tmp_path / "step-100"


def test_it_is_put_together(folder, net, image, factory):
    assert kind_of(folder) is Kind.SHARDED
    loaded = open_source(folder, Given(factory=factory, inputs=IMAGE))
    assert torch.allclose(loaded.module(image), net(image), atol=1e-6)
    with pytest.raises(UsageError, match=r"weights \(\d+: .*--model FILE\.py:FUNCTION"):
        open_source(folder, Given(inputs=IMAGE))


class Plant:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def test_s2_metadata_that_would_run_code(folder, tmp_path):
    (folder / ".metadata").write_bytes(pickle.dumps(Plant(tmp_path / "marker")))
    with pytest.raises(ModelError, match=r"could run code: (posix|nt)\.system"):
        read_sharded(folder)
    assert not (tmp_path / "marker").exists()


def test_s2_a_shard_that_would_run_code(folder, tmp_path):
    (shard,) = folder.glob("*.distcp")
    shard.write_bytes(pickle.dumps(Plant(tmp_path / "marker"), 2) * 200)
    with pytest.raises(UsageError, match="cannot be read"):
        read_sharded(folder)
    assert not (tmp_path / "marker").exists()


def test_damage_is_told_in_one_line(folder, factory):
    (shard,) = folder.glob("*.distcp")
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match=r"cannot be read|claim") as caught:
        open_source(folder, Given(factory=factory, inputs=IMAGE))
    assert "\n" not in str(caught.value)
    (folder / ".metadata").write_bytes(b"\x80\x04nothing")
    with pytest.raises(UsageError, match="damaged"):
        read_sharded(folder)


def test_metadata_that_claim_more_than_the_shards_hold(folder):
    path = folder / ".metadata"
    metadata = SafeReader(folder).read_metadata()
    entry = metadata.state_dict_metadata["model.head.weight"]
    entry.size = torch.Size([1 << 40])
    path.write_bytes(pickle.dumps(metadata))
    with pytest.raises(UsageError, match=r"the metadata claim 43980465\d+ bytes, the shards hold"):
        read_sharded(folder)


class Taken:
    """Pickles as what ``getattr`` gives."""

    def __init__(self, *arguments):
        self.arguments = arguments

    def __reduce__(self):
        return getattr, self.arguments


def test_an_enumeration_is_read_as_any_python_writes_it(folder):
    # Up to 3.11.3 Python pickled a member as getattr(class, name).
    class Older(pickle.Pickler):
        def reducer_override(self, value):
            return (getattr, (type(value), value.name)) if isinstance(value, Enum) else NotImplemented

    reader = SafeReader(folder)
    metadata = reader.read_metadata()
    with (folder / ".metadata").open("wb") as stream:
        Older(stream).dump(metadata)
    assert b"getattr" in (folder / ".metadata").read_bytes()
    assert reader.read_metadata().state_dict_metadata == metadata.state_dict_metadata


@pytest.mark.parametrize("arguments", [(torch.Size, "__init__"), (torch.Size, "__subclasses__"), ("text", "format")])
def test_s2_metadata_that_ask_for_anything_but_a_member(folder, arguments):
    (folder / ".metadata").write_bytes(pickle.dumps(Taken(*arguments)))
    with pytest.raises(UsageError, match="the sharded state is damaged"):
        read_sharded(folder)
