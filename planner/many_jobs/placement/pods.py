"""The pods inside the sites of a placed job: from options and a plan to the plan on the nodes that suit it best."""

from __future__ import annotations

from dataclasses import replace

from estimator.pricing.recipe import Setup
from planner.many_jobs.sites.tpa import Across
from planner.many_jobs.sites.tpa_pipes import Priced
from planner.one_job.explicit.recording import record_plan
from planner.one_job.site_pods.axis_spread import narrow_groups_apart
from planner.one_job.site_pods.least_time import Evaluate
from planner.one_job.site_pods.placing import TIME, PlanInPods, PodWishes, database, place_plan
from planner.shared.options.place import PlaceOptions
from planner.shared.plan import Plan
from profiles.cluster import DeviceSlot
from profiles.errors import InputError, NothingFits
from profiles.vocabulary import Infeasible

PRICED = "placements were priced"


def wishes_of(options: PlaceOptions) -> PodWishes:
    """Return what the options ask for of pods. Raise InputError for a database that is none."""
    if options.affinity is not None:
        database(options.affinity)
    return PodWishes(
        method=options.pods_method,
        alpha=options.alpha,
        affinity=options.affinity,
        distance=options.distance or "log",
        or_estimate=options.affinity_else == "estimate",
        most_pods=options.most_pods,
    )


def plan_in_pods(setup: Setup, evaluate: Evaluate, options: PlaceOptions) -> PlanInPods | None:
    """Return how a plan sits in the pods of its sites; None where no site has any. A plan that has no matrix, or not
    whole free nodes for it, keeps its devices, and a note says so, unless the options ask for more than time.

    Raise InputError where the options ask for pods and there are none; NothingFits where what they ask for cannot be.
    """
    asked = options.pods_method != TIME or bool(options.most_pods)
    placed = place_plan(setup, evaluate, wishes_of(options))
    if isinstance(placed, Infeasible):
        if asked:
            raise NothingFits(f"{setup.cluster.text}: {placed.reason}", result=placed)
        evaluation = evaluate(setup)
        assert not isinstance(evaluation, Infeasible), "a plan that was priced"
        notes = (f"not placed into pods: {placed.reason}", *filter(None, [narrow_groups_apart(setup)]))
        return PlanInPods(setup=setup, evaluation=evaluation, sites=(), notes=notes)
    if placed.sites or placed.notes:
        if asked and not placed.sites:
            raise NothingFits(f"{setup.cluster.text}: {placed.notes[0]}", result=placed.notes)
        return placed
    of_pods = {
        "--method": options.pods_method if options.pods_method != TIME else None,
        "--max-spread": " ".join(options.max_spread) or None,
        "--alpha": options.alpha,
        "--affinity": options.affinity,
    }
    for key, value in of_pods.items():
        if value is not None:
            expected = "a cluster with pods: --topology FILE, or levels of its fabric (docs/network.md)"
            if any(site.network.period == 1 and site.network.levels for site in setup.cluster.sites):
                expected = "pods of several nodes: where each node is one of its own, all placements are alike"
            raise InputError(where="place", key=key, found=f"{value} on {setup.cluster.text}", expected=expected)
    return None


def seated_in(across: Across, in_pods: PlanInPods) -> Across:
    """Return a plan over sites with its ranks where `in_pods` has them."""
    plan = placed_plan(in_pods, reference=across.plan.model.reference, assumptions=across.plan.assumptions)
    counted = plan.provenance.search_space_size + across.plan.provenance.search_space_size - 1
    best = Priced(setup=in_pods.setup, evaluation=in_pods.evaluation)
    sized = replace(plan.provenance, search_space_size=counted)
    return replace(across, best=best, plan=replace(plan, provenance=sized))


def placed_plan(in_pods: PlanInPods, *, reference: str, assumptions: tuple[str, ...]) -> Plan:
    """Return the plan record of a plan in pods; its search space is the placements that were priced."""
    said = [
        f"nodes of {site.job.nodes.site} by {site.placed.best.name}: {site.placed.priced} {PRICED}"
        for site in in_pods.sites
    ]
    # A plan that was placed before says so of that time, which this one takes the place of.
    sites = tuple(f"nodes of {site.job.nodes.site} by " for site in in_pods.sites)
    kept = [old for old in assumptions if not (old.startswith(sites) and old.endswith(PRICED))]
    plan = record_plan(
        in_pods.setup, in_pods.evaluation, reference=reference, assumptions=(*kept, *said, *in_pods.notes)
    )
    priced = sum(site.placed.priced for site in in_pods.sites)
    return replace(plan, provenance=replace(plan.provenance, search_space_size=max(1, priced)))


def granted_in(in_pods: PlanInPods, granted: tuple[DeviceSlot, ...]) -> tuple[DeviceSlot, ...]:
    """Return the devices of the plan in pods and, beside them, as many idle ones as were granted: the same where the
    plan does not use them now, else others that are free."""
    cluster = in_pods.setup.cluster
    used = {slot for stage in in_pods.setup.stages for slot in stage.slots}
    kinds = {(slot.site, slot.device) for slot in granted}
    others = (slot for slot in cluster.free_slots if (slot.site, slot.device) in kinds)
    idle = [slot for slot in dict.fromkeys((*granted, *others)) if slot not in used][: len(granted) - len(used)]
    taken = used | set(idle)
    return tuple(slot for slot in cluster.slots if slot in taken)
