"""How full a link is, as a colour: five steps, light to dark, whose shares are said beside them too."""

from __future__ import annotations

from collections.abc import Iterator

from planner.report.svg import box, label

STEPS = (
    (0.01, "#8fa3b5", "under 1%"),
    (0.1, "#4a9bd1", "to 10%"),
    (0.3, "#d9a400", "to 30%"),
    (0.6, "#e0620d", "to 60%"),
)
FULL, FULL_NAME = "#b3123a", "60% and more"


def load_colour(busy: float) -> str:
    """Return the colour of a link that is busy for this share of an iteration."""
    return next((colour for end, colour, _ in STEPS if busy < end), FULL)


def say_load(busy: float) -> str:
    """Return a share as the pages say it, which is never 0 where anything passes.

    >>> say_load(0.0004), say_load(0.037), say_load(1.49)
    ('<0.1%', '3.7%', '149%')
    """
    if 0 < busy < 0.001:
        return "<0.1%"
    return f"{busy:.0%}" if busy >= 0.995 else f"{busy:.1%}"


def load_legend(x: float, y: float) -> Iterator[str]:
    """Yield a swatch and a name for each colour in two rows, from `x` and `y` (a line's foot) on."""
    yield label(x, y, "busy, of an iteration:", size=11)
    entries = (*((colour, name) for _, colour, name in STEPS), (FULL, FULL_NAME))
    for turn, (colour, name) in enumerate(entries, start=1):
        left, foot = x + (turn % 3) * 124, y + (turn // 3) * 16
        yield box(left, foot - 10, 16, 10, colour, rounded=2)
        yield label(left + 21, foot, name, size=11, ink="ink")


LEGEND_WIDTH, LEGEND_HEIGHT = 360.0, 40.0
