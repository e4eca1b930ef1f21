"""Counters by priority held against a plan: which share of what hosts send has which priority."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from estimator.network.fabric import Fabric
from estimator.network.queue_pairs import connections_of
from estimator.network.traffic import Exchange
from planner.contention.emitting.counters import Bytes
from planner.contention.emitting.environment import level_of
from planner.contention.emitting.planned import PlannedJob, SeatedJob
from planner.contention.emitting.priority_map import PriorityMap
from profiles.errors import InputError
from profiles.records import dataclass

TOLERANCE = 0.05
"""Shares that are no further apart agree: acknowledgements, control and other jobs' starts take some percent."""
LEAST = 0.005
"""A planned share of so much is looked for even within the tolerance."""

Verdict = Literal["as planned", "missing", "less", "more", "not planned"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityShare:
    """Of what a host sends ("" : all hosts together), the share of a priority, planned and counted. `missing`: planned,
    and next to nothing came; `not planned`: what came belongs to no level of its jobs."""

    host: str
    priority: int
    planned: float
    counted: float
    counted_bytes: int

    @property
    def verdict(self) -> Verdict:
        """How they compare."""
        if self.planned >= LEAST and self.counted <= self.planned / 10:
            return "missing"
        if abs(self.planned - self.counted) <= TOLERANCE:
            return "as planned"
        if self.planned == 0:
            return "not planned"
        return "less" if self.counted < self.planned else "more"


def verify(
    counted: Bytes,
    jobs: Sequence[SeatedJob],
    planned: Sequence[PlannedJob],
    seconds: Mapping[str, float],
    of: PriorityMap,
    fabric: Fabric,
) -> tuple[PriorityShare, ...]:
    """Return the shares of every host that was counted, those of one host together, by priority.

    `seconds` is what an iteration of each job takes by the plan; a job that gets nowhere sends nothing. What a job
    without a level sends goes as unmarked packets do, by the map's level of DSCP 0, else with the least urgent, on
    InfiniBand by service level 0.

    Raise InputError for a host that the cluster has not, one where no job of the plan sends, and a level that the map
    has not.
    """
    rates = _planned_rates(jobs, {job.id: job for job in planned}, seconds, of, fabric)
    shares: list[PriorityShare] = []
    for host in sorted({host for host, _ in counted}):
        if host and host not in fabric.node_numbers:
            expected = f"a host of the cluster, such as {fabric.links.names[0]}"
            raise InputError(where="contention", key="--verify", found=f"counters of {host}", expected=expected)
        own: defaultdict[int, float] = defaultdict(float)
        for (node, priority), rate in rates.items():
            if not host or node == fabric.node_numbers[host]:
                own[priority] += rate
        whole = sum(own.values())
        if whole <= 0:
            expected = "a host where a job of the plan sends over the network"
            raise InputError(where="contention", key="--verify", found=host or "no such job", expected=expected)
        here = {priority: count for (name, priority), count in counted.items() if name == host}
        counted_bytes = sum(here.values())
        shares += [
            PriorityShare(
                host=host,
                priority=priority,
                planned=own.get(priority, 0.0) / whole,
                counted=here.get(priority, 0) / counted_bytes if counted_bytes else 0.0,
                counted_bytes=here.get(priority, 0),
            )
            for priority in sorted({*own, *(priority for priority, count in here.items() if count)}, reverse=True)
        ]
    return tuple(shares)


def describe_verified(shares: Sequence[PriorityShare]) -> dict[str, Any]:
    """Return what `--json` says of them."""
    return {
        "agrees": all(share.verdict == "as planned" for share in shares),
        "tolerance": TOLERANCE,
        "priorities": [
            {
                "host": share.host or None,
                "priority": share.priority,
                "planned_share": share.planned,
                "counted_share": share.counted,
                "counted_bytes": share.counted_bytes,
                "verdict": share.verdict,
            }
            for share in shares
        ],
    }


def _planned_rates(
    jobs: Sequence[SeatedJob],
    planned: Mapping[str, PlannedJob],
    seconds: Mapping[str, float],
    of: PriorityMap,
    fabric: Fabric,
) -> dict[tuple[int, int], float]:
    """Bytes a second of each node and priority."""
    unmarked = _unmarked(of)
    rates: defaultdict[tuple[int, int], float] = defaultdict(float)
    for job in jobs:
        plan = planned.get(job.id)
        by_axis = dict(plan.axis_levels) if plan else {}
        for (node, axis), sent_bytes in sent_by_node(job, fabric).items():
            level = by_axis.get(axis, plan.last_level if plan else None)
            priority = unmarked if level is None or plan is None else level_of(level, of, plan).priority
            rates[node, priority] += sent_bytes / seconds[job.id]
    return dict(rates)


def _unmarked(of: PriorityMap) -> int:
    """The priority of packets that nobody gave a level."""
    if of.is_infiniband:
        return 0
    return next((level.priority for level in (*of.levels, *of.others) if level.dscp == 0), of.levels[-1].priority)


def sent_by_node(job: SeatedJob, fabric: Fabric) -> dict[tuple[int, str], float]:
    """Return the bytes that each node sends over the network in an iteration of a job, by axis."""
    sent: defaultdict[tuple[int, str], float] = defaultdict(float)
    node_of = fabric.links.node_of_nic
    for exchange, times in _exchanges(job):
        queue_pairs = connections_of(exchange, job.seats, fabric)
        if not len(queue_pairs):
            continue
        nodes = node_of[queue_pairs.flows.sources]
        totals = np.bincount(nodes, queue_pairs.sizes)
        for node in np.unique(nodes).tolist():
            sent[node, exchange.axis] += float(totals[node]) * times
    return dict(sent)


def _exchanges(job: SeatedJob) -> Iterator[tuple[Exchange, int]]:
    """All exchanges of an iteration, with how often each comes; those beside another come with each of it."""
    waiting = [(exchange, span.times) for span in job.traffic.spans for exchange in span.exchanges]
    while waiting:
        exchange, often = waiting.pop()
        yield exchange, often * exchange.times
        waiting += [(other, often * exchange.times) for other in exchange.beside]
