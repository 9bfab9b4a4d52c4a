"""What runs an engine, held to TensorRT's documented contract without a GPU (see ``stand_in``): cases T14, T16, T17."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
import torch

from mpdeploy.engine.building import build_engine
from mpdeploy.engine.contract import check_contract
from mpdeploy.engine.execution import Execution
from mpdeploy.engine.memory import ALIGNMENT, aligned, buffer, output_allocator, shaped
from mpdeploy.engine.network import Port
from mpdeploy.engine.options import BuildOptions, parse_shapes
from mpdeploy.engine.runner import tensors_of, to_array
from mpdeploy.errors import ModelError, UsageError
from tests.engine.stand_in import Engine

trt = pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A real record, whose ports each test replaces by its own."""
    import onnx.parser

    folder = tmp_path_factory.mktemp("template")
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 17]> g (float[1] x) => (float[1] y) { y = Relu(x) }'
    )
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return build_engine(folder / "m.onnx", folder / "m.engine")


@pytest.fixture
def launched(template):
    """Return a function that makes a launcher on the CPU and the context behind it."""

    def make(inputs, outputs, compute, *, shapes=(), open_outputs=(), host=()):
        options = BuildOptions(profiles=parse_shapes(shapes))
        record = dataclasses.replace(template, inputs=tuple(inputs), outputs=tuple(outputs), options=options)
        engine = Engine(trt, record, compute, open_outputs, host)
        check_contract(trt, engine, record, "e")
        context = engine.create_execution_context()
        return Execution(trt, engine, context, record, CPU, "e"), context

    return make


def run(launcher, **feed):
    return {name: to_array(tensor) for name, tensor in launcher.run(tensors_of(feed), 7).items()}


def test_values_go_in_and_come_out(launched):
    launcher, context = launched(
        [Port("a", "fp32", (2, 3)), Port("b", "bf16", (3,))],
        [Port("y", "bf16", (2, 3)), Port("z", "fp32", (2, 3))],
        lambda x: {"y": x["a"].astype(np.float32) + x["b"].astype(np.float32), "z": -x["a"]},
    )
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([1, 2, 3], ml_dtypes.bfloat16)
    got = run(launcher, a=a, b=b)
    assert got["y"].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(got["y"].astype(np.float32), a + b.astype(np.float32))
    np.testing.assert_array_equal(got["z"], -a)
    assert context.streams == [7]


def test_results_of_one_run_survive_the_next(launched):
    launcher, _ = launched([Port("x", "fp32", (4,))], [Port("y", "fp32", (4,))], lambda x: {"y": 2 * x["x"]})
    first = launcher.run(tensors_of({"x": np.ones(4, np.float32)}), 0)["y"]
    launcher.run(tensors_of({"x": np.zeros(4, np.float32)}), 0)
    assert first.tolist() == [2, 2, 2, 2]


def test_tensors_are_read_in_place_unless_they_lie_badly(launched):
    launcher, context = launched([Port("x", "fp32", (64,))], [Port("y", "fp32", (64,))], lambda x: {"y": x["x"]})
    good = shaped(buffer(256, CPU), torch.float32, (64,)).fill_(3)
    launcher.run({"x": good}, 0)
    assert context.addresses["x"] == good.data_ptr()
    many = shaped(buffer(1024, CPU), torch.float32, (256,)).copy_(torch.arange(256))
    for odd in (many[1:65], many[::4]):  # badly aligned; not contiguous
        got = launcher.run({"x": odd}, 0)["y"]
        assert torch.equal(got, odd)


def test_scalars_and_foreign_byte_order(launched):
    launcher, _ = launched(
        [Port("x", "fp32", (2,)), Port("s", "fp32", ())],
        [Port("y", "fp32", ())],
        lambda x: {"y": (x["x"] * x["s"]).sum()},
    )
    got = run(launcher, x=np.array([1, 2], ">f4"), s=np.array(3, np.float32))
    assert got["y"].shape == ()
    assert got["y"] == 9


def test_empty_tensors_have_an_address(launched):
    launcher, _ = launched(
        [Port("x", "fp32", ("N", 2))], [Port("y", "fp32", (None, 2))], lambda x: {"y": x["x"]}, shapes=["x:0x2:1x2:2x2"]
    )
    assert run(launcher, x=np.zeros((0, 2), np.float32))["y"].shape == (0, 2)


def test_the_profile_that_holds_the_shapes_is_chosen(launched):
    launcher, context = launched(
        [Port("x", "fp32", ("N",))],
        [Port("y", "fp32", ("N",))],
        lambda x: {"y": x["x"]},
        shapes=["x:1:1:1", "x:2:4:8"],
    )
    for size in (1, 3, 8, 1):
        assert run(launcher, x=np.ones(size, np.float32))["y"].shape == (size,)
    assert context.profiles == [0, 1, 0]
    with pytest.raises(UsageError, match=r"\[9\] is outside .* x:1:1:1 or x:2:4:8|\[9\] is outside"):
        run(launcher, x=np.ones(9, np.float32))


def test_values_that_decide_shapes_are_read_on_the_host_and_held_to_their_range(launched):
    launcher, context = launched(
        [Port("x", "fp32", (6,)), Port("size", "int64", (2,), holds_shape=True)],
        [Port("y", "fp32", (None, None))],
        lambda x: {"y": x["x"].reshape(x["size"])},
        shapes=["size:1x1:2x3:6x6"],
        host=("size",),
    )
    x = np.arange(6, dtype=np.float32)
    assert run(launcher, x=x, size=np.array([2, 3]))["y"].shape == (2, 3)
    assert run(launcher, x=x, size=np.array([6, 1]))["y"].shape == (6, 1)
    assert context.profiles == [0]
    with pytest.raises(UsageError, match=r"'size' .*\[7, 1\] is outside"):
        run(launcher, x=x, size=np.array([7, 1]))


