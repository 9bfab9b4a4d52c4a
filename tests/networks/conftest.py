"""Networks of the usual kinds, small, exported once a session; and models with trained weights from packages."""

import importlib.util
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SIZES = {
    "bert": {"layers": 2, "hidden": 128, "vocabulary": 500},
    "gpt2": {"layers": 2, "hidden": 128, "vocabulary": 500},
    "t5": {"layers": 2, "hidden": 128, "vocabulary": 500},
    "llama": {"layers": 2, "hidden": 128},
    "vit": {"layers": 2, "hidden": 128, "size": 64},
    "resnet50": {"depths": (1, 1, 1, 1), "size": 64},
    "unet": {},
    "yolo": {},
    "lstm": {},
}


def bench_networks():
    spec = importlib.util.spec_from_file_location("bench_networks", ROOT / "scripts" / "bench_networks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def network(tmp_path_factory):
    """Return a function that gives the path of a small network's FP32 ONNX file; its feed lies beside it."""
    import torch

    networks = bench_networks()
    folder = tmp_path_factory.mktemp(f"networks-{os.getpid()}")

    def path_of(name):
        path = folder / f"{name}.onnx"
        if not path.exists():
            torch.manual_seed(0)
            getattr(networks, name)(folder, **SIZES[name])
        return path

    return path_of
