"""A plan run by a process for each rank: on processes that are started here, or as one rank of a launcher's."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from estimator.communication.measuring import World
from estimator.host.worker_processes import (
    START_S,
    Limits,
    WorkerSpec,
    jax_environment,
    last_line,
    pinned_cores,
    python_worker,
    run_workers,
    use_loopback,
)
from planner.one_job.running.lines import Lines, Progress
from planner.one_job.running.program import Program
from planner.one_job.running.record import Orders, RunRecord
from profiles.errors import InputError, MachineError

if TYPE_CHECKING:
    from estimator.profiling.setting import Framework

WORKERS: dict[Framework, tuple[str, ...]] = {
    "torch": python_worker("planner.one_job.running.torch_worker"),
    "jax": python_worker("planner.one_job.running.jax_worker"),
}


def run_here(
    program: Program,
    orders: Orders,
    *,
    pins: bool,
    framework: Framework = "torch",
    progress: Progress | None = None,
    specs: list[WorkerSpec] | None = None,
) -> RunRecord:
    """Every rank a process of this machine; `pins` gives each cores of its own where there are enough.

    `specs` starts them otherwise. InputError for what `framework` cannot run; MachineError where a worker dies or none
    gets on for `orders.timeout_s`, at the start for `START_S` if that is more; no process is left behind.
    """
    lines = Lines(program.ranks, orders.warm_ups + orders.steps, progress)
    run_workers(
        specs or worker_specs(program, orders, pins=pins, framework=framework),
        what="run",
        limits=Limits(silent_s=orders.timeout_s),
        on_line=lines.take,
    )
    return lines.record(orders.warm_ups)


def worker_specs(program: Program, orders: Orders, *, pins: bool, framework: Framework = "torch") -> list[WorkerSpec]:
    """One process for each rank. Their own patience is the longer one: the parent gives up first, and says on whom."""
    patient = replace(orders, timeout_s=2 * max(orders.timeout_s, START_S))
    cores = pinned_cores(program.ranks, orders.threads) if pins and orders.backend == "gloo" else None
    return [
        WorkerSpec(
            command=WORKERS[framework],
            request={"orders": asdict(patient), "local_rank": rank},
            environment=_environment(orders, framework),
            cores=None if cores is None else cores[rank],
        )
        for rank in range(program.ranks)
    ]


def run_in_world(
    program: Program,
    orders: Orders,
    world: World,
    *,
    framework: Framework = "torch",
    progress: Progress | None = None,
) -> RunRecord | None:
    """As one rank of `world`, every one of which calls this; rank 0 gets the record.

    InputError for a world of another size than the plan, MachineError where ranks are lost or the address is taken.
    """
    if world.world_size != program.ranks:
        raise InputError(
            where="environment",
            key="WORLD_SIZE",
            found=world.world_size,
            expected=f"{program.ranks}, a process for each rank of the plan",
        )
    run = _jax_in_world if framework == "jax" else _torch_in_world
    lines = Lines(program.ranks, orders.warm_ups + orders.steps, None)
    total, done = orders.warm_ups + orders.steps, 0

    def take(rank: int, value: dict[str, Any]) -> None:
        nonlocal done
        lines.take(rank, value)
        if rank == world.rank and value["event"] == "step" and progress is not None:
            done += 1
            progress(done, total, "training")

    run(orders, world, take)
    return lines.record(orders.warm_ups) if world.rank == 0 else None


def _jax_in_world(orders: Orders, world: World, take: Callable[[int, dict[str, Any]], None]) -> None:
    """In a process of its own: this one may have computed with JAX already, which has to join its world before."""
    place = {
        "rank": world.rank,
        "world_size": world.world_size,
        # A launcher that serves a store of its own does so at its port.
        "coordinator": f"{world.address}:{world.port + world.agent_store}",
    }
    local_rank = world.rank % world.ranks_per_node
    spec = WorkerSpec(
        command=WORKERS["jax"],
        request={"orders": asdict(orders), "local_rank": local_rank, "world": place},
        environment=_environment(orders, "jax"),
    )
    run_workers(
        [spec],
        what=f"run: rank {world.rank} of {world.world_size}",
        limits=Limits(silent_s=2 * max(orders.timeout_s, START_S)),
        on_line=lambda _, value: take(value.get("rank", world.rank), value),
    )


def _torch_in_world(orders: Orders, world: World, take: Callable[[int, dict[str, Any]], None]) -> None:
    from estimator.communication.worker_torch import connect
    from planner.one_job.running.torch_worker import train

    if world.ranks_per_node == world.world_size:
        use_loopback()
    emitted: list[dict[str, Any]] = []

    def emit(value: dict[str, Any]) -> None:
        emitted.append(value)
        take(world.rank, value)

    try:
        store = connect(world, orders.timeout_s)
        train(
            orders,
            rank=world.rank,
            store=store,
            world_size=world.world_size,
            local_rank=world.rank % world.ranks_per_node,
            emit=emit,
        )
        # Text in the store: torch's object collectives would rebuild whatever object they are sent.
        store.set(f"record/{world.rank}", json.dumps(emitted))
        if world.rank != 0:
            store.wait(["record/taken"])
            return
        for rank in range(1, world.world_size):
            for value in json.loads(store.get(f"record/{rank}")):
                take(rank, value)
        store.set("record/taken", "")
    except (RuntimeError, OSError) as error:
        if "EADDRINUSE" in str(error):
            raise MachineError(f"run: port {world.port} of {world.address} is in use by another program") from error
        raise MachineError(
            f"run: rank {world.rank} of {world.world_size} at {world.address}:{world.port}: {last_line(str(error))}"
        ) from error


def _environment(orders: Orders, framework: Framework) -> dict[str, str]:
    return jax_environment(threads=orders.threads, gpu=orders.backend == "nccl") if framework == "jax" else {}
