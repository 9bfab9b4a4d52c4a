"""Interval arithmetic on what is known of a value's elements."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

INFINITE = math.inf
_ASSUMED_AWAY = 1e-4  # a smaller distance from zero, if only assumed, says nothing of the reciprocal


@dataclass(frozen=True)
class Bounds:
    """All finite elements lie in [low, high].

    ``integral``: they are integers.  ``assumed``: the bounds rest on the nominal magnitude, not on proof or data.
    """

    low: float
    high: float
    integral: bool = False
    assumed: bool = False

    @property
    def magnitude(self) -> float:
        """The largest absolute value."""
        return max(abs(self.low), abs(self.high))

    @property
    def away_from_zero(self) -> float:
        """The smallest absolute value that is certain; 0 if the interval holds zero."""
        return max(self.low, -self.high, 0.0)

    def within(self, magnitude: float) -> "Bounds":
        """Return the part of the interval within ±magnitude."""
        return self.mapped(lambda x: min(max(x, -magnitude), magnitude))

    def mapped(self, monotone: Callable[[float], float], *, integral: bool | None = None) -> "Bounds":
        """Return the image under a function that never decreases."""
        whole = self.integral if integral is None else integral
        return Bounds(monotone(self.low), monotone(self.high), whole, self.assumed)

    def negated(self) -> "Bounds":
        """Return the bounds of -x."""
        return Bounds(-self.high, -self.low, self.integral, self.assumed)

    def absolute(self) -> "Bounds":
        """Return the bounds of abs(x)."""
        return Bounds(self.away_from_zero, self.magnitude, self.integral, self.assumed)

    def plus(self, other: "Bounds") -> "Bounds":
        """Return the bounds of x + y."""
        return Bounds(
            _sum(self.low, other.low, -INFINITE),
            _sum(self.high, other.high, INFINITE),
            self.integral and other.integral,
            self.assumed or other.assumed,
        )

    def times(self, other: "Bounds") -> "Bounds":
        """Return the bounds of x · y."""
        corners = [_product(a, b) for a in (self.low, self.high) for b in (other.low, other.high)]
        return Bounds(min(corners), max(corners), self.integral and other.integral, self.assumed or other.assumed)

    def squared(self) -> "Bounds":
        """Return the bounds of x · x, which unlike ``times`` knows that both factors are equal."""
        low, high = self.away_from_zero, self.magnitude
        return Bounds(_product(low, low), _product(high, high), self.integral, self.assumed)

    def scaled(self, factor: float) -> "Bounds":
        """Return the bounds of factor · x for factor >= 0."""
        return Bounds(_product(self.low, factor), _product(self.high, factor), self.integral, self.assumed)

    def inverse(self) -> "Bounds":
        """Return the bounds of 1 / x; where x may be zero nothing bounds it, and nothing proves that it is large.

        So it is where a tiny distance from zero is only assumed.
        """
        certain = self.away_from_zero
        if certain > (_ASSUMED_AWAY if self.assumed else 0.0):
            ends = (_quotient(self.low), _quotient(self.high))
            return Bounds(min(ends), max(ends), False, self.assumed)
        low = 0.0 if self.low >= 0 else -INFINITE
        return Bounds(low, 0.0 if self.high <= 0 and self.low < 0 else INFINITE, assumed=True)


UNBOUNDED = Bounds(-INFINITE, INFINITE)


def hull(parts: Iterable[Bounds]) -> Bounds:
    """Return the smallest interval around all parts; unbounded if there are none."""
    bounds = list(parts)
    if not bounds:
        return UNBOUNDED
    return Bounds(
        min(b.low for b in bounds),
        max(b.high for b in bounds),
        all(b.integral for b in bounds),
        any(b.assumed for b in bounds),
    )


def _sum(a: float, b: float, when_undefined: float) -> float:
    total = a + b
    return when_undefined if math.isnan(total) else total


def _product(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def _quotient(a: float) -> float:
    return 0.0 if math.isinf(a) else 1.0 / a
