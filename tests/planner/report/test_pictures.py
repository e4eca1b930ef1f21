"""Our own pictures: links in the colours of their loads, memory from an iteration's beginning to its end."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from planner.one_job.timeline.svg import PLOT_WIDTH, plot_of
from planner.report.cluster_picture import draw_cluster
from planner.report.load_colours import FULL, STEPS, load_colour
from planner.report.memory_over_time import MOST_MOMENTS, memory_steps
from planner.report.memory_picture import draw_memory
from planner.report.network_picture import MOST_VERTICES, draw_network
from tests.planner.one_job.timeline.timeline_examples import made_up

GIB = 2**30


def link(start: str, end: str, busy: float, rate: float | None = 1e9) -> dict[str, Any]:
    return {"from": start, "to": end, "cables": 2, "bytes": 1e9 * busy, "bytes_per_s": rate, "busy": busy}


def loads_of(links: list[dict[str, Any]], nodes: int = 2) -> dict[str, Any]:
    told = [
        {"site": "s", "node": n, "name": f"n{n}", "inside_link": "nv", "inside_bytes": 2.0**30, "inside_busy": 0.2}
        for n in range(nodes)
    ]
    return {"iteration_time_s": 1.0, "links": links, "left_out": 0, "nodes": told, "provenance": "modelled"}


def test_colours_grow_with_loads() -> None:
    shares = [0.0, *(end for end, _, _ in STEPS)]
    assert [load_colour(share) for share in shares] == [*(colour for _, colour, _ in STEPS), FULL]
    assert load_colour(1.5) == FULL


def test_a_link_has_the_colour_of_its_busier_direction() -> None:
    links = [link("n0", "top", 0.05), link("top", "n0", 0.7), link("n1", "top", 0.02), link("top", "gate", 0.0, None)]
    svg = draw_network(loads_of(links))
    assert svg is not None
    root = ElementTree.fromstring(svg)
    lines = {
        element.findtext("{*}title", ""): element.get("stroke")
        for element in root.iter("{http://www.w3.org/2000/svg}path")
    }
    assert len(lines) == 3
    (busy,) = (colour for said, colour in lines.items() if "70.0%" in said and "5.0%" in said)
    assert busy == FULL
    assert {colour for said, colour in lines.items() if "n1 to top" in said} == {load_colour(0.02)}
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"n0", "n1", "top", "gate", "70.0%", "2.0%"} <= set(words)
    assert "0.0%" not in words  # Nothing bounds the way to the gate.


@pytest.mark.parametrize("change", ["none", "left out", "too many"])
def test_where_a_picture_would_not_show_all_there_is_none(change: str) -> None:
    nodes = MOST_VERTICES + 1 if change == "too many" else 2
    loads = loads_of([link(f"n{node}", "top", 0.1) for node in range(nodes)] if change != "none" else [], nodes)
    loads["left_out"] = int(change == "left out")
    assert draw_network(loads) is None


def test_nodes_say_their_loads() -> None:
    devices = [{"rank": rank, "site": "s", "node": rank // 2, "device": "h100", "index": rank % 2} for rank in range(4)]
    stages = [{"ranks": [0, 1]}, {"ranks": [2, 3]}]
    svg = draw_cluster(
        devices, stages, loads_of([link("n0", "top", 0.4), link("top", "n0", 0.1), link("n1", "top", 0.1)])
    )
    assert svg.count(">inside 20.0%<") == 2
    assert svg.count(">network 40.0%<") == svg.count(">network 10.0%<") == 1
    assert svg.count(f'fill="{load_colour(0.4)}"') == 2  # The legend's too.
    assert "network" not in draw_cluster(devices, stages)


@pytest.mark.parametrize("micro_batches", [4, 300])
def test_memory_runs_from_the_beginning_to_the_end(micro_batches: int) -> None:
    timeline = made_up("1f1b", stages=3, micro_batches=micro_batches)
    memory = dict.fromkeys(
        [
            "weight_bytes",
            "gradient_bytes",
            "optimizer_bytes",
            "temporary_bytes",
            "communication_bytes",
            "reserve_bytes",
        ],
        0,
    )
    plan = {"stages": [{"memory": memory | {"weight_bytes": GIB, "activation_bytes": 2 * GIB}} for _ in range(3)]}
    rows = memory_steps(plan, timeline)
    for number in range(3):
        own = [row for row in rows if row["stage"] == f"stage {number}"]
        assert (own[0]["s"], own[0]["GiB"]) == (0.0, 1.0)
        assert max(row["GiB"] for row in own) == 3.0
        assert own[-1]["s"] == pytest.approx(timeline.end_s)
        assert len(own) <= MOST_MOMENTS + 2
    plot = plot_of(timeline)
    svg = draw_memory(rows, plot, device_bytes=4 * GIB)
    (line,) = re.findall(r'class="rule" d="M([\d.]+) [\d.]+H([\d.]+)"', svg)
    assert [float(x) for x in line] == pytest.approx([plot.left, plot.left + PLOT_WIDTH], abs=0.1)
    assert svg.count("3 GiB at its fullest") == 3
