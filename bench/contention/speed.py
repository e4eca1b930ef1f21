"""What decisions cost: jobs on a two-layer Clos of 4 spines, 4:1 oversubscribed, hosts drawn, and the contention DAG
by itself.

A job is a ring through 2 to 32 hosts, leaf after leaf; each of its hops between leaves is a connection of its own, over
any of the spines. Of each drawn cluster of 46 jobs there are several decisions: of all jobs, and each time after
another one has gone. CPU seconds of one process, of all decisions the median, p99 (between the two slowest, where there
are fewer than 100) and the slowest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from random import Random
from statistics import mean, median
from typing import TypeVar

import numpy as np

from bench.contention.cases import HOST_BYTES_PER_S, MODELS, SAMPLES, priced
from estimator.network.steps import Mover, Step, Transfer
from planner.contention.policies.bound import bound_flops_per_s
from planner.contention.policies.catalogue import NETWORK_POLICIES, make_network_policy
from planner.contention.policies.compression.catalogue import COMPRESSIONS
from planner.contention.policies.compression.dag import ContentionDag, cut_weight
from planner.contention.policies.ours import Ours, plays_for
from planner.contention.policies.records import Contender, View
from planner.contention.policies.rehearsals import Rehearsals
from planner.contention.policies.worth import work_per_s
from profiles.records import replace

T = TypeVar("T")

SPINES, HOSTS_A_LEAF, GPUS = 4, 16, 8
SIZES = ((46, 256), (1000, 2048))
"""Jobs and hosts of 8."""
LEVELS = 8
PLAYS = {46: (1, 7, 60), 1000: (1, 3)}
"""Of `ours`, beside what it takes where nobody says."""


def draw_cluster(jobs: int, hosts: int, seed: int) -> View:
    """Return so many jobs that share the hosts out, drawn."""
    rng = Random(f"speed, {jobs}, {hosts}, {seed}")
    leaves = -(-hosts // HOSTS_A_LEAF)
    free = rng.sample(range(hosts), hosts)
    made = []
    for number in range(jobs):
        size = min(rng.choice((2, 2, 4, 4, 8, 16, 32)), max(len(free) - 2 * (jobs - number - 1), 2))
        on_leaves = sorted({free.pop() // HOSTS_A_LEAF for _ in range(min(size, len(free)))})
        made.append(_job(f"job{number}", size, on_leaves, leaves, rng))
    return View(jobs=tuple(made), bytes_per_s=(HOST_BYTES_PER_S,) * (2 * leaves * SPINES), levels=LEVELS)


def _job(name: str, hosts: int, on_leaves: list[int], leaves: int, rng: Random) -> Contender:
    compute_s, flops, gradient_bytes = priced(rng.choice(MODELS), rng.choice(SAMPLES))
    begins_s = compute_s * rng.choice((1 / 3, 1.0))
    wire_s = 2 * (hosts - 1) / hosts * gradient_bytes / HOST_BYTES_PER_S
    hops = list(zip(on_leaves, on_leaves[1:] + on_leaves[:1], strict=True)) if len(on_leaves) > 1 else []
    way = tuple((hop, HOST_BYTES_PER_S) for hop in range(len(hops)))
    step = Step(compute_s=compute_s, begins_s=begins_s, transfers=(Transfer(movers=(Mover(way=way, seconds=wire_s),)),))
    return Contender(
        id=name,
        devices=hosts * GPUS,
        flops=flops * hosts * GPUS,
        alone_s=max(compute_s, begins_s + wire_s),
        steps=(step,),
        paths=tuple(
            tuple(((up * SPINES + spine, 1.0), ((leaves + down) * SPINES + spine, 1.0)) for spine in range(SPINES))
            for up, down in hops
        ),
        now=tuple(rng.randrange(SPINES) for _ in hops),
    )


def lines(decisions: int, draws: int, first: int) -> Iterator[str]:
    """Yield the tables: so many decisions of 46 jobs, of so many clusters drawn from a seed on, one of each cluster of
    1,000, and compressions."""
    Ours(plays=2).decide(draw_cluster(*SIZES[0], first))  # what is compiled is no cost of a decision
    for jobs, hosts in SIZES:
        clusters = [draw_cluster(jobs, hosts, seed) for seed in range(first, first + draws)]
        views = [_without(clusters[at % draws], at // draws) for at in range(decisions)] if jobs < 100 else clusters
        yield f"{len(views)} decisions of {draws} draws of {jobs:,} jobs on {hosts * GPUS:,} GPUs:"
        yield ""
        yield from _of_policies(jobs, views)
        yield ""
    yield from _of_compressions(first)


def _without(view: View, gone: int) -> View:
    """A cluster from which the first jobs have gone: none at first, then one at a time, the others still there."""
    jobs = view.jobs if gone == 0 else (*view.jobs[: gone - 1], *view.jobs[gone:])
    return replace(view, jobs=jobs)


def _of_policies(jobs: int, views: Sequence[View]) -> Iterator[str]:
    """What each policy takes and brings; of `ours` its gain by the number of plays."""
    yield "| policy | CPU s, median | p99 | slowest | work, % of the bound | % above crux, mean | least |"
    yield "|---|---|---|---|---|---|---|"
    bounds = [bound_flops_per_s(view) for view in views]
    policies = {name: make_network_policy(name) for name in NETWORK_POLICIES if name not in ("crux", "mixed", "ours")}
    policies = {"crux": make_network_policy("crux"), **policies}
    policies |= {f"ours, {plays} plays": Ours(plays=plays) for plays in PLAYS[jobs]}
    policies[f"ours ({plays_for(jobs)} plays)"] = Ours()
    of_crux: list[float] = []
    for name, policy in policies.items():
        times, works = [], []
        for view in views:
            time_s, decision = _timed(partial(policy.decide, view))
            times.append(time_s)
            works.append(work_per_s(view.jobs, Rehearsals(view).rates_of(decision)))
        of_crux = of_crux or works
        shares = [100 * work / bound for work, bound in zip(works, bounds, strict=True)]
        gains = [100 * (work / crux - 1) for work, crux in zip(works, of_crux, strict=True)]
        p99_s = float(np.quantile(times, 0.99))
        yield (
            f"| {name} | {median(times):.3f} | {p99_s:.3f} | {max(times):.3f} | {mean(shares):.2f}"
            f" | {mean(gains):+.2f} | {min(gains):+.2f} |"
        )


def _of_compressions(seed: int) -> Iterator[str]:
    yield "| jobs | edges | compression to 8 levels | CPU ms | cut, % of the best |"
    yield "|---|---|---|---|---|"
    for jobs, edges in ((46, 300), (200, 2000), (500, 5000), (2000, 10_000)):
        dag = _draw_dag(jobs, edges, seed)
        timed = {
            name: min((_timed(partial(compress, dag, LEVELS)) for _ in range(3)), key=itemgetter(0))
            for name, compress in COMPRESSIONS.items()
        }
        most = cut_weight(dag, timed["exact"][1])
        for name, (time_s, levels) in timed.items():
            yield f"| {jobs} | {edges} | {name} | {1e3 * time_s:.1f} | {100 * cut_weight(dag, levels) / most:.2f} |"


def _timed(call: Callable[[], T]) -> tuple[float, T]:
    began = time.process_time()
    result = call()
    return time.process_time() - began, result


def _draw_dag(jobs: int, edges: int, seed: int) -> ContentionDag:
    rng = Random(f"dag, {jobs}, {edges}, {seed}")
    weights = sorted((rng.uniform(0, 10) for _ in range(jobs)), reverse=True)
    drawn: set[tuple[int, int]] = set()
    while len(drawn) < edges:
        one, other = sorted(rng.sample(range(jobs), 2))
        drawn.add((one, other))
    return ContentionDag(count=jobs, edges=tuple((one, other, weights[one]) for one, other in sorted(drawn)))
