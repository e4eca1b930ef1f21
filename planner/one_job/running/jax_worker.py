"""The one process of a run with JAX, which drives all devices: started by `planner.one_job.running.jax_run`."""

from __future__ import annotations

import platform
import time
from typing import Any

import jax

from planner.one_job.running.jax_memory import Held, held_bytes, peak_growth_bytes
from planner.one_job.running.jax_run import GPU_BACKENDS
from planner.one_job.running.jax_timeline import Timeline
from planner.one_job.running.jax_training import Trainer
from planner.one_job.running.program import Program
from planner.one_job.running.record import Orders
from planner.one_job.running.worker import Emit, ordered_data, ordered_program, serve
from profiles.errors import InputError


def train(orders: Orders, emit: Emit) -> None:
    """Trains the plan; `emit` gets a value for each iteration and rank, and at last what each rank held.

    InputError where JAX cannot run the plan, or this machine has too few devices.
    """
    program = ordered_program(orders)
    devices = _devices(program.ranks, "gpu" if orders.backend in GPU_BACKENDS else "cpu")
    before = held_bytes(devices)
    compiling = {"event": "compiling"}
    emit(compiling)
    trainer = _build(program, orders, devices)
    trainer.rehearse(lambda: emit(compiling))
    emit({"event": "ready", "software": f"jax {jax.__version__}, python {platform.python_version()}"})
    for step in range(orders.warm_ups + orders.steps):
        _train_one(trainer, step, emit)
    _take_apart(trainer, orders.warm_ups + orders.steps, emit)
    _report_memory(devices, before, emit)


def _devices(ranks: int, kind: str) -> list[Any]:
    """One for each rank; InputError where there are fewer."""
    try:
        available = jax.devices(kind)
    except RuntimeError as error:
        raise InputError(
            where="run",
            key="--device",
            found=f"no {kind.upper()} that JAX can use ({str(error).splitlines()[0]})",
            expected=f"{ranks}, and a build of jax for them",
        ) from error
    if len(available) < ranks:
        raise InputError(
            where="run",
            key="--device",
            found=f"{len(available)} {kind.upper()} device{'s' * (len(available) != 1)}",
            expected=f"{ranks}, one for each rank of the plan",
        )
    return list(available[:ranks])


def _build(program: Program, orders: Orders, devices: list[Any]) -> Trainer:
    data = ordered_data(orders, program)
    try:
        return Trainer(program, devices, data, learning_rate=orders.learning_rate, seed=orders.seed)
    except InputError:
        raise
    except ValueError as error:
        # What the layers cannot be split into.
        raise InputError(where="plan", found=str(error), expected="a plan that the JAX layers can run") from error


def _train_one(trainer: Trainer, step: int, emit: Emit) -> None:
    """All ranks take as long: one controller starts them and waits for the last."""
    trainer.prepare(step)
    start_s = time.perf_counter()
    trainer.iterate()
    trainer.wait()
    seconds = time.perf_counter() - start_s
    for stage in trainer.stages:
        for rank in stage.stage.ranks:
            replica, tp_rank = stage.stage.place(rank)
            loss = stage.loss_of(replica) if tp_rank == 0 else None
            emit({"event": "step", "rank": rank, "step": step, "seconds": seconds, "loss": loss, "spans": []})


def _take_apart(trainer: Trainer, step: int, emit: Emit) -> None:
    """One more iteration, whose tasks are noted."""
    trainer.prepare(step)
    timeline = Timeline(len(trainer.stages))
    trainer.iterate(timeline.note)
    for stage, spans in zip(trainer.stages, timeline.finish(), strict=True):
        for rank in stage.stage.ranks:
            emit({"event": "spans", "rank": rank, "spans": [span.to_json() for span in spans]})


def _report_memory(devices: list[Any], before: Held, emit: Emit) -> None:
    for rank, peak_bytes in enumerate(peak_growth_bytes(devices, before)):
        emit({"event": "done", "rank": rank, "peak_memory_bytes": peak_bytes})


def _refusal(error: InputError) -> dict[str, Any]:
    about = {"where": error.where, "key": error.key, "found": str(error.found), "expected": error.expected}
    return {"event": "refused", **about}


def _work(request: dict[str, Any], emit: Emit) -> None:
    try:
        train(Orders(**request["orders"]), emit)
    except InputError as error:
        emit(_refusal(error))


if __name__ == "__main__":
    serve(_work)
