"""Networks to measure converters on: exported from transformers' configs with random weights, or built by hand.

`python scripts/bench_networks.py FOLDER NAME...` writes FOLDER/NAME.onnx and one real-shaped feed, FOLDER/NAME.npz.
Random weights say nothing about accuracy on a task; speed, size, casts and drift of the arithmetic they show.
"""

import itertools
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import nn

OPSET = 20


class Call(nn.Module):
    """A module whose forward is a function of another module and tensors."""

    def __init__(self, module: nn.Module, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.module, self.function = module, function

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self.function(self.module, *tensors)


def export(folder: Path, name: str, module: nn.Module, feed: dict[str, torch.Tensor]) -> None:
    module.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            tuple(feed.values()),
            str(folder / f"{name}.onnx"),
            dynamo=True,
            input_names=list(feed),
            output_names=["output"],
            opset_version=OPSET,
            external_data=False,
            verbose=False,
        )
    np.savez(folder / f"{name}.npz", **{key: tensor.numpy() for key, tensor in feed.items()})


def tokens(vocabulary: int, batch: int, length: int, padded: int) -> dict[str, torch.Tensor]:
    """Ids, and a mask whose last row ends in padding."""
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[-1, length - padded :] = 0
    return {"input_ids": torch.randint(0, vocabulary, (batch, length)), "attention_mask": mask}


def bert(folder: Path, layers: int = 12, hidden: int = 768, vocabulary: int = 30522) -> None:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        attn_implementation="eager",
    )
    run = Call(BertModel(config), lambda m, ids, mask: m(input_ids=ids, attention_mask=mask).last_hidden_state)
    export(folder, "bert", run, tokens(vocabulary, 2, 64, 24))


def gpt2(folder: Path, layers: int = 12, hidden: int = 768, vocabulary: int = 50257) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=vocabulary,
        n_embd=hidden,
        n_layer=layers,
        n_head=hidden // 64,
        use_cache=False,
        attn_implementation="eager",
    )
    run = Call(GPT2LMHeadModel(config), lambda m, ids, mask: m(input_ids=ids, attention_mask=mask).logits)
    export(folder, "gpt2", run, tokens(vocabulary, 1, 64, 0))


def t5(folder: Path, layers: int = 3, hidden: int = 256, vocabulary: int = 32128) -> None:
    from transformers import T5Config, T5Model

    config = T5Config(
        vocab_size=vocabulary,
        d_model=hidden,
        d_ff=2 * hidden,
        num_layers=layers,
        num_heads=hidden // 64,
        d_kv=64,
        attn_implementation="eager",
    )
    run = Call(
        T5Model(config),
        lambda m, ids, mask, decoder: (
            m(input_ids=ids, attention_mask=mask, decoder_input_ids=decoder, use_cache=False).last_hidden_state
        ),
    )
    decoder = torch.randint(0, vocabulary, (2, 12))
    export(folder, "t5", run, {**tokens(vocabulary, 2, 48, 18), "decoder_input_ids": decoder})


def llama(folder: Path, layers: int = 3, hidden: int = 256) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=11 * hidden // 4,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=2000,
    )
    run = Call(
        LlamaForCausalLM(config),
        lambda m, ids, mask: m(input_ids=ids, attention_mask=mask, use_cache=False).logits,
    )
    export(folder, "llama", run, tokens(2000, 2, 64, 20))


def vit(folder: Path, layers: int = 12, hidden: int = 768, size: int = 224) -> None:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        image_size=size,
    )
    run = Call(ViTModel(config), lambda m, pixels: m(pixels).last_hidden_state)
    export(folder, "vit", run, {"pixels": torch.randn(1, 3, size, size)})


