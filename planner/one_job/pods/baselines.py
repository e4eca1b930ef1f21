"""What others do: rules by which nodes are handed out, one pod after another, and nodes become cells in some order.

The paper names its baselines in a line each (section 7.1); where it is silent the rule is ours, stated at each. None
knows of rows and columns but `topo-aware` (`planner.one_job.pods.bisection`) and `enumeration`
(`planner.one_job.pods.enumeration`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from random import Random
from typing import Literal

from planner.one_job.pods.records import Cells, Placement, PodRequest, transposed
from profiles.vocabulary import Infeasible

NodeOrder = Literal["rows", "megatron"]
"""How nodes become cells, which the paper does not say: row by row, so that a PP group's nodes follow each other, or as
Megatron numbers ranks (tp, cp, dp, pp), so that a DP group's do."""

Taken = list[tuple[int, int]]
"""(pod, cells) in the order in which they are handed out."""

Rule = Callable[[PodRequest, Random], Taken]


def handed_out(method: str, rule: Rule, request: PodRequest, order: NodeOrder, rng: Random) -> Placement | Infeasible:
    """Return the placement whose cells, in `order`, take their pods as `rule` hands them out; Infeasible where the free
    nodes do not hold the job."""
    shortage = request.shortage()
    if shortage is not None:
        return shortage
    line = list(chain.from_iterable([pod] * count for pod, count in rule(request, rng)))
    return Placement(method=method, request=request, cells=in_order(request, line, order))


def in_order(request: PodRequest, line: list[int], order: NodeOrder) -> Cells:
    """Return a line of pods as cells, row by row or column by column."""
    width = request.columns if order == "rows" else request.rows
    lines = tuple(tuple(line[first : first + width]) for first in range(0, request.cells, width))
    return lines if order == "rows" else transposed(lines)


def best_fit(request: PodRequest, _: Random) -> Taken:
    """Take nodes from the pod with the least left, until it is full (the paper's words; equal pods in their order)."""
    return _until_enough(request, request.largest_first[::-1])


def random_fit(request: PodRequest, rng: Random) -> Taken:
    """Take every node from a pod drawn at random, each pod that has room as likely ("balanced and fair")."""
    left = {pod: size for pod, size in enumerate(request.room) if size}
    taken = []
    for _ in range(request.cells):
        pod = rng.choice(list(left))
        taken.append((pod, 1))
        left[pod] -= 1
        if not left[pod]:
            del left[pod]
    return taken


def gpu_packing(request: PodRequest, _: Random) -> Taken:
    """Pack the job into one pod if one holds it, the tightest such; else take the pods with most room whole, until what
    is left fits one. Ranks follow the order in which pods were taken."""
    return _packed(request)


def slurm_tree(request: PodRequest, _: Random) -> Taken:
    """Take the nodes as Slurm's topology/tree does, as seen in a trial: the largest switches first until what is left
    fits one, then the smallest that holds it. Tasks are numbered by host name: pods in the cluster's order."""
    return sorted(_packed(request))


def kueue_tas(request: PodRequest, _: Random) -> Taken:
    """Take the nodes as Kueue's topology-aware scheduling does for a preferred level: the tightest domain that holds
    the job, else the domains with most room first, the last one the tightest that holds the rest. Ranks follow the
    names of the domains. Of pods alone that is Slurm's choice."""
    return sorted(_packed(request))


def cluster_order(request: PodRequest, _: Random) -> Taken:
    """Take the free nodes in the cluster's order."""
    return _until_enough(request, tuple(range(len(request.room))))


def _packed(request: PodRequest) -> Taken:
    """The pods with most room whole, until what is left fits one; then the smallest pod that holds that."""
    left, room, taken = request.cells, dict(enumerate(request.room)), list[tuple[int, int]]()
    while left:
        holding = [pod for pod, size in room.items() if size >= left]
        pod = min(holding, key=lambda pod: room[pod]) if holding else max(room, key=lambda pod: room[pod])
        taken.append((pod, min(left, room.pop(pod))))
        left -= taken[-1][1]
    return taken


def _until_enough(request: PodRequest, order: tuple[int, ...]) -> Taken:
    left, taken = request.cells, []
    for pod in order:
        count = min(left, request.room[pod])
        if count:
            taken.append((pod, count))
        left -= count
    return taken
