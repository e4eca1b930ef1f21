"""Figure 23: lingjun's trace on five fabrics, and one that sprays, under every policy of the network.

Jobs sit at random, or below as few switches as hold them, as the cluster's own scheduler tries
(`bench/contention/trace_moments.py`); what they train is drawn (`stand_ins.py`), the fabrics are those of `fabrics.py`.
Whenever a job that sends comes or goes the policy decides anew for all that are there: from the paths that hashes chose
(`ours` from what it decided before, with few plays each time, and none where `crux` reaches the bound). Then the jobs
are played until their rates are steady; compute takes as long in every iteration. Both ways in which the paper uses
"GPU utilisation" are means over time: the share of the held devices that compute, and the work done beside what the
same jobs do alone. The bound is that of `planner/contention/policies/bound.py`, of the moments of most device-seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from bench.contention.fabrics import FABRICS
from bench.contention.trace_moments import Cluster, Moment, load
from estimator.host.cpu import cpu_name
from estimator.network.player.compiling import can_compile
from estimator.network.player.packing import Packed, pack
from estimator.network.player.play import Settings, play
from planner.contention.playing import playing_under
from planner.contention.policies.bound import bound_flops_per_s
from planner.contention.policies.catalogue import make_network_policy
from planner.contention.policies.records import Choice, Decision, View
from planner.one_job.tuning.student import Student
from profiles.files import write_atomically
from profiles.records import replace

LEVELS = 8
PLACEMENTS = ("random", "same-switch")
POLICIES = ("ecmp", "sincronia", "tacclstar", "cassini", "varys", "crux-pa", "crux-ps-pa", "crux", "ours")
OPTIONS: dict[str, dict[str, object]] = {"ours": {"plays": 12, "exact": 60, "axes": False, "offsets": False}}
"""Of policies that play cases: how many of them a decision, and paths and levels alone."""
STEADY = Settings(jitter=0.0, window=10, most_windows=3, most_events=6_000)
SAME_WORK = 1e-6
BASELINES = ("sincronia", "tacclstar", "cassini")
PAPER = {"clos": "+13 to +23%", "double-sided": "+4 to +7%"}
"""Crux over the three (section 6.3)."""

Under = tuple[int, tuple[Choice, ...], int, float, float]
"""A job by number, its paths, its level, when it begins, the period that it is held to."""
Row = dict[str, Any]


class Trace:
    """Plays decisions on a cluster; what was played is remembered by the jobs that meet."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.bytes_per_s = tuple(cluster.fabric.links.bytes_per_s.tolist())
        self._pack = lru_cache(maxsize=512)(self._packed)
        self._play = lru_cache(maxsize=4096)(self._played)

    def view(self, moment: Moment, now: dict[int, tuple[Choice, ...]] | None = None) -> View:
        """Return what a policy is told; `now`: the paths in force, where they are not the hashed ones."""
        jobs = [self.cluster.contenders[job] for job in moment.jobs]
        if now is not None:
            jobs = [replace(each, now=now.get(job, each.now)) for job, each in zip(moment.jobs, jobs, strict=True)]
        return View(jobs=tuple(jobs), bytes_per_s=self.bytes_per_s, levels=LEVELS)

    def seconds(self, moment: Moment, decision: Decision) -> list[float]:
        """Return what an iteration of each job takes under the decision."""
        periods_s = decision.periods_s or (None,) * len(moment.jobs)
        under: list[Under] = [
            (job, paths, level or 0, offset_s, period_s or 0.0)
            for job, paths, level, offset_s, period_s in zip(
                moment.jobs, decision.paths, decision.levels, decision.offsets_s, periods_s, strict=True
            )
        ]
        found: dict[int, float] = {}
        for group in self._groups(under):
            found |= zip((each[0] for each in group), self._play(group), strict=True)
        return [found[job] for job in moment.jobs]

    def packed(self, under: Under) -> Packed:
        """Return a job as the player takes it."""
        return self._pack(under)

    def _packed(self, under: Under) -> Packed:
        job, paths, level, offset_s, period_s = under
        playing = playing_under(self.cluster.contenders[job], paths, level=level, offset_s=offset_s)
        return pack(replace(playing, period_s=period_s))

    def _groups(self, under: Sequence[Under]) -> list[tuple[Under, ...]]:
        """The jobs that share links, by way of others too."""
        group = list(range(len(under)))
        user: dict[int, int] = {}
        for number, each in enumerate(under):
            for link in self._pack(each).links.tolist():
                other = group[user.setdefault(link, number)]
                if other != group[number]:
                    gone, kept = max(other, group[number]), min(other, group[number])
                    group = [kept if its == gone else its for its in group]
        members: dict[int, list[Under]] = defaultdict(list)
        for each, its in zip(under, group, strict=True):
            members[its].append(each)
        return [tuple(each) for each in members.values()]

    def _played(self, group: tuple[Under, ...]) -> tuple[float, ...]:
        played = play([self._pack(each) for each in group], np.asarray(self.bytes_per_s), settings=STEADY)
        return tuple(job.seconds for job in played.jobs)


