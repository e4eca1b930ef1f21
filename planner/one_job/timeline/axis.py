"""The time axis of a picture: one unit for all of it, round marks, seconds to pixels."""

from __future__ import annotations

import math

from profiles.records import dataclass

UNITS = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6))
LONG_UNITS = (("d", 86400.0), ("h", 3600.0), ("min", 60.0), *UNITS)
"""Of an axis that may be weeks long."""
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
MOST_MARKS = 12
DIGITS = 5
"""Of the end of the axis, where a moment is written out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeAxis:
    """From 0 to `end_s` (above 0) over `width` pixels, in one of `units`."""

    end_s: float
    width: float
    units: tuple[tuple[str, float], ...] = UNITS

    def __post_init__(self) -> None:
        if not (0 < self.end_s < math.inf and self.width > 0):
            raise ValueError(f"end_s={self.end_s}, width={self.width}; expected both above 0 and finite")

    @property
    def unit(self) -> tuple[str, float]:
        """The largest unit that the axis is one of long, and its seconds."""
        return next((unit for unit in self.units if self.end_s >= unit[1]), self.units[-1])

    @property
    def seconds_per_pixel(self) -> float:
        """The scale."""
        return self.end_s / self.width

    def pixels(self, seconds: float) -> float:
        """How far from the axis' start."""
        return seconds / self.seconds_per_pixel

    def marks(self) -> tuple[tuple[float, str], ...]:
        """At most 12 round moments with their names.

        >>> TimeAxis(end_s=0.9, width=100).marks()[:3]
        ((0.0, '0'), (0.1, '100 ms'), (0.2, '200 ms'))
        """
        name, unit_s = self.unit
        length = self.end_s / unit_s
        least = length / (MOST_MARKS - 1)
        power = 10.0 ** math.floor(math.log10(least))
        step = next(factor * power for factor in STEPS if factor * power >= least * (1 - 1e-9))
        counts = range(math.floor(length / step * (1 + 1e-9)) + 1)
        return tuple((n * step * unit_s, f"{n * step:.10g} {name}" if n else "0") for n in counts)

    def say_moment(self, seconds: float) -> str:
        """A moment, as finely as makes sense on this axis.

        >>> TimeAxis(end_s=2.0, width=100).say_moment(1 / 3)
        '0.3333 s'
        """
        name, unit_s = self.unit
        decimals = max(0, DIGITS - 1 - math.floor(math.log10(self.end_s / unit_s)))
        return f"{seconds / unit_s:.{decimals}f} {name}"


def say_length(seconds: float) -> str:
    """A length in a unit of its own, three digits.

    >>> say_length(0.00523), say_length(120)
    ('5.23 ms', '120 s')
    """
    name, unit_s = next((unit for unit in UNITS if seconds >= unit[1]), UNITS[-1])
    value = seconds / unit_s
    return f"{value:.0f} {name}" if value >= 100 else f"{value:.3g} {name}"
