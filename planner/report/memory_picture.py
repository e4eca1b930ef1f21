"""Memory of ranks over an iteration as a picture under the timeline, on the same axis of time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.one_job.timeline.markup import px, xml_text
from planner.one_job.timeline.svg import PLOT_WIDTH, Plot
from planner.report.charts import colours
from planner.report.svg import LINE, label, picture, time_marks, titled
from planner.shared.words import format_bytes

HEIGHT, TOP, FOOT = 150.0, 34.0, 26.0
MARKS = 4
GIB = 2**30
ROOM = 1.06
"""Above the highest level, so that a line at the top is seen."""


def draw_memory(rows: Sequence[Mapping[str, Any]], plot: Plot, *, device_bytes: int | None) -> str:
    """Return the SVG: a line of steps for each stage of `rows` (`memory_steps`), and the device's memory dashed."""
    stages = list(dict.fromkeys(row["stage"] for row in rows))
    device = (device_bytes or 0) / GIB
    most = ROOM * max(device, *(row["GiB"] for row in rows))
    fills = dict(zip(stages, colours(len(stages)), strict=True))
    elements = [*_scale(most, plot)]
    elements.append(time_marks(plot.axis, left=plot.left, top=TOP, bottom=TOP + HEIGHT))
    if device:
        y = _level(device, most)
        line = f"M{px(plot.left)} {px(y)}H{px(plot.left + PLOT_WIDTH)}"
        said = titled(f"the device's memory: {format_bytes(device * GIB)}")
        elements.append(
            f'<path class="rule" d="{line}" stroke="#1b1f24" stroke-dasharray="6 3" fill="none">{said}</path>'
        )
    elements += [
        _line([row for row in rows if row["stage"] == name], name, fill, most, plot) for name, fill in fills.items()
    ]
    elements += _legend(fills, plot, device)
    return picture(plot.width, TOP + HEIGHT + FOOT, "Memory over an iteration", elements)


def _level(gib: float, most: float) -> float:
    return TOP + HEIGHT * (1 - gib / most)


def _scale(most: float, plot: Plot) -> Iterator[str]:
    """Lines at round amounts."""
    step = next(
        each * power
        for power in (0.01, 0.1, 1, 10, 100, 1000)
        for each in (1, 2, 5)
        if each * power * MARKS >= most * 0.8
    )
    for turn in range(int(most / step) + 1):
        y = _level(turn * step, most)
        yield f'<path class="grid" d="M{px(plot.left)} {px(y)}h{px(PLOT_WIDTH)}" stroke="{LINE}" fill="none"/>'
        yield label(plot.left - 6, y + 4, f"{turn * step:g} GiB", size=11, anchor="end")


def _line(levels: Sequence[Mapping[str, Any]], name: str, colour: str, most: float, plot: Plot) -> str:
    (first, *others) = levels
    steps = [f"M{px(plot.left + plot.axis.pixels(first['s']))} {px(_level(first['GiB'], most))}"]
    steps += [f"H{px(plot.left + plot.axis.pixels(row['s']))}V{px(_level(row['GiB'], most))}" for row in others]
    full = max(levels, key=lambda row: row["GiB"])
    said = f"{name}: {format_bytes(full['GiB'] * GIB)} at its fullest, from {plot.axis.say_moment(full['s'])} on"
    return f'<path d="{"".join(steps)}" stroke="{colour}" stroke-width="1.6" fill="none">{titled(said)}</path>'


def _legend(fills: Mapping[str, str], plot: Plot, device: float) -> Iterator[str]:
    x = plot.left
    for name, fill in fills.items():
        yield f'<path d="M{px(x)} 14h18" stroke="{fill}" stroke-width="3"/>'
        yield label(x + 24, 18, name, size=12, ink="ink")
        x += 40 + 7.2 * len(xml_text(name))
    if device:
        yield f'<path class="rule" d="M{px(x)} 14h18" stroke="#1b1f24" stroke-dasharray="6 3"/>'
        yield label(x + 24, 18, "the device's memory", size=12, ink="ink")
