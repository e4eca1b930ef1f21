"""A placed job as a page: the map of sites or pods with their links, the machines it got, its plan, other ways."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from planner.one_job.timeline.events import Timeline
from planner.one_job.timeline.markup import px
from planner.report.estimate_parts import describe_interval, headline_facts
from planner.report.plan_page import plan_sections
from planner.report.records import Fact, Page, Part, Picture, Section, Table, Words
from planner.report.svg import box, frame, label, picture
from planner.shared.pictures import COLOURS
from planner.shared.words import format_count, format_seconds

RADIUS, SITE_WIDE, SITE_HIGH = 210.0, 150.0, 46.0
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
    width, height = 2 * RADIUS + SITE_WIDE + 40, 2 * RADIUS + SITE_HIGH + 40
    if len(names) == 2:
        height = 2 * SITE_HIGH + 40
    places = {}
    for turn, name in enumerate(names):
        angle = 2 * math.pi * turn / len(names) + math.pi
        places[name] = (width / 2 + RADIUS * math.cos(angle), height / 2 + RADIUS * math.sin(angle))
    most = max((link["bandwidth_bytes_per_s"] for link in answer["links"]), default=1.0) or 1.0
    elements = []
    for link in answer["links"]:
        (x, y), (x2, y2) = (places[end] for end in link["between"])
        wide = 1.5 + 5 * link["bandwidth_bytes_per_s"] / most
        colour = COLOURS[1] if link["used"] else "#9aa1a9"
        elements.append(f'<path d="M{px(x)} {px(y)}L{px(x2)} {px(y2)}" stroke="{colour}" stroke-width="{wide:.1f}"/>')
    for link in answer["links"]:
        (x, y), (x2, y2) = (places[end] for end in link["between"])
        said = f"{format_count(8 * link['bandwidth_bytes_per_s'], 'b/s')}, {format_seconds(link['latency_s'])}"
        elements.append(label((x + x2) / 2, (y + y2) / 2 - 6, said, size=11, ink="over", anchor="middle"))
    for name, (x, y) in places.items():
        left, top = x - SITE_WIDE / 2, y - SITE_HIGH / 2
        elements.append(frame(left, top, SITE_WIDE, SITE_HIGH))
        if taken.get(name):
            elements.append(box(left, top, 6, SITE_HIGH, COLOURS[0], rounded=3))
        said = f"{taken.get(name, 0)} devices" if taken.get(name) else "passed through"
        elements.append(label(x, y - 4, name, size=13, ink="ink", anchor="middle"))
        elements.append(label(x, y + 13, said, size=11, anchor="middle"))
    return picture(width, height, f"{len(names)} sites", elements)


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
