"""Who makes a job's plan on the devices that it was granted: by name, from a workload and those devices to a plan.

All price by the estimator's explicit plans (bf16 or as the workload says, 1F1B, nothing offloaded, nothing overlapped),
so plans differ and prices do not. "tpa" and "uniform" may leave devices idle and say so; "even" and "genetic" use all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import combinations

from estimator.frontends.load import load_file_model
from estimator.pricing.evaluate import evaluate
from estimator.pricing.outcome import Evaluation
from estimator.pricing.pricing import Pricing
from estimator.pricing.recipe import Recipe, Setup
from models_zoo.model import Model
from planner.many_jobs.jobs.records import Workload
from planner.many_jobs.scheduling.sites.genetic import genetic_setups
from planner.many_jobs.sites.tpa import plan_across
from planner.one_job.search.best import setup_of
from planner.one_job.search.exact import search
from planner.one_job.search.spaces.constraints import Constraints
from planner.one_job.search.spaces.request import DeviceSpace, SearchRequest, request_on
from profiles.cluster import Cluster, SiteLink
from profiles.errors import InputError
from profiles.records import dataclass, replace

MOST_NODES = 1
"""Up to so many nodes of a site are shared by TPA's exact choice inside; beyond, by the exact search over plans that
share all devices alike: the choice between patterns of devices over many nodes takes up to minutes."""
MOST_SITES = 10
"""TPA's arrangements are tried of at most so many sites, for the same reason."""
ILP_PRICED = 200
"""Plans that "ilp" prices of TPA's candidates, many times as many as "tpa"."""
TOGETHER = 128
"""So many plans in turn share what has been priced; then it is forgotten."""
FAMILIES = 400
"""Families of plans that a search over even plans prices at most; what that leaves open is not proved."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A plan that fits, what an iteration takes, and the sites of the small cluster that it has stages on."""

    setup: Setup
    time_s: float
    sites: tuple[str, ...]


Planner = Callable[["Workshop", Workload, Cluster], Planned | None]


class Workshop:
    """Makes plans, and keeps the models that it loaded and the plans that it made for links of no matter what speed."""

    def __init__(self) -> None:
        self._models: dict[str, Model] = {}
        self._blind: dict[object, Setup | None] = {}
        self._pricing, self._plans = Pricing(), 0

    def plan(self, planner: str, workload: Workload, cluster: Cluster) -> Planned | None:
        """The plan of that planner on all devices of `cluster`; None where none fits. InputError for a planner or model
        that there is not."""
        if planner not in PLANNERS:
            raise InputError(where="grant", key="planner", found=planner, expected="one of " + ", ".join(PLANNERS))
        self._plans += 1
        if self._plans % TOGETHER == 0:
            self._pricing = Pricing()
        return PLANNERS[planner](self, workload, cluster)

    def model(self, workload: Workload) -> Model:
        """What is trained."""
        if workload.model not in self._models:
            self._models[workload.model] = load_file_model(workload.model)
        return self._models[workload.model]

    def recipe(self, workload: Workload) -> Recipe:
        """How it is trained."""
        length = self.model(workload).seq_len if workload.seq_len is None else workload.seq_len
        return Recipe(global_batch=workload.global_batch, seq_len=length, dtype=workload.dtype)

    def request(self, workload: Workload, cluster: Cluster, *, all_devices: bool = False) -> SearchRequest:
        """All that is open on the cluster's devices, a space for each type."""
        constraints = Constraints(schedules=("1f1b",), offload=False, most={"cp": 1})
        model, recipe = self.model(workload), self.recipe(workload)
        request = request_on(
            model, cluster, recipe, constraints=constraints, reference=workload.model, pricing=self._pricing
        )
        return replace(request, spaces=tuple(map(_on_all, request.spaces))) if all_devices else request

    def blind(self, workload: Workload, cluster: Cluster) -> Setup | None:
        """The fastest plan that shares all devices alike, were every two sites joined as the nodes of a site are."""
        flat = replace(cluster, site_links=_as_wide_as_fabrics(cluster))
        key = (workload, tuple((site.nodes, site.fabric_link) for site in cluster.sites))
        if key not in self._blind:
            self._blind[key] = best_alike(self.request(workload, flat, all_devices=True).spaces)
        return self._blind[key]


def _on_all(part: DeviceSpace) -> DeviceSpace:
    """Plans on all devices of the space alone."""
    constraints = replace(part.space.constraints, fix={"devices": len(part.space.slots)})
    return replace(part, space=replace(part.space, constraints=constraints))


def best_alike(spaces: tuple[DeviceSpace, ...]) -> Setup | None:
    """The fastest plan that shares the devices of one type alike, ranks in the order of devices; None where none
    fits."""
    best: tuple[float, Setup] | None = None
    for part in spaces:
        evaluation = search(part.space, part.evaluator, most_families=FAMILIES).best
        if evaluation is not None and (best is None or evaluation.iteration_time_s < best[0]):
            best = evaluation.iteration_time_s, setup_of(evaluation, part)
    return None if best is None else best[1]


