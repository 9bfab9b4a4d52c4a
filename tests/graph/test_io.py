"""Models from file to memory and back: the same numbers, the same interface, whole files or none."""

import os
import re
import shutil

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from mpdeploy.errors import ModelError, UsageError
from mpdeploy.graph import io
from mpdeploy.graph.scope import all_graphs, all_nodes
from mpdeploy.graph.tensors import StreamedTensor


def same(found, wanted):
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b, strict=True)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def written(sample, tmp_path):
    """A model's file, and a feed."""
    model, feed = sample
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path, feed


@pytest.fixture
def outside(sample_of, tmp_path):
    """A model with every weight in a data file."""
    model, feed = sample_of("convolution")
    path = tmp_path / "source" / "model.onnx"
    path.parent.mkdir()
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path, feed


def test_a_saved_model_computes_the_same(written, tmp_path, run):
    path, feed = written
    io.save(io.load(path), tmp_path / "copy.onnx")
    same(run(tmp_path / "copy.onnx", feed), run(path, feed))
    onnx.checker.check_model(onnx.load(tmp_path / "copy.onnx"), full_check=True)


def test_saving_is_a_fixed_point(written, tmp_path):
    path, _ = written
    io.save(io.load(path), tmp_path / "one.onnx")
    io.save(io.load(tmp_path / "one.onnx"), tmp_path / "two.onnx")
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()


def test_what_a_file_says_of_itself_survives(sample_of, tmp_path):
    model, _ = sample_of("convolution")
    model.producer_name, model.doc_string = "an exporter", "a text"
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    io.save(io.load(path), tmp_path / "copy.onnx")
    copy = onnx.load(tmp_path / "copy.onnx")
    assert copy.graph.input == model.graph.input
    assert copy.graph.output == model.graph.output
    assert copy.metadata_props == model.metadata_props
    assert (copy.producer_name, copy.doc_string, copy.ir_version) == ("an exporter", "a text", 8)
    # What type inference found out for us does not make the file grow.
    assert not copy.graph.value_info


def test_large_weights_stay_in_the_file(sample_of, tmp_path):
    names = {"convolution": {"w", "fc"}, "branches": {"inner", ""}}
    for name, large in names.items():
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(sample_of(name)[0].SerializeToString())
        model = io.load(path)
        tensors = [v.const_value for graph in all_graphs(model) for v in graph.initializers.values()]
        tensors += [
            a.as_tensor() for n in all_nodes(model) for a in n.attributes.values() if a.type is ir.AttributeType.TENSOR
        ]
        assert {t.name or "" for t in tensors if isinstance(t, StreamedTensor)} == large
        assert all(isinstance(t, StreamedTensor) == (t.nbytes >= io.IN_MEMORY_BYTES) for t in tensors)


def test_external_data_in_and_out(outside, tmp_path, run):
    path, feed = outside
    target = tmp_path / "out" / "copy.onnx"
    io.save(io.load(path), target)
    files = sorted(p.name for p in target.parent.iterdir())
    assert len(files) == 2
    assert re.fullmatch(r"copy\.onnx\.[0-9a-f]{12}\.data", files[1])
    wanted = run(onnx.load(path).SerializeToString(), feed)
    same(run(target, feed), wanted)
    assert io.size_of(target) == sum(p.stat().st_size for p in target.parent.iterdir())
    # And the folder can be moved.
    target.parent.rename(tmp_path / "moved")
    same(run(tmp_path / "moved" / "copy.onnx", feed), wanted)


def test_a_model_too_large_for_one_file_gets_a_data_file(written, tmp_path, run, monkeypatch):
    path, feed = written
    monkeypatch.setattr(io, "SINGLE_FILE_BYTES", 100)
    io.save(io.load(path), tmp_path / "copy.onnx")
    assert len(list(tmp_path.glob("copy.onnx.*.data"))) == 1
    same(run(tmp_path / "copy.onnx", feed), run(path, feed))


def test_saving_again_leaves_no_orphan(outside, tmp_path, run):
    path, feed = outside
    target = tmp_path / "out" / "copy.onnx"
    model = io.load(path)
    io.save(model, target)
    first = contents(target.parent)
    io.save(model, target)
    assert contents(target.parent) == first
    weights = model.graph.initializers["fc"]
    weights.const_value = ir.Tensor(np.asarray(weights.const_value.numpy()) * 2, name="fc")
    io.save(model, target)
    assert len(contents(target.parent)) == 2
    assert contents(target.parent).keys() != first.keys()
    # Nor does a model that needs no data file any more.
    single = tmp_path / "single.onnx"
    onnx.save(onnx.load(path), single)
    io.save(io.load(single), target)
    assert list(contents(target.parent)) == ["copy.onnx"]
    same(run(target, feed), run(single, feed))


