"""Small graphs in ONNX's text form, planned and converted in a temporary folder."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from mpdeploy import records
from mpdeploy.conversion.api import convert
from mpdeploy.plan.record import PrecisionPlan


@dataclass
class Workshop:
    folder: Path

    def source(self, text, opset=18):
        path = self.folder / "source.onnx"
        onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}'), path)
        return path

    def feed(self, **arrays):
        path = self.folder / "feed.npz"
        np.savez(path, **arrays)
        return str(path)

    def plan(self, text, precision="fp16", opset=18, **words):
        return self.plan_of(self.source(text, opset), precision, **words)

    def plan_of(self, source, precision="fp16", **words):
        result = convert(source, self.folder / "made.onnx", precision=precision, **words)
        return records.load(PrecisionPlan, Path(result.plan))

    @property
    def made(self):
        return onnx.load(self.folder / "made.onnx")


@pytest.fixture
def workshop(tmp_path):
    return Workshop(tmp_path)
