"""Examples that the help of each command ends with."""

import click

EXAMPLES = {
    "init": ("mpdeploy init recipe.py", "mpdeploy init models/net.py"),
    "train": (
        "mpdeploy train models/digits_cnn.py --precision bf16-master --report -o runs/digits",
        "mpdeploy train models/digits_cnn.py --resume --epochs 20",
        "mpdeploy train models/digits_cnn.py --find-batch",
    ),
    "export": (
        "mpdeploy export runs/digits_cnn/model.pt --engine rtx",
        "mpdeploy export net.pth --model net.py:build --input image:batch,3,224,224 --data samples/",
        "mpdeploy export model.onnx -o out --precision fp16 --precision bf16 --data samples/",
    ),
    "convert": (
        "mpdeploy convert model.onnx -o low.onnx --precision fp16 --data samples/",
        "mpdeploy convert model.onnx -o low.onnx --precision bf16 --keep-fp32 '/head/*' --op-fp32 Softmax",
        "mpdeploy convert model.onnx -o mine.onnx --precision fp16 --plan low.plan.json",
    ),
    "search": (
        "mpdeploy search model.onnx -o low.onnx --precision fp16 --data samples/",
        "mpdeploy search model.onnx -o low.onnx --precision bf16 --data samples/ --budget 'worst_sample<=0.005'",
    ),
    "verify": (
        "mpdeploy verify model.onnx low.onnx --data samples/",
        "mpdeploy verify model.onnx low.onnx --data samples/ --budget 'cosine>=0.999,top1>=99%' --report out",
        "mpdeploy verify model.onnx low.onnx --data samples/ --layers",
    ),
    "build": (
        "mpdeploy build low.onnx -o low.engine --shapes image:1x3x224x224:8x3x224x224:32x3x224x224 --expect fp16",
        "mpdeploy build low.onnx -o low.engine --data samples/ --sm 86,89",
    ),
    "inspect": (
        "mpdeploy inspect low.onnx",
        "mpdeploy inspect low.onnx --node '/head/*'",
        "mpdeploy inspect one.plan.json --diff two.plan.json",
    ),
    "run": (
        "mpdeploy run low.onnx --data samples/ -o outputs/",
        "mpdeploy run model.onnx --data one.npz --runtime onnxruntime",
    ),
    "bench": (
        "mpdeploy bench model.onnx low.onnx --batch 1 --batch 8",
        "mpdeploy bench model.onnx --runtime onnxruntime --runtime openvino --report bench/",
    ),
    "pipeline": ("mpdeploy pipeline deploy.toml", "mpdeploy pipeline --example"),
    "bundle": (
        "mpdeploy bundle runs/digits_cnn/export -o digits-1",
        "mpdeploy bundle verify digits-1 --key key.pub",
    ),
    "pack": (
        "mpdeploy bundle pack runs/digits_cnn/export -o digits-1 --version 1",
        "mpdeploy bundle pack out -o digits-2 --triton --sign key.pem --licence LICENSE",
    ),
    "bundle verify": ("mpdeploy bundle verify digits-1", "mpdeploy bundle verify digits-1 --key key.pub"),
    "promote": (
        "mpdeploy promote digits-1 --store releases --why 'first release'",
        "mpdeploy promote digits-2 --store releases --why 'better data' --key key.pub",
    ),
    "rollback": (
        "mpdeploy rollback --store releases --why 'wrong classes at night'",
        "mpdeploy rollback --store releases --to 1 --why 'the last that was good'",
    ),
    "doctor": ("mpdeploy doctor", "mpdeploy doctor --json"),
}


def with_examples(command: click.Command, name: str) -> click.Command:
    """Let the command's help end with its examples."""
    if "Examples:" not in (command.epilog or ""):
        lines = "\n".join(f"  {line}" for line in EXAMPLES[name])
        command.epilog = f"{command.epilog or ''}\n\n\b\nExamples:\n{lines}".strip("\n")
    return command
