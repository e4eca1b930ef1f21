"""A priority that gives back to those who lost: the weighted mean of GPU intensity and recent loss (Crux, section 7.2).

The paper names it in a sentence and gives no formula. Here intensity is a share of the greatest of all jobs that share
links, so that both figures go from 0 to 1, and

    P_j = (1 - w) I_j / max I + w loss_j,

where the loss is the share of its iterations a second alone that a job has lost: as measured (`Contender.recent_loss`),
or as the jobs play on the paths and levels that are in force.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.contention.policies.intensity import intensities
from planner.contention.policies.loads import LinkSeconds, contending_jobs, paths_now
from planner.contention.policies.priority import order_by
from planner.contention.policies.records import View
from planner.contention.policies.rehearsals import Rehearsals

WEIGHT = 0.5
"""Of the loss; the paper states none."""


def recent_losses(view: View) -> tuple[float, ...]:
    """Return the share that each job has lost: measured, else played."""
    losses = [job.recent_loss for job in view.jobs]
    if None in losses:
        rates = Rehearsals(view).iterations_per_s(paths_now(view), [job.own_level for job in view.jobs])
        played = [max(1.0 - rate * job.alone_s, 0.0) for rate, job in zip(rates, view.jobs, strict=True)]
        return tuple(its if known is None else known for known, its in zip(losses, played, strict=True))
    return tuple(loss for loss in losses if loss is not None)


def order_by_fairness(view: View, seconds: Sequence[LinkSeconds], weight: float = WEIGHT) -> tuple[int, ...]:
    """Return the jobs that share links, the highest priority first. Raise ValueError for a weight outside 0 to 1."""
    if not 0 <= weight <= 1:
        raise ValueError(f"weight of the loss {weight}: 0 to 1")
    jobs, intensity = contending_jobs(seconds), intensities(view, seconds)
    most = max((intensity[job] for job in jobs), default=0.0) or 1.0
    losses = recent_losses(view) if weight else (0.0,) * len(view.jobs)
    return order_by(view, jobs, [(1 - weight) * intensity[job] / most + weight * losses[job] for job in jobs])
