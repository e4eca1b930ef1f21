"""Figure 24: what is on the links over time, by the GPU intensity of the jobs whose it is.

The trace and the policies of figure 23 on one of its fabrics. Crux draws a row for each link, dark where a job of high
GPU intensity sends and white where nobody does; here the same is summed over the links between hosts and leaves and
those between switches: which part of what they carry is used in the mean (its "network utilization", the share that is
not white), by thirds of the jobs by intensity. `--csv` writes it moment by moment, with the devices that compute.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.contention.fabrics import FABRICS
from bench.contention.figure_23 import OPTIONS, PLACEMENTS, Trace
from bench.contention.trace_moments import Cluster, Moment, load
from estimator.network.player.play import mean_bytes_per_s
from planner.contention.policies.catalogue import make_network_policy
from planner.contention.policies.intensity import intensities
from planner.contention.policies.loads import link_seconds, spread_paths
from planner.contention.policies.records import Decision, View
from profiles.records import dataclass

POLICIES = ("sincronia", "tacclstar", "cassini", "crux-pa", "crux-ps-pa", "crux")
"""As in the figure, (a) to (f)."""
TIERS = ("hosts to leaves", "between switches")
THIRDS = ("high", "middle", "low")


@dataclass(frozen=True, kw_only=True, eq=False)
class Drawn:
    """A moment under a policy: of each tier of `TIERS` and each of `THIRDS` the part of its links' rates that is used
    (tiers, thirds); the part of each tier's links that nobody uses; the share of the devices of jobs that send which
    compute."""

    seconds: float
    used: NDArray[np.float64]
    idle: NDArray[np.float64]
    computing: float


def main(argv: Sequence[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="bench.contention figure-24", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds traces/")
    parser.add_argument("--fabric", choices=list(FABRICS), default="clos")
    parser.add_argument("--placement", choices=PLACEMENTS, default="same-switch")
    parser.add_argument("--days", type=float, default=1.0)
    parser.add_argument("--first-day", type=float, default=0.0)
    parser.add_argument("--cover", type=float, default=0.9, help="share of device-seconds (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args(argv)
    days = options.first_day, options.first_day + options.days
    cluster = load(options.data, options.fabric, options.placement, options.seed, days, options.cover)
    drawn = {name: list(draw(cluster, name)) for name in POLICIES}
    for line in table(drawn):
        print(line)
    if options.csv is not None:
        with options.csv.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(series(drawn))


def draw(cluster: Cluster, name: str) -> Iterator[Drawn]:
    """Yield every moment under a policy."""
    trace, policy = Trace(cluster), make_network_policy(name, **OPTIONS.get(name, {}))
    links = cluster.fabric.links
    at_host = (links.ends < links.nodes).any(axis=1)
    tiers = (at_host, ~at_host)
    third = thirds(cluster, trace)
    for moment in cluster.moments:
        view = trace.view(moment)
        decision = policy.decide(view)
        seconds = trace.seconds(moment, decision)
        used = np.zeros((len(TIERS), len(THIRDS)))
        total = np.zeros(links.count)
        for place in range(len(THIRDS)):
            carried = _carried(trace, moment, decision, seconds, [third[job] == place for job in moment.jobs])
            total += carried
            used[:, place] = [float(carried[tier].sum() / links.bytes_per_s[tier].sum()) for tier in tiers]
        gpus = np.array([cluster.stays[job].gpus for job in moment.jobs])
        parts = np.minimum(1.0, np.array([cluster.compute_s[job] for job in moment.jobs]) / seconds)
        yield Drawn(
            seconds=moment.seconds,
            used=used,
            idle=np.array([float((total[tier] == 0).mean()) for tier in tiers]),
            computing=float(gpus @ parts / gpus.sum()),
        )


def thirds(cluster: Cluster, trace: Trace) -> list[int]:
    """Return of each job which third it is in, by intensity on evenly spread paths; 0 the highest."""
    every = View(jobs=cluster.contenders, bytes_per_s=trace.bytes_per_s, levels=None)
    intensity = intensities(every, link_seconds(every, spread_paths(every)))
    order = sorted(range(len(intensity)), key=lambda job: (-intensity[job], job))
    third = [0] * len(order)
    for rank, job in enumerate(order):
        third[job] = rank * len(THIRDS) // len(order)
    return third


def _carried(
    trace: Trace, moment: Moment, decision: Decision, seconds: Sequence[float], chosen: Sequence[bool]
) -> NDArray[np.float64]:
    some = [place for place in range(len(moment.jobs)) if chosen[place]]
    packed = [trace.packed((moment.jobs[place], decision.paths[place], 0, 0.0, 0.0)) for place in some]
    return mean_bytes_per_s(packed, [seconds[place] for place in some], len(trace.bytes_per_s))


def table(drawn: dict[str, list[Drawn]]) -> Iterator[str]:
    """Yield the means over time."""
    heads = [f"{tier}: used (high, middle, low)" for tier in TIERS] + [f"{tier}: links idle" for tier in TIERS]
    yield f"| policy | {' | '.join(heads)} | devices that compute, of jobs that send |"
    yield "|---" * (len(heads) + 2) + "|"
    for name, moments in drawn.items():
        times = np.array([float(each.seconds) for each in moments])
        times /= times.sum()
        used = np.tensordot(times, np.array([each.used for each in moments]), 1)
        idle = times @ np.array([each.idle for each in moments])
        cells = [f"{tier.sum():.2%} ({', '.join(f'{part:.2%}' for part in tier)})" for tier in used]
        cells += [f"{part:.1%}" for part in idle]
        yield f"| {name} | {' | '.join(cells)} | {float(times @ [each.computing for each in moments]):.1%} |"


def series(drawn: dict[str, list[Drawn]]) -> Iterator[Sequence[object]]:
    """Yield rows for a file: what the table is the mean of."""
    names = [f"{tier}, {third}" for tier in TIERS for third in THIRDS]
    yield ("policy", "from_s", "seconds", *names, *(f"{tier}, idle" for tier in TIERS), "computing")
    for name, moments in drawn.items():
        at_s = 0.0
        for each in moments:
            figures = (*each.used.ravel().tolist(), *each.idle.tolist(), each.computing)
            yield (name, at_s, each.seconds, *figures)
            at_s += each.seconds
