"""`deploy.toml`: what a pipeline takes, makes and demands; ``EXAMPLE`` shows every key."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from mpdeploy.documents import read_toml
from mpdeploy.engine.backends import BACKEND_NAMES
from mpdeploy.errors import MpdeployError, UsageError
from mpdeploy.numerics.formats import LOW_FORMATS
from mpdeploy.pipeline.toml_lines import line_of

EXAMPLE = """\
output = "runs/digits"            # where everything goes; paths are relative to this file

[train]                           # either a recipe to train …
recipe = "models/digits_cnn.py"
precision = "bf16-mixed"          # the recipe's own by default
epochs = 12                       # the recipe's own by default
seed = 0

# [model]                           # … or a model that is there
# path = "model.pt"
# recipe = "models/net.py"          # for a checkpoint of ours
# factory = "net.py:build"          # for a state dict
# inputs = ["image:batch,3,224,224"]
# weights = "ema"
# trust = false

[convert]
precision = ["fp16", "bf16"]      # ["fp16"] by default
data = "calibration/"             # what training left by default
policy = "balanced"
keep_fp32 = ["/head/*"]
op_fp32 = ["Softmax"]
low_io = false
target = "any"                    # or tensorrt, rtx, openvino, onnxruntime: whose limits count
timeout = 600                     # seconds that one run of the model may take; no limit by default

[verify]
data = "heldout/"                 # what training left by default
budget = "cosine>=0.999"
timeout = 600

[build]                           # no engine without this table
backend = "rtx"
precision = ["fp16"]              # all converted ones by default
sm = [86, 89]
shapes = ["image:1x3x224x224:8x3x224x224:32x3x224x224"]