def test_a_data_file_of_somebody_else_is_never_removed(outside, sample_of, tmp_path):
    path, _ = outside
    target = tmp_path / "net.onnx"
    onnx.save(onnx.load(path), target, save_as_external_data=True, location="net.onnx.data", size_threshold=0)
    shutil.copy(target, tmp_path / "twin.onnx")  # it shares the data file
    io.save(io.load(path), target)
    assert (tmp_path / "net.onnx.data").is_file()
    io.load(tmp_path / "twin.onnx")


class Failing(StreamedTensor):
    """A tensor that fails after its first chunk."""

    def __init__(self, whole, error):
        super().__init__(whole.name, whole.dtype, whole.shape)
        self.whole, self.error = whole, error

    def raw_chunks(self):
        yield memoryview(self.whole.tobytes()[:64])
        raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device"), MemoryError()])
@pytest.mark.parametrize("external", [False, True])
def test_an_interrupted_save_leaves_everything_as_it_was(outside, tmp_path, error, external, monkeypatch):
    path, _ = outside
    target = tmp_path / "out" / "copy.onnx"
    model = io.load(path)
    io.save(model, target)
    before = contents(target.parent)
    if not external:
        onnx.save(onnx.load(path), tmp_path / "single.onnx")
        model = io.load(tmp_path / "single.onnx")
    weights = model.graph.initializers["fc"]
    weights.const_value = Failing(weights.const_value, error)
    with pytest.raises(UsageError if isinstance(error, OSError) else type(error)):
        io.save(model, target)
    assert contents(target.parent) == before


def test_a_data_file_whose_model_could_not_be_written_goes_too(outside, tmp_path, monkeypatch):
    path, _ = outside
    model = io.load(path)
    target = tmp_path / "out" / "copy.onnx"
    target.mkdir(parents=True)  # a folder in the way of the model, not of its data
    with pytest.raises(UsageError, match="folder"):
        io.save(model, target)
    assert [p.name for p in target.parent.iterdir()] == ["copy.onnx"]


# --- external data that is not to be trusted


