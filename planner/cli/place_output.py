"""A placed job for people: sites and devices, links, the plan, the other ways."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from planner.cli.later_output import print_later
from planner.cli.machines_output import print_machines
from planner.cli.output import format_count, format_seconds, print_notes, print_table, print_text, spans
from planner.cli.pods_output import print_pods
from planner.cli.training_output import print_training
from profiles.host_lists import fold_hosts

MOST_RANGES = 12
"""Of a host list so many are printed."""


def print_placed(result: dict[str, Any]) -> None:
    """The value of `planner.api.place`."""
    from planner.cli.plan_output import print_plan
    from planner.shared.plan_file import plan_of_values

    _print_sites(result)
    if result.get("machines"):
        print_machines(result)
    else:
        print_pods(result)
        print_later(result)
    print_notes("links:", [*map(_link, result["links"]), *map(_route, result["routes"])])
    print()
    print_plan(plan_of_values(result["plan"]))
    print()
    score = result["score"]
    if len(score["sites_used"]) > 1:
        print_text(
            f"between sites: {format_seconds(score['between_sites_s'])} of an iteration"
            f" ({score['between_sites_share']:.1%}) would go if the links took no time"
        )
    if score["idle_devices"]:
        idle = f"{score['idle_devices']} granted device{'s stay' if score['idle_devices'] > 1 else ' stays'} idle"
        said = f"{idle}: no plan found is faster with more, and a job of {len(result['plan']['devices'])} would do"
        if len(score["sites_used"]) < len(result["sites"]):
            said += f", on {' and '.join(score['sites_used'])} (--all-sites: on every site all the same)"
        print_text(said)
    if result["training"] is not None:
        print_training(result["training"])
    print_notes("other ways:", [_way(way) for way in result["alternatives"]])


def _print_sites(result: dict[str, Any]) -> None:
    score = result["score"]
    devices = sum(len(site["devices"]) for site in result["sites"])
    sites = "1 site" if score["sites"] == 1 else f"{score['sites']} sites"
    basis = "no choice has fewer sites, then wider links, then less latency" if result["proved"] else "not proved best"
    rows = [
        (site["name"], device, len(devices_there), describe_places(devices_there))
        for site in result["sites"]
        for device, devices_there in _by_type(site["devices"]).items()
    ]
    print_text(f"{result['model']} on {result['cluster']}: {devices} devices on {sites}")
    print_table("", ("site", "type", "devices", "where"), rows)
    said = f"chosen by {result['method']} ({result['step']}); {basis}"
    if result.get("machines"):
        return
    if result["step"] in ("the plan's own sites", "one node replaced"):
        said = "sites and degrees are those of the plan"
    if score["sites"] > 1 and score["bandwidth_bytes_per_s"] is not None:
        said += f"; {_rate(score['bandwidth_bytes_per_s'])} between them at least"
    print_text(said)


def _by_type(devices: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    by_type: dict[str, list[dict[str, Any]]] = {}
    for device in devices:
        by_type.setdefault(device["device"], []).append(device)
    return by_type


def describe_places(devices: Sequence[dict[str, Any]]) -> str:
    """Nodes with the devices on each; nodes in a row with the same devices together. Nodes with names by these, as
    Slurm lists hosts; of a long list the beginning.

    >>> describe_places([{"node": 0, "index": 0}, {"node": 0, "index": 1}, {"node": 2, "index": 5}])
    'node 0: 0-1; node 2: 5'
    >>> describe_places([{"node": n, "index": i} for n in (1, 2) for i in (0, 1)])
    'nodes 1-2: 0-1'
    >>> describe_places([{"node": n, "host": f"gpu{n}", "index": i} for n in (1, 2) for i in (0, 1)])
    'gpu[1-2]: 0-1'
    """
    ordered = sorted(devices, key=itemgetter("node", "index"))
    hosts = {device["node"]: device["host"] for device in ordered if "host" in device}
    nodes = [
        (node, ", ".join(spans(device["index"] for device in on_node)))
        for node, on_node in groupby(ordered, itemgetter("node"))
    ]
    parts = []
    for indices, alike in groupby(nodes, lambda pair: pair[1]):
        numbers = [node for node, _ in alike]
        if hosts:
            parts.append(f"{_host_list([hosts[node] for node in numbers])}: {indices}")
            continue
        runs = spans(numbers)
        several = len(runs) > 1 or "-" in runs[0]
        parts.append(f"node{'s' * several} {', '.join(runs)}: {indices}")
    return "; ".join(parts)


def _host_list(hosts: Sequence[str]) -> str:
    pieces = fold_hosts(hosts).split(",")
    more = pieces[MOST_RANGES:]
    return ", ".join(pieces[:MOST_RANGES]) + (f", ... ({len(hosts)} nodes; -o and --json have all)" if more else "")


def _link(link: dict[str, Any]) -> str:
    names = " - ".join(link["between"])
    filed = link["file_bandwidth_bytes_per_s"]
    beside = "the cluster file has none" if filed is None else f"the cluster file has {_rate(filed)}"
    if link["basis"] == "down":
        return f"{names}: down, as measured {_age(link['age_s'])} ago; {beside}"
    said = f"{names}: {_rate(link['bandwidth_bytes_per_s'])}, {format_seconds(link['latency_s'])}"
    unused = "" if link["used"] else "; not used"
    if link["basis"] == "file":
        return f"{said} (cluster file){unused}"
    return f"{said} (measured, last {_age(link['age_s'])} ago; {beside}){unused}"


def _route(route: dict[str, Any]) -> str:
    ends, over = (route["sites"][0], route["sites"][-1]), ", ".join(route["sites"][1:-1])
    rate, far = _rate(route["bandwidth_bytes_per_s"]), format_seconds(route["latency_s"])
    return f"{' - '.join(ends)}: none of their own; over {over} {rate}, {far}"


def _way(way: dict[str, Any]) -> str:
    where = "+".join(f"{site['name']} {sum(site['devices'].values())}" for site in way["sites"])
    time_s = way["iteration_time_s"]
    if way.get("pods"):
        where = ", ".join(f"{name} {count}" for name, count in way["pods"].items())
    if way.get("shape"):
        where = " + ".join(map(str, way["shape"]))
    took = f" {format_seconds(time_s)}," if time_s is not None else ""
    return f"{way['name']}{f' ({where})' if where else ''}:{took} {way['loses']}"


def _rate(bytes_per_s: float) -> str:
    return format_count(bytes_per_s, "B/s")


def _age(seconds: float) -> str:
    """A time that has passed, in words.

    >>> _age(20), _age(300), _age(7200), _age(200000)
    ('20 s', '5 min', '2 h', '2 days')
    """
    for size, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size or (name != "days" and seconds >= size):
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"
