"""`deploy.toml`: every mistake is told with its line, before anything is done."""

import tomllib
from pathlib import Path

import pytest

from mpdeploy.errors import UsageError
from mpdeploy.pipeline.config import (
    EXAMPLE,
    BuildPart,
    BundlePart,
    ConvertPart,
    ModelPart,
    TrainPart,
    VerifyPart,
    read_deployment,
)

GOOD = """
output = "out"

[train]
recipe = "models/net.py"
seed = 3

[convert]
precision = ["fp16", "bf16"]

[verify]
budget = "cosine>=0.999"

[build]
precision = ["fp16"]
sm = [86]
"""


def written(tmp_path, text):
    path = tmp_path / "deploy.toml"
    path.write_text(text)
    return path


def test_paths_are_relative_to_the_file(tmp_path):
    deployment = read_deployment(written(tmp_path, GOOD))
    assert deployment.output == str(tmp_path / "out")
    assert deployment.train == TrainPart(str(tmp_path / "models/net.py"), seed=3)
    assert deployment.convert == ConvertPart(("fp16", "bf16"))
    assert deployment.build == BuildPart(precision=("fp16",), sm=(86,))
    assert deployment.bundle is None


def test_the_example_holds_every_key_and_is_valid(tmp_path):
    deployment = read_deployment(written(tmp_path, EXAMPLE))
    assert deployment.train is not None
    # What excludes another table is shown as a comment.
    tables = tomllib.loads("\n".join(line.removeprefix("# ") for line in EXAMPLE.splitlines()))
    parts = {"train": TrainPart, "model": ModelPart, "convert": ConvertPart, "verify": VerifyPart, "build": BuildPart}
    for name, part in (parts | {"bundle": BundlePart}).items():
        assert tables[name].keys() == part.__dataclass_fields__.keys(), name


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("seed = 3", "sede = 3", 6, "train.sede: there is no such key .*did you mean seed"),
        ("[verify]", "[verfy]", 11, "verfy: there is no such key .*did you mean verify"),
        ("seed = 3", 'seed = "3"', 6, "train.seed: expected `int`, got `str`"),
        ('["fp16", "bf16"]', '["fp16", 16]', 9, "convert.precision: expected `str`, got `int`"),
        ('["fp16", "bf16"]', '["fp8"]', 9, "'fp8' is not a low format .*choose from"),
        ('["fp16", "bf16"]', "[]", 9, "at least one format"),
        ('["fp16", "bf16"]', '["bf16"]', 15, "fp16 is not converted|'fp16' is not converted"),
        ("cosine>=0.999", "beauty>=1", 12, "verify.budget: unknown metric"),
        ("sm = [86]", 'backend = "cuda"', 16, "no such back end"),
        ("sm = [86]", 'shapes = ["x:1"]', 16, "build.shapes: "),
        ("seed = 3", 'precision = "fp4"', 6, "no such level .*bf16-mixed"),
        ("seed = 3", "epochs = 0", 6, "counted from 1"),
        ('recipe = "models/net.py"', "", 4, "train: object missing required field `recipe`"),
        ("[train]", '[model]\npath = "m.pt"\n[train]', 4, "not both"),
        ("[convert]", "convert = 3\n[other]", 8, "convert"),
    ],
)
def test_mistakes_have_lines(tmp_path, old, new, line, says):
    text = GOOD.replace(old, new)
    assert text != GOOD
    with pytest.raises(UsageError, match=says) as caught:
        read_deployment(written(tmp_path, text))
    assert caught.value.where == f"{tmp_path / 'deploy.toml'}:{line}"
    assert "\n" not in str(caught.value)


def test_what_is_no_toml_or_is_missing(tmp_path):
    with pytest.raises(UsageError, match=r"not valid TOML: .*at line 2, column"):
        read_deployment(written(tmp_path, 'output = "out"\nseed == 3\n'))
    with pytest.raises(UsageError, match="missing required field `output`"):
        read_deployment(written(tmp_path, '[train]\nrecipe = "x.py"\n'))
    with pytest.raises(UsageError, match=r"one of the tables \[train\] and \[model\]"):
        read_deployment(written(tmp_path, 'output = "out"\n'))
    with pytest.raises(UsageError, match="deployment file not found"):
        read_deployment(Path("none.toml"))