def resnet50(folder: Path, depths: tuple[int, ...] = (3, 4, 6, 3), size: int = 224) -> None:
    from transformers import ResNetConfig, ResNetForImageClassification

    model = ResNetForImageClassification(ResNetConfig(num_labels=1000, depths=list(depths)))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # as if trained: statistics that differ from channel to channel
            module.running_var.uniform_(0.5, 2.0)
            module.running_mean.normal_(0.0, 0.2)
    run = Call(model, lambda m, pixels: m(pixels).logits)
    export(folder, "resnet50", run, {"pixels": torch.randn(1, 3, size, size)})


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.middle = self.block(3, 16), self.block(16, 32), self.block(32, 64)
        self.up = nn.ConvTranspose2d(64, 32, 2, 2)
        self.join2, self.join1, self.last = self.block(64, 32), self.block(48, 16), nn.Conv2d(16, 3, 1)

    @staticmethod
    def block(given: int, made: int) -> nn.Module:
        first = [nn.Conv2d(given, made, 3, padding=1), nn.BatchNorm2d(made), nn.ReLU()]
        return nn.Sequential(*first, nn.Conv2d(made, made, 3, padding=1), nn.GroupNorm(4, made), nn.SiLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.down1(x)
        b = self.down2(nn.functional.max_pool2d(a, 2))
        c = self.join2(torch.cat([self.up(self.middle(nn.functional.max_pool2d(b, 2))), b], 1))
        c = nn.functional.interpolate(c, scale_factor=2.0, mode="bilinear")
        return self.last(self.join1(torch.cat([c, a], 1)))


def unet(folder: Path) -> None:
    export(folder, "unet", UNet(), {"x": torch.rand(1, 3, 64, 64)})


class Detector(nn.Module):
    """Three strided convolutions and a YOLO-like head: boxes from grid cells and anchors."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [3, 16, 32, 64]
        layers = [
            layer
            for given, made in itertools.pairwise(sizes)
            for layer in (nn.Conv2d(given, made, 3, 2, 1), nn.BatchNorm2d(made), nn.SiLU())
        ]
        self.body, self.head = nn.Sequential(*layers), nn.Conv2d(64, 27, 1)
        cells = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
        self.register_buffer("grid", torch.stack(cells[::-1], -1).view(1, 1, 16, 16, 2))
        self.register_buffer("anchors", torch.tensor([[10.0, 13], [16, 30], [33, 23]]).view(1, 3, 1, 1, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        p = self.head(self.body(x)).view(-1, 3, 9, 16, 16).permute(0, 1, 3, 4, 2).sigmoid()
        centre = (p[..., :2] * 2 - 0.5 + self.grid) * 8
        return torch.cat([centre, (p[..., 2:4] * 2) ** 2 * self.anchors, p[..., 4:]], -1).view(-1, 768, 9)


def yolo(folder: Path) -> None:
    export(folder, "yolo", Detector(), {"x": torch.rand(1, 3, 128, 128)})


def lstm(folder: Path) -> None:
    layers = nn.ModuleDict(
        {"lstm": nn.LSTM(40, 128, 2, batch_first=True, bidirectional=True), "out": nn.Linear(256, 10)}
    )
    run = Call(layers, lambda m, x: m["out"](m["lstm"](x)[0]))
    export(folder, "lstm", run, {"x": torch.randn(2, 30, 40)})


def decoder_1b(folder: Path) -> None:
    """1.1 billion parameters in the shapes of TinyLlama's layers, 4.4 GB of external data, written piece by piece."""
    hidden, inner, layers, vocabulary = 2048, 5632, 22, 32000
    random = np.random.default_rng(0)
    nodes, weights, offset = [], [], 0
    with (folder / "decoder_1b.data").open("wb") as data:

        def weight(name: str, *shape: int) -> str:
            nonlocal offset
            array = (random.standard_normal(shape, np.float32) * 0.02).astype(np.float32)
            tensor = onnx.TensorProto(name=name, data_type=onnx.TensorProto.FLOAT, dims=shape)
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in (("location", "decoder_1b.data"), ("offset", offset), ("length", array.nbytes)):
                tensor.external_data.add(key=key, value=str(value))
            weights.append(tensor)
            data.write(array.tobytes())
            offset += array.nbytes
            return name

        def node(op: str, *inputs: str, **attributes: int) -> str:
            made = f"{op}_{len(nodes)}"
            nodes.append(helper.make_node(op, list(inputs), [f"{made}_out"], made, **attributes))
            return f"{made}_out"

        x = node("Gather", weight("table", vocabulary, hidden), "input_ids")
        for layer in range(layers):
            norm = node("LayerNormalization", x, weight(f"{layer}.norm1", hidden))
            q, k = (node("MatMul", norm, weight(f"{layer}.{n}", hidden, hidden)) for n in ("q", "k"))
            scores = node("Softmax", node("Mul", node("MatMul", q, node("Transpose", k)), "scale"))
            x = node("Add", x, node("MatMul", scores, node("MatMul", norm, weight(f"{layer}.v", hidden, hidden))))
            norm = node("LayerNormalization", x, weight(f"{layer}.norm2", hidden))
            gate = node("MatMul", norm, weight(f"{layer}.gate", hidden, inner))
            gated = node(
                "Mul",
                node("Mul", gate, node("Sigmoid", gate)),
                node("MatMul", norm, weight(f"{layer}.up", hidden, inner)),
            )
            x = node("Add", x, node("MatMul", gated, weight(f"{layer}.down", inner, hidden)))
        node("MatMul", x, weight("head", hidden, vocabulary))
    nodes[-1].output[0] = "logits"
    graph = helper.make_graph(
        nodes,
        "decoder",
        [helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, [16])],
        [helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, [16, vocabulary])],
        [*weights, numpy_helper.from_array(np.float32(hidden**-0.5), "scale")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "decoder_1b.onnx").write_bytes(model.SerializeToString())
    np.savez(folder / "decoder_1b.npz", input_ids=random.integers(0, vocabulary, 16))


def chain(folder: Path, nodes: int) -> None:
    """A long network of small operators, to see how time grows with the number of nodes."""
    random = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array((random.standard_normal((32, 32)) * 0.2).astype(np.float32), "w"),
        numpy_helper.from_array((random.standard_normal(32) * 0.1).astype(np.float32), "b"),
    ]
    made, x = [], "x"
    for k in range(nodes // 5):
        act = "Softmax" if k % 3 == 0 else "Tanh"
        steps = (("MatMul", (x, "w")), ("Add", (f"0_{k}", "b")), (act, (f"1_{k}",)), ("Mul", (f"2_{k}", f"1_{k}")))
        for i, (op, given) in enumerate((*steps, ("LayerNormalization", (f"3_{k}", "b")))):
            made.append(helper.make_node(op, list(given), [f"{i}_{k}"], f"{op}_{k}"))
        x = f"4_{k}"
    value = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", 32]) for name in ("x", x)]
    graph = helper.make_graph(made, "chain", value[:1], value[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / f"chain_{nodes}.onnx")
    np.savez(folder / f"chain_{nodes}.npz", x=random.standard_normal((4, 32)).astype(np.float32))


NETWORKS: dict[str, Callable[[Path], None]] = {
    "bert": bert,
    "gpt2": gpt2,
    "t5": t5,
    "llama": llama,
    "vit": vit,
    "resnet50": resnet50,
    "unet": unet,
    "yolo": yolo,
    "lstm": lstm,
    "decoder_1b": decoder_1b,
    **{f"chain_{n}": (lambda folder, n=n: chain(folder, n)) for n in (1000, 2000, 5000, 10000, 20000)},
}


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:]:
        torch.manual_seed(0)
        NETWORKS[name](folder)


if __name__ == "__main__":
    main()