[bundle]                          # no bundle without this table
name = "digits"
version = "1.2.0"
licences = ["LICENSE"]
sign = "key.pem"                  # an ed25519 private key
triton = false                    # a model repository for Triton, too
"""


@dataclass(frozen=True)
class TrainPart:
    """The table ``[train]``."""

    recipe: str
    precision: str | None = None
    epochs: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class ModelPart:
    """The table ``[model]``."""

    path: str
    recipe: str | None = None
    factory: str | None = None
    inputs: tuple[str, ...] = ()
    weights: str | None = None
    trust: bool = False


@dataclass(frozen=True)
class ConvertPart:
    """The table ``[convert]``."""

    precision: tuple[str, ...] = ("fp16",)
    data: str | None = None
    policy: str | None = None
    keep_fp32: tuple[str, ...] = ()
    op_fp32: tuple[str, ...] = ()
    low_io: bool = False
    target: str | None = None
    timeout: float | None = None


@dataclass(frozen=True)
class VerifyPart:
    """The table ``[verify]``."""

    data: str | None = None
    budget: str | None = None
    timeout: float | None = None


@dataclass(frozen=True)
class BuildPart:
    """The table ``[build]``."""

    backend: str = "rtx"
    precision: tuple[str, ...] | None = None
    sm: tuple[int, ...] = ()
    shapes: tuple[str, ...] = ()


@dataclass(frozen=True)
class BundlePart:
    """The table ``[bundle]``."""

    name: str
    version: str = ""
    licences: tuple[str, ...] = ()
    sign: str | None = None
    triton: bool = False


@dataclass(frozen=True)
class Deployment:
    """A whole `deploy.toml`."""

    output: str
    train: TrainPart | None = None
    model: ModelPart | None = None
    convert: ConvertPart = ConvertPart()
    verify: VerifyPart = VerifyPart()
    build: BuildPart | None = None
    bundle: BundlePart | None = None


_TABLES: Mapping[str, type] = {
    "train": TrainPart, "model": ModelPart, "convert": ConvertPart, "verify": VerifyPart, "build": BuildPart,
    "bundle": BundlePart,
}  # fmt: skip


def read_deployment(path: Path) -> Deployment:
    """Return what a `deploy.toml` says, its paths made relative to the current folder.

    Raises ``UsageError`` that names the line if it is not TOML, a key is unknown or missing, or a value is of a
    wrong type or impossible.
    """
    content, text = read_toml(path, "deployment file")
    fault = _Fault(path, text)
    _check_keys(content, fault)
    _wrap_single(content)
    try:
        deployment = msgspec.convert(content, Deployment, strict=True)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$.")
        keys = place.rstrip("`").split("[")[0].split(".") if place else []
        raise fault.at(keys, reason[:1].lower() + reason[1:]) from error
    _check_values(deployment, fault)
    return _relocated(deployment, path.parent)


def _wrap_single(content: dict[str, Any]) -> None:
    """Let one value stand where a list of them may: ``precision = "fp16"``; formats in any case."""
    for key, kind in _TABLES.items():
        table = content.get(key, {})
        for field in fields(kind):
            value = table.get(field.name)
            if "tuple" in str(field.type) and isinstance(value, str | int) and not isinstance(value, bool):
                table[field.name] = value = [value]
            if field.name == "precision" and isinstance(value, list):
                table[field.name] = [word.lower() if isinstance(word, str) else word for word in value]


@dataclass(frozen=True)
class _Fault:
    path: Path
    text: str

    def at(self, keys: list[str], reason: str, remedy: str = "") -> UsageError:
        name = ".".join(keys)
        line = line_of(self.text, tuple(keys))
        return UsageError(
            f"{name}: {reason}" if name else reason,
            where=f"{self.path}:{line}" if line else str(self.path),
            remedy=remedy,
        )


def _check_keys(content: Mapping[str, Any], fault: _Fault) -> None:
    for key, value in content.items():
        known = [f.name for f in fields(Deployment)]
        if key not in known:
            raise fault.at([key], "there is no such key", _nearest(key, known))
        if key not in _TABLES:
            continue
        if not isinstance(value, Mapping):
            raise fault.at([key], "this is a table", f"write [{key}] on a line of its own")
        inner = [f.name for f in fields(_TABLES[key])]
        for name in value:
            if name not in inner:
                raise fault.at([key, name], "there is no such key", _nearest(name, inner))


def _nearest(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]}?" if close else f"choose from {', '.join(known)}"


def _check_values(deployment: Deployment, fault: _Fault) -> None:
    if (deployment.train is None) == (deployment.model is None):
        raise fault.at(
            ["model"] if deployment.model else [],
            "there must be one of the tables [train] and [model]" + (", not both" if deployment.model else ""),
            "give [train] with a recipe, or [model] with a path",
        )
    formats = [low.value for low in LOW_FORMATS]
    for keys, given in (
        (["convert", "precision"], deployment.convert.precision),
        (["build", "precision"], deployment.build.precision if deployment.build else None),
    ):
        for word in given or ():
            if word not in formats:
                raise fault.at(keys, f"{word!r} is not a low format", f"choose from {', '.join(formats)}")
    if not deployment.convert.precision:
        raise fault.at(["convert", "precision"], "at least one format is needed", 'as in ["fp16"]')
    if deployment.build:
        extra = set(deployment.build.precision or ()) - set(deployment.convert.precision)
        if extra:
            raise fault.at(["build", "precision"], f"{extra.pop()} is not converted", "add it to convert.precision")
        if deployment.build.backend not in BACKEND_NAMES:
            raise fault.at(["build", "backend"], "there is no such back end", f"choose from {', '.join(BACKEND_NAMES)}")
    _check_words(deployment, fault)


def _check_words(deployment: Deployment, fault: _Fault) -> None:
    """Values that have a syntax of their own: parsed now, not after an hour of training."""
    from mpdeploy.amp.levels import level_words
    from mpdeploy.engine.options import parse_shapes
    from mpdeploy.graph.patience import require_seconds
    from mpdeploy.numerics.budget import parse_budget
    from mpdeploy.plan.policy import policy_named
    from mpdeploy.plan.target import target_named

    train, build = deployment.train, deployment.build
    if train and train.precision is not None and train.precision not in level_words():
        raise fault.at(["train", "precision"], "there is no such level", f"choose from {', '.join(level_words())}")
    if train and train.epochs is not None and train.epochs < 1:
        raise fault.at(["train", "epochs"], "epochs are counted from 1")
    try:
        keys = ["convert", "policy"]
        policy_named(deployment.convert.policy, with_data=True)
        keys = ["convert", "target"]
        target_named(deployment.convert.target)
        keys = ["convert", "timeout"]
        require_seconds(deployment.convert.timeout)
        keys = ["verify", "timeout"]
        require_seconds(deployment.verify.timeout)
        keys = ["verify", "budget"]
        if deployment.verify.budget is not None:
            parse_budget(deployment.verify.budget)
        keys = ["build", "shapes"]
        parse_shapes(build.shapes if build else ())
    except MpdeployError as error:
        raise fault.at(keys, error.what, error.remedy) from error


def _relocated(deployment: Deployment, home: Path) -> Deployment:
    """The same with paths from the current folder: those in the file are from the file's."""

    def moved(word: str | None) -> str | None:
        return None if word is None else str(home / word)

    train, model, bundle = deployment.train, deployment.model, deployment.bundle
    return replace(
        deployment,
        output=str(home / deployment.output),
        train=train and replace(train, recipe=str(home / train.recipe)),
        model=model
        and replace(
            model, path=str(home / model.path), recipe=moved(model.recipe), factory=_factory(model.factory, home)
        ),
        convert=replace(deployment.convert, data=moved(deployment.convert.data)),
        verify=replace(deployment.verify, data=moved(deployment.verify.data)),
        bundle=bundle
        and replace(bundle, licences=tuple(str(home / path) for path in bundle.licences), sign=moved(bundle.sign)),
    )


def _factory(word: str | None, home: Path) -> str | None:
    return str(home / word) if word is not None and word.rpartition(":")[0].endswith(".py") else word
