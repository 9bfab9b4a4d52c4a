"""Shared by all tests: the command line called in this process, and skipping where there is no GPU."""

import json
import signal
from dataclasses import dataclass
from typing import Any

import pytest

from mpdeploy.engine.gpu import find_gpus


def pytest_configure():
    """Ctrl-C counts in the commands that tests start, also where the tests were started with ``&``."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """Slow tests first: begun last, they would leave all processes but one without work."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(autouse=True, scope="session")
def _state_of_its_own(tmp_path_factory):
    """Tests name recipes; whoever runs them must not find these among their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def _gpu_or_skip(request):
    if request.node.get_closest_marker("gpu") and not find_gpus():
        pytest.skip("no NVIDIA GPU on this machine")


@dataclass(frozen=True)
class Outcome:
    """What a command said: its exit code, standard output, standard error."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document that is all of standard output."""
        return json.loads(self.out)


@pytest.fixture
def cli(capfd):
    """Return a function that calls `mpdeploy WORDS…` in this process; output is caught below Python, too."""
    from mpdeploy.cli import main

    def call(*words):
        capfd.readouterr()
        with pytest.raises(SystemExit) as caught:
            main([str(word) for word in words])
        out, err = capfd.readouterr()
        return Outcome(int(caught.value.code or 0), out, err)

    return call
