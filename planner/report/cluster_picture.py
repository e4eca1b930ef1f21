"""A cluster as a picture: a box for each node, a square for each device in the colour of the stage that it works on,
and what joins the devices and leads out of the node, in the colour of how busy it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.report.charts import colours
from planner.report.load_colours import LEGEND_HEIGHT, LEGEND_WIDTH, load_colour, load_legend, say_load
from planner.report.svg import box, frame, label, number_on, picture, titled
from planner.shared.words import format_bytes
from profiles.records import dataclass

SQUARE, GAP, MARGIN, HEAD = 24.0, 3.0, 10.0, 16.0
BAR, WORDS = 5.0, 13.0
WIDTH = 1120.0
ACROSS = 4
LEAST_WIDTH = 112.0
"""Of a node's box: what its words need."""
MOST_NODES = 128
MOST_NUMBERED = 64
"""Nodes: of more, ranks are told by pointing at a node alone."""
IDLE = "#9aa1a9"

Place = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class _Grid:
    """How large a node's box is, and how many stand in a row."""

    across: int
    rows: int
    numbered: bool
    loaded: bool

    @property
    def square(self) -> float:
        return SQUARE if self.numbered else 13.0

    @property
    def width(self) -> float:
        least = LEAST_WIDTH if self.loaded else 0.0
        return max(least, self.across * (self.square + GAP) + 2 * GAP + MARGIN)

    @property
    def height(self) -> float:
        loads = BAR + WORDS if self.loaded else 0.0
        return HEAD + self.rows * (self.square + GAP) + 2 * GAP + MARGIN + 2 * loads

    @property
    def in_row(self) -> int:
        return max(1, int(WIDTH // self.width))


def draw_cluster(
    devices: Sequence[Mapping[str, Any]],
    stages: Sequence[Mapping[str, Any]],
    loads: Mapping[str, Any] | None = None,
) -> str:
    """Return the SVG. `devices` and `stages` are the plan file's, `loads` what `describe_link_loads` returns."""
    stage_of = {rank: number for number, stage in enumerate(stages) for rank in stage["ranks"]}
    nodes: dict[Place, list[Mapping[str, Any]]] = {}
    for device in devices:
        nodes.setdefault((device["site"], device["node"]), []).append(device)
    shown = list(nodes.items())[:MOST_NODES]
    most = max(len(members) for _, members in shown)
    across = min(ACROSS if most <= 2 * ACROSS else 2 * ACROSS, most)
    numbered = len(nodes) <= MOST_NUMBERED and len(devices) < 10000
    grid = _Grid(across=across, rows=-(-most // across), numbered=numbered, loaded=loads is not None)
    fills = colours(len(stages))
    several = len({site for site, _ in nodes}) > 1
    inside, outside = _loads_of_nodes(loads)
    elements: list[str] = list(load_legend(0, 12)) if grid.loaded else []
    top = LEGEND_HEIGHT if grid.loaded else 0.0
    for place, (node, members) in enumerate(shown):
        x, y = (place % grid.in_row) * grid.width, top + (place // grid.in_row) * grid.height
        name = f"{node[0]} {node[1]}" if several else f"node {node[1]}"
        elements += [
            "<g>",
            titled(_said(node, members, stage_of)),
            frame(x, y, grid.width - MARGIN, grid.height - MARGIN),
        ]
        elements.append(label(x + 2 * GAP, y + HEAD - 4, name, size=11, ink="ink"))
        elements += _squares(members, stage_of, fills, grid, x, y + HEAD)
        elements.append("</g>")
        if grid.loaded:
            foot = y + HEAD + grid.rows * (grid.square + GAP) + GAP
            elements += _bar("inside", inside.get(node), grid, x, foot)
            elements += _bar("network", outside.get(node), grid, x, foot + BAR + WORDS)
    bottom = top + -(-len(shown) // grid.in_row) * grid.height
    if len(nodes) > len(shown):
        bottom += HEAD
        elements.append(label(0, bottom - 3, f"and {len(nodes) - len(shown):,} more nodes", size=11))
    width = max(min(grid.in_row, len(shown)) * grid.width, LEGEND_WIDTH if grid.loaded else 0.0)
    return picture(width, bottom, f"{len(nodes):,} nodes, {len(devices):,} devices", elements)


def _said(node: Place, members: Sequence[Mapping[str, Any]], stage_of: Mapping[int, int]) -> str:
    ranks = " ".join(str(each["rank"]) for each in members)
    stages_here = sorted({stage_of[each["rank"]] for each in members if each["rank"] in stage_of})
    return f"node {node[1]}: ranks {ranks}; stage {' '.join(map(str, stages_here)) or 'none'}"


def _squares(
    members: Sequence[Mapping[str, Any]],
    stage_of: Mapping[int, int],
    fills: Sequence[str],
    grid: _Grid,
    x: float,
    y: float,
) -> Iterator[str]:
    for turn, each in enumerate(members):
        stage = stage_of.get(each["rank"])
        left = x + 2 * GAP + (turn % grid.across) * (grid.square + GAP)
        top = y + (turn // grid.across) * (grid.square + GAP)
        fill = IDLE if stage is None else fills[stage]
        yield box(left, top, grid.square, grid.square, fill, rounded=3)
        if grid.numbered and stage is not None:
            number = str(each["rank"])
            size = 11 if len(number) < 3 else 9
            yield number_on(left + grid.square / 2, top + grid.square / 2 + 4, number, fill, size=size)


def _loads_of_nodes(
    loads: Mapping[str, Any] | None,
) -> tuple[dict[Place, tuple[float, str]], dict[Place, tuple[float, str]]]:
    """How busy what joins a node's devices is, and the busiest way between it and the network, with their words."""
    inside: dict[Place, tuple[float, str]] = {}
    outside: dict[Place, tuple[float, str]] = {}
    if loads is None:
        return inside, outside
    place_of: dict[str, Place] = {}
    for node in loads["nodes"]:
        place_of[node["name"]] = node["site"], node["node"]
        size = format_bytes(node["inside_bytes"])
        said = f"{size} an iteration from the busiest device over {node['inside_link']}"
        inside[place_of[node["name"]]] = node["inside_busy"], f"{said}: busy {say_load(node['inside_busy'])}"
    for link in loads["links"]:
        for end, way in ((link["from"], "out"), (link["to"], "in")):
            if end in place_of and link["busy"] > outside.get(place_of[end], (0.0, ""))[0]:
                said = f"{way} over {link['cables']} cables: {format_bytes(link['bytes'])} an iteration"
                outside[place_of[end]] = link["busy"], f"{said}: busy {say_load(link['busy'])}"
    return inside, outside


def _bar(name: str, load: tuple[float, str] | None, grid: _Grid, x: float, y: float) -> Iterator[str]:
    """A bar in the colour of a load, and its share below."""
    busy, said = load or (0.0, f"{name}: nothing")
    wide = grid.width - MARGIN - 4 * GAP
    yield box(x + 2 * GAP, y, wide, BAR, load_colour(busy), said=said, rounded=2)
    yield label(x + 2 * GAP, y + BAR + 10, f"{name} {say_load(busy)}", size=10)
