"""Where the models with trained weights lie, and feeds of the kind they were made for."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest


@dataclass(frozen=True)
class Trained:
    """A model in an installed package, and how far it may drift in FP16 and in BF16."""

    package: str
    file: str
    fp16: float
    bf16: float


TRAINED = {
    "magika": Trained("magika", "models/standard_v3_3/model.onnx", 0.005, 0.05),
    "ocr-detect": Trained("rapidocr", "models/PP-OCRv6_det_small.onnx", 0.03, 0.2),
    "ocr-recognise": Trained("rapidocr", "models/PP-OCRv6_rec_small.onnx", 0.02, 0.2),
    "ocr-turn": Trained("rapidocr", "models/ch_ppocr_mobile_v2.0_cls_mobile.onnx", 0.01, 0.1),
    "vad": Trained("silero_vad", "data/silero_vad.onnx", 0.01, 0.05),
    "vad-16k": Trained("silero_vad", "data/silero_vad_16k_op15.onnx", 0.01, 0.05),
    "vad-ifless": Trained("silero_vad", "data/silero_vad_op18_ifless.onnx", 0.01, 0.05),
}


def path_of(name: str) -> Path:
    """Return the model's file without importing its package; skips the test where it is not installed."""
    trained = TRAINED[name]
    spec = importlib.util.find_spec(trained.package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{trained.package} is not installed: pip install --no-deps -r requirements-models.lock")
    return Path(spec.submodule_search_locations[0]) / trained.file


def feed_of(name: str) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    if name == "magika":
        text = b"import numpy as np\n\n\ndef f(x):\n    return np.sin(x) * 2\n" * 40
        return {"bytes": np.frombuffer(text[:2048], np.uint8).astype(np.int32)[None]}
    if name.startswith("ocr"):
        size = {"ocr-detect": (160, 160), "ocr-recognise": (48, 160), "ocr-turn": (48, 192)}[name]
        page = np.ones((1, 3, *size), np.float32)
        for _ in range(40):  # strokes on paper
            y, x = random.integers(0, size[0] - 6), random.integers(0, size[1] - 12)
            page[:, :, y : y + random.integers(1, 6), x : x + random.integers(2, 12)] = -1.0
        return {"x": page}
    time = np.arange(576) / 16000
    voice = 0.3 * np.sin(2 * np.pi * 220 * time) * np.sin(2 * np.pi * 30 * time) + 0.02 * random.standard_normal(576)
    return {
        "input": voice[None].astype(np.float32),
        "state": np.zeros((2, 1, 128), np.float32),
        "sr": np.array(16000, np.int64),
    }
