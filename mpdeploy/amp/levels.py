"""Precision levels: one word each, expanding to a frozen configuration that can be printed and compared."""

from dataclasses import dataclass
from enum import Enum

from mpdeploy.amp.scaling import LossScaling
from mpdeploy.errors import UsageError
from mpdeploy.numerics.formats import LOW_FORMATS, Format


@dataclass(frozen=True)
class AmpConfig:
    """How a model is trained.

    ``compute`` is the format that autocast gives to matrix products and convolutions, ``weights`` the one in
    which the model holds its weights between steps.  Weights held low always have FP32 masters in the
    optimizer.  ``scaling`` is the rule of the loss scale, or None.  Contradictions raise ``UsageError``.
    """

    compute: Format
    weights: Format = Format.FP32
    scaling: LossScaling | None = None

    def __post_init__(self) -> None:
        if self.compute not in (Format.FP32, *LOW_FORMATS):
            raise UsageError(f"training cannot compute in `{self.compute.value}`", remedy="choose fp32, bf16 or fp16")
        if self.weights not in (Format.FP32, self.compute):
            raise UsageError(
                f"weights in `{self.weights.value}` do not go with compute in `{self.compute.value}`",
                remedy="hold the weights in fp32 or in the compute format",
            )
        if self.compute is Format.FP16 and self.scaling is None:
            raise UsageError(
                "FP16 without loss scaling loses small gradients",
                remedy="pass scaling=LossScaling(), or LossScaling.static(1.0) if that is what you want to see",
            )
        if self.compute is not Format.FP16 and self.scaling is not None:
            raise UsageError(
                f"`{self.compute.value}` has the range of FP32 and takes no loss scaling",
                remedy="leave scaling out",
            )

    @property
    def master_weights(self) -> bool:
        """Whether the optimizer works on FP32 copies of low-precision weights."""
        return self.weights is not Format.FP32


class Level(Enum):
    """A named precision level; ``config`` is what it stands for."""

    FP32 = "fp32"
    BF16_MIXED = "bf16-mixed"
    FP16_MIXED = "fp16-mixed"
    BF16_MASTER = "bf16-master"
    FP16_MASTER = "fp16-master"

    @property
    def config(self) -> AmpConfig:
        """The configuration that the level stands for."""
        return _CONFIGS[self]


_CONFIGS = {
    Level.FP32: AmpConfig(Format.FP32),
    Level.BF16_MIXED: AmpConfig(Format.BF16),
    Level.FP16_MIXED: AmpConfig(Format.FP16, scaling=LossScaling()),
    Level.BF16_MASTER: AmpConfig(Format.BF16, weights=Format.BF16),
    Level.FP16_MASTER: AmpConfig(Format.FP16, weights=Format.FP16, scaling=LossScaling()),
}
