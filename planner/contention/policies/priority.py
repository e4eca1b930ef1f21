"""Unique priorities: intensity, corrected by how a job and a reference job disturb each other (Crux, section 4.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from planner.contention.policies.intensity import bottleneck_s
from planner.contention.policies.loads import LinkSeconds, bytes_by_connection
from planner.contention.policies.pair import Pattern, Spent, in_the_long_run, pattern_of
from planner.contention.policies.records import Contender, View

MOST_FACTOR = 100.0
"""The factor of a job that gains by being first where the reference loses nothing by being second (x/0). No factor is
above it, and none is below one over it, so that intensity still orders those that gain nothing."""
NOTHING = 1e-9
"""A share of the link's time that is no more is none."""


def bytes_per_s(job: Contender) -> float:
    """Return what the job sends in a second alone, over all its connections."""
    return sum(bytes_by_connection(job)) / job.alone_s


def bytes_per_iteration(job: Contender) -> float:
    """Return what the job sends in an iteration, over all its connections."""
    return sum(bytes_by_connection(job))


TRAFFIC: dict[str, Callable[[Contender], float]] = {"second": bytes_per_s, "iteration": bytes_per_iteration}
"""What "the most network traffic" means, by which the reference job is chosen and ties are broken."""


def correction_factor(
    reference: Pattern, other: Pattern, spent: Callable[[Pattern, Pattern], Spent] = in_the_long_run
) -> float:
    """Return k of `other`, where the reference's is 1: at equal priority either order does the same work, so
    I_ref / I_other = what `other` sends more if it is first / what the reference sends more if it is first.

    Args:
        reference: the reference job.
        other: the job that is asked for.
        spent: what the first and the second of two jobs spend; in the long run, or in a window.
    """
    reference_first, other_first = spent(reference, other), spent(other, reference)
    gain = other_first.wire_s[0] - reference_first.wire_s[1]
    loss = reference_first.wire_s[0] - other_first.wire_s[1]
    if gain <= NOTHING and loss <= NOTHING:
        return 1.0
    return max(min(gain / loss, MOST_FACTOR), 1 / MOST_FACTOR) if loss > NOTHING else MOST_FACTOR


def correction_factors(
    view: View, seconds: Sequence[LinkSeconds], jobs: Sequence[int], traffic: str = "second"
) -> dict[int, float]:
    """Return k_j of these jobs, each of which is on a link; the one of them with the most traffic is the reference. A
    job on a link that is down cannot be compared: 1."""
    if not jobs:
        return {}
    size = TRAFFIC[traffic]
    sizes = {job: size(view.jobs[job]) for job in jobs}
    reference = min(jobs, key=lambda job: (-sizes[job], view.jobs[job].id))
    times = {job: bottleneck_s(view.jobs[job], seconds[job]) for job in jobs}
    patterns = {job: pattern_of(view.jobs[job], time_s) for job, time_s in times.items() if time_s < float("inf")}
    if reference not in patterns:
        return dict.fromkeys(jobs, 1.0)
    compared = [job for job in patterns if job != reference]
    factors = {job: correction_factor(patterns[reference], patterns[job]) for job in compared}
    return dict.fromkeys(jobs, 1.0) | factors


def order_by(view: View, jobs: Sequence[int], priorities: Sequence[float], traffic: str = "second") -> tuple[int, ...]:
    """Return `jobs`, the highest priority first; ties by traffic, then by id, so that no two are equal."""
    size = TRAFFIC[traffic]
    keys = {
        job: (-worth, -size(view.jobs[job]), view.jobs[job].id) for job, worth in zip(jobs, priorities, strict=True)
    }
    return tuple(sorted(jobs, key=keys.__getitem__))
