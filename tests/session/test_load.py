"""`mpdeploy.load`: the same call for arrays and tensors, nothing converted behind the caller's back."""

import threading
import warnings

import ml_dtypes
import numpy as np
import pytest
import torch

import mpdeploy
from mpdeploy.errors import ModelError, UsageError
from mpdeploy.runtime.runner import TensorSpec
from mpdeploy.session.model import Model

TWO = """<ir_version: 10, opset_import: ["" : 22]>
g (float[N] a, float[N] b) => (float[N] sum, float[N] difference) { sum = Add(a, b)  difference = Sub(a, b) }"""
BRAIN = """<ir_version: 10, opset_import: ["" : 22]>
g (bfloat16[N] a) => (bfloat16[N] twice) { twice = Add(a, a) }"""


def test_arrays_give_arrays_and_tensors_give_tensors(product, x):
    model = mpdeploy.load(product())
    y = model(x)
    assert isinstance(y, np.ndarray)
    np.testing.assert_allclose(y, x @ x.T, rtol=1e-5)
    tensor = model(torch.from_numpy(x))
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_array_equal(tensor.numpy(), y)
    np.testing.assert_array_equal(model({"x": x})["y"], y)


def test_half_models_run_under_true_rounding(product, x):
    model = mpdeploy.load(product("fp16"))
    assert model.describe().runtime == "mpdeploy emulator"
    assert np.isinf(model(x * 300)).any()  # a product over 65504; a hidden float32 would carry it


def test_positions_follow_the_model_and_several_outputs_are_a_tuple(text_model):
    model = mpdeploy.load(text_model(TWO))
    a, b = np.array([3.0], np.float32), np.array([1.0], np.float32)
    total, difference = model(a, b)
    assert (total.item(), difference.item()) == (4.0, 2.0)
    assert model({"b": b, "a": a})["difference"].item() == 2.0
    with pytest.raises(UsageError, match=r"takes 2 inputs, 1 were given.*a float32\[N\], b float32\[N\]"):
        model(a)


def test_bfloat16_goes_through_bit_by_bit(text_model):
    model = mpdeploy.load(text_model(BRAIN))
    values = torch.tensor([1.0, -3.0, 2.0**100], dtype=torch.bfloat16)
    assert torch.equal(model(values), values + values)
    array = np.array([1.5], ml_dtypes.bfloat16)
    assert model(array).dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (np.zeros((3, 8)), "float64, the model takes x float32.*convert it"),
        (np.zeros((3, 7), np.float32), "dimension 1 of input 'x' is 7"),
        (np.zeros(8, np.float32), "1 dimensions"),
        (torch.zeros(3, 8, dtype=torch.float16), "float16, the model takes"),
        (torch.zeros(3, 8, device="meta"), "on meta, the model runs on the CPU"),
        (torch.zeros(3, 8).to_sparse(), r"layout sparse_coo.*to_dense"),
        (torch.zeros(3, 8, dtype=torch.complex64).conj(), "complex64, the model takes"),
        (torch.zeros(3, 8, dtype=torch.float8_e4m3fn), "float8_e4m3fn, for which arrays have no type"),
        ({"z": np.zeros((3, 8), np.float32)}, "no input 'z'"),
        ({}, "lacks input 'x'"),
    ],
)
def test_what_does_not_fit_raises(product, wrong, says):
    with pytest.raises(UsageError, match=says):
        mpdeploy.load(product())(wrong)


def test_kinds_are_not_mixed(text_model):
    with pytest.raises(UsageError, match="mix arrays and torch tensors"):
        mpdeploy.load(text_model(TWO))(np.zeros(1, np.float32), torch.zeros(1))


def test_unknown_runtimes_and_files_are_refused(product, tmp_path):
    with pytest.raises(UsageError, match="no runtime 'cuda'; choose from auto, emulator"):
        mpdeploy.load(product(), runtime="cuda")
    with pytest.raises(UsageError, match=r"torch does not run an ONNX model .*; use --runtime emulator"):
        mpdeploy.load(product(), runtime="torch")
    for threads in (-1, 100_000):
        with pytest.raises(UsageError, match="no runtime works in"):
            mpdeploy.load(product(), threads=threads)
    with pytest.raises(UsageError, match="not found"):
        mpdeploy.load(tmp_path / "nothing.onnx")


def test_a_checkpoint_is_a_model_too(tmp_path, monkeypatch):
    """The checkpoint of an untrained recipe: what is called is the module itself."""
    from mpdeploy.amp.levels import Level
    from mpdeploy.source.loading import load_module
    from mpdeploy.train.loading import load_recipe
    from mpdeploy.train.loop import Settings, Training

    recipe = tmp_path / "small.py"
    recipe.write_text(RECIPE)
    training = Training(load_recipe(recipe), tmp_path / "run", Settings(Level.FP32, 1))
    list(training.steps())
    training.finish()
    model = mpdeploy.load(tmp_path / "run" / "model.pt", recipe=recipe)
    data = torch.rand(5, 4)
    expected = load_module(tmp_path / "run" / "model.pt", recipe).module(data)
    assert torch.equal(model(data), expected)
    assert model.describe().runtime == "torch"


NET = """
from torch import nn


def net():
    return nn.Linear(4, 2)
"""


