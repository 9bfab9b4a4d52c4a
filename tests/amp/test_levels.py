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
        "tf32": ("tf32", "fp32", False, False),
        "bf16-true": ("bf16", "bf16", False, False),
        "fp16-true": ("fp16", "fp16", False, True),
    }


def test_a_configuration_prints_as_one_line_that_says_what_it_does():
    assert str(Level.FP16_MASTER.config) == (
        "compute fp16, weights fp16 with fp32 masters, momentum fp32, loss scale dynamic from 65536, "
        "stops after 20 skipped steps in a row"
    )
    assert "no loss scale" in str(Level.BF16_TRUE.config)
    assert "static at 128" in str(AmpConfig(Format.FP16, scaling=LossScaling.static(128)))


def test_the_words_of_apex_are_aliases():
    found = [Level.named(word) for word in ("O0", "O1", "O2", "O3", "tf32")]
    assert found == [Level.FP32, Level.FP16_MIXED, Level.FP16_MASTER, Level.FP16_TRUE, Level.TF32]
    with pytest.raises(UsageError, match="no precision level `fp8`; choose one of fp32, tf32,"):
        Level.named("fp8")


def test_a_word_stands_for_its_level():
    assert AmpConfig.of("O2") == AmpConfig.of(Level.FP16_MASTER) == AmpConfig.of(Level.FP16_MASTER.config)
    assert [AmpConfig.of(level).name for level in Level] == [level.value for level in Level]
    assert AmpConfig(Format.BF16, patience=3).name == "bf16-custom"
    with pytest.raises(UsageError, match="no precision level `half`"):
        AmpConfig.of("half")


def test_only_levels_without_masters_are_a_risk():
    assert {level for level in Level if level.config.risk} == {Level.BF16_TRUE, Level.FP16_TRUE}
    assert "lose every update smaller than 4e-03 of the weight" in Level.BF16_TRUE.config.risk


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


def test_momentum_and_patience_are_checked():
    assert AmpConfig(Format.BF16, momentum=Format.BF16).momentum is Format.BF16
    with pytest.raises(UsageError, match="momentum cannot rest in `bf16`"):
        AmpConfig(Format.BF16, weights=Format.BF16, masters=False, momentum=Format.BF16)
    with pytest.raises(UsageError, match="momentum cannot rest in `tf32`"):
        AmpConfig(Format.BF16, momentum=Format.TF32)
    with pytest.raises(UsageError, match="patience of 1"):
        AmpConfig(Format.FP32, patience=1)
