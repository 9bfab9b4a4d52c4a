"""A folder with a sound file of every kind that a command reads, for the scripts that break files and kill commands."""

from collections.abc import Callable
from pathlib import Path

from children import command, run

RECIPE = """
import numpy as np
import torch
from torch import nn
from mpdeploy.train import Arrays, Data, Recipe, TensorSpec, accuracy

x = np.random.default_rng(0).standard_normal((64, 16)).astype(np.float32)
y = (x[:, 0] > 0).astype(np.int64)


def build():
    return nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))


recipe = Recipe(
    inputs=(TensorSpec("x", "float32", ("n", 16)),), outputs=("logits",), model=build,
    data=lambda: Data(Arrays((x,), y), Arrays((x,), y)), optimizer=lambda m: torch.optim.SGD(m.parameters(), 0.1),
    loss=nn.functional.cross_entropy, metric=accuracy, epochs=2, batch_size=16,
)
"""
DEPLOY = """
output = "out"
[model]
path = "net.onnx"
[convert]
precision = ["fp16"]
data = "data.npz"
keep_fp32 = ["last"]
[verify]
data = "data.npz"
budget = "cosine>=0.9"
[bundle]
name = "net"
version = "1.0"
"""
SETTINGS = """
[verify]
budget = "cosine>=0.9,top1>=0.5"
tasks = []
[verify.fp16]
budget = "cosine>=0.99"
"""


def write_all(folder: Path, log: Path) -> None:
    """Write the files; raise ``SystemExit`` with the output of whatever fails."""
    folder.mkdir(parents=True)
    (folder / "recipe.py").write_text(RECIPE)
    (folder / "deploy.toml").write_text(DEPLOY)
    (folder / "settings.toml").write_text(SETTINGS)
    _do(lambda: _write_models(folder), folder, log)
    for words in (
        ("convert", "net.onnx", "-o", "low.onnx", "--precision", "fp16", "--data", "data.npz"),
        ("verify", "net.onnx", "low.onnx", "--data", "data.npz", "--report", "report"),
        ("train", "recipe.py", "-o", "trained", "--save-every", "2"),
        ("export", "trained/model.pt", "--recipe", "recipe.py", "-o", "export"),
        ("bundle", "export", "-o", "bundle", "--sample", "data.npz"),
        ("promote", "bundle", "--store", "store", "--why", "first"),
        ("build", "low.onnx", "-o", "net.engine", "--shapes", "x:1x16:4x16:8x16", "--sm", "86"),
    ):
        _do(command(words), folder, log)


def _do(work: Callable[[], object], folder: Path, log: Path) -> None:
    ended = run(work, folder, log)
    if ended.code != 0:
        raise SystemExit(f"the sound files cannot be made: {ended.text}")


def _write_models(folder: Path) -> None:
    import numpy as np
    import onnx
    import torch
    from onnx import helper, numpy_helper
    from safetensors.torch import save_file
    from transformers import BertConfig, BertForSequenceClassification

    random = np.random.default_rng(0)
    x = random.standard_normal((8, 16)).astype(np.float32)
    np.savez(folder / "data.npz", x=x, labels=np.arange(8) % 4)
    np.savez(folder / "input.npz", input=x)
    np.savez_compressed(folder / "packed.npz", x=x, labels=np.arange(8) % 4)
    weights = [("w0", (16, 32)), ("b0", (32,)), ("w1", (32, 4))]
    constants = [numpy_helper.from_array(random.standard_normal(s).astype(np.float32) / 4, n) for n, s in weights]
    branch = []
    for op in ("Relu", "Sigmoid"):
        result = helper.make_tensor_value_info(f"r{op}", 1, None)
        branch.append(helper.make_graph([helper.make_node(op, ["h"], [f"r{op}"])], op, [], [result]))
    nodes = [
        helper.make_node("Gemm", ["x", "w0", "b0"], ["h"], "first"),
        helper.make_node("ReduceSum", ["x"], ["sum"], "sum", keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"], "greater"),
        helper.make_node("If", ["positive"], ["r"], "if", then_branch=branch[0], else_branch=branch[1]),
        helper.make_node("MatMul", ["r", "w1"], ["l"], "last"),
        helper.make_node("Softmax", ["l"], ["y"], "softmax", axis=-1),
    ]
    constants.append(numpy_helper.from_array(np.float32(0), "zero"))
    ports = [helper.make_tensor_value_info("x", 1, ["N", 16])], [helper.make_tensor_value_info("y", 1, ["N", 4])]
    model = helper.make_model(
        helper.make_graph(nodes, "g", *ports, constants), opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )
    onnx.save(model, folder / "net.onnx")
    (folder / "external").mkdir()
    onnx.save(model, folder / "external" / "net.onnx", save_as_external_data=True, location="w.bin", size_threshold=16)
    net = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
    torch.save(net.state_dict(), folder / "state.pth")
    torch.save(net.state_dict(), folder / "legacy.pth", _use_new_zipfile_serialization=False)
    save_file(net.state_dict(), folder / "state.safetensors")
    torch.jit.trace(net, torch.zeros(2, 16)).save(str(folder / "script.pt"))
    torch.export.save(torch.export.export(net, (torch.zeros(2, 16),)), folder / "program.pt2")
    config = BertConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=64,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(folder / "bert")
