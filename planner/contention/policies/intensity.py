"""GPU intensity: how much work a second on the wire lets a job do (Crux, section 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from planner.contention.policies.loads import LinkSeconds
from planner.contention.policies.records import Contender, View


def bottleneck_s(_: Contender, seconds: LinkSeconds) -> float:
    """Return eq. 2's t: the longest that any link is busy with the job's bytes of an iteration."""
    return max(seconds.values(), default=0.0)


def transfers_s(job: Contender, _: LinkSeconds) -> float:
    """Return section 5's t, which is measured: how long all transfers of an iteration take where nobody else sends."""
    return sum(
        step.times
        * transfer.times
        * (transfer.latency_s + max((mover.seconds for mover in transfer.movers), default=0))
        for step in job.steps
        for transfer in step.transfers
    )


READINGS: dict[str, Callable[[Contender, LinkSeconds], float]] = {
    "bottleneck": bottleneck_s,
    "transfers": transfers_s,
}
"""What t_j means: as eq. 2 has it, or as section 5 measures it. A new one is a line here."""


def intensities(view: View, seconds: Sequence[LinkSeconds], reading: str = "bottleneck") -> tuple[float, ...]:
    """Return W_j / t_j of each job, FLOP/s; inf of one that sends nothing, which nobody can delay."""
    wire_s = READINGS[reading]
    times = [wire_s(job, its) for job, its in zip(view.jobs, seconds, strict=True)]
    return tuple(job.flops / t if t > 0 else float("inf") for job, t in zip(view.jobs, times, strict=True))
