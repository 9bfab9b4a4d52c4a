"""What a conversion did, as a record."""

from dataclasses import dataclass

from mpdeploy.numerics.formats import Format
from mpdeploy.plan.record import Trial


@dataclass(frozen=True)
class ConversionResult:
    """Where the converted model and its plan lie, and what the conversion came to.

    ``low_flops`` is the share of the FLOPs of matrix products, convolutions and recurrences that run low, None if
    the model has none.
    ``casts`` are the Cast operators that were put in, ``bytes_cast`` the bytes they read in one run (a dimension
    that neither the model nor the data give counts 64).  ``weights_with_loss`` counts the stored tensors that lost
    more, by norm, than rounding takes of any number of the normal range.  ``unchanged``: the source had been
    converted before.  ``trial`` is what came of the conversion on its data, None without data.  ``idle`` is a
    sentence that says why no product was lowered, empty if one was.
    """

    source: str
    model: str
    plan: str
    precision: Format
    policy: str
    source_bytes: int
    model_bytes: int
    operators: int
    low_operators: int
    low_flops: float | None
    casts: int
    bytes_cast: int
    opset: int
    weights_with_loss: int
    unchanged: bool = False
    notes: tuple[str, ...] = ()
    trial: Trial | None = None
    idle: str = ""
    schema: str = "mpdeploy.conversion/1"

    @property
    def passed(self) -> bool:
        """Whether nothing measured speaks against the model, if data were given; the result itself is true if so."""
        return self.trial is None or self.trial.within

    def __bool__(self) -> bool:
        return self.passed
