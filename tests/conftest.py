"""Shared by all tests: those marked `gpu` are skipped where there is no GPU."""

import pytest

from mpdeploy.engine.gpu import find_gpus


@pytest.fixture(autouse=True)
def _gpu_or_skip(request):
    if request.node.get_closest_marker("gpu") and not find_gpus():
        pytest.skip("no NVIDIA GPU on this machine")
