"""Equal commands, equal engines?  Case T9."""

import numpy as np
import pytest

from mpdeploy.engine.building import build_engine
from mpdeploy.engine.spread import Spread, measure_spread, worst_difference


def test_engines_for_rtx_are_equal(layer, tmp_path):
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    assert build_engine(layer(), tmp_path / "model.engine", rebuilds=3).spread == Spread(3, 1, 0.0)


def test_unequal_engines_are_run(tmp_path):
    first = tmp_path / "first.engine"
    first.write_bytes(b"\1")
    made = []

    def again(path):
        made.append(path)
        path.write_bytes(bytes([len(made)]))  # the first rebuild equals the first build, the second differs

    def run(path):
        return {"y": np.array([3.0, 4.0]) * (1 + 0.1 * (path.read_bytes()[0] - 1))}

    spread = measure_spread(first, again, 3, run)
    assert (spread.builds, spread.distinct) == (3, 2)
    assert spread.worst == pytest.approx(0.1)
    made.clear()
    assert measure_spread(first, again, 3, None).worst is None


def test_the_worst_difference_of_all_pairs():
    a, b, c = ({"y": np.array([1.0, 0.0]) * factor} for factor in (1.0, 1.5, 1.25))
    assert worst_difference([a, b, c]) == pytest.approx(0.5)
    assert worst_difference([a, a]) == 0.0
    nan = {"y": np.array([np.nan, 1.0])}
    assert worst_difference([nan, nan]) == 0.0
    assert worst_difference([a, nan]) is None
