"""A model repository for Triton Inference Server, its configurations made with Triton's own schema."""

import os
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mpdeploy.bundle.contents import Contents, FoundEngine, FoundModel
from mpdeploy.bundle.manifest import FOLDERS, Role
from mpdeploy.bundle.neighbours import reason_against_joining
from mpdeploy.bundle.triton_config import Batching, Servable, config_of, text_of
from mpdeploy.bundle.triton_earlier import CONFIG, HOME, Earlier, is_same_interface, open_earlier
from mpdeploy.engine.binding import spec_of
from mpdeploy.errors import ModelError, UsageError
from mpdeploy.graph import io
from mpdeploy.numerics.formats import Format
from mpdeploy.runtime.feeds import Feeds
from mpdeploy.runtime.runner import input_specs, output_specs, takes_only_tensors

_TENSORRT = "tensorrt"
_PLAN, _ONNX = "model.plan", "model.onnx"


@dataclass(frozen=True)
class Serving:
    """How Triton shall serve: batching, instances of each model, the number of the version folder.

    ``gpu``: ONNX models run on GPUs; engines always do.  ``after`` is an earlier bundle whose versions of the same
    models stay in service, together with the new one at most ``keep`` of each.  Without ``version`` it is one above
    those, or 1.
    """

    batching: Batching = field(default_factory=Batching)
    instances: int = 1
    version: int | None = None
    gpu: bool = False
    after: Path | None = None
    keep: int = 2

    def __post_init__(self) -> None:
        if self.instances < 1 or self.keep < 1 or (self.version is not None and self.version < 1):
            raise UsageError("versions and instances in Triton are counted from 1")


def lay_out(
    folder: Path, contents: Contents, serving: Serving, sample: Feeds | None = None
) -> tuple[list[str], list[str]]:
    """Write the repository into ``folder/triton``; return the paths of its files inside ``folder``, and notes.

    ``folder`` is a bundle whose models and engines are in place already.  ONNX models go to the ONNX Runtime back
    end, those with BF16 on the CPU to OpenVINO's (ONNX Runtime has no BF16 kernels there), engines by classic
    TensorRT to TensorRT's.  Requests are joined only where two samples, of ``sample`` or made up, give together what
    each gives alone; the notes say where they are not.

    Raises ``DependencyError`` without Triton's schema, ``UsageError`` or ``VerificationFailed`` for an earlier bundle
    that cannot stay in service.
    """
    earlier = None if serving.after is None else open_earlier(serving.after)
    newest = 0 if earlier is None else earlier.newest()
    version = serving.version or newest + 1
    if version <= newest:
        raise UsageError(
            f"the earlier bundle already serves version {newest}",
            where=f"--triton-version {version}",
            remedy=f"choose {newest + 1} or more, or leave it out",
        )
    shelf = _Shelf(folder, serving, version, earlier)
    against: dict[str, str] = {}
    for model in contents.models:
        servable = _of_model(model, serving.gpu)
        if servable is None:
            shelf.leave_out(model.path.name, "it takes only tensors, and an input or output is a sequence or optional")
            continue
        if servable.batches and serving.batching.largest > 1:
            against[model.facts.files[0].sha256] = reason_against_joining(model, sample)
        servable = shelf.judged(servable, model.path.name, against.get(model.facts.files[0].sha256, ""))
        home = folder / FOLDERS[Role.MODEL]
        names = {home / model.path.name: _ONNX} | {home / path.name: path.name for path in model.weights}
        shelf.add(servable, model.path.name, names)
    for engine in contents.engines:
        if engine.record.backend != _TENSORRT:
            shelf.leave_out(engine.path.name, f"it has no back end for engines by {engine.record.backend}")
            continue
        origin = engine.record.source.files
        reason = against.get(origin[0].sha256 if origin else "", "the model it was built from is not here to try it")
        shelf.add(
            shelf.judged(_of_engine(engine), engine.path.name, reason),
            engine.path.name,
            {folder / FOLDERS[Role.ENGINE] / engine.path.name: _PLAN},
        )
    return shelf.written, shelf.notes