def point_to(path, location, **entries):
    """Let the weight ``fc`` of a model file lie somewhere else."""
    model = onnx.load(path, load_external_data=False)
    tensor = next(t for t in model.graph.initializer if t.name == "fc")
    known = {e.key: e.value for e in tensor.external_data}
    del tensor.external_data[:]
    for key, value in {**known, "location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    path.write_bytes(model.SerializeToString())


@pytest.mark.timeout(30)
@pytest.mark.parametrize("how", ["absolute", "parent", "hidden parent", "link", "link to a folder"])
def test_data_from_outside_the_folder_is_never_opened(outside, tmp_path, how):
    path, _ = outside
    # Nobody writes into this pipe: whoever opened it would hang.
    secret = tmp_path / "secret"
    os.mkfifo(secret)
    (path.parent / "link").symlink_to(secret)
    (path.parent / "folder").symlink_to(tmp_path)
    (path.parent / "deep").mkdir()
    location = {
        "absolute": str(secret),
        "parent": "../secret",
        "hidden parent": "deep/../../secret",
        "link": "link",
        "link to a folder": "folder/secret",
    }[how]
    point_to(path, location)
    with pytest.raises(UsageError, match="outside the model's folder") as caught:
        io.load(path)
    assert caught.value.exit_code == 2


def test_a_model_file_is_not_its_own_secret(outside):
    """A tensor may name the model's own file, as some exporters do; its bytes are checked like any other."""
    path, _ = outside
    point_to(path, path.name, offset=0, length=32 * 16 * 4)
    size = path.stat().st_size
    point_to(path, path.name, offset=size, length=32 * 16 * 4)
    with pytest.raises(UsageError, match="past the end"):
        io.load(path)


@pytest.mark.parametrize(
    ("entries", "kind", "says"),
    [
        ({"location": "gone.bin"}, UsageError, "missing"),
        ({"location": ""}, UsageError, "missing"),
        ({"location": "."}, UsageError, "missing"),
        ({"length": 2044}, ModelError, "2044 bytes of data, its type and shape ask for 2048"),
        ({"offset": 10**9}, UsageError, "past the end"),
        ({"offset": -8}, ModelError, "must be non-negative, got -8"),
        ({"offset": "many"}, ModelError, "invalid"),
        ({"length": "2048.0"}, ModelError, "invalid"),
    ],
)
def test_references_that_lead_nowhere(outside, entries, kind, says):
    path, _ = outside
    location = entries.pop("location", "weights.bin")
    point_to(path, location, **entries)
    with pytest.raises(kind, match=says) as caught:
        io.load(path)
    assert "\n" not in str(caught.value)


def test_a_data_file_that_was_cut_off(outside):
    path, _ = outside
    data = path.with_name("weights.bin")
    data.write_bytes(data.read_bytes()[:-40])
    with pytest.raises(UsageError, match="past the end of the file"):
        io.load(path)


def test_a_data_file_that_changes_before_it_is_read(outside, tmp_path):
    path, _ = outside
    model = io.load(path)
    path.with_name("weights.bin").write_bytes(b"")
    with pytest.raises(UsageError, match="has changed since the model was loaded"):
        io.save(model, tmp_path / "out" / "copy.onnx")
    assert list((tmp_path / "out").iterdir()) == []


def test_weights_are_never_read_from_a_file_that_took_the_place_of_theirs(written, tmp_path):
    """Saved in place, a model no longer has its weights; it says so, where it would have read others."""
    path, _ = written
    before = path.read_bytes()
    model = io.load(path)
    streamed = any(
        isinstance(v.const_value, StreamedTensor) for g in all_graphs(model) for v in g.initializers.values()
    )
    model.doc_string = "moves every byte that follows"
    io.save(model, path)
    if streamed:
        with pytest.raises(UsageError, match="load the model again"):
            io.save(model, tmp_path / "copy.onnx")
        assert not (tmp_path / "copy.onnx").exists()
    path.write_bytes(before)
    io.save(io.load(path), tmp_path / "copy.onnx")


# --- weights of all types


@pytest.mark.parametrize(
    "name",
    "FLOAT FLOAT16 BFLOAT16 DOUBLE INT8 UINT8 INT64 BOOL FLOAT8E4M3FN FLOAT8E5M2 INT4 UINT4 COMPLEX64".split(),
)
def test_weights_of_every_type_survive(name, tmp_path):
    kind = ir.DataType[name]
    size = -(-65 * 33 * kind.bitwidth // 8)
    bits = np.random.default_rng(0).integers(0, 2 if name == "BOOL" else 256, size, np.uint8)
    stored = onnx.TensorProto(name="w", dims=[65, 33], data_type=int(kind), raw_data=bits.tobytes())
    graph = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["y"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", int(kind), [65, 33])],
        [stored],
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    )
    model = io.load(path)
    assert isinstance(model.graph.initializers["w"].const_value, StreamedTensor)
    io.save(model, tmp_path / "copy.onnx")
    assert onnx.load(tmp_path / "copy.onnx").graph.initializer[0] == stored
    ours = np.asarray(model.graph.initializers["w"].const_value.numpy())
    assert (ours.dtype, ours.tobytes()) == (kind.numpy(), numpy_helper.to_array(stored).tobytes())


def test_a_chunked_tensor_is_the_whole_one(tmp_path, monkeypatch):
    from mpdeploy.graph import tensors

    values = np.random.default_rng(0).normal(size=(7, 1000)).astype(np.float32)
    (tmp_path / "data").write_bytes(bytes(12) + values.tobytes())
    monkeypatch.setattr(tensors, "CHUNK_BYTES", 1000)
    tensor = tensors.FileTensor(tmp_path / "data", 12, None, "w", ir.DataType.FLOAT, ir.Shape([7, 1000]))
    assert len(list(tensor.chunks())) == 28
    np.testing.assert_array_equal(tensor.numpy(), values)
    assert tensor.tobytes() == values.tobytes()
    low = tensors.RoundedTensor(tensor, tensors.Format.FP16, ir.DataType.FLOAT16, "w")
    np.testing.assert_array_equal(low.numpy(), values.astype(np.float16))
    assert low.tobytes() == values.astype(np.float16).tobytes()
