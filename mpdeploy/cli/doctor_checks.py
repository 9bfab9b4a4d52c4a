"""What `mpdeploy doctor` tries: each library really computes a tiny model here, or says why it cannot."""

import importlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from mpdeploy.errors import MpdeployError
from mpdeploy.numerics.formats import Format

# Rounds to the format, multiplies, and comes back: legal in every opset that knows bfloat16 matrix products.
_PRODUCT = """<ir_version: 10, opset_import: ["" : 22]>
probe (float[2,8] x) => (float[2,2] y) {{
    low = Cast<to={code}>(x)  turned = Transpose<perm=[1,0]>(low)
    product = MatMul(low, turned)  y = Cast<to=1>(product)
}}"""
# exp(12) is beyond FP16: real half precision gives infinity, hidden float32 gives 12.
_OVERFLOW = """<ir_version: 10, opset_import: ["" : 22]>
probe (float[1] x) => (float[1] y) { low = Cast<to=10>(x)  big = Exp(low)  back = Log(big)  y = Cast<to=1>(back) }"""
_ONNX_CODES = {Format.FP32: 1, Format.FP16: 10, Format.BF16: 16}


class Status(Enum):
    """What came of a check."""

    WORKS = "works"
    MISSING = "missing"
    BROKEN = "broken"


@dataclass(frozen=True)
class Finding:
    """One library: whether mpdeploy needs it, what came of the check, and what to do if it did not work.

    ``formats`` are those that it really computes in here.
    """

    name: str
    role: str
    required: bool
    status: Status
    version: str = ""
    formats: tuple[str, ...] = ()
    detail: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Check:
    """One thing to try: ``run`` returns version, formats and detail, or raises."""

    name: str
    role: str
    run: Callable[[], tuple[str, tuple[str, ...], str]]
    install: str
    required: bool = False

    def finding(self) -> Finding:
        """Return what came of it.  Nothing is raised: a library that fails in any way is a finding, too."""
        try:
            version, formats, detail = self.run()
        except ImportError as error:
            return self._failed(Status.MISSING, f"not installed ({error})", self.install)
        except MpdeployError as error:
            return self._failed(Status.MISSING, error.what, error.remedy)
        except Exception as error:  # noqa: BLE001 - whatever a foreign library throws is what the user wants to see
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            return self._failed(Status.BROKEN, reason, f"reinstall it: {self.install}")
        return Finding(self.name, self.role, self.required, Status.WORKS, version, formats, detail)

    def _failed(self, status: Status, detail: str, remedy: str) -> Finding:
        return Finding(self.name, self.role, self.required, status, detail=detail, remedy=remedy)


def all_checks() -> Iterator[Check]:
    """Yield every check, the required libraries first."""
    yield Check("torch", "training, export", _try_torch, "pip install torch", required=True)
    yield Check("onnxruntime", "reference runs", _try_onnxruntime, "pip install mpdeploy", required=True)
    yield Check("emulator", "true rounding", _try_emulator, "pip install mpdeploy", required=True)
    yield Check("openvino", "BF16 on CPU", _try_openvino, "pip install 'mpdeploy[openvino]'")
    yield Check("tensorrt-rtx", "engines", lambda: _try_engine("rtx"), "pip install 'mpdeploy[rtx]'")
    yield Check("tensorrt", "engines", lambda: _try_engine("tensorrt"), "pip install 'mpdeploy[tensorrt]'")
    yield Check("cryptography", "signatures", _try_cryptography, "pip install 'mpdeploy[sign]'")
    yield Check("tritonclient", "Triton's schema", _try_triton_schema, "pip install 'mpdeploy[triton]'")


def _try_torch() -> tuple[str, tuple[str, ...], str]:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    formats = []
    for kind, dtype in ((Format.FP32, torch.float32), (Format.BF16, torch.bfloat16), (Format.FP16, torch.float16)):
        ones = torch.ones(8, 8, dtype=dtype, device=device)
        if float((ones @ ones).sum()) == 8**3:
            formats.append(kind.value)
    return str(torch.__version__), tuple(formats), f"on {device}"


