"""Distributions as a picture: what share of the cases has at most so much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 380, 56, 44, 34, 230
COLOURS = ("#1f6f8b", "#c8553d", "#588157", "#7b5ea7", "#b58900", "#444444", "#d081b0", "#2a9d8f")


def cdf_svg(title: str, axis: str, series: Mapping[str, Sequence[float]], *, least: float, most: float) -> str:
    """Return a picture of the cumulative distributions of `series`, from `least` to `most` on the lower axis. What is
    below `least` begins there."""
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def across(value: float) -> float:
        return LEFT + wide * (min(max(value, least), most) - least) / (most - least)

    def down(share: float) -> float:
        return TOP + high * (1 - share)

    rows = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>',
    ]
    for step in range(6):
        share, value = step / 5, least + (most - least) * step / 5
        rows.append(f'<path d="M{LEFT} {down(share):.1f}h{wide}" stroke="#dddddd" fill="none"/>')
        rows.append(f'<text x="{LEFT - 6}" y="{down(share) + 4:.1f}" text-anchor="end">{share:.1f}</text>')
        rows.append(f'<text x="{across(value):.1f}" y="{HEIGHT - 26}" text-anchor="middle">{value:g}</text>')
    rows.append(f'<text x="{LEFT + wide / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(axis)}</text>')
    for place, (name, values) in enumerate(series.items()):
        colour, ranked = COLOURS[place % len(COLOURS)], sorted(values)
        points = [(across(value), down((rank + 1) / len(ranked))) for rank, value in enumerate(ranked)]
        line = "".join(f"H{x:.1f}V{y:.1f}" for x, y in _fewer(points))
        rows.append(
            f'<path d="M{LEFT} {down(0):.1f}{line}H{LEFT + wide}" stroke="{colour}" stroke-width="1.6" fill="none"/>'
        )
        high_up = TOP + 12 + 18 * place
        rows.append(f'<path d="M{WIDTH - RIGHT + 14} {high_up - 4}h18" stroke="{colour}" stroke-width="3"/>')
        rows.append(f'<text x="{WIDTH - RIGHT + 38}" y="{high_up}">{escape(name)}</text>')
    return "\n".join([*rows, "</svg>\n"])


def _fewer(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points without those that one sees no difference by."""
    kept: list[tuple[float, float]] = []
    for x, y in points:
        if kept and abs(kept[-1][0] - x) < 0.5:
            kept[-1] = kept[-1][0], y
        else:
            kept.append((x, y))
    return kept
