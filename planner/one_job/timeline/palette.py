"""Colours of a timeline: apart for every kind of colour vision and in grey, since each kind has a lightness of its own.

Of several chunks of layers the first is the lightest; the kinds' ranges do not meet.
"""

from __future__ import annotations

from typing import Literal

from estimator.schedules.records import Kind
from planner.one_job.timeline.events import After
from profiles.records import dataclass

Mark = Kind | After | Literal["stopped"]
"""What is drawn: a kind of task, what of it collectives stop, or what follows the schedule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Fills of the first and the last chunk, and the ink for numbers on both."""

    first: str
    last: str
    ink: str


LOOKS: dict[Mark, Look] = {
    "forward": Look(first="#a9d0f3", last="#7ab2e6", ink="#14202b"),
    "weight": Look(first="#c9801b", last="#b56d0c", ink="#1c1200"),
    "backward": Look(first="#2a7873", last="#0b4a4f", ink="#ffffff"),
    "stopped": Look(first="#f2c14e", last="#f2c14e", ink="#14202b"),
    "sync": Look(first="#6b4a76", last="#6b4a76", ink="#ffffff"),
    "optimizer": Look(first="#191a20", last="#191a20", ink="#ffffff"),
    "offload": Look(first="#5d6068", last="#5d6068", ink="#ffffff"),
}

HATCHES: dict[Mark, str] = {"sync": "#a98bb4", "stopped": "#7a4e00"}
"""Stripes over what communicates, which tell it from compute in grey."""

PAPER = "#ffffff"
EMPTY_ROW = "#f1f2f5"
GRID = "#d3d7de"
TEXT = "#16181d"
FAINT_TEXT = "#565c66"


def fill_of(mark: Mark, chunk: float = 0, chunks: int = 1) -> str:
    """The colour of `chunk` of `chunks`, or between two.

    >>> fill_of("forward"), fill_of("forward", 3, 4)
    ('#a9d0f3', '#7ab2e6')
    """
    look = LOOKS[mark]
    share = chunk / (chunks - 1) if chunks > 1 else 0.0
    pairs = zip(channels(look.first), channels(look.last), strict=True)
    return "#" + "".join(f"{round(first + share * (last - first)):02x}" for first, last in pairs)


def channels(colour: str) -> tuple[int, int, int]:
    """Red, green and blue of `#rrggbb`, 0 to 255."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
