"""Student's t distribution with whole degrees of freedom."""

from __future__ import annotations

import math

from profiles.records import dataclass


@dataclass(frozen=True, slots=True)
class Student:
    """Of `freedom` degrees, around 0 with scale 1. ValueError below 1."""

    freedom: int

    def __post_init__(self) -> None:
        if self.freedom < 1:
            raise ValueError(f"student: {self.freedom} degrees of freedom, expected at least 1")

    def density(self, at: float) -> float:
        """At a point."""
        half = (self.freedom + 1) / 2
        size = math.lgamma(half) - math.lgamma(self.freedom / 2) - math.log(self.freedom * math.pi) / 2
        return math.exp(size - half * math.log1p(at * at / self.freedom))

    def below(self, at: float) -> float:
        """The probability of a value below `at`.

        (1 + A) / 2, with A the finite sum of Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.7.3 and
        26.7.4.

        >>> round(Student(10).below(1.812461), 6), Student(3).below(0.0)
        (0.95, 0.5)
        """
        angle = math.atan2(at, math.sqrt(self.freedom))
        sine, cosine = math.sin(angle), math.cos(angle)
        odd = self.freedom % 2
        total, term = 0.0, cosine if odd else 1.0
        for step in range(1 + odd, self.freedom, 2):
            total += term
            term *= cosine * cosine * step / (step + 1)
        inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
        return min(1.0, max(0.0, (1 + inside) / 2))

    def quantile(self, share: float) -> float:
        """Return the value that a `share` of the values lies below, to rounding.

        >>> round(Student(10).quantile(0.95), 5)
        1.81246
        """
        if share < 0.5:
            return -self.quantile(1 - share)
        low, high = 0.0, 1.0
        while self.below(high) < share:
            low, high = high, 2 * high
        while low < (middle := (low + high) / 2) < high:
            low, high = (middle, high) if self.below(middle) < share else (low, middle)
        return middle

    def expected_excess(self, at: float) -> float:
        """The mean of max(0, at - x); infinite with one degree of freedom."""
        if self.freedom == 1:
            return math.inf
        tail = (self.freedom + at * at) / (self.freedom - 1) * self.density(at)
        return at * self.below(at) + tail
