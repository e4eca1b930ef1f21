"""A job in pods for people: which pods it takes, what sits where, how it compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.cli.output import format_seconds, print_table, print_text, spans


def print_pods(result: Mapping[str, Any]) -> None:
    """Print the pods of the value of `planner.api.place`, and how the placement compares; nothing where there are
    none."""
    score = result["score"]["pods"]
    if score is None:
        return
    several = len(score["sites"]) > 1
    for site in score["sites"]:
        pods = [pod for pod in result["pods"] if pod["site"] == site["site"]]
        _print_map(pods, site, where=f" of {site['site']}" if several else "")
    if score["spreads"] and score["sites"]:
        wide = ", ".join(f"{axis.upper()} {count}" for axis, count in score["spreads"].items())
        print_text(f"pods that the widest group of an axis touches: {wide}")
    for site in score["sites"]:
        for line in _comparison(site):
            print_text(f"{site['site']}: {line}" if several else line, indent="  ")
    for note in score["notes"]:
        print_text(note)
    print()


def _print_map(pods: Sequence[Mapping[str, Any]], site: Mapping[str, Any], *, where: str) -> None:
    unused = [pod for pod in pods if not pod["taken"]]
    rows = [(pod["name"], pod["free"], pod["taken"], describe_map(pod["map"])) for pod in pods if pod["taken"]]
    print_table("", (f"{site['level']}{where}", "free nodes", "taken", "stages: rows (PP groups)"), rows)
    if unused:
        names = ", ".join(f"{pod['name']} ({pod['free']})" for pod in unused)
        print_text(f"not taken (free nodes): {names}", indent="  ")


def describe_map(parts: Sequence[Mapping[str, Any]]) -> str:
    """Return which rows of which stages sit in a pod; stages with the same rows together.

    >>> describe_map([{"stages": [0], "rows": [0, 1, 2]}, {"stages": [1], "rows": [0, 1, 2]}])
    '0-1: 0-2'
    """
    by_rows: dict[tuple[int, ...], list[int]] = {}
    for part in parts:
        by_rows.setdefault(tuple(part["rows"]), []).extend(part["stages"])
    return "; ".join(f"{','.join(spans(sorted(stages)))}: {','.join(spans(rows))}" for rows, stages in by_rows.items())


def _comparison(site: Mapping[str, Any]) -> list[str]:
    time_s = site["iteration_time_s"]
    lines = [f"iteration {format_seconds(time_s)}{_interval(site)}, nodes by {site['chosen']}"]
    for name, key in (("Slurm's default (topology/tree)", "default_scheduler"), ("the paper's (arnold)", "paper")):
        other = site[key]
        if other is not None:
            pods = ", ".join(f"{axis.upper()} {count}" for axis, count in other["spreads"].items())
            seconds = format_seconds(other["iteration_time_s"])
            lines.append(f"{name}: {seconds}{_interval(other)}, {other['beside']} (pods: {pods})")
    if site["bound_s"] is not None:
        proof = "this is the least" if site["proved"] else f"at most {site['gap']:.2%} could be won"
        lines.append(f"no placement is below {format_seconds(site['bound_s'])} (all in one part): {proof}")
    gains = f": DP-aligned wins {site['j_dp']:.2%}, PP-aligned {site['j_pp']:.2%}"
    lines.append(
        f"alpha {site['alpha']:.2f} (what a DP group's spread weighs) by {site['affinity']}"
        f"{'' if site['affinity'] == '--alpha' else gains}"
    )
    if not site["holds_back"]:
        lines.append(
            "nothing above the nodes of this cluster holds anything back, so that every placement takes as long and the"
            " one of least spread is taken: oversubscription, uplinks or a spread table of a level say what does"
            " (docs/network.md)"
        )
    if site["partly_busy_nodes"]:
        lines.append(f"{site['partly_busy_nodes']} partly busy nodes are left out")
    return lines


def _interval(timed: Mapping[str, Any]) -> str:
    interval_s = timed["interval_90_s"]
    return "" if interval_s is None else f" (90%: {format_seconds(interval_s[0])} to {format_seconds(interval_s[1])})"