@dataclass
class _Shelf:
    """The repository under construction: what stands in it, what was left out and why."""

    folder: Path
    serving: Serving
    version: int
    earlier: Earlier | None
    written: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def judged(self, servable: Servable, origin: str, reason: str) -> Servable:
        """Return the model, without batches if there is a reason against joining requests."""
        if not reason or not servable.batches or self.serving.batching.largest <= 1:
            return servable
        self.notes.append(f"Triton joins no requests to {origin}: {reason}")
        return replace(servable, joins=False)

    def add(self, servable: Servable, origin: str, files: dict[Path, str]) -> None:
        """Add a model with its files, by the names that they have there, unless Triton cannot serve it."""
        try:
            config = config_of(servable, self.serving.batching, self.serving.instances)
        except ModelError as error:
            self.leave_out(origin, error.what)
            return
        home = self.folder / HOME / servable.name
        if home.exists():
            raise UsageError(
                f"two models would be {servable.name} in Triton's repository", where=origin, remedy="rename one"
            )
        targets = {home / str(self.version) / name: source for source, name in files.items()}
        for folder in self._staying(servable.name, config):
            inside = (path for path in folder.rglob("*") if path.is_file())
            targets |= {home / folder.name / path.relative_to(folder): path for path in inside}
            config.version_policy.latest.num_versions += 1
        for target, source in targets.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_relative_to(self.folder):
                _share(source, target)
            else:  # another bundle's: each stands alone
                shutil.copyfile(source, target)
        (home / CONFIG).write_text(text_of(config), encoding="utf-8")
        self.written += [target.relative_to(self.folder).as_posix() for target in (home / CONFIG, *targets)]

    def _staying(self, name: str, config: Any) -> list[Path]:
        """The folders of the versions that stay in service; a batch that one of them cannot take is none for all."""
        found = [] if self.earlier is None else self.earlier.versions(name)
        if self.earlier is None or not found or self.serving.keep == 1:
            return []
        before = self.earlier.config(name)
        if not is_same_interface(before, config):
            self.notes.append(f"{name} of {self.earlier.title} does not stay in service: other inputs or outputs")
            return []
        if config.backend == _TENSORRT:
            config.max_batch_size = min(config.max_batch_size, before.max_batch_size)
        kept = found[1 - self.serving.keep :]
        numbers = ", ".join(folder.name for folder in kept)
        self.notes.append(f"{name} version {numbers} of {self.earlier.title} stays in service")
        return kept

    def leave_out(self, origin: str, reason: str) -> None:
        """Note why something is not in the repository."""
        self.notes.append(f"Triton cannot serve {origin}: {reason}")


def _of_model(model: FoundModel, gpu: bool) -> Servable | None:
    """The model as Triton sees it; None for one with more than tensors at its ends."""
    loaded = io.load(model.path)
    if not takes_only_tensors(loaded):
        return None
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
    holders = {port.name for port in record.inputs if port.holds_shape}
    ranges = [[r for r in profile.ranges if r.max and r.name not in holders] for profile in record.options.profiles]
    largest = [min(r.max[0] for r in profile) for profile in ranges if profile]
    return Servable(
        name=_name(engine.path, "plan"),
        backend=_TENSORRT,
        filename=_PLAN,
        inputs=tuple(map(spec_of, record.inputs)),
        outputs=tuple(map(spec_of, record.outputs)),
        on_gpu=True,
        holders=frozenset(port.name for port in (*record.inputs, *record.outputs) if port.holds_shape),
        largest_batch=max(largest, default=None),
    )


def _name(path: Path, kind: str) -> str:
    # Names go into URLs.
    return f"{''.join(c if c.isalnum() or c in '_-' else '_' for c in path.stem)}_{kind}"


def _share(source: Path, target: Path) -> None:
    """Give a file a second name where the file system can, so that the bundle does not double."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