def run_policy(trace: Trace, name: str) -> Row:
    """Return what the jobs do under a policy: device-seconds of compute and work, of each moment, and what it cost."""
    policy, cluster = make_network_policy(name, **OPTIONS.get(name, {})), trace.cluster
    busy: list[float] = []
    work: list[float] = []
    calls_s: list[float] = []
    lowest_s = lowest = 0.0
    in_force: dict[int, tuple[Choice, ...]] = {}
    changes, began_s = 0, time.process_time()
    for moment in cluster.moments:
        view = trace.view(moment, in_force if name == "ours" else None)
        call_s = time.process_time()
        decision = best_of(trace, moment, view) if name == "ours" else None
        decision = decision or policy.decide(view)
        calls_s.append(time.process_time() - call_s)
        decided = dict(zip(moment.jobs, decision.paths, strict=True))
        changes += sum(in_force.get(job, paths) != paths for job, paths in decided.items())
        in_force = decided
        seconds = trace.seconds(moment, decision)
        computing = [min(1.0, cluster.compute_s[job] / its) for job, its in zip(moment.jobs, seconds, strict=True)]
        busy.append(sum(cluster.stays[job].gpus * part for job, part in zip(moment.jobs, computing, strict=True)))
        work.append(sum(job.flops / its for job, its in zip(view.jobs, seconds, strict=True)))
        last = max((level for level in decision.levels if level is not None), default=0)
        for job, its, level in zip(view.jobs, seconds, decision.levels, strict=True):
            if last > 0 and level == last:
                lowest += moment.seconds * min(1.0, job.alone_s / its)
                lowest_s += moment.seconds
    return {
        "busy": busy,
        "work": work,
        "changes": changes,
        "cpu_s": time.process_time() - began_s,
        "decide_mean_s": mean(calls_s),
        "decide_p99_s": float(np.quantile(calls_s, 0.99)),
        "lowest_loses": 1 - lowest / lowest_s if lowest_s else None,
    }


def best_of(trace: Trace, moment: Moment, view: View) -> Decision | None:
    """Return what `crux` says where nothing does more work: `ours` begins there, and would end with that proof."""
    decision = make_network_policy("crux").decide(view)
    work = sum(job.flops / its for job, its in zip(view.jobs, trace.seconds(moment, decision), strict=True))
    return decision if work >= bound_flops_per_s(view) * (1 - SAME_WORK) else None


def run_cluster(
    data: Path,
    fabric: str,
    placement: str,
    seed: int,
    days: tuple[float, float],
    cover: float,
    bounds: int,
    policies: Sequence[str] = POLICIES,
) -> Row:
    """Return one line of results: every policy on the trace, on a fabric, under a rule of placement."""
    began_s = time.process_time()
    cluster = load(data, fabric, placement, seed, days, cover)
    trace = Trace(cluster)
    made_s = time.process_time() - began_s
    times = np.array([moment.seconds for moment in cluster.moments])
    gpus = [sum(cluster.stays[job].gpus for job in moment.jobs) for moment in cluster.moments]
    silent = [moment.silent for moment in cluster.moments]
    alone = [
        sum(cluster.contenders[job].flops / cluster.contenders[job].alone_s for job in moment.jobs)
        for moment in cluster.moments
    ]
    held_s, work_alone = float(times @ (np.array(gpus) + silent)), float(times @ alone)
    largest = np.argsort(-times * gpus, kind="stable")[:bounds]
    began_s = time.process_time()
    bound = np.array([bound_flops_per_s(trace.view(cluster.moments[place])) for place in largest])
    row: Row = {
        "fabric": fabric,
        "placement": placement,
        "seed": seed,
        "days": days,
        "jobs": len(cluster.stays),
        "moments": len(cluster.moments),
        "covered": cluster.covered,
        "made_s": made_s,
        "bound_s": time.process_time() - began_s,
        "bound": float(times[largest] @ bound / (times[largest] @ np.array(alone)[largest])) if bounds else None,
        "policies": {},
    }
    for name in policies:
        ran = run_policy(trace, name)
        busy, work = np.array(ran.pop("busy")), np.array(ran.pop("work"))
        bounded = float(times[largest] @ work[largest] / (times[largest] @ bound)) if bounds else None
        row["policies"][name] = ran | {
            "busy": float(times @ (busy + silent) / held_s),
            "work": float(times @ work / work_alone),
            "of_bound": bounded,
        }
    return row


