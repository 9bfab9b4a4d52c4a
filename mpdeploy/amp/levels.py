"""Precision levels: one word each, expanding to a frozen configuration that can be printed and compared."""

from dataclasses import dataclass, replace
from enum import Enum

from mpdeploy.amp.scaling import LossScaling
from mpdeploy.errors import UsageError
from mpdeploy.numerics.formats import LOW_FORMATS, Format

_COMPUTE = (Format.FP32, Format.TF32, *LOW_FORMATS)


@dataclass(frozen=True)
class AmpConfig:
    """How a model is trained.

    ``compute`` is the format of matrix products and convolutions: what autocast gives them, or for FP32 and TF32
    what their FP32 kernels may round to.  ``weights`` is the format in which the model holds its weights between
    steps; with ``masters`` the optimizer updates FP32 copies of low-precision ones.  ``momentum`` is the format in
    which the optimizer's first moment rests between steps.  ``scaling`` is the rule of the loss scale, or None.
    Training stops after ``patience`` skipped steps in a row.  ``fp32_modules`` are globs over the names of modules
    that compute in FP32, with FP32 weights, whatever the rest does; `head.*` means `head` itself as well.
    Contradictions raise ``UsageError``.
    """

    compute: Format
    weights: Format = Format.FP32
    masters: bool = True
    momentum: Format = Format.FP32
    scaling: LossScaling | None = None
    patience: int = 20
    fp32_modules: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for value in (self.compute, self.weights, self.momentum):
            if not isinstance(value, Format):
                raise UsageError(f"{value!r} is not a number format", remedy="use Format.BF16 and the like")
        if self.compute not in _COMPUTE:
            raise UsageError(
                f"training cannot compute in `{self.compute.value}`", remedy="choose fp32, tf32, bf16 or fp16"
            )
        if self.weights is not Format.FP32 and not (self.weights is self.compute and self.weights in LOW_FORMATS):
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
        if self.momentum is not Format.FP32 and (self.momentum not in LOW_FORMATS or not self.masters):
            raise UsageError(
                f"momentum cannot rest in `{self.momentum.value}` here",
                remedy="choose bf16 or fp16, at a level whose optimizer updates FP32 weights",
            )
        if not isinstance(self.fp32_modules, (tuple, list)):
            raise UsageError(
                f"{self.fp32_modules!r} are no names of modules", remedy='give a tuple of globs, as in ("head.*",)'
            )
        object.__setattr__(self, "fp32_modules", tuple(self.fp32_modules))
        if self.fp32_modules and self.compute is Format.TF32:
            raise UsageError(
                "at tf32 all products are rounded alike, those of some modules cannot stay FP32",
                remedy="train at fp32, or at a low-precision level",
            )
        if self.patience < 2:
            raise UsageError(
                f"a patience of {self.patience} leaves no second step in which to look for the cause",
                remedy="choose at least 2",
            )

    def __str__(self) -> str:
        """Say in one line what the configuration does."""
        kept = " with fp32 masters" if self.master_weights else ""
        scale = f"loss scale {self.scaling}" if self.scaling else "no loss scale"
        wide = f"{', '.join(self.fp32_modules)} in fp32, " if self.fp32_modules else ""
        return (
            f"compute {self.compute.value}, weights {self.weights.value}{kept}, {wide}momentum {self.momentum.value}, "
            f"{scale}, stops after {self.patience} skipped steps in a row"
        )

    @classmethod
    def of(cls, precision: "Level | AmpConfig | str") -> "AmpConfig":
        """Return what a level, or the word for one, stands for; a configuration as it is.

        Raises ``UsageError`` for a word that names no level, and for anything else.
        """
        level = Level.named(precision) if isinstance(precision, str) else precision
        if not isinstance(level, (Level, AmpConfig)):
            raise UsageError(f"{precision!r} is not a precision", remedy="give a level, its word, or an AmpConfig")
        return level.config if isinstance(level, Level) else level

    @property
    def name(self) -> str:
        """The word of the level that this is, FP32 modules apart, or one that says that it is none: ``fp16-custom``."""
        plain = replace(self, fp32_modules=())
        return next((level.value for level in Level if level.config == plain), f"{self.compute.value}-custom")

    @property
    def master_weights(self) -> bool:
        """Whether the optimizer works on FP32 copies of low-precision weights."""
        return self.masters and self.weights is not Format.FP32

    @property
    def risk(self) -> str:
        """What may go wrong by the very choice of formats, in one sentence; empty if nothing."""
        if self.weights is Format.FP32 or self.masters:
            return ""
        return (
            f"weights in {self.weights.value} without FP32 masters lose every update smaller than "
            f"{self.weights.unit_roundoff:.0e} of the weight, so that training stalls; "
            f"{self.weights.value}-master keeps them"
        )


class Level(Enum):
    """A named precision level; ``config`` is what it stands for."""

    FP32 = "fp32"
    TF32 = "tf32"
    BF16_MIXED = "bf16-mixed"
    FP16_MIXED = "fp16-mixed"
    BF16_MASTER = "bf16-master"
    FP16_MASTER = "fp16-master"
    BF16_TRUE = "bf16-true"
    FP16_TRUE = "fp16-true"

    @property
    def config(self) -> AmpConfig:
        """The configuration that the level stands for."""
        return _CONFIGS[self]

    @classmethod
    def named(cls, word: str) -> "Level":
        """Return the level of that name or alias; raise ``UsageError`` that lists them if there is none."""
        for level in cls:
            if word in (level.value, *(alias for alias, of in ALIASES.items() if of is level)):
                return level
        raise UsageError(f"there is no precision level `{word}`", remedy=f"choose one of {', '.join(level_words())}")


_CONFIGS = {
    Level.FP32: AmpConfig(Format.FP32),
    Level.TF32: AmpConfig(Format.TF32),
    Level.BF16_MIXED: AmpConfig(Format.BF16),
    Level.FP16_MIXED: AmpConfig(Format.FP16, scaling=LossScaling()),
    Level.BF16_MASTER: AmpConfig(Format.BF16, weights=Format.BF16),
    Level.FP16_MASTER: AmpConfig(Format.FP16, weights=Format.FP16, scaling=LossScaling()),
    Level.BF16_TRUE: AmpConfig(Format.BF16, weights=Format.BF16, masters=False),
    Level.FP16_TRUE: AmpConfig(Format.FP16, weights=Format.FP16, masters=False, scaling=LossScaling()),
}

# The opt levels of NVIDIA's Apex, which all were FP16.
ALIASES = {
    "O0": Level.FP32,
    "O1": Level.FP16_MIXED,
    "O2": Level.FP16_MASTER,
    "O3": Level.FP16_TRUE,
}


def level_words() -> tuple[str, ...]:
    """Return every word that names a level, aliases last."""
    return (*(level.value for level in Level), *ALIASES)
