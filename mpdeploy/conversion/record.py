"""What a conversion did, as a record."""

from dataclasses import dataclass

from mpdeploy.numerics.formats import Format


@dataclass(frozen=True)
class ConversionResult:
    """Where the converted model and its plan lie, and what the conversion came to.

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
    casts: int
    bytes_cast: int
    opset: int
    weights_with_loss: int
    unchanged: bool = False
    notes: tuple[str, ...] = ()
    schema: str = "mpdeploy.conversion/1"
