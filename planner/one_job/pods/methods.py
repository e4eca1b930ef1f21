"""All methods that place a job into pods, behind one interface."""

from __future__ import annotations

from random import Random
from typing import Protocol

from planner.one_job.pods import baselines
from planner.one_job.pods.baselines import NodeOrder, Rule
from planner.one_job.pods.bisection import METHOD as TOPO_AWARE
from planner.one_job.pods.bisection import place_by_bisection
from planner.one_job.pods.consolidation import METHOD as ARNOLD
from planner.one_job.pods.consolidation import place_by_arnold
from planner.one_job.pods.enumeration import METHOD as ENUMERATION
from planner.one_job.pods.enumeration import place_by_enumeration
from planner.one_job.pods.least_spread import METHOD as SPREAD
from planner.one_job.pods.least_spread import place_by_spread
from planner.one_job.pods.records import Placement, PodRequest
from profiles.errors import InputError
from profiles.vocabulary import Infeasible


class Method(Protocol):
    """Places a request; `order` says how nodes become cells where the method hands out nodes, `rng` draws."""

    def __call__(self, request: PodRequest, *, order: NodeOrder, rng: Random) -> Placement | Infeasible: ...


def _by_rule(name: str, rule: Rule) -> Method:
    def place(request: PodRequest, *, order: NodeOrder, rng: Random) -> Placement | Infeasible:
        return baselines.handed_out(name, rule, request, order, rng)

    return place


def _arnold(request: PodRequest, *, order: NodeOrder, rng: Random) -> Placement | Infeasible:  # noqa: ARG001
    return place_by_arnold(request)


def _spread(request: PodRequest, *, order: NodeOrder, rng: Random) -> Placement | Infeasible:  # noqa: ARG001
    return place_by_spread(request)


def _topo_aware(request: PodRequest, *, order: NodeOrder, rng: Random) -> Placement | Infeasible:  # noqa: ARG001
    return place_by_bisection(request, order)


def _enumeration(request: PodRequest, *, order: NodeOrder, rng: Random) -> Placement | Infeasible:  # noqa: ARG001
    return place_by_enumeration(request)


RULES: dict[str, Rule] = {
    "best-fit": baselines.best_fit,
    "random-fit": baselines.random_fit,
    "gpu-packing": baselines.gpu_packing,
    "cluster-order": baselines.cluster_order,
    "kueue": baselines.kueue_tas,
    "slurm": baselines.slurm_tree,
}

METHODS: dict[str, Method] = {
    SPREAD: _spread,
    ARNOLD: _arnold,
    **{name: _by_rule(name, rule) for name, rule in RULES.items()},
    TOPO_AWARE: _topo_aware,
    ENUMERATION: _enumeration,
}


def place_into_pods(
    method: str, request: PodRequest, *, order: NodeOrder = "rows", rng: Random | None = None
) -> Placement | Infeasible:
    """Return the placement of `request` by one of `METHODS`; Infeasible where the free nodes do not hold the job.

    `order` is how methods that hand out nodes fill cells, `rng` what random ones draw from (by default always the
    same). Raise InputError for an unknown method.
    """
    if method not in METHODS:
        raise InputError(where="pods", key="method", found=method, expected=f"one of {', '.join(METHODS)}")
    return METHODS[method](request, order=order, rng=rng or Random(0))