def test_torch_models_of_others_are_models_too(tmp_path, monkeypatch):
    """A state dict, TorchScript, a program and a trusted pickle, all of the same layer."""
    layer, x = torch.nn.Linear(4, 2).eval(), torch.randn(3, 4)
    (tmp_path / "net.py").write_text(NET)
    torch.save(layer.state_dict(), tmp_path / "weights.pth")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(layer, x), tmp_path / "script.pt")
    batch = torch.export.Dim("batch", min=1)
    torch.export.save(torch.export.export(layer, (x,), dynamic_shapes=({0: batch},)), tmp_path / "program.pt2")
    torch.save(layer, tmp_path / "pickle.pt")
    words = ("x:batch,4",)
    models = [
        mpdeploy.load(tmp_path / "weights.pth", factory=f"{tmp_path / 'net.py'}:net", inputs=words),
        mpdeploy.load(tmp_path / "script.pt", inputs=words),
        mpdeploy.load(tmp_path / "program.pt2"),
        mpdeploy.load(tmp_path / "pickle.pt", inputs=words, trust=True),
    ]
    for model in models:
        with torch.no_grad():
            assert torch.allclose(model(x), layer(x))
        assert [str(spec.shape) for spec in model.inputs] == ["('batch', 4)"]
    with pytest.raises(ModelError, match="--trust"):
        mpdeploy.load(tmp_path / "pickle.pt", inputs=words)
    with pytest.raises(UsageError, match="but not the model they belong to"):
        mpdeploy.load(tmp_path / "weights.pth")


RECIPE = """
import numpy as np
import torch
from torch import nn
from mpdeploy.train import Arrays, Data, Recipe, TensorSpec, accuracy


def data():
    x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    y = (x.sum(1) > 0).astype(np.int64)
    return Data(Arrays((x[:48],), y[:48]), Arrays((x[48:],), y[48:]))


recipe = Recipe(
    inputs=(TensorSpec("x", "float32", ("batch", 4)),),
    outputs=("logits",),
    model=lambda: nn.Linear(4, 2),
    data=data,
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    schedule=lambda optimizer, steps: torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, steps),
    loss=nn.functional.cross_entropy,
    metric=accuracy,
    epochs=1,
    batch_size=16,
)
"""


def test_memory_is_shared_on_the_way_in():
    """What the model receives is the caller's memory: arrays as they are, CPU tensors as views."""
    received = {}

    class Witness:
        inputs = (TensorSpec("x", "float32", ("N",)), TensorSpec("b", "bfloat16", ("N",)))
        outputs = ()

        def run(self, feed):
            received.update(feed)
            return dict(feed)

    tensors = {"x": torch.ones(3), "b": torch.ones(3, dtype=torch.bfloat16)}
    results = Model(Witness(), "witness")(tensors)
    assert np.shares_memory(received["x"], tensors["x"].numpy())
    assert received["b"].ctypes.data == tensors["b"].data_ptr()
    assert results["x"].data_ptr() == tensors["x"].data_ptr()  # and on the way out
    assert results["b"].dtype == torch.bfloat16
    array = np.ones(3, np.float32)
    Model(Witness(), "witness")({"x": array, "b": np.ones(3, ml_dtypes.bfloat16)})
    assert np.shares_memory(received["x"], array)


def test_what_torch_only_notes_down_is_carried_out(text_model):
    model = mpdeploy.load(text_model(TWO))
    turned = torch.complex(torch.zeros(2), torch.ones(2)).conj().imag  # -1 each, by a note on the tensor
    assert turned.is_neg()
    total, difference = model(turned, torch.zeros(2, requires_grad=True))
    assert total.tolist() == difference.tolist() == [-1.0, -1.0]


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino", "emulator"])
def test_threads_share_a_model_and_arrays_may_be_read_only(product, runtime):
    if runtime == "openvino":
        pytest.importorskip("openvino", reason="OpenVINO is not installed")
    model = mpdeploy.load(product(), runtime=runtime)
    inputs = [np.full((16, 8), number, np.float32) for number in range(4)]
    for array in inputs:
        array.flags.writeable = False
    wrong = []

    def call(x):
        for _ in range(50):
            try:
                if not np.array_equal(model(x), x @ x.T):
                    wrong.append("other numbers")
            except Exception as error:  # noqa: BLE001 - told to the test
                wrong.append(str(error))

    threads = [threading.Thread(target=call, args=(x,)) for x in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_closed_model_does_not_run(product, x):
    with mpdeploy.load(product()) as model:
        assert model(x).shape == (3, 3)
    model.close()
    for use in (lambda: model(x), lambda: model(torch.from_numpy(x)), lambda: model.inputs, model.describe):
        with pytest.raises(UsageError, match="the model is closed"):
            use()


def test_a_bundle_names_its_models(product, tmp_path):
    from mpdeploy.bundle.pack import Packing, pack

    home = product().parent
    pack(home, tmp_path / "bundle", Packing("net"))
    with pytest.raises(UsageError, match=r"a bundle is not a model .*name a file in it: .*bundle/models/fp32\.onnx"):
        mpdeploy.load(tmp_path / "bundle")
    assert mpdeploy.load(tmp_path / "bundle" / "models" / "fp32.onnx").inputs
