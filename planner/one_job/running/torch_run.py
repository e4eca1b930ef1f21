"""A plan run with torch: on processes that it starts here, or as one rank of a launcher's (torchrun)."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

from estimator.communication.measuring import World
from estimator.host.worker_processes import (
    START_S,
    Limits,
    WorkerSpec,
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

WORKER = python_worker("planner.one_job.running.torch_worker")


def run_here(
    program: Program,
    orders: Orders,
    *,
    pins: bool,
    progress: Progress | None = None,
    specs: list[WorkerSpec] | None = None,
) -> RunRecord:
    """Every rank a process of this machine; `pins` gives each cores of its own where there are enough.

    `specs` starts them otherwise. MachineError where a worker dies or none gets on for `orders.timeout_s`, at the start
    for `START_S` if that is more; no process is left behind.
    """
    lines = Lines(program.ranks, orders.warm_ups + orders.steps, progress)
    run_workers(
        specs or worker_specs(program, orders, pins=pins),
        what="run",
        limits=Limits(silent_s=orders.timeout_s),
        on_line=lines.take,
    )
    return lines.record(orders.warm_ups)


def worker_specs(program: Program, orders: Orders, *, pins: bool) -> list[WorkerSpec]:
    """One process for each rank. Their own patience is the longer one: the parent gives up first, and says on whom."""
    patient = replace(orders, timeout_s=2 * max(orders.timeout_s, START_S))
    cores = pinned_cores(program.ranks, orders.threads) if pins and orders.backend == "gloo" else None
    return [
        WorkerSpec(
            command=WORKER,
            request={"orders": asdict(patient), "local_rank": rank},
            cores=None if cores is None else cores[rank],
        )
        for rank in range(program.ranks)
    ]


def run_in_world(
    program: Program, orders: Orders, world: World, *, progress: Progress | None = None
) -> RunRecord | None:
    """As one rank of `world`, every one of which calls this; rank 0 gets the record.

    InputError for a world of another size than the plan, MachineError where ranks are lost or the address is taken.
    """
    from estimator.communication.worker_torch import connect
    from planner.one_job.running.torch_worker import train

    if world.world_size != program.ranks:
        raise InputError(
            where="environment",
            key="WORLD_SIZE",
            found=world.world_size,
            expected=f"{program.ranks}, a process for each rank of the plan",
        )
    if world.ranks_per_node == world.world_size:
        use_loopback()
    emitted: list[dict[str, Any]] = []
    total = orders.warm_ups + orders.steps

    def emit(value: dict[str, Any]) -> None:
        emitted.append(value)
        if progress is not None and value["event"] == "step":
            progress(value["step"] + 1, total, "training")

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
            return None
        lines = Lines(program.ranks, total, None)
        for rank in range(world.world_size):
            for value in json.loads(store.get(f"record/{rank}")):
                lines.take(rank, value)
        store.set("record/taken", "")
    except (RuntimeError, OSError) as error:
        if "EADDRINUSE" in str(error):
            raise MachineError(f"run: port {world.port} of {world.address} is in use by another program") from error
        raise MachineError(
            f"run: rank {world.rank} of {world.world_size} at {world.address}:{world.port}: {last_line(str(error))}"
        ) from error
    return lines.record(orders.warm_ups)
