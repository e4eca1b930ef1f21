"""Levels by axis: which axis each of a job's transfers belongs to, and its steps with levels of their own by axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from estimator.network.steps import Step, Transfer
from planner.contention.policies.records import Contender

AxisLevels = tuple[tuple[str, int], ...]
"""Of a job: (axis, level) of each axis whose transfers have a level of their own."""


def axis_of(job: Contender, transfer: Transfer) -> str | None:
    """Return the axis of a transfer's connections, which are those of one collective; None where it has none, or
    nobody knows."""
    if not job.axes:
        return None
    return next((job.axes[connection] for mover in transfer.movers for connection, _ in mover.way), None)


def axes_of(job: Contender) -> tuple[str, ...]:
    """Return the axes that the job has transfers of, by name."""
    axes = {axis_of(job, transfer) for step in job.steps for transfer in step.transfers}
    return tuple(sorted(axis for axis in axes if axis))


def levelled(job: Contender, steps: Sequence[Step], levels: AxisLevels) -> tuple[Step, ...]:
    """Return `steps`, which are the job's with links in the place of connections, with these levels by axis."""
    level = dict(levels)
    return tuple(
        replace(
            on_links,
            transfers=tuple(
                replace(moved, level=level.get(axis_of(job, transfer) or "", moved.level))
                for transfer, moved in zip(step.transfers, on_links.transfers, strict=True)
            ),
        )
        for step, on_links in zip(job.steps, steps, strict=True)
    )
