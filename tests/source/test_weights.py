"""Which weights are meant, under whatever names they were stored; what does not fit is told by name."""

from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from mpdeploy.errors import UsageError
from mpdeploy.source import Given, open_source
from mpdeploy.source.factory import build_module
from mpdeploy.source.fitting import fit_weights
from mpdeploy.source.weights import pick_weights

IMAGE = ("image:batch,3,8,8",)
W = {"w": torch.ones(2)}
AVERAGE = {"w": torch.zeros(2)}


def named(prefix, weights):
    return {f"{prefix}{name}": tensor for name, tensor in weights.items()}


@pytest.mark.parametrize(
    "content",
    [
        W,
        {"state_dict": W, "optimizer": {"state": {}}, "epoch": 3},
        {"model": W},
        {"model_state_dict": W, "optimizer_state_dict": {0: torch.ones(2)}},
        {"model": {"state_dict": W}},
        {"net": W, "scaler": {"scale": 1.0}},
        {"params": W},
        {"anything": W},
        {**W, "_extra_state": None},
    ],
)
def test_the_only_weights_are_found(content):
    picked = pick_weights(content, None, "model.pt")
    assert picked.weights.keys() == {"w"}
    assert picked.notes == ()


@pytest.mark.parametrize("name", ["ema", "model_ema", "state_dict_ema", "ema_state_dict", "params_ema", "swa_model"])
def test_raw_and_averaged_weights_must_be_chosen_between(name):
    content = {"state_dict": W, name: AVERAGE}
    with pytest.raises(UsageError, match=rf"both raw weights and their average: `state_dict`, `{name}`.*--weights ema"):
        pick_weights(content, None, "model.pt")
    for choice, expected in (("ema", AVERAGE), ("model", W), (name, AVERAGE), ("state_dict", W)):
        picked = pick_weights(content, choice, "model.pt")
        assert torch.equal(picked.weights["w"], expected["w"])
        assert "the entry" in picked.notes[0]


def test_several_models_in_a_file():
    content = {"generator": W, "discriminator": AVERAGE}
    with pytest.raises(UsageError, match=r"several sets of weights: `generator`, `discriminator` .*--weights NAME"):
        pick_weights(content, None, "model.pt")
    assert torch.equal(pick_weights(content, "discriminator", "model.pt").weights["w"], AVERAGE["w"])
    with pytest.raises(UsageError, match=r"no weights `ema` in it .*it holds `generator`, `discriminator`"):
        pick_weights(content, "ema", "model.pt")


def test_an_averaged_model_of_torch():
    average = torch.optim.swa_utils.AveragedModel(nn.Linear(2, 2))
    picked = pick_weights(average.state_dict(), None, "model.pt")
    assert picked.weights.keys() == {"module.weight", "module.bias"}
    assert picked.notes == ("the weights are those of the entry `ema`",)
    with pytest.raises(UsageError, match="no weights `model`"):
        pick_weights(average.state_dict(), "model", "model.pt")


def test_what_holds_no_weights():
    for content in ({}, {"optimizer": {"w": torch.ones(2)}}, [torch.ones(2)], 3, {"epoch": 1}):
        with pytest.raises(UsageError, match="holds no weights"):
            pick_weights(content, None, "model.pt")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_p15_half_weights_are_named_and_cast(dtype):
    picked = pick_weights({"w": torch.ones(2, dtype=dtype), "steps": torch.tensor(3)}, None, "model.pt")
    assert picked.weights["w"].dtype == torch.float32
    assert picked.weights["steps"].dtype == torch.int64
    assert str(dtype).removeprefix("torch.") in picked.notes[0]
    assert "is lost" in picked.notes[0]


def test_p15_weights_in_eight_bits_are_named_too():
    picked = pick_weights({"w": torch.ones(2).to(torch.float8_e4m3fn)}, None, "model.pt")
    assert "float8_e4m3fn" in picked.notes[0]
    assert picked.weights["w"].dtype == torch.float32


def test_weights_of_a_training_that_diverged_are_told():
    content = {"a": torch.tensor([1.0, float("nan")]), "mask": torch.tensor([0.0, float("-inf")])}
    assert pick_weights(content, None, "model.pt").notes == ("`a` holds NaN: the training had diverged",)
    content["b"] = content["a"].half()
    assert "`a` and 1 other weights hold NaN" in pick_weights(content, None, "model.pt").notes[1]


@pytest.mark.parametrize(("dtype", "kind"), [(torch.int8, "whole"), (torch.complex64, "complex")])
def test_numbers_of_another_kind_do_not_fit(net, dtype, kind):
    weights = {**net.state_dict(), "head.bias": net.head.bias.to(dtype)}
    with pytest.raises(UsageError, match=rf"`head\.bias` holds {kind} numbers, the model wants real ones"):
        fit_weights(type(net)(), weights, "model.pt", "")


# What people save, as their trainers save it.
def ddp_of(net):
    return named("module.", net.state_dict())


