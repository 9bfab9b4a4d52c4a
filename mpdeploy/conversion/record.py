"""What a conversion did, as a record."""

from dataclasses import dataclass

from mpdeploy.numerics.formats import Format


@dataclass(frozen=True)
class ConversionResult:
    """Where the converted model and its plan lie, and what the conversion came to.

    ``low_flops`` is the share of the FLOPs of matrix products, convolutions and recurrences that run low, None if
    the model has none.
    ``casts`` are the Cast operators that were put in, ``bytes_cast`` the bytes they read in one run (a dimension
    without a number counts 64).  ``unchanged``: the source had been converted before.
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
    schema: str = "mpdeploy.conversion/1"
