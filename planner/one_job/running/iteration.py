"""One iteration of one rank: its stage's steps in the schedule's order, whatever computes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from estimator.schedules.orders import follower, leader, order_of
from planner.one_job.running.program import Program, Route, StageProgram, Way
from planner.one_job.running.spans import Recorder

if TYPE_CHECKING:
    from torch import Tensor

    from planner.one_job.running.torch_exchange import Exchange


class Executor(Protocol):
    """What computes a stage on one rank: real layers, or a stand-in that takes as long."""

    def forward(self, chunk: int, k: int, received: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Micro-batch `k` through a chunk, from what the chunk before sent (nothing for the first layers) to what the
        next one gets (nothing after the last)."""

    def backward(self, chunk: int, k: int, received: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Gradients of what `forward` returned (nothing after the last layers) to those of what it received."""

    def finish(self) -> None:
        """Gradients of the replicas summed, and the optimizer's step."""


def run_iteration(
    program: Program, stage: StageProgram, executor: Executor, exchange: Exchange, recorder: Recorder
) -> None:
    """All steps of `stage` in their order, then `Executor.finish`."""
    exchange.begin(list(_receives(program, stage)))
    for way, chunk, k in _actions(program, stage):
        source, target = _neighbours(program, stage, way, chunk, k)
        received = exchange.receive(source) if source else ()
        compute = executor.forward if way == "forward" else executor.backward
        with recorder.span(way, f"{way} {k}", phase=way, chunk=chunk, micro_batch=k):
            made = compute(chunk, k, received)
        if target:
            exchange.send(target, made)
    executor.finish()
    exchange.flush()


def _actions(program: Program, stage: StageProgram) -> Iterator[tuple[Way, int, int]]:
    for step in order_of(program.shape, stage.number):
        for kind, chunk, k in step.actions:
            assert kind != "weight", "a schedule that splits backward"
            yield kind, chunk, k


def _receives(program: Program, stage: StageProgram) -> Iterator[Route]:
    for way, chunk, k in _actions(program, stage):
        source, _ = _neighbours(program, stage, way, chunk, k)
        if source:
            yield source


def _neighbours(
    program: Program, stage: StageProgram, way: Way, chunk: int, k: int
) -> tuple[Route | None, Route | None]:
    """Where an action's input comes from and where its result goes; None at the model's ends."""
    number, (first, end) = stage.number, stage.chunks[chunk]
    before, after = leader(program.shape, number, chunk), follower(program.shape, number, chunk)
    comes, goes, enters, leaves = (before, after, first, end) if way == "forward" else (after, before, end, first)
    source = target = None
    if comes:
        source = Route(way=way, sender=comes[0], receiver=number, chunk=comes[1], layer=enters, k=k)
    if goes:
        target = Route(way=way, sender=number, receiver=goes[0], chunk=chunk, layer=leaves, k=k)
    return source, target