def priced(setup: Setup | None, cluster: Cluster) -> Planned | None:
    """Return the plan on the cluster's own links; None where it does not fit, or links do not join its sites."""
    if setup is None:
        return None
    placed = replace(setup, cluster=cluster)
    try:
        outcome = evaluate(placed)
    except InputError:
        return None
    if not isinstance(outcome, Evaluation) or outcome.out_of_memory is not None:
        return None
    if not math.isfinite(outcome.iteration_time_s):
        return None
    sites = tuple(sorted({slot.site for stage in placed.stages for slot in stage.slots}))
    return Planned(setup=placed, time_s=outcome.iteration_time_s, sites=sites)


def _as_wide_as_fabrics(cluster: Cluster) -> tuple[SiteLink, ...]:
    """A link between every two sites that is as good as the better of their fabrics."""
    links = []
    for site, other in combinations(cluster.sites, 2):
        fabric = max((site.fabric_link, other.fabric_link), key=lambda link: link.bandwidth_bytes_per_s)
        links.append(
            SiteLink(
                between=(site.name, other.name),
                bandwidth_bytes_per_s=fabric.bandwidth_bytes_per_s,
                latency_s=fabric.latency_s,
            )
        )
    return tuple(links)


def _even(workshop: Workshop, workload: Workload, cluster: Cluster) -> Planned | None:
    """Whoever does not look at links: all devices shared alike, ranks dealt site by site, degrees, micro-batch and
    recomputation the best there are were the sites nodes of one; then priced on the links that there are."""
    return priced(workshop.blind(workload, cluster), cluster)


def _uniform(workshop: Workshop, workload: Workload, cluster: Cluster) -> Planned | None:
    """The same, chosen with an eye on the links."""
    return priced(_alike_or_none(workshop, workload, cluster), cluster)


def _tpa(workshop: Workshop, workload: Workload, cluster: Cluster) -> Planned | None:
    """SpiderFlow's two levels (`planner.many_jobs.sites.tpa`), or "even"'s plan if that is faster. Over more nodes or
    sites than the exact choice inside can do: the best even plan on the first site, the first two, and all."""
    if _is_small(cluster):
        across = plan_across(workshop.request(workload, cluster))
        setup = None if across is None else across.best.setup
        return _best(priced(candidate, cluster) for candidate in (setup, workshop.blind(workload, cluster)))
    plans = [_even(workshop, workload, cluster)]
    for count in sorted({1, min(2, len(cluster.sites)), len(cluster.sites)}):
        names = {site.name for site in cluster.sites[:count]}
        part = replace(
            cluster,
            sites=cluster.sites[:count],
            site_links=tuple(link for link in cluster.site_links if names.issuperset(link.between)),
        )
        setup = None if count > 1 and len(part.site_links) < count - 1 else _alike_or_none(workshop, workload, part)
        plans.append(priced(setup, cluster))
    return _best(plans)


def _alike_or_none(workshop: Workshop, workload: Workload, cluster: Cluster) -> Setup | None:
    try:
        return best_alike(workshop.request(workload, cluster, all_devices=True).spaces)
    except InputError:
        return None


def _genetic(workshop: Workshop, workload: Workload, cluster: Cluster) -> Planned | None:
    """DT-FM's way (`planner.many_jobs.scheduling.sites.genetic`): pieces of every d x p grid, cut by the genetic
    search."""
    setups = genetic_setups(workshop.model(workload), workshop.recipe(workload), cluster)
    return _best(priced(setup, cluster) for setup in setups)


def _ilp(workshop: Workshop, workload: Workload, cluster: Cluster) -> Planned | None:
    """All devices and sites in one choice, as the paper uses ALPA: the exact search over plans that share devices
    alike, and many of TPA's candidates. Uneven plans outside of these are not proved worse."""
    request = workshop.request(workload, cluster)
    across = plan_across(request, most=ILP_PRICED) if _is_small(cluster) else None
    try:
        alike = best_alike(request.spaces)
    except InputError:
        alike = None
    setups = (None if across is None else across.best.setup, alike, workshop.blind(workload, cluster))
    return _best(priced(setup, cluster) for setup in setups)


def _is_small(cluster: Cluster) -> bool:
    """Whether TPA's exact choice inside sites takes seconds at most."""
    nodes = max(group.count for site in cluster.sites for group in site.nodes)
    return nodes <= MOST_NODES and len(cluster.sites) <= MOST_SITES


def _best(plans: Iterable[Planned | None]) -> Planned | None:
    """The fastest, of equal ones the first."""
    return min((plan for plan in plans if plan is not None), key=lambda plan: plan.time_s, default=None)


PLANNERS: dict[str, Planner] = {
    "even": _even,
    "uniform": _uniform,
    "tpa": _tpa,
    "genetic": _genetic,
    "ilp": _ilp,
}
"""Who may be named in a grant."""
