"""Boxes, words and marks of our own pictures. What has a class takes its colour from the page, light or dark."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from planner.one_job.timeline.axis import TimeAxis
from planner.one_job.timeline.markup import px, xml_text

Ink = Literal["ink", "faint", "over"]
"""`over`: on top of lines, with a rim of the page's colour."""

INKS: dict[Ink, str] = {"ink": "#1b1f24", "faint": "#5c6670", "over": "#1b1f24"}
LINE, CARD = "#d5dae0", "#f6f7f9"


def box(
    x: float, y: float, wide: float, high: float, fill: str, *, said: str = "", rounded: float = 0, opacity: float = 1.0
) -> str:
    """A filled box; `said` shows when it is pointed at."""
    size = f'x="{px(x)}" y="{px(y)}" width="{px(wide)}" height="{px(high)}"'
    more = (f' rx="{rounded:g}"' if rounded else "") + (f' fill-opacity="{opacity:.2f}"' if opacity < 1 else "")
    title = f">{titled(said)}</rect>" if said else "/>"
    return f'<rect {size} fill="{fill}"{more}{title}'


def frame(x: float, y: float, wide: float, high: float) -> str:
    """An empty box with a line around it."""
    size = f'x="{px(x)}" y="{px(y)}" width="{px(wide)}" height="{px(high)}"'
    return f'<rect class="empty grid" {size} rx="4" fill="{CARD}" stroke="{LINE}"/>'


def titled(said: str) -> str:
    """What shows when the group that it stands first in is pointed at."""
    return f"<title>{xml_text(said)}</title>"


def label(x: float, y: float, text: str, *, size: float = 10, ink: Ink = "faint", anchor: str = "start") -> str:
    """Words on a line."""
    at = f'x="{px(x)}" y="{px(y)}" font-size="{size:g}" text-anchor="{anchor}"'
    return f'<text class="{ink}" {at} fill="{INKS[ink]}">{xml_text(text)}</text>'


def number_on(x: float, y: float, text: str, fill: str, *, size: float) -> str:
    """A number in the middle of something filled, in the ink that is read on it."""
    red, green, blue = (int(fill[place : place + 2], 16) for place in (1, 3, 5))
    ink = "#ffffff" if 0.299 * red + 0.587 * green + 0.114 * blue < 140 else "#101418"
    at = f'x="{px(x)}" y="{px(y)}" font-size="{size:g}" text-anchor="middle"'
    return f'<text {at} fill="{ink}">{xml_text(text)}</text>'


def time_marks(axis: TimeAxis, *, left: float, top: float, bottom: float) -> str:
    """Lines at round moments, with their names below."""
    marks = []
    for at, name in axis.marks():
        x = left + axis.pixels(at)
        marks.append(f'<path class="grid" d="M{px(x)} {px(top)}V{px(bottom + 4)}" stroke="{LINE}" fill="none"/>')
        marks.append(label(x, bottom + 16, name, anchor="middle"))
    return "".join(marks)


def picture(width: float, height: float, title: str, elements: Iterable[str]) -> str:
    """The whole."""
    size = f'width="{px(width)}" height="{px(height)}" viewBox="0 0 {px(width)} {px(height)}"'
    fonts = 'font-family="system-ui, Arial, sans-serif"'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" {fonts}>'
    return f"{opening}<title>{xml_text(title)}</title>{''.join(elements)}</svg>"
