"""A cluster as a picture: a box for each node, a square for each device in the colour of the stage that it works on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.one_job.timeline.markup import px, xml_text
from planner.report.charts import colours

SQUARE, GAP, MARGIN, LABEL = 14.0, 3.0, 8.0, 14.0
WIDTH = 1120.0
MOST_NODES = 192


def draw_cluster(devices: Sequence[Mapping[str, Any]], stages: Sequence[Mapping[str, Any]]) -> str:
    """Return the SVG. `devices` and `stages` are the plan file's."""
    stage_of = {rank: number for number, stage in enumerate(stages) for rank in stage["ranks"]}
    nodes: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for device in devices:
        nodes.setdefault((device["site"], device["node"]), []).append(device)
    shown = list(nodes.items())[:MOST_NODES]
    across = min(4, max(len(members) for _, members in shown))
    width = across * (SQUARE + GAP) + GAP + 2 * MARGIN
    inner = max(-(-len(members) // across) for _, members in shown) * (SQUARE + GAP) + GAP
    height = inner + LABEL + MARGIN
    in_row = max(1, int(WIDTH // width))
    fills = colours(len(stages))
    several = len({site for site, _ in nodes}) > 1
    elements = []
    for place, ((site, node), members) in enumerate(shown):
        x, y = (place % in_row) * width, (place // in_row) * height
        ranks = ", ".join(f"{each['rank']}" for each in members)
        numbers = sorted({stage_of[each["rank"]] for each in members if each["rank"] in stage_of})
        name = f"{site} node {node}" if several else f"node {node}"
        said = f"{name}: ranks {ranks}; stage {', '.join(map(str, numbers))}"
        elements.append(f"<g><title>{xml_text(said)}</title>")
        elements.append(
            f'<rect class="empty grid" x="{px(x)}" y="{px(y)}" width="{px(width - MARGIN)}" height="{px(height - MARGIN)}"'
            ' rx="4" fill="#f6f7f9" stroke="#d5dae0"/>'
        )
        elements.append(
            f'<text class="faint" x="{px(x + GAP)}" y="{px(y + LABEL - 3)}" font-size="10" fill="#5c6670">{xml_text(name)}</text>'
        )
        for turn, each in enumerate(members):
            left = x + GAP + (turn % across) * (SQUARE + GAP)
            top = y + LABEL + (turn // across) * (SQUARE + GAP)
            fill = fills[stage_of[each["rank"]]] if each["rank"] in stage_of else "#999999"
            elements.append(
                f'<rect x="{px(left)}" y="{px(top)}" width="{SQUARE:g}" height="{SQUARE:g}" rx="2" fill="{fill}"/>'
            )
        elements.append("</g>")
    bottom = -(-len(shown) // in_row) * height
    if len(nodes) > len(shown):
        bottom += LABEL
        elements.append(
            f'<text class="faint" x="0" y="{px(bottom - 3)}" font-size="11" fill="#5c6670">and {len(nodes) - len(shown):,} more'
            " nodes</text>"
        )
    full = min(in_row, len(shown)) * width
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{px(full)}" height="{px(bottom)}"'
        f' viewBox="0 0 {px(full)} {px(bottom)}" role="img" font-family="system-ui, Arial, sans-serif">'
        f"<title>{len(nodes):,} nodes, {len(devices):,} devices</title>{''.join(elements)}</svg>"
    )
