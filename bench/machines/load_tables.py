"""The runs of `loads` over seeds, and what they say of the rules beside best-fit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import product
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import cast

from bench.machines.loads import Ends, Found, Sizes, draw_jobs, rule_of, run
from planner.many_jobs.traces.records import TraceRow
from profiles.network import Network

T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
"""Student's t of a two-sided 95% interval, by the number of runs."""
BASE = "best-fit"
OURS = "ours"


@dataclass(frozen=True, kw_only=True)
class Point:
    """A load and how sizes are drawn."""

    sizes: str
    load: float


def mean_and_half(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and half of its 95% interval, 0 of a single value."""
    if len(values) < 2:
        return mean(values), 0.0
    return mean(values), T_95.get(len(values), 1.96) * stdev(values) / sqrt(len(values))


def run_all(
    rows: Sequence[TraceRow],
    rules: Sequence[str],
    *,
    nodes: int,
    loads: Sequence[float],
    sizes: Sequence[str],
    seeds: Sequence[int],
    head: int | None,
    trace: str,
    kept: Path | None,
    ends: Ends = "stated",
    tree: Network | None = None,
) -> Iterator[tuple[Point, dict[str, list[Found]]]]:
    """Yield what every rule gave at each point, by seeds. Runs that `kept` has already are not made again; others are
    added to it, a line each."""
    known = _known(kept)
    for form, load in product(sizes, loads):
        found: dict[str, list[Found]] = {rule: [] for rule in rules}
        for seed in seeds:
            key = {"trace": trace, "nodes": nodes, "head": head, "sizes": form, "load": load, "seed": seed}
            key |= {"ends": ends, "tree": tree is not None}
            lacking = [rule for rule in rules if _key(key, rule) not in known]
            jobs = (
                draw_jobs(rows, nodes=nodes, load=load, sizes=cast("Sizes", form), head=head, seed=seed)
                if lacking
                else []
            )
            for rule in rules:
                if rule in lacking:
                    one = run(jobs, rule, nodes, ends=ends, tree=tree)
                    known[_key(key, rule)] = one
                    if kept is not None:
                        with kept.open("a", encoding="utf-8") as lines:
                            print(json.dumps({**key, "rule": rule, **asdict(one)}), file=lines)
                found[rule].append(known[_key(key, rule)])
        yield Point(sizes=form, load=load), found


def _known(kept: Path | None) -> dict[str, Found]:
    if kept is None or not kept.exists():
        return {}
    names = {field.name for field in fields(Found)}
    usual = {"ends": "stated", "tree": False}
    found = {}
    for line in kept.read_text(encoding="utf-8").splitlines():
        value = usual | json.loads(line)
        key = {name: value[name] for name in ("trace", "nodes", "head", "sizes", "load", "seed", "ends", "tree")}
        found[_key(key, value["rule"])] = Found(**{name: value[name] for name in names & value.keys()})
    return found


def _key(key: dict[str, object], rule: str) -> str:
    return json.dumps({**key, "rule": rule}, sort_keys=True)


def lines_of(point: Point, found: dict[str, list[Found]]) -> Iterator[str]:
    """Yield a line for each rule: means over the seeds, and half the 95% interval of the mean JCT and of the ratios to
    best-fit's, seed by seed."""
    for rule, runs in sorted(found.items(), key=lambda pair: mean(one.jct_s for one in pair[1])):
        jct_s, half_s = mean_and_half([one.jct_s for one in runs])
        wait_s, wait_half_s = mean_and_half([one.large_wait_s for one in runs])
        cells = [
            f"{jct_s / 3600:.2f} ± {half_s / 3600:.2f}",
            f"{wait_s / 3600:.2f} ± {wait_half_s / 3600:.2f}",
            f"{mean(one.machine_hours for one in runs):,.0f}",
            f"{mean(one.cross_node_bytes for one in runs) * 1e-15:.2f}",
            f"{mean(one.scattered for one in runs):.1%}",
            *(beside(found, rule, name) for name in ("jct_s", "machine_hours", "cross_node_bytes")),
            f"{mean(one.moves for one in runs):.0f}, {mean(one.moves_device_hours for one in runs):.0f}",
        ]
        yield f"| {point.sizes} | {point.load:g} | {rule} | {' | '.join(cells)} |"


def beside(found: dict[str, list[Found]], rule: str, name: str) -> str:
    """Return by how much a figure is above best-fit's, in the mean of the seeds; nothing where that was not run."""
    if rule == BASE or BASE not in found:
        return ""
    pairs = zip(found[rule], found[BASE], strict=True)
    ratios = [getattr(one, name) / getattr(base, name) - 1 for one, base in pairs if getattr(base, name)]
    if not ratios:
        return "-"
    middle, half = mean_and_half(ratios)
    return f"{middle:+.1%} ± {half:.1%}"


def reached(point: Point, found: dict[str, list[Found]], ours: str = OURS) -> str | None:
    """Return whether ours meets what is asked of it at a point, None where it was not run: no more machine-hours than
    best-fit, at most 1.05 times its traffic, no other rule with a lower mean JCT; ties within the interval."""
    if ours not in found or BASE not in found:
        return None
    missed = []
    for name, most in (("machine_hours", 1.0), ("cross_node_bytes", 1.05)):
        middle, half = _ratio(found, ours, BASE, name)
        if middle - half > most:
            missed.append(f"{name.replace('_', ' ')} {middle - 1:+.1%} ± {half:.1%}")
    for rule in found:
        middle, half = _ratio(found, ours, rule, "jct_s")
        if rule_of(rule)[0] != OURS and middle - half > 1:
            missed.append(f"JCT {middle - 1:+.1%} ± {half:.1%} beside {rule}")
    return f"{ours}, {point.sizes} at {point.load:g}: {'; '.join(missed) or 'reached'}"


def _ratio(found: dict[str, list[Found]], rule: str, other: str, name: str) -> tuple[float, float]:
    pairs = list(zip(found[rule], found[other], strict=True))
    ratios = [getattr(one, name) / getattr(base, name) if getattr(base, name) else 1.0 for one, base in pairs]
    return mean_and_half(ratios)
