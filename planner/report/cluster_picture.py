"""A cluster as a picture: a box for each node, a square for each device in the colour of the stage that it works on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.report.charts import colours
from planner.report.svg import box, frame, label, picture, titled

SQUARE, GAP, MARGIN, HEAD = 14.0, 3.0, 8.0, 14.0
WIDTH = 1120.0
ACROSS = 4
MOST_NODES = 128
IDLE = "#9aa1a9"


def draw_cluster(devices: Sequence[Mapping[str, Any]], stages: Sequence[Mapping[str, Any]]) -> str:
    """Return the SVG. `devices` and `stages` are the plan file's."""
    stage_of = {rank: number for number, stage in enumerate(stages) for rank in stage["ranks"]}
    nodes: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for device in devices:
        nodes.setdefault((device["site"], device["node"]), []).append(device)
    shown = list(nodes.items())[:MOST_NODES]
    across = min(ACROSS, max(len(members) for _, members in shown))
    width = across * (SQUARE + GAP) + GAP + MARGIN
    height = max(-(-len(members) // across) for _, members in shown) * (SQUARE + GAP) + GAP + HEAD + MARGIN
    in_row = max(1, int(WIDTH // width))
    fills = colours(len(stages))
    several = len({site for site, _ in nodes}) > 1
    elements = []
    for place, ((site, node), members) in enumerate(shown):
        x, y = (place % in_row) * width, (place // in_row) * height
        ranks = " ".join(str(each["rank"]) for each in members)
        stages_here = sorted({stage_of[each["rank"]] for each in members if each["rank"] in stage_of})
        said = f"node {node}: ranks {ranks}; stage {' '.join(map(str, stages_here)) or 'none'}"
        elements += ["<g>", titled(said), frame(x, y, width - MARGIN, height - MARGIN)]
        elements.append(label(x + GAP, y + HEAD - 3, f"{site} {node}" if several else f"node {node}"))
        for turn, each in enumerate(members):
            stage = stage_of.get(each["rank"])
            elements.append(
                box(
                    x + GAP + (turn % across) * (SQUARE + GAP),
                    y + HEAD + (turn // across) * (SQUARE + GAP),
                    SQUARE,
                    SQUARE,
                    IDLE if stage is None else fills[stage],
                    rounded=2,
                )
            )
        elements.append("</g>")
    bottom = -(-len(shown) // in_row) * height
    if len(nodes) > len(shown):
        bottom += HEAD
        elements.append(label(0, bottom - 3, f"and {len(nodes) - len(shown):,} more nodes", size=11))
    title = f"{len(nodes):,} nodes, {len(devices):,} devices"
    return picture(min(in_row, len(shown)) * width, bottom, title, elements)
