"""A placed job as a page: the map of sites or pods with their links, the machines it got, its plan, other ways."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from planner.one_job.timeline.events import Timeline
from planner.one_job.timeline.markup import px
from planner.report.estimate_parts import describe_interval, headline_facts
from planner.report.load_colours import LEGEND_HEIGHT, LEGEND_WIDTH, load_colour, load_legend, say_load
from planner.report.plan_page import plan_sections
from planner.report.records import Fact, Page, Part, Picture, Section, Table, Words
from planner.report.svg import box, frame, label, picture, titled
from planner.shared.pictures import COLOURS
from planner.shared.words import format_bytes, format_count, format_seconds

LEAST_RADIUS, SITE_WIDE, SITE_HIGH = 190.0, 150.0, 46.0
GATEWAY = "gateway of "
LABEL_AT = 0.36
"""Of a line, from its first end."""
POD_WIDE, POD_HIGH = 170.0, 40.0
PODS_IN_ROW = 6
MOST_ROWS = 60


def placement_page(answer: Mapping[str, Any], *, timeline: Timeline | None) -> Page:
    """Return the page of what `place --json` prints. Seconds that this machine took to find it are left out."""
    sections = list(_where(answer))
    sections += list(_others(answer))
    plan = answer.get("plan")
    facts: tuple[Fact, ...] = ()
    if plan:
        sections += plan_sections(answer, timeline=timeline)
        facts = headline_facts(plan["estimate"], len(plan["devices"]))
    return Page(
        title=f"{answer['model']} placed on {answer['cluster']}",
        subtitle=f"sites by {answer['method']}, {'proved' if answer['proved'] else 'not proved'} to be the best choice",
        facts=facts,
        sections=tuple(sections),
        notes=(describe_interval(),),
        answer={key: value for key, value in answer.items() if key != "timing"},
    )


def _where(answer: Mapping[str, Any]) -> Iterator[Section]:
    parts: list[Part] = []
    if len(answer["sites"]) > 1 or answer["links"]:
        about = "A box for each site with its devices, and the links between them with what they carry"
        parts.append(Picture(title="Sites and the links between them", about=about, svg=_draw_sites(answer)))
    if answer["pods"]:
        about = "A box for each pod with its free devices and those that the job takes"
        parts.append(Picture(title="Pods", about=about, svg=_draw_pods(answer["pods"])))
    parts.append(_nodes(answer))
    yield Section(name="where", title="Where it goes", parts=tuple(parts))


def _draw_sites(answer: Mapping[str, Any]) -> str:
    taken = {site["name"]: len(site["devices"]) for site in answer["sites"]}
    names = list(dict.fromkeys([*taken, *(end for link in answer["links"] for end in link["between"])]))
    radius = 0.0 if len(names) < 2 else max(LEAST_RADIUS, len(names) * SITE_WIDE / (1.6 * math.pi))
    width, height = 2 * radius + SITE_WIDE + 20, 1.8 * radius + SITE_HIGH + 40 + LEGEND_HEIGHT
    if len(names) == 2:
        height = 2 * SITE_HIGH + 20 + LEGEND_HEIGHT
    places = {}
    for turn, name in enumerate(names):
        angle = 2 * math.pi * turn / len(names) + math.pi
        middle = LEGEND_HEIGHT + (height - LEGEND_HEIGHT) / 2
        places[name] = (width / 2 + radius * math.cos(angle), middle + 0.9 * radius * math.sin(angle))
    elements = [*load_legend(0, 12), *_draw_links(answer, places)]
    for name, (x, y) in places.items():
        left, top = x - SITE_WIDE / 2, y - SITE_HIGH / 2
        elements.append(frame(left, top, SITE_WIDE, SITE_HIGH))
        if taken.get(name):
            elements.append(box(left, top, 6, SITE_HIGH, COLOURS[0], rounded=3))
        said = _said_of_site(answer, name) if taken.get(name) else "passed through"
        elements.append(label(x, y - 4, name, size=13, ink="ink", anchor="middle"))
        elements.append(label(x, y + 13, said, size=11, anchor="middle"))
    return picture(max(width, LEGEND_WIDTH), height, f"{len(names)} sites", elements)


def _draw_links(answer: Mapping[str, Any], places: Mapping[str, tuple[float, float]]) -> Iterator[str]:
    """Lines for the chosen links, and for those that the plan's messages take besides; then what is said of them."""
    carried = _between_sites(answer.get("link_loads"))
    chosen = {frozenset(link["between"]): link for link in answer["links"]}
    pairs = [pair for pair in dict.fromkeys([*chosen, *carried]) if all(end in places for end in pair)]
    rates = {pair: chosen[pair]["bandwidth_bytes_per_s"] if pair in chosen else carried[pair][2] for pair in pairs}
    texts = []
    for pair in pairs:
        (x, y), (x2, y2) = (places[end] for end in sorted(pair, key=list(places).index))
        load = carried.get(pair)
        colour = "#9aa1a9" if load is None else load_colour(load[0])
        dashed = "" if load else ' stroke-dasharray="5 4"'
        wide = 1.5 + 5 * rates[pair] / max(rates.values())
        line = f'd="M{px(x)} {px(y)}L{px(x2)} {px(y2)}" stroke="{colour}" stroke-width="{wide:.1f}"{dashed}'
        yield f"<path {line}>{titled(' to '.join(sorted(pair)))}</path>"
        latency = f", {format_seconds(chosen[pair]['latency_s'])}" if pair in chosen else ""
        what = f"{format_bytes(load[1])}, {say_load(load[0])} busy" if load else "carries nothing"
        for turn, said in enumerate((f"{format_count(8 * rates[pair], 'b/s')}{latency}", what)):
            # Off the middle, where lines cross.
            at = x + LABEL_AT * (x2 - x), y + LABEL_AT * (y2 - y) - 4 + 14 * turn
            texts.append(label(*at, said, size=11, ink="over", anchor="middle"))
    yield from texts


