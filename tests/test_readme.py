"""The README's examples, run in order in a fresh folder: their true output is what it shows, and so are its figures.

In an expected output `…` stands for anything.  How near a figure must come is said in ``is_near``.
"""

import contextlib
import io
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
NUMBER = r"[-+]?\d[\d,]*(?:\.\d+)*(?:e[-+]?\d+)?"
# Accuracies differ by points, sizes by a share, drifts and the like by a factor, from processor to processor.
PERCENT, SIZES, FACTOR = 2.0, 0.05, 4.0
# What the test runs in the place of a command that makes its own environment, or is the test run itself.
INSTEAD = {"scripts/quickstart": [sys.executable, str(ROOT / "scripts" / "train_then_export.py")], "scripts/test": None}


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def examples():
    """Every command of the README with the output that it shows."""
    for block in blocks("console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


def pattern(expected):
    """A regular expression for an output: any number for a number, any space for a space, anything for `…`."""
    words = [re.sub(r"…|" + NUMBER, lambda m: "\0" if m[0] == "…" else "\1", word) for word in expected.split()]
    text = r"\s+".join(re.escape(word) for word in words)
    number = f"({NUMBER})"
    text = text.replace(re.escape("\1"), number).replace("\1", number)
    # A `…` of its own may also stand for nothing at all.
    return re.sub(r"(?:\\s\+)?\\?\0(?:\\s\+)?", r"\\s*.*?\\s*", text)


def figures(expected):
    """The figures of an expected output, each with what follows it: its unit, say."""
    return [(m[0], re.match(r"\s?(s\b|%)?", expected[m.end() :])[1]) for m in re.finditer(NUMBER, expected)]


def is_near(shown, unit, found):
    """Whether a figure is the one that is shown: counts exactly, others as machines and versions let them differ."""
    if shown.count(".") > 1 or unit == "s" or shown == found:
        return True  # a version, a time
    one, other = (float(text.replace(",", "")) for text in (shown, found))
    if unit == "%":
        return abs(one - other) <= PERCENT
    if "." not in shown and "e" not in shown:
        return abs(one - other) <= (SIZES * one if one >= 100 else 0)
    return one == other or (one * other > 0 and 1 / FACTOR <= one / other <= FACTOR)


def matches(expected, found):
    seen = re.fullmatch(pattern(expected), found.strip(), re.DOTALL)
    return bool(seen) and all(
        is_near(shown, unit, number) for (shown, unit), number in zip(figures(expected), seen.groups(), strict=True)
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_examples_do_what_they_show(tmp_path, monkeypatch, cli):
    shutil.copytree(ROOT / "models", tmp_path / "models")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    # Tests share the processor; threads that wait for each other would take minutes.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    engines = find_spec("tensorrt_rtx") is not None
    (settings,) = blocks("toml")
    Path("deploy.toml").write_text(settings if engines else settings.replace('[build]\nbackend = "rtx"\n', ""))
    wrong = []
    for command, expected in examples():
        words = shlex.split(command)
        if not engines:
            if words[1:2] == ["build"]:
                continue
            command = command.replace(" --engine rtx", "")
            words = shlex.split(command)
            expected = "\n".join(line for line in expected.splitlines() if not line.startswith("engine"))
        if words[0] in INSTEAD:
            if INSTEAD[words[0]] is None:
                continue
            done = subprocess.run(INSTEAD[words[0]], capture_output=True, text=True, check=False)
            code, found, said = done.returncode, done.stdout, done.stderr
        else:
            assert words[0] == "mpdeploy"
            outcome = cli(*words[1:])
            code, found, said = outcome.code, outcome.out, outcome.err
        if code != 0 or not matches(expected, found):
            fault = said[-500:] if code else ""
            wrong.append(f"$ {command}\n--- exit code {code}, expected\n{expected}--- found\n{found}{fault}")
    assert not wrong, "\n\n".join(wrong)

    # The Python examples go on where the commands, and each other, stopped.
    output, names = io.StringIO(), {}
    with contextlib.redirect_stdout(output):
        for program in blocks("python"):
            exec(compile(program, "README.md", "exec"), names)  # noqa: S102
    assert matches("".join(blocks("text")), output.getvalue())


def test_an_expected_output_is_compared():
    """The comparison can fail: on words, on order, on what is missing, on figures; not on widths."""
    shown = "fp16   99.72 %   pass, 0.0027 on 360 samples in 3.0 s\n…\nplan: low.plan.json\n"
    assert matches(shown, "fp16 99.44 %  pass, 0.0031 on 360 samples in 90.5 s\n  note: x\nplan: low.plan.json")
    for other in (
        "fp16 99.72 % FAIL, 0.0027 on 360 samples in 3.0 s\nplan: low.plan.json",
        "bf16 99.72 % pass, 0.0027 on 360 samples in 3.0 s\nplan: low.plan.json",
        "fp16 99.72 % pass, 0.0027 on 360 samples in 3.0 s",
        "fp16 % pass, 0.0027 on 360 samples in 3.0 s\nplan: low.plan.json",
        "fp16 99.72 % pass, 0.0027 on 360 samples in 3.0 s\nplan: low.plan.json\nTraceback",
        "fp16 70.00 % pass, 0.0027 on 360 samples in 3.0 s\nplan: low.plan.json",
        "fp16 99.72 % pass, 0.2700 on 360 samples in 3.0 s\nplan: low.plan.json",
        "fp16 99.72 % pass, 0.0027 on 36 samples in 3.0 s\nplan: low.plan.json",
    ):
        assert not matches(shown, other), other


def test_every_command_has_an_example():
    from mpdeploy.cli.app import COMMANDS

    shown = {shlex.split(command)[1] for command, _ in examples() if command.startswith("mpdeploy ")}
    assert set(COMMANDS) - shown <= {"rollback"}
    assert "mpdeploy rollback" in README


def test_what_the_readme_points_to_exists():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("https://") or (ROOT / target).exists(), target
    for path in re.findall(r"`((?:models|scripts|tests)/[\w/.]+)`", README):
        assert (ROOT / path).exists(), path


def test_the_exit_codes_are_those_of_the_product():
    from mpdeploy import errors
    from mpdeploy.cli.outcome import INTERRUPTED, TERMINATED

    rows = re.findall(r"^\| (\d+(?:, \d+)*) \|", README, re.MULTILINE)
    table = {int(code) for row in rows for code in row.split(", ")}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert table == {kind.exit_code for kind in kinds} | {0, INTERRUPTED, TERMINATED}


def test_the_picture_of_the_rooms_names_every_room():
    rooms = {path.name for path in (ROOT / "mpdeploy").iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    section = README.partition("## Architecture")[2].partition("\n## ")[0]
    table = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
    assert table == rooms | {"pipeline"}
    assert (ROOT / ".github" / "road.svg").stat().st_size < 20_000
