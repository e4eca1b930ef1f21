"""What a whole training costs by a plan, and what the clusters of a request charge."""

from __future__ import annotations

from collections.abc import Sequence

from estimator.pricing.training import Iteration, Training, WholeTraining
from planner.one_job.explicit.whole import train_by
from planner.one_job.search.spaces.objectives import slots_of_plan
from planner.one_job.search.spaces.request import SearchRequest
from planner.one_job.search.varied import with_cluster
from planner.shared.plan import Plan
from profiles.cluster import Cluster
from profiles.prices import DevicePrice, priced_cluster


def train_plan(whole: WholeTraining, plan: Plan, cluster: Cluster) -> Training:
    """Return what `whole` takes by a plan, whose ranks sit on `cluster`. Raise InputError for tokens of a model
    without, and for a training that never ends."""
    iteration = Iteration(
        time_s=plan.estimate.iteration_time_s,
        interval_90_s=plan.estimate.interval_90_s,
        samples=plan.batch.global_batch,
        seq_len=plan.model.seq_len or 0,
        cluster=cluster,
        slots=slots_of_plan(plan, cluster),
    )
    return train_by(whole, iteration, model=plan.model.name)


def with_prices(request: SearchRequest, prices: Sequence[DevicePrice]) -> SearchRequest:
    """Return the request on the same devices at these prices."""
    if not prices:
        return request
    return with_cluster(request, priced_cluster(request.cluster, prices))