def main(argv: Sequence[str]) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="bench.contention figure-23", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds traces/")
    parser.add_argument("--days", type=float, default=2.0, help="of the trace (its whole: 16; default: %(default)s)")
    parser.add_argument("--first-day", type=float, default=0.0)
    parser.add_argument("--cover", type=float, default=0.9, help="share of device-seconds (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--fabrics", default=",".join(FABRICS))
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--bounds", type=int, default=5, help="moments that are bounded (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="lines of results: what is there is not made again")
    options = parser.parse_args(argv)
    days, policies = (options.first_day, options.first_day + options.days), options.policies.split(",")
    kept = _read(options.keep)
    wanted = []
    for seed in range(options.seeds):
        for fabric in options.fabrics.split(","):
            for placement in PLACEMENTS:
                known = kept.get(_key({"fabric": fabric, "placement": placement, "seed": seed, "days": days}))
                missing = [name for name in policies if known is None or name not in known["policies"]]
                if missing:
                    wanted.append((options.data, fabric, placement, seed, days, options.cover, options.bounds, missing))
    print(f"{cpu_name()}, {os.cpu_count()} cores, python {platform.python_version()}, numpy {np.__version__}")
    print("the player's loop is compiled" if can_compile() else "the player's loop is plain Python")
    began_s = time.perf_counter()
    with ProcessPoolExecutor(options.workers) as pool:
        for row in pool.map(run_cluster, *zip(*wanted, strict=True)) if wanted else ():
            known = kept.get(_key(row), row)
            kept[_key(row)] = row | {"policies": known["policies"] | row["policies"]}
            if options.keep is not None:
                write_atomically(options.keep, "".join(json.dumps(each) + "\n" for each in kept.values()))
    rows = [row for row in kept.values() if _key(row)[3] == days]
    for line in tables(rows):
        print(line)
    print(f"\n{len(wanted)} lines made in {time.perf_counter() - began_s:.0f} s by {options.workers} processes")


def _read(path: Path | None) -> dict[tuple[object, ...], Row]:
    if path is None or not path.exists():
        return {}
    rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return {_key(row): row for row in rows}


def _key(row: Row) -> tuple[object, ...]:
    return row["fabric"], row["placement"], row["seed"], tuple(row["days"])


def tables(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a table for each fabric and rule of placement, and what Crux and ours gain over whom."""
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["fabric"], row["placement"]].append(row)
    for (fabric, placement), its in groups.items():
        one = its[0]
        yield ""
        yield (
            f"{fabric}, {placement}: seeds {', '.join(str(row['seed']) for row in its)}; {one['jobs']} jobs that send,"
            f" {one['moments']} moments, {one['covered']:.1%} of their device-seconds"
        )
        yield ""
        yield (
            "| policy | devices that compute | beside ecmp | work of what alone | beside ecmp | of the bound"
            " | last level loses | decides in, ms (p99) | CPU, s |"
        )
        yield "|---|---|---|---|---|---|---|---|---|"
        for name in one["policies"]:
            if all(name in row["policies"] for row in its):
                yield _row(name, its)
        bound = [row["bound"] for row in its if row["bound"] is not None]
        if bound:
            yield f"| the bound | | | {mean(bound):.2%} | | | | | {mean(row['bound_s'] for row in its):.1f} |"
    yield ""
    heads = ("fabric", "placed", "crux over sincronia", "tacclstar", "cassini", "the paper", "ours over crux")
    yield f"| {' | '.join(heads)} | crux-pa over ecmp |"
    yield "|---|---|---|---|---|---|---|---|"
    for key in ("busy", "work"):
        for (fabric, placement), its in groups.items():
            over = [_gain(its, key, "crux", other) for other in BASELINES]
            yield (
                f"| {fabric} ({key}) | {placement} | {' | '.join(over)} | {PAPER.get(fabric, '')} |"
                f" {_gain(its, key, 'ours', 'crux')} | {_gain(its, key, 'crux-pa', 'ecmp')} |"
            )


def _row(name: str, rows: Sequence[Row]) -> str:
    its = [row["policies"][name] for row in rows]
    bound = [each["of_bound"] for each in its if each["of_bound"] is not None]
    lowest = [each["lowest_loses"] for each in its if each["lowest_loses"] is not None]
    cells = [
        name,
        _interval([each["busy"] for each in its]),
        _gain(rows, "busy", name, "ecmp"),
        _interval([each["work"] for each in its]),
        _gain(rows, "work", name, "ecmp"),
        f"{mean(bound):.1%}" if bound else "",
        f"{mean(lowest):.0%}" if lowest else "",
        f"{_mean_ms(its, 'decide_mean_s'):.1f} ({_mean_ms(its, 'decide_p99_s'):.0f})",
        f"{mean(each['cpu_s'] for each in its):.1f}",
    ]
    return "| " + " | ".join(cells) + " |"


def _mean_ms(ran: Sequence[Row], key: str) -> float:
    return 1e3 * mean(float(each[key]) for each in ran)


def _gain(rows: Sequence[Row], key: str, name: str, other: str) -> str:
    if any(name not in row["policies"] or other not in row["policies"] for row in rows):
        return "-"
    gains = [row["policies"][name][key] / row["policies"][other][key] - 1 for row in rows]
    return _interval(gains, sign=True)


def _interval(values: Sequence[float], *, sign: bool = False) -> str:
    """The mean and half the width of its 95% interval."""
    said = f"{mean(values):+.1%}" if sign else f"{mean(values):.1%}"
    if len(values) < 2:
        return said
    half = Student(len(values) - 1).quantile(0.975) * stdev(values) / math.sqrt(len(values))
    return f"{said} ± {100 * half:.1f}"
