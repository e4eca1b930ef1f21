"""The plan of a job that gets whole nodes in the pods of one site: searched exactly, as if nodes followed each other.

Which nodes it gets is decided after the plan, so the search may take any: nodes in a row with nothing above them, which
are quick to price, and on which no plan takes longer than where it is placed. Where the best plan loses something once
it is placed, the best ones of several stage counts are placed, too, as long as they could still be faster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from estimator.pricing.evaluate import evaluate
from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import Setup
from planner.many_jobs.sites.tpa import Across
from planner.many_jobs.sites.tpa_pipes import Priced
from planner.one_job.planning.preferring import find_preferred
from planner.one_job.search.best import Best, find_best_parts
from planner.one_job.search.spaces.request import SearchRequest
from planner.one_job.search.varied import with_cluster, with_constraints
from planner.one_job.site_pods.candidates import DEFAULT_SCHEDULER, seating_by
from planner.one_job.site_pods.free_nodes import level_of_pods
from planner.one_job.site_pods.site_job import SiteJob, site_job
from profiles.cluster import Cluster, DeviceSlot
from profiles.errors import NothingFits
from profiles.network import PLAIN
from profiles.records import dataclass
from profiles.vocabulary import Infeasible

QUICKLY = ("spread", "arnold", DEFAULT_SCHEDULER)
"""By the best of these a plan is compared with others, at equal weights of DP and PP."""
NEAR = 0.005
"""Above what any plan takes where nothing is held back: a plan that is so near is not searched for again."""
STAGES = (1, 2, 4, 8, 16)
"""The best plan of each of these stage counts is placed, too, where the best of all loses something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A plan with the least that it was seen to take, placed."""

    across: Across
    seconds: float


def plan_for_pods(request: SearchRequest, slots: Sequence[DeviceSlot]) -> Across | None:
    """Return the plan on these devices, which are all that `request` has, in the order of the cluster; None where they
    are not whole equal nodes in one site with pods, where racks join nodes, or where no plan fits."""
    whole = _whole_nodes(request, slots)
    if whole is None:
        return None
    network = request.cluster.site(slots[0].site).network
    alone, places = _in_a_row(request, slots, whole)
    try:
        best = find_preferred(alone)
    except NothingFits:
        return None
    fastest = _placed(best, request, places)
    if network.is_shared and (fastest is None or fastest.seconds > _least_s(best) * (1 + NEAR)):
        others = [other for other in find_best_parts(alone, _by_stages(alone)) if other is not None]
        for other in sorted(others, key=_least_s):
            if fastest is not None and _least_s(other) >= fastest.seconds:
                break
            placed = _placed(other, request, places)
            if placed is not None and (fastest is None or placed.seconds < fastest.seconds):
                fastest = placed
    return None if fastest is None else fastest.across


def _least_s(best: Best) -> float:
    """Seconds of an iteration where nothing is held back: the plan takes no less anywhere."""
    return best.winner.evaluation.iteration_time_s


def _by_stages(request: SearchRequest) -> list[SearchRequest]:
    """The request with each of some stage counts; none where it is said."""
    limits = request.spaces[0].space.constraints
    return [
        with_constraints(request, lambda other, pp=pp: replace(other, fix={**other.fix, "pp": pp}))  # type: ignore[misc]
        for pp in STAGES
        if "pp" not in limits.fix and limits.permits("pp", pp)
    ]


def _whole_nodes(request: SearchRequest, slots: Sequence[DeviceSlot]) -> tuple[int, ...] | None:
    cluster, sites = request.cluster, {slot.site for slot in slots}
    groups = {replace(cluster.group_of(slot), count=1, free=None) for slot in slots}
    if len(request.spaces) != 1 or len(sites) != 1 or len(groups) != 1:
        return None
    (group,) = groups
    on_node = Counter(slot.node for slot in slots)
    if level_of_pods(cluster.site(slots[0].site).network) is None or group.island_size > group.devices:
        return None
    return tuple(sorted(on_node)) if set(on_node.values()) == {group.devices} else None


def _in_a_row(
    request: SearchRequest, slots: Sequence[DeviceSlot], nodes: tuple[int, ...]
) -> tuple[SearchRequest, dict[DeviceSlot, DeviceSlot]]:
    """The request on a stand-in of these nodes alone, with nothing above them; and the device that each of its own
    stands for."""
    cluster = request.cluster
    site = cluster.site(slots[0].site)
    group = replace(cluster.group_of(slots[0]), count=len(nodes), free=None)
    stand_in = Cluster(text=cluster.text, sites=(replace(site, nodes=(group,), network=PLAIN),), notes=cluster.notes)
    alone = with_cluster(request, stand_in)
    (part,) = alone.spaces
    alone = replace(alone, spaces=(replace(part, space=replace(part.space, slots=stand_in.slots)),))
    ordered = sorted(slots, key=lambda slot: (slot.node, slot.index))
    return alone, dict(zip(stand_in.slots, ordered, strict=True))


def _placed(best: Best, request: SearchRequest, places: dict[DeviceSlot, DeviceSlot]) -> _Seen | None:
    """A plan of the stand-in on the devices themselves; None where it does not fit there."""
    stages = tuple(
        replace(stage, slots=tuple(places[slot] for slot in stage.slots)) for stage in best.winner.setup.stages
    )
    setup = replace(best.winner.setup, cluster=request.cluster, stages=stages)
    price = partial(evaluate, pricing=request.spaces[0].pricing)
    evaluation = price(setup)
    if isinstance(evaluation, Infeasible) or evaluation.out_of_memory is not None:
        return None
    said = "searched as if nodes followed each other; which they are is decided after the plan"
    plan = replace(best.plan, assumptions=(*best.plan.assumptions, said))
    across = Across(
        best=Priced(setup=setup, evaluation=evaluation), plan=plan, considered=(), priced=max(1, best.counts.plans)
    )
    return _Seen(across=across, seconds=min([evaluation.iteration_time_s, *_quick_times(setup, price)]))


def _quick_times(setup: Setup, price: partial[Evaluation | Infeasible]) -> list[float]:
    """Seconds of an iteration by each of the quick methods that place the plan."""
    job = site_job(setup, setup.stages[0].slots[0].site)
    if not isinstance(job, SiteJob):
        return []
    seatings = [seating_by(job, method, 0.5) for method in QUICKLY]
    prices = [price(job.seated(seating)) for seating in seatings if not isinstance(seating, Infeasible)]
    return [evaluation.iteration_time_s for evaluation in prices if isinstance(evaluation, Evaluation)]
