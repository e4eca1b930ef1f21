"""Seconds of an iteration of stages that have been priced by themselves, and nothing else of their evaluation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from estimator.cells.seated_stages import StageSeconds
from estimator.pricing.gradient_sync import exposed_sync_s, hiding_of, latest_sync_s
from estimator.pricing.recipe import Setup
from estimator.schedules.closed_form import time_schedules
from estimator.schedules.records import SharedLink


def assembled_s(
    setup: Setup,
    stages: Sequence[StageSeconds],
    *,
    hops_s: Sequence[float],
    besides_s: float,
    shared: Sequence[SharedLink] = (),
) -> float:
    """Return the seconds of an iteration of `setup`, whose stages of one chunk take `stages`, with activations that
    take `hops_s` from each stage to the next: as `estimator.pricing.evaluate` has them, to rounding. `besides_s`: what
    comes once an iteration beside the stages; `shared`: the links that messages over several boundaries pass."""
    recipe, batches = setup.recipe, setup.micro_batches
    forward_s, backward_s, weight_s = (
        np.array([getattr(stage, name) for stage in stages]) for name in ("forward_s", "backward_s", "weight_s")
    )
    pipeline_s = time_schedules(
        recipe.schedule,
        forward_s[:, None, None],
        backward_s[:, None, None],
        weight_s[:, None, None],
        np.array([*hops_s, 0.0])[:, None],
        overlapped="p2p" in recipe.overlap,
        micro_batches=batches,
        shared_s=[(np.array(link.up_s)[:, None], np.array(link.down_s)[:, None]) for link in shared],
    )
    once = [stage.once for stage in stages]
    hiding = hiding_of(recipe, [stage.zero for stage in setup.stages], batches, overlapped="dp" in recipe.overlap)
    reduce_s, gather_s = exposed_sync_s(
        hiding,
        np.array([cost.overlap_cost for cost in once]),
        np.array([cost.reduce_s for cost in once]),
        np.array([cost.partial_s for cost in once]),
        np.array([cost.gather_s for cost in once]),
        forward_s,
        backward_s,
    )
    latest_s = latest_sync_s(recipe.schedule, np.asarray(reduce_s), np.asarray(gather_s), backward_s[:, None])
    optimizer_s = max(cost.optimizer_s for cost in once) + max(cost.offload_s for cost in once)
    return float(pipeline_s[0]) + float(latest_s) + optimizer_s + besides_s