def _said_of_site(answer: Mapping[str, Any], name: str) -> str:
    devices = next(site["devices"] for site in answer["sites"] if site["name"] == name)
    idle = sum(device["rank"] is None for device in devices)
    return f"{len(devices)} devices" + (f", {idle} idle" if idle else "")


def _between_sites(loads: Mapping[str, Any] | None) -> dict[frozenset[str], tuple[float, float, float]]:
    """Of two sites that a link joins and the plan sends between: how busy its fuller direction is, that one's bytes an
    iteration, and its rate."""
    carried: dict[frozenset[str], tuple[float, float, float]] = {}
    for link in () if loads is None else loads["links"]:
        ends = [link[end].removeprefix(GATEWAY) for end in ("from", "to") if link[end].startswith(GATEWAY)]
        if len(ends) == 2:
            pair = frozenset(ends)
            carried[pair] = max(carried.get(pair, (0.0, 0.0, 0.0)), (link["busy"], link["bytes"], link["bytes_per_s"]))
    return carried


def _draw_pods(pods: list[Mapping[str, Any]]) -> str:
    elements = []
    for place, pod in enumerate(pods):
        x, y = (place % PODS_IN_ROW) * (POD_WIDE + 10), (place // PODS_IN_ROW) * (POD_HIGH + 10)
        elements.append(frame(x, y, POD_WIDE, POD_HIGH))
        share = len({device["node"] for device in pod["devices"]}) / pod["free"] if pod["free"] else 0.0
        elements.append(box(x, y + POD_HIGH - 5, POD_WIDE * min(1.0, share), 5, COLOURS[0]))
        elements.append(label(x + 8, y + 15, f"{pod['site']} {pod['name']}", size=12, ink="ink"))
        taken, free = pod["taken"], pod["free"]
        elements.append(label(x + 8, y + 30, f"{taken} of {free} free nodes taken", size=10))
    rows, columns = -(-len(pods) // PODS_IN_ROW), min(PODS_IN_ROW, len(pods))
    return picture(columns * (POD_WIDE + 10), rows * (POD_HIGH + 10), f"{len(pods)} pods", elements)


def _nodes(answer: Mapping[str, Any]) -> Table:
    nodes: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    if answer.get("machines"):
        for machine in answer["machines"]:
            nodes["", machine["name"]] = machine["devices"]
    else:
        for site in answer["sites"]:
            for device in site["devices"]:
                name = device.get("host") or f"node {device['node']}"
                nodes.setdefault((site["name"], name), []).append(device)
    rows = tuple(
        (
            site or "-",
            name,
            ",".join(str(device["index"]) for device in devices),
            " ".join("idle" if device["rank"] is None else str(device["rank"]) for device in devices),
        )
        for (site, name), devices in nodes.items()
    )
    more = [("...", f"and {len(rows) - MOST_ROWS} more", "", "")] if len(rows) > MOST_ROWS else []
    return Table(
        title="Nodes, their devices and the ranks on them",
        columns=("site", "node", "devices", "ranks"),
        rows=(*rows[:MOST_ROWS], *more),
        folded=len(rows) > 12,
    )


def _others(answer: Mapping[str, Any]) -> Iterator[Section]:
    rows = tuple(
        (
            way["name"],
            "-" if way["iteration_time_s"] is None else format_seconds(way["iteration_time_s"]),
            way["loses"] or "-",
        )
        for way in answer.get("alternatives") or ()
    )
    parts: list[Part] = []
    if rows:
        parts.append(Table(title="Other ways, and why they lose", columns=("way", "iteration", "loses"), rows=rows))
    waiting = answer.get("waiting")
    if waiting:
        starts = tuple(
            (
                "now" if not start["wait_s"] else f"in {start['wait_s'] / 3600:.2f} h",
                " + ".join(map(str, start.get("shape") or ())) or "-",
                format_seconds(start["iteration_time_s"]),
            )
            for start in waiting["starts"]
        )
        parts.append(Table(title="Now, or later", columns=("start", "shape", "iteration"), rows=starts))
    if answer.get("moves"):
        texts = tuple(
            f"moving {', '.join(job['job'] for job in room['jobs'])}: {format_seconds(room['iteration_time_s'])} an"
            f" iteration, {room['lost_device_hours']:.3g} device-hours lost"
            for room in answer["moves"]
        )
        parts.append(Words(title="Room that moves would make", texts=texts, listed=True))
    if parts:
        yield Section(name="ways", title="What else could be done", parts=tuple(parts))
