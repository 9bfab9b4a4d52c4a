"""Levels expand to configurations; contradictions are refused when one is made."""

import pytest

from mpdeploy.amp import AmpConfig, Level, LossScaling
from mpdeploy.errors import UsageError
from mpdeploy.numerics.formats import Format


def test_each_level_says_what_it_stands_for():
    table = {
        level.value: (c.compute.value, c.weights.value, c.master_weights, c.scaling is not None)
        for level in Level
        for c in [level.config]
    }
    assert table == {
        "fp32": ("fp32", "fp32", False, False),
        "bf16-mixed": ("bf16", "fp32", False, False),
        "fp16-mixed": ("fp16", "fp32", False, True),
        "bf16-master": ("bf16", "bf16", True, False),
        "fp16-master": ("fp16", "fp16", True, True),
    }


def test_fp16_wants_a_scale_and_bf16_takes_none():
    with pytest.raises(UsageError, match="FP16 without loss scaling"):
        AmpConfig(Format.FP16)
    with pytest.raises(UsageError, match="`bf16` has the range of FP32"):
        AmpConfig(Format.BF16, scaling=LossScaling())
    assert AmpConfig(Format.FP16, scaling=LossScaling.static(1)).scaling is not None


def test_weights_follow_the_compute_format():
    with pytest.raises(UsageError, match="weights in `bf16`"):
        AmpConfig(Format.FP16, weights=Format.BF16, scaling=LossScaling())
    with pytest.raises(UsageError, match="`fp8e4m3`"):
        AmpConfig(Format.FP8E4M3)
