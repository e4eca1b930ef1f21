"""One iteration of one rank: its stage's steps in the schedule's order, whatever computes them."""

from __future__ import annotations

from typing import Any, Protocol

from planner.one_job.running.exchange import Exchange
from planner.one_job.running.program import Program, Route, StageProgram
from planner.one_job.running.schedule import Task, tasks_of
from planner.one_job.running.spans import Recorder


class Executor(Protocol):
    """What computes a stage on one rank: real layers, or a stand-in that takes as long."""

    def forward(self, chunk: int, k: int, received: tuple[Any, ...]) -> tuple[Any, ...]:
        """Micro-batch `k` through a chunk, from what the chunk before sent (nothing for the first layers) to what the
        next one gets (nothing after the last)."""

    def backward(self, chunk: int, k: int, received: tuple[Any, ...]) -> tuple[Any, ...]:
        """Gradients of what `forward` returned (nothing after the last layers) to those of what it received."""

    def finish(self) -> None:
        """Gradients of the replicas summed, and the optimizer's step."""


def run_iteration(
    program: Program, stage: StageProgram, executor: Executor, exchange: Exchange, recorder: Recorder
) -> None:
    """All steps of `stage` in their order, then `Executor.finish`."""
    tasks = [(task, *_neighbours(stage, task)) for task in tasks_of(program.shape, stage.number)]
    exchange.begin([source for _, source, _ in tasks if source])
    for task, source, target in tasks:
        received = exchange.receive(source) if source else ()
        compute = executor.forward if task.way == "forward" else executor.backward
        name = f"{task.way} {task.k}"
        with recorder.span(task.way, name, phase=task.way, chunk=task.chunk, micro_batch=task.k):
            made = compute(task.chunk, task.k, received)
        if target:
            exchange.send(target, made)
    executor.finish()
    exchange.flush()


def _neighbours(stage: StageProgram, task: Task) -> tuple[Route | None, Route | None]:
    """Where a task's input comes from and where its result goes; None at the model's ends."""
    number, (first, end) = stage.number, stage.chunks[task.chunk]
    enters, leaves = (first, end) if task.way == "forward" else (end, first)
    source = target = None
    if task.source:
        sender, chunk = task.source
        source = Route(way=task.way, sender=sender, receiver=number, chunk=chunk, layer=enters, k=task.k)
    if task.target:
        receiver = task.target[0]
        target = Route(way=task.way, sender=number, receiver=receiver, chunk=task.chunk, layer=leaves, k=task.k)
    return source, target
