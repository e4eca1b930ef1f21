"""What a placed plan is told of what comes later: whether to wait, which nodes to hold, which spares to keep."""

from __future__ import annotations

from typing import Any

from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import Setup
from estimator.pricing.training import WholeTraining
from planner.many_jobs.placement.describing_waiting import describe_waiting
from planner.many_jobs.placement.free_now import first_start_s
from planner.many_jobs.placement.pods import wishes_of
from planner.many_jobs.placement.waiting import Waiting, first_start, wait_or_start
from planner.one_job.free_devices.coming_free import Occupancy
from planner.one_job.site_pods.affinity_rows import measure_affinity
from planner.one_job.site_pods.least_time import Evaluate
from planner.one_job.site_pods.placing import PlanInPods
from planner.one_job.site_pods.spares import Spares, choose_spares
from planner.shared.options.place import PlaceOptions
from profiles.errors import NothingFits
from profiles.records import dataclass
from profiles.vocabulary import Infeasible


@dataclass(frozen=True, kw_only=True)
class PlacedPlan:
    """A plan where it was placed: as a setup with its price, in pods (None: its sites have none), by this pricing; what
    holds the nodes, where that was asked."""

    setup: Setup
    evaluation: Evaluation
    in_pods: PlanInPods | None
    evaluate: Evaluate
    occupancy: Occupancy | None


@dataclass(frozen=True, kw_only=True)
class Later:
    """What was asked of later: None and empty where it was not."""

    waiting: Waiting | None
    spares: Spares | None
    affinity_rows: tuple[dict[str, Any], ...] = ()

    @property
    def reserved(self) -> PlanInPods | None:
        """The plan in pods of the start that is best, where that is a later one."""
        return None if self.waiting is None or self.waiting.best is self.waiting.first else self.waiting.best.in_pods

    def describe(self, options: PlaceOptions, name: str) -> dict[str, Any]:
        """Return it as values that `json.dumps` takes, by key of the answer, without keys that nobody asked for."""
        described: dict[str, Any] = {}
        if self.waiting is not None:
            described["waiting"] = describe_waiting(self.waiting, name=name, reserve=options.reserve)
        if self.spares is not None:
            described["spares"] = describe_spares(self.spares)
        if options.measure_affinity is not None:
            described["affinity_rows"] = list(self.affinity_rows)
        return described


def look_later(placed: PlacedPlan, options: PlaceOptions, whole: WholeTraining | None) -> Later:
    """Return what `options` ask of later about a placed plan, and write the rows of affinity where they say. Raise
    NothingFits where fewer nodes are left than spares are wanted."""
    waiting = spares = None
    if placed.occupancy is not None:
        devices = sum(len(stage.slots) for stage in placed.setup.stages)
        wait_s = first_start_s(placed.occupancy, options, options.devices or devices)
        first = first_start(placed.occupancy, wait_s, (placed.setup, placed.evaluation, placed.in_pods), whole)
        waiting = wait_or_start(placed.occupancy, first, placed.evaluate, wishes_of(options), whole)
    if options.spares:
        chosen = choose_spares(placed.setup, options.spares, placed.evaluate)
        if isinstance(chosen, Infeasible):
            raise NothingFits(f"{placed.setup.cluster.text}: {chosen.reason}", result=chosen)
        spares = chosen
    rows: tuple[dict[str, Any], ...] = ()
    if options.measure_affinity is not None:
        rows = measure_affinity(placed.setup, placed.evaluate, options.measure_affinity)
    return Later(waiting=waiting, spares=spares, affinity_rows=rows)


def describe_spares(spares: Spares) -> dict[str, Any]:
    """Return spares as values that `json.dumps` takes."""
    return {
        "nodes": [
            {"site": node.site, "node": node.node, "host": node.host, "part": node.part} for node in spares.nodes
        ],
        "iteration_time_s": spares.time_s,
        "mean_cost_s": spares.mean_s,
        "worst_cost_s": spares.worst_s,
        "rows_free": spares.rows_free,
        "rows": spares.rows,
        "proved": spares.proved,
    }