CHECKPOINTS = {
    "plain": lambda net: net.state_dict(),
    "state_dict": lambda net: {"state_dict": net.state_dict(), "epoch": 3, "best_acc1": np.float64(71.3)},
    "model": lambda net: {"model": net.state_dict(), "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]}},
    "net": lambda net: {"net": net.state_dict(), "acc": np.float32(93.1), "epoch": np.int64(200)},
    "lightning": lambda net: {
        "epoch": 1, "global_step": 9, "pytorch-lightning_version": "2.5.0", "loops": {"fit_loop": {"state_dict": {}}},
        "state_dict": {**named("model.", net.state_dict()), "criterion.weight": torch.ones(5)},
        "callbacks": {"ModelCheckpoint{'monitor': None}": {"best_model_path": Path("a.ckpt"), "current": 1.0}},
        "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(2)}}}], "lr_schedulers": [], "hparams_name": "kwargs",
        "hyper_parameters": {"lr": 0.1, "widths": [1, 2]},
    },
    "ddp": ddp_of,
    "compiled": lambda net: named("_orig_mod.", net.state_dict()),
    "ddp of compiled": lambda net: named("module._orig_mod.", net.state_dict()),
    "compiled ddp in an entry": lambda net: {"model_state_dict": named("_orig_mod.module.", net.state_dict())},
    "fsdp, gathered": lambda net: {"model": named("_fsdp_wrapped_module.", net.state_dict())},
    "deepspeed": lambda net: {"module": net.state_dict(), "dp_world_size": 4, "ds_config": {"fp16": {"enabled": True}}},
    "accelerate": lambda net: OrderedDict(named("module.", net.state_dict())),
    "fairseq": lambda net: {"args": None, "model": net.state_dict(), "optimizer_history": [], "extra_state": {}},
    "torch's average": lambda net: torch.optim.swa_utils.AveragedModel(net).state_dict(),
    "average of ddp": lambda net: {"n_averaged": torch.tensor(3), **named("module.module.", net.state_dict())},
    "parameters": lambda net: dict(net.named_parameters()) | dict(net.named_buffers()),
    "a random state": lambda net: {"state_dict": net.state_dict(), "rng": {"torch": torch.ones(3), "numpy": 1}},
}  # fmt: skip


@pytest.mark.parametrize("shape", CHECKPOINTS)
@pytest.mark.parametrize("zipped", [True, False])
def test_checkpoints_as_trainers_write_them(tmp_path, net, image, factory, shape, zipped):
    torch.save(CHECKPOINTS[shape](net), tmp_path / "model.pth.tar", _use_new_zipfile_serialization=zipped)
    loaded = open_source(tmp_path / "model.pth.tar", Given(factory=factory, inputs=IMAGE))
    assert torch.allclose(loaded.module(image), net(image), atol=1e-6)


@pytest.mark.parametrize(
    "prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "model.", "net.module.", "_fsdp_wrapped_module."]
)
def test_prefixes_of_wrappers_come_off(net, prefix):
    fresh = type(net)()
    notes = fit_weights(fresh, named(prefix, net.state_dict()), "model.pt", "")
    assert all(torch.equal(a, b) for a, b in zip(fresh.state_dict().values(), net.state_dict().values(), strict=True))
    assert bool(notes) == bool(prefix)


def test_a_training_modules_other_weights_are_left(net):
    weights = {**named("model.", net.state_dict()), "loss.weight": torch.ones(3), "metric.total": torch.ones(1)}
    fit_weights(type(net)(), weights, "model.ckpt", "")


def test_a_module_that_is_called_module_keeps_its_name():
    model = nn.ModuleDict({"module": nn.Linear(2, 2)})
    assert fit_weights(model, model.state_dict(), "model.pt", "") == ()


def test_tied_weights_need_to_stand_there_once():
    model = nn.ModuleDict({"table": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
    model["head"].weight = model["table"].weight
    fit_weights(model, {"table.weight": torch.full((5, 3), 2.0)}, "model.pt", "")
    assert (model["head"].weight == 2).all()


def test_what_does_not_fit_is_told_with_the_nearest_name(net):
    weights = dict(net.state_dict())
    weights["heads.weight"] = weights.pop("head.weight")
    weights["conv.bias"] = torch.zeros(9)
    weights["extra"] = torch.zeros(1)
    with pytest.raises(UsageError) as caught:
        fit_weights(type(net)(), weights, "model.pt", "look at the factory")
    text = str(caught.value)
    assert "`head.weight` is missing (the file has `heads.weight`)" in text
    assert "`heads.weight` is not in the model (it has `head.weight`)" in text
    assert "and 1 more" in text
    assert text.endswith("look at the factory")
    with pytest.raises(UsageError, match=r"`conv\.bias` has shape \(9,\), the model wants \(4,\)"):
        fit_weights(type(net)(), {**net.state_dict(), "conv.bias": torch.zeros(9)}, "model.pt", "")


def test_the_function_that_builds_the_model(tmp_path, factory, net):
    torch.save(net.state_dict(), tmp_path / "model.pt")
    where = factory.rpartition(":")[0]
    for word, says in (
        (f"{where}:Nett", "has no function 'Nett' .*it has .*Net"),
        (f"{where}:broken", "RuntimeError: no such backbone"),
        (f"{where}:number", "returned a int, not a torch.nn.Module"),
        (f"{tmp_path}/none.py:Net", "model module not found"),
        ("no_such_package.models:Net", "cannot be imported: ModuleNotFoundError"),
        ("torch.nn:Nothing", "the module torch.nn has no function 'Nothing'"),
        ("just words", "names no function"),
    ):
        with pytest.raises(UsageError, match=says):
            open_source(tmp_path / "model.pt", Given(factory=word, inputs=IMAGE))
    assert isinstance(build_module("torch.nn:Identity"), nn.Identity)
