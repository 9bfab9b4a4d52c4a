"""A model repository for Triton Inference Server, its configurations made with Triton's own schema."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mpdeploy.bundle.contents import Contents, FoundEngine, FoundModel
from mpdeploy.bundle.manifest import FOLDERS, Role
from mpdeploy.bundle.triton_config import Batching, Servable, config_text
from mpdeploy.engine.binding import spec_of
from mpdeploy.errors import UsageError
from mpdeploy.graph import io
from mpdeploy.numerics.formats import Format
from mpdeploy.runtime.runner import input_specs, output_specs

_HOME = "triton"
_PLAN, _ONNX = "model.plan", "model.onnx"


@dataclass(frozen=True)
class Serving:
    """How Triton shall serve: batching, instances of each model, the number of the version folder.

    ``gpu``: ONNX models run on GPUs; engines always do.
    """

    batching: Batching = field(default_factory=Batching)
    instances: int = 1
    version: int = 1
    gpu: bool = False

    def __post_init__(self) -> None:
        if self.version < 1 or self.instances < 1:
            raise UsageError("versions and instances in Triton are counted from 1")


def lay_out(folder: Path, contents: Contents, serving: Serving) -> tuple[list[str], list[str]]:
    """Write the repository into ``folder/triton``; return the paths of its files inside ``folder``, and notes.

    ``folder`` is a bundle whose models and engines are in place already.  ONNX models go to the ONNX Runtime back
    end, those with BF16 on the CPU to OpenVINO's (ONNX Runtime has no BF16 kernels there), engines by classic
    TensorRT to TensorRT's.  Raises ``DependencyError`` without Triton's schema.
    """
    written: list[str] = []
    notes: list[str] = []
    for model in contents.models:
        servable = _of_model(model, serving.gpu)
        if any(spec.shape is None for spec in (*servable.inputs, *servable.outputs)):
            notes.append(f"Triton cannot serve {model.path.name}: the rank of an input or output is unknown")
            continue
        home = folder / FOLDERS[Role.MODEL]
        names = {home / model.path.name: _ONNX} | {home / path.name: path.name for path in model.weights}
        written += _write(folder, servable, serving, names)
    for engine in contents.engines:
        if engine.record.backend != "tensorrt":
            notes.append(
                f"Triton cannot serve {engine.path.name}: it has no back end for engines by {engine.record.backend}"
            )
            continue
        names = {folder / FOLDERS[Role.ENGINE] / engine.path.name: _PLAN}
        written += _write(folder, _of_engine(engine), serving, names)
    return written, notes


def _of_model(model: FoundModel, gpu: bool) -> Servable:
    loaded = io.load(model.path)
    openvino = model.facts.coarsest is Format.BF16 and not gpu
    return Servable(
        name=_name(model.path, "onnx"),
        backend="openvino" if openvino else "onnxruntime",
        filename=_ONNX,
        inputs=input_specs(loaded),
        outputs=output_specs(loaded),
        on_gpu=gpu,
    )


def _of_engine(engine: FoundEngine) -> Servable:
    record = engine.record
    largest = [r.max[0] for profile in record.options.profiles for r in profile.ranges if r.max]
    return Servable(
        name=_name(engine.path, "plan"),
        backend="tensorrt",
        filename=_PLAN,
        inputs=tuple(map(spec_of, record.inputs)),
        outputs=tuple(map(spec_of, record.outputs)),
        on_gpu=True,
        largest_batch=max(largest, default=None),
    )


def _name(path: Path, kind: str) -> str:
    return f"{path.stem.replace('.', '_')}_{kind}"


def _write(folder: Path, servable: Servable, serving: Serving, files: dict[Path, str]) -> Sequence[str]:
    home = folder / _HOME / servable.name
    version = home / str(serving.version)
    version.mkdir(parents=True)
    config = home / "config.pbtxt"
    config.write_text(config_text(servable, serving.batching, serving.instances))
    targets = [config]
    for source, name in files.items():
        target = version / name
        _share(source, target)
        targets.append(target)
    return [target.relative_to(folder).as_posix() for target in targets]


def _share(source: Path, target: Path) -> None:
    """Give a file a second name where the file system can, so that the bundle does not double."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
