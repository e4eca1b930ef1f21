"""The links that a plan uses as a picture: nodes below, switches above, each way in the colour of how busy it is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from planner.one_job.timeline.markup import px
from planner.report.load_colours import LEGEND_HEIGHT, LEGEND_WIDTH, load_colour, load_legend, say_load
from planner.report.svg import box, frame, label, picture, titled
from planner.shared.words import format_bytes, format_count
from profiles.records import dataclass

MOST_WIDTH, ROOM = 1120.0, 150.0
STEP = 96.0
"""From one row of vertices to the next."""
BOX_HIGH = 22.0
MOST_VERTICES, MOST_WAYS = 160, 500
ROOM_FOR_NAMES = 18
"""So many boxes in a row have room for names."""

Pair = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class _Way:
    """Both directions between two vertices: the busier one's share, what is said of both, whether anything bounds
    them."""

    busy: float
    said: str
    bounded: bool


def draw_network(loads: Mapping[str, Any]) -> str | None:
    """Return the SVG of what `describe_link_loads` returns; None where nothing passes between nodes, or too many links
    do for a picture."""
    ways = _ways(loads["links"])
    nodes = [node["name"] for node in loads["nodes"]]
    used = {end for pair in ways for end in pair}
    rows = _rows([name for name in nodes if name in used], ways)
    if not ways or loads["left_out"] or len(used) > MOST_VERTICES or len(ways) > MOST_WAYS:
        return None
    width = max(LEGEND_WIDTH, min(MOST_WIDTH, ROOM * max(map(len, rows))))
    places = _places(rows, width)
    elements = list(load_legend(0, 12))
    for pair, way in sorted(ways.items(), key=lambda item: (item[1].busy, item[0])):
        (x, y), (x2, y2) = (places[end] for end in pair)
        wide = 1.5 + 4.5 * min(1.0, way.busy)
        line = f'd="M{px(x)} {px(y)}L{px(x2)} {px(y2)}" stroke="{load_colour(way.busy)}" stroke-width="{wide:.1f}"'
        elements.append(f'<path {line} fill="none">{titled(way.said)}</path>')
    if len(ways) <= ROOM_FOR_NAMES:
        for pair, way in sorted(ways.items()):
            (x, y), (x2, y2) = (places[end] for end in pair)
            if not way.bounded:
                continue
            elements.append(
                label((x + x2) / 2, (y + y2) / 2 + 4, say_load(way.busy), size=11, ink="over", anchor="middle")
            )
    for row in rows:
        wide = min(ROOM - 42, width / len(row) - 6)
        for name in row:
            x, y = places[name]
            said = titled(name)
            elements += ["<g>", said, frame(x - wide / 2, y - BOX_HIGH / 2, wide, BOX_HIGH)]
            if name in nodes:
                elements.append(box(x - wide / 2, y - BOX_HIGH / 2, min(4.0, wide), BOX_HIGH, "#5c6670"))
            if len(row) <= ROOM_FOR_NAMES:
                elements.append(label(x, y + 4, _short(name, wide), size=11, ink="ink", anchor="middle"))
            elements.append("</g>")
    height = LEGEND_HEIGHT + BOX_HIGH + STEP * (len(rows) - 1) + 8
    return picture(width, height, f"{len(ways):,} ways between {len(used):,} nodes and switches", elements)


def _ways(links: Sequence[Mapping[str, Any]]) -> dict[Pair, _Way]:
    both: defaultdict[Pair, list[Mapping[str, Any]]] = defaultdict(list)
    for link in links:
        both[min(link["from"], link["to"]), max(link["from"], link["to"])].append(link)
    ways = {}
    for pair, directions in both.items():
        ways[pair] = _Way(
            busy=max(link["busy"] for link in directions),
            said="; ".join(map(_said, directions)),
            bounded=any(link["bytes_per_s"] is not None for link in directions),
        )
    return ways


def _said(link: Mapping[str, Any]) -> str:
    carried = f"{format_bytes(link['bytes'])} an iteration"
    if link["bytes_per_s"] is not None:
        rate = format_count(8 * link["bytes_per_s"] / link["cables"], "b/s")
        carried += f" over {link['cables']} cables of {rate}"
    return f"{say_vertex(link['from'])} to {say_vertex(link['to'])}: {carried}, busy {say_load(link['busy'])}"


def _rows(nodes: Sequence[str], ways: Mapping[Pair, _Way]) -> list[list[str]]:
    """Vertices by how many links they are above the nearest node, nodes first. A row stands in the order of the middle
    of what hangs below."""
    near: defaultdict[str, list[str]] = defaultdict(list)
    for first, second in ways:
        near[first].append(second)
        near[second].append(first)
    rows, seen = [list(nodes)], set(nodes)
    while rows[-1]:
        above: defaultdict[str, list[int]] = defaultdict(list)
        for place, name in enumerate(rows[-1]):
            for other in near[name]:
                if other not in seen:
                    above[other].append(place)
        rows.append(sorted(above, key=lambda name: (sum(above[name]) / len(above[name]), name)))
        seen.update(rows[-1])
    return rows[:-1]


def _places(rows: Sequence[Sequence[str]], width: float) -> dict[str, tuple[float, float]]:
    """Middles of the boxes: rows from below, spread over the width."""
    height = LEGEND_HEIGHT + BOX_HIGH / 2 + STEP * (len(rows) - 1)
    return {
        name: ((place + 0.5) * width / len(row), height - STEP * number)
        for number, row in enumerate(rows)
        for place, name in enumerate(row)
    }


def say_vertex(name: str) -> str:
    """Return what a vertex of the network is called on pages: switches of which nobody said more are the fabric.

    >>> say_vertex("above"), say_vertex("north/above"), say_vertex("leaf3")
    ('fabric', 'north/fabric', 'leaf3')
    """
    site, slash, own = name.rpartition("/")
    return f"{site}{slash}fabric" if own == "above" else name


def _short(name: str, wide: float) -> str:
    """A name as its box has room for it."""
    shown = say_vertex(name)
    letters = int(wide / 6.4)
    return shown if len(shown) <= letters else f"{shown[: max(1, letters - 1)]}…"