def test_an_output_on_the_host_comes_back_too(launched):
    launcher, _ = launched(
        [Port("x", "fp32", (2, 3))], [Port("y", "int64", (2,))], lambda x: {"y": np.array(x["x"].shape)}, host=("y",)
    )
    assert run(launcher, x=np.zeros((2, 3), np.float32))["y"].tolist() == [2, 3]


def test_t17_a_size_that_depends_on_the_data(launched):
    launcher, context = launched(
        [Port("x", "fp32", (5,))],
        [Port("where", "int64", (1, None)), Port("y", "fp32", (5,))],
        lambda x: {"where": np.array(np.nonzero(x["x"])), "y": x["x"]},
        open_outputs=("where",),
    )
    found = [
        run(launcher, x=np.array(x, np.float32))["where"].tolist() for x in ([1, 0, 2, 0, 3], [0] * 5, [0, 4, 0, 0, 0])
    ]
    assert found == [[[0, 2, 4]], [[]], [[1]]]
    assert not context.allocators  # nothing that a later run could write to


def test_a_refusal_comes_with_tensorrts_reason(launched):
    from mpdeploy.engine.messages import logger_for

    launcher, context = launched([Port("x", "fp32", (2,))], [Port("y", "fp32", (2,))], lambda x: {"y": x["x"]})

    def refuse(stream):
        logger_for(trt).log(trt.ILogger.ERROR, "the kernel is out of sorts")
        return False

    context.execute_async_v3 = refuse
    with pytest.raises(ModelError, match="refuses to run: the kernel is out of sorts"):
        run(launcher, x=np.ones(2, np.float32))
    context.set_input_shape = lambda name, shape: False
    with pytest.raises(ModelError, match="refuses the shape of 'x'"):
        run(launcher, x=np.ones(2, np.float32))


def test_shapes_that_cannot_be_inferred(launched):
    launcher, context = launched([Port("x", "fp32", (2,))], [Port("y", "fp32", (2,))], lambda x: {"y": x["x"]})
    context.infer_shapes = lambda: ["x"]
    with pytest.raises(ModelError, match="cannot infer shapes from x"):
        run(launcher, x=np.ones(2, np.float32))

    def fail():
        raise RuntimeError("dimensions differ")

    context.infer_shapes = fail
    with pytest.raises(ModelError, match="cannot infer the shapes: dimensions differ"):
        run(launcher, x=np.ones(2, np.float32))


def test_an_allocator_without_memory_says_so(launched, monkeypatch):
    launcher, _ = launched(
        [Port("x", "fp32", (2,))], [Port("y", "fp32", (None,))], lambda x: {"y": x["x"]}, open_outputs=("y",)
    )

    x = shaped(buffer(8, CPU), torch.float32, (2,)).fill_(1)

    def full(*_):
        raise MemoryError("full")

    monkeypatch.setattr("mpdeploy.engine.memory.buffer", full)
    with pytest.raises(ModelError, match="no memory for output 'y': full"):
        launcher.run({"x": x}, 0)


def test_the_allocator_keeps_memory_that_is_large_enough():
    allocator = output_allocator(trt, CPU)
    first = allocator.reallocate_output("y", None, 1000, 512)
    assert first % 512 == 0
    assert allocator.reallocate_output("y", first, 10, 512) == first
    assert allocator.reallocate_output_async("y", first, 5000, 512, 0) % 512 == 0
    assert allocator.memory.nbytes >= 5000
    assert output_allocator(trt, CPU).reallocate_output("y", None, 0, 1)
    allocator.notify_shape("y", trt.Dims([2, 3]))
    assert allocator.shape == (2, 3)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 1000])
def test_buffers_are_aligned(size):
    memory = buffer(size, CPU)
    assert memory.data_ptr() % ALIGNMENT == 0
    assert memory.data_ptr()
    assert memory.nbytes == max(size, 1)
    odd = torch.arange(size + 1, dtype=torch.uint8)[1:]
    assert torch.equal(aligned(odd), odd)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"inputs": (Port("x", "fp16", (2,)),)}, "input 'x' of the engine is fp32, its sidecar says fp16"),
        ({"inputs": (Port("x", "fp32", (3,)),)}, r"input 'x' of the engine has shape \[2\]"),
        ({"inputs": (Port("z", "fp32", (2,)),)}, "the sidecar has an input 'z' that the engine lacks"),
        ({"outputs": ()}, "the engine has an output 'y' that the sidecar lacks"),
        ({"outputs": (Port("y", "fp32", (2, 1)),)}, "output 'y' of the engine has shape"),
    ],
)
def test_t16_an_engine_that_is_not_what_its_sidecar_says(template, changes, says):
    record = dataclasses.replace(template, inputs=(Port("x", "fp32", (2,)),), outputs=(Port("y", "fp32", (None,)),))
    engine = Engine(trt, record, lambda x: x)
    check_contract(trt, engine, record, "e")
    with pytest.raises(UsageError, match=says):
        check_contract(trt, engine, dataclasses.replace(record, **changes), "e")
