"""Event by event simulation of one pipeline iteration: what the closed forms of `estimator.cells.latency`
approximate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Task = tuple[Literal["forward", "backward"], int]


def task_order(stage: int, stages: int, micro_batches: int, schedule: Literal["gpipe", "1f1b"]) -> list[Task]:
    """What a stage does in which order: all forwards first (GPipe), or one forward one backward after a warm-up."""
    ahead = micro_batches if schedule == "gpipe" else min(stages - stage, micro_batches)
    order: list[Task] = [("forward", k) for k in range(ahead)]
    for k in range(micro_batches):
        order.append(("backward", k))
        if ahead + k < micro_batches:
            order.append(("forward", ahead + k))
    return order


def simulate_pipeline(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    transfer_s: Sequence[float],
    micro_batches: int,
    schedule: Literal["gpipe", "1f1b"],
) -> float:
    """Seconds until the last backward ends.

    A stage does one thing at a time in its schedule's order. `transfer_s[i]` is a micro-batch's time on the link into
    stage i, half of it forward and half backward; a link carries one message at a time, in the order they come, and
    transfers occupy no stage. Stage 0 reads its input over link 0.
    """
    stages = len(forward_s)
    todo = [task_order(i, stages, micro_batches, schedule) for i in range(stages)]
    link_free_s, stage_free_s = [0.0] * stages, [0.0] * stages
    arrived_s: dict[tuple[int, Task], float] = {}
    for k in range(micro_batches):
        link_free_s[0] += transfer_s[0] / 2
        arrived_s[0, ("forward", k)] = link_free_s[0]
    while any(todo):
        ends = []
        for i, tasks in enumerate(todo):
            if tasks and (i, tasks[0]) in arrived_s:
                duration = (forward_s if tasks[0][0] == "forward" else backward_s)[i]
                ends.append((max(stage_free_s[i], arrived_s[i, tasks[0]]) + duration, i))
        end_s, i = min(ends)  # in order of ending, so that links see messages in order of their coming
        kind, k = task = todo[i].pop(0)
        stage_free_s[i] = end_s
        if task == ("forward", k) and i == stages - 1:
            arrived_s[i, ("backward", k)] = end_s
            continue
        receiver = i + 1 if kind == "forward" else i - 1
        link = max(i, receiver)
        link_free_s[link] = max(link_free_s[link], end_s) + transfer_s[link] / 2
        if receiver >= 0:
            arrived_s[receiver, task] = link_free_s[link]
    return max(stage_free_s)
