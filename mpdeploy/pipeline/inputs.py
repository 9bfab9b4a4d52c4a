"""What each stage is made from, as hashes and words: the same inputs, the same stage."""

import importlib.metadata
from pathlib import Path

from mpdeploy import __version__
from mpdeploy.engine.backends import find_backend
from mpdeploy.files import sha256_of
from mpdeploy.graph.io import files_of
from mpdeploy.pipeline.config import BuildPart, BundlePart, ConvertPart, ModelPart, TrainPart
from mpdeploy.pipeline.stages import digest_of
from mpdeploy.runtime.feeds import Feeds
from mpdeploy.runtime.plugins import code_digest, is_plugin
from mpdeploy.source.kinds import Kind, kind_of

Inputs = dict[str, str]


def train_inputs(part: TrainPart) -> Inputs:
    """The recipe's bytes and the settings.  Data that a recipe loads from elsewhere are not seen."""
    return {
        "recipe": sha256_of(Path(part.recipe)),
        "precision": str(part.precision),
        "epochs": str(part.epochs),
        "seed": str(part.seed),
        **_versions("torch"),
    }


def export_inputs(source: Path, part: ModelPart | TrainPart, data: Feeds | None) -> Inputs:
    """The model's files, what is said of them, the code that builds it, and data if these give the inputs."""
    found = {"model": _model_digest(source), "data": feeds_digest(data), **_versions("torch", "onnxscript")}
    if part.recipe is not None:
        found["recipe"] = sha256_of(Path(part.recipe))
    if isinstance(part, ModelPart):
        found |= {
            "factory": str(part.factory),
            "code": code_digest(part.factory) if part.factory is not None else "",
            "inputs": " ".join(part.inputs),
            "weights": str(part.weights),
        }
    return found


def convert_inputs(reference: str, precision: str, part: ConvertPart, data: Feeds | None) -> Inputs:
    """The FP32 model, the data and the options."""
    return {
        "reference": reference,
        "precision": precision,
        "data": feeds_digest(data),
        "options": str((part.policy, part.keep_fp32, part.op_fp32, part.low_io, part.target)),
        **_versions(),
    }


def build_inputs(candidate: str, part: BuildPart, data: Feeds) -> Inputs:
    """The candidate, the data that give shapes, the options and the builder's version."""
    return {
        "candidate": candidate,
        "data": feeds_digest(data),
        "options": str((part.sm, part.shapes)),
        "builder": f"{part.backend} {find_backend(part.backend).version}",
        **_versions(),
    }


def verify_inputs(reference: str, candidate: str, budget: str | None, data: Feeds) -> Inputs:
    """Both models, the data and the budget."""
    return {
        "reference": reference,
        "candidate": candidate,
        "budget": str(budget),
        "data": feeds_digest(data),
        **_versions(),
    }


def report_inputs(parts: list[str], commands: tuple[str, ...]) -> Inputs:
    """All stages before it, and the commands that it shows."""
    return {"parts": " ".join(parts), "commands": " ".join(commands), **_versions()}


def bundle_inputs(report: str, part: BundlePart) -> Inputs:
    """What is bundled, and its words and licences."""
    return {
        "report": report,
        "name": part.name,
        "version": part.version,
        "licences": " ".join(sha256_of(Path(path)) for path in part.licences),
        "options": str((part.sign, part.triton)),
        **_versions(),
    }


def feeds_digest(data: Feeds | None) -> str:
    """Return a hash of the data's files or of the code that makes them; their name where there is neither."""
    if data is None:
        return ""
    return code_digest(data.name) if is_plugin(data.name) else data.sha256() or data.name


def _model_digest(source: Path) -> str:
    if kind_of(source) is Kind.ONNX:
        return " ".join(sha256_of(file) for file in files_of(source))
    return digest_of(source)


def _versions(*packages: str) -> Inputs:
    return {"mpdeploy": __version__, **{name: importlib.metadata.version(name) for name in packages}}
