"""Importing is cheap: `import mpdeploy` and every `--help` load nothing heavy."""

import resource
import subprocess
import sys

import pytest

from mpdeploy.cli.app import COMMANDS

HEAVY = {
    "torch",
    "onnx",
    "onnx_ir",
    "onnxruntime",
    "onnxscript",
    "openvino",
    "tensorrt",
    "tensorrt_rtx",
    "scipy",
    "jinja2",
    "rich",
}

LIST_MODULES = "\nprint(*{name.partition('.')[0] for name in sys.modules})"


def modules_after(code):
    done = subprocess.run([sys.executable, "-c", code + LIST_MODULES], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def seconds_of(*command):
    """The processor time of a command: what it takes on a machine that does nothing else.  Best of several."""

    def once():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return min(once() for _ in range(5))


def test_import_mpdeploy_loads_nothing_but_itself():
    bare = modules_after("import sys")
    ours = modules_after("import sys, mpdeploy") - bare
    assert ours - set(sys.stdlib_module_names) == {"mpdeploy"}


def test_import_mpdeploy_takes_under_100_ms():
    assert seconds_of(sys.executable, "-c", "import mpdeploy") < 0.1


def test_help_takes_under_400_ms():
    assert seconds_of(sys.executable, "-m", "mpdeploy", "--help") < 0.4


@pytest.mark.parametrize("words", ["--help", "--version", *(f"{name} --help" for name in COMMANDS)])
def test_no_help_loads_a_heavy_library(words):
    code = (
        "import sys\nfrom mpdeploy.cli import main\n"
        f"try:\n    main({words.split()!r})\nexcept SystemExit as e:\n    assert not e.code\n"
    )
    assert modules_after(code) & HEAVY == set()


def test_bad_input_is_told_before_anything_heavy_is_loaded():
    code = (
        "import sys\nfrom mpdeploy.cli import main\n"
        "try:\n    main(['verify', 'none.onnx'])\nexcept SystemExit as e:\n    assert e.code == 2\n"
    )
    assert modules_after(code) & HEAVY == set()


def test_what_mpdeploy_offers_is_there_and_said():
    import mpdeploy

    assert {"convert", "verify", "build", "load"} <= set(mpdeploy.__all__)
    for name in set(mpdeploy.__all__) - {"__version__"}:
        assert callable(getattr(mpdeploy, name)), name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        mpdeploy.nothing  # noqa: B018
