"""The plan of a job that gets whole nodes in the pods of one site: searched exactly, as if nodes followed each other.

Which nodes it gets is decided after the plan, so the search may take any: nodes in a row, which are quick to price. It
is asked where nothing above the nodes holds anything back, below which no plan can be; and where that plan loses
something once it is placed, again on the granted nodes in the cluster's order behind their own uplinks. The plan that
is faster once both are placed is taken.
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
from planner.one_job.search.spaces.request import SearchRequest
from planner.one_job.search.varied import with_cluster
from planner.one_job.site_pods.candidates import DEFAULT_SCHEDULER, seating_by
from planner.one_job.site_pods.free_nodes import level_of_pods
from planner.one_job.site_pods.site_job import SiteJob, site_job
from profiles.cluster import Cluster, DeviceSlot
from profiles.errors import NothingFits
from profiles.network import PLAIN, FabricLevel, Network
from profiles.records import dataclass
from profiles.vocabulary import Infeasible

QUICKLY = ("spread", "arnold", DEFAULT_SCHEDULER)
"""By the best of these a plan is compared with others, at equal weights of DP and PP."""
NEAR = 0.005
"""Above what any plan takes where nothing is held back: a plan that is so near is not searched for again."""
MOST_FAMILIES = 48
"""Behind uplinks so many families of plans are priced at most: each takes several times as long as without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A plan of a search with what it takes on the search's own nodes, and the least that it was seen to take."""

    across: Across
    least_s: float
    seconds: float


def plan_for_pods(request: SearchRequest, slots: Sequence[DeviceSlot]) -> Across | None:
    """Return the plan on these devices, which are all that `request` has, in the order of the cluster; None where they
    are not whole equal nodes in one site with pods, where racks join nodes, or where no plan fits."""
    whole = _whole_nodes(request, slots)
    if whole is None:
        return None
    network = request.cluster.site(slots[0].site).network
    first = _searched(request, slots, whole, PLAIN)
    if first is None:
        return None
    seen = [first]
    if network.is_shared and first.seconds > first.least_s * (1 + NEAR):
        second = _searched(replace(request, limit=MOST_FAMILIES), slots, whole, restricted(network, whole))
        seen += [second] if second is not None else []
    return min(seen, key=lambda plan: plan.seconds).across


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


def _searched(
    request: SearchRequest, slots: Sequence[DeviceSlot], nodes: tuple[int, ...], network: Network
) -> _Seen | None:
    """The best plan on a stand-in of these nodes alone behind `network`, on the nodes themselves."""
    cluster = request.cluster
    site = cluster.site(slots[0].site)
    group = replace(cluster.group_of(slots[0]), count=len(nodes), free=None)
    stand_in = Cluster(text=cluster.text, sites=(replace(site, nodes=(group,), network=network),), notes=cluster.notes)
    alone = with_cluster(request, stand_in)
    (part,) = alone.spaces
    alone = replace(alone, spaces=(replace(part, space=replace(part.space, slots=stand_in.slots)),))
    try:
        best = find_preferred(alone)
    except NothingFits:
        return None
    places = dict(zip(stand_in.slots, sorted(slots, key=lambda slot: (slot.node, slot.index)), strict=True))
    stages = tuple(
        replace(stage, slots=tuple(places[slot] for slot in stage.slots)) for stage in best.winner.setup.stages
    )
    setup = replace(best.winner.setup, cluster=cluster, stages=stages)
    price = partial(evaluate, pricing=request.spaces[0].pricing)
    evaluation = price(setup)
    if isinstance(evaluation, Infeasible) or evaluation.out_of_memory is not None:
        return None
    priced = Priced(setup=setup, evaluation=evaluation)
    said = "searched as if nodes followed each other; which they are is decided after the plan"
    plan = replace(best.plan, assumptions=(*best.plan.assumptions, said))
    seconds = min([evaluation.iteration_time_s, *_quick_times(setup, price)])
    across = Across(best=priced, plan=plan, considered=(), priced=max(1, best.counts.plans))
    return _Seen(across=across, least_s=best.winner.evaluation.iteration_time_s, seconds=seconds)


def _quick_times(setup: Setup, price: partial[Evaluation | Infeasible]) -> list[float]:
    """Seconds of an iteration by each of the quick methods that place the plan."""
    job = site_job(setup, setup.stages[0].slots[0].site)
    if not isinstance(job, SiteJob):
        return []
    seatings = [seating_by(job, method, 0.5) for method in QUICKLY]
    prices = [price(job.seated(seating)) for seating in seatings if not isinstance(seating, Infeasible)]
    return [evaluation.iteration_time_s for evaluation in prices if isinstance(evaluation, Evaluation)]


def restricted(network: Network, nodes: Sequence[int]) -> Network:
    """Return the tree of some nodes alone, in this order, with the uplinks that their parts have."""
    levels: list[FabricLevel] = []
    below = list(range(len(nodes)))
    for level, row in zip(network.levels, network.part_of_node, strict=True):
        held, kept = Counter(row), Counter(row[node] for node in nodes)
        numbers = {part: number for number, part in enumerate(kept)}
        parts = tuple(
            replace(level.parts[part], oversubscription=level.parts[part].oversubscription * kept[part] / held[part])
            for part in kept
        )
        part_of = {lower: numbers[row[node]] for lower, node in zip(below, nodes, strict=True)}
        levels.append(replace(level, parts=parts, part_of=tuple(part_of[lower] for lower in sorted(part_of))))
        below = [numbers[row[node]] for node in nodes]
    hosts = tuple(network.hosts[node] for node in nodes) if network.hosts else ()
    return Network(levels=tuple(levels), hosts=hosts)