def _try_onnxruntime() -> tuple[str, tuple[str, ...], str]:
    ort = importlib.import_module("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(_model(_PRODUCT, Format.FP32), options, providers=["CPUExecutionProvider"])
    _require_product(session.run(None, {"x": _ones()})[0])
    names = [name.removesuffix("ExecutionProvider") for name in ort.get_available_providers()]
    return ort.__version__, (Format.FP32.value,), f"built with providers {', '.join(names)}"


def _try_emulator() -> tuple[str, tuple[str, ...], str]:
    import numpy as np

    from mpdeploy import __version__
    from mpdeploy.graph.io import load
    from mpdeploy.runtime.emulator import EmulatorRunner

    def run(text: str, kind: Format, x: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "probe.onnx"
            path.write_bytes(_model(text, kind))
            return EmulatorRunner(load(path), "probe").run({"x": x})["y"]

    for kind in _ONNX_CODES:
        _require_product(run(_PRODUCT, kind, _ones()))
    if not np.isinf(run(_OVERFLOW, Format.FP16, np.full(1, 12, np.float32))).all():
        raise ArithmeticError("log(exp(12)) in FP16 is finite: roundings are lost")
    return __version__, tuple(kind.value for kind in _ONNX_CODES), "on any machine, for verification"


def _try_openvino() -> tuple[str, tuple[str, ...], str]:
    openvino = importlib.import_module("openvino")
    core = openvino.Core()
    formats = []
    for kind in (Format.FP32, Format.BF16):
        model = core.read_model(_model(_PRODUCT, kind))
        compiled = core.compile_model(model, "CPU", {"EXECUTION_MODE_HINT": "ACCURACY"})
        _require_product(compiled(_ones())[0])
        # Without BF16 in the processor a BF16 graph runs in FP32, and only the plugin's own account shows it.
        operators = compiled.get_runtime_model().get_ordered_ops()
        ran_in = {str(op.get_rt_info()["runtimePrecision"].value).lower() for op in operators}
        if {Format.FP32: "f32", Format.BF16: "bf16"}[kind] in ran_in:
            formats.append(kind.value)
    native = Format.BF16.value in formats
    return (
        openvino.__version__.split("-")[0],
        tuple(formats),
        "BF16 runs natively" if native else "this processor has no BF16: BF16 models run in FP32",
    )


def _try_engine(backend: str) -> tuple[str, tuple[str, ...], str]:
    from mpdeploy.engine.api import build

    formats, version, targets = [], "", ""
    with tempfile.TemporaryDirectory() as folder:
        model, engine = Path(folder) / "probe.onnx", Path(folder) / "probe.engine"
        for kind in _ONNX_CODES:
            model.write_bytes(_model(_PRODUCT, kind))
            record = build(model, engine, backend=backend, expect=kind)
            formats.append(kind.value)
            version = record.backend_version
            targets = ", ".join(map(str, record.capabilities))
    return version, tuple(formats), f"builds for SM {targets}"


def _try_cryptography() -> tuple[str, tuple[str, ...], str]:
    key = importlib.import_module("cryptography.hazmat.primitives.asymmetric.ed25519").Ed25519PrivateKey.generate()
    key.public_key().verify(key.sign(b"probe"), b"probe")
    return importlib.import_module("cryptography").__version__, (), ""


def _try_triton_schema() -> tuple[str, tuple[str, ...], str]:
    from importlib.metadata import version

    from mpdeploy.bundle.triton_config import triton_schema

    triton_schema().ModelConfig(name="probe")
    return version("tritonclient"), (), ""


def _model(text: str, kind: Format) -> bytes:
    parser = importlib.import_module("onnx.parser")
    source = text.format(code=_ONNX_CODES[kind]) if "{code}" in text else text
    content: bytes = parser.parse_model(source).SerializeToString()
    return content


def _ones() -> Any:
    import numpy as np

    return np.ones((2, 8), np.float32)


def _require_product(result: Any) -> None:
    if not (result == 8).all():
        raise ArithmeticError(f"a product of ones gave {result.tolist()}")
