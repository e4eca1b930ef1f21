"""One rank of a run with JAX: a process with one device, which `planner.one_job.running.launch` starts."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from estimator.communication.world_jax import JaxWorld, joined_world, local_coordinator
from estimator.host.memory import keep_freed_memory, resident_peak_bytes
from planner.one_job.running.data import Data
from planner.one_job.running.exchange import Exchange
from planner.one_job.running.iteration import run_iteration
from planner.one_job.running.jax_exchange import JaxCarrier, TableExchange
from planner.one_job.running.jax_memory import held_bytes, peak_growth_bytes
from planner.one_job.running.jax_stage import JaxIterations, JaxStage
from planner.one_job.running.program import Program
from planner.one_job.running.record import Orders
from planner.one_job.running.spans import Recorder
from planner.one_job.running.tied_table import table_peers
from planner.one_job.running.worker import Emit, ordered_data, ordered_program, serve
from profiles.errors import InputError
from profiles.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """What one rank trains a program with."""

    program: Program
    stage: JaxStage
    iterations: JaxIterations
    carrier: JaxCarrier
    exchange: Exchange
    recorder: Recorder
    data: Data

    def rehearse(self, compiled: Callable[[], None] = lambda: None) -> None:
        """Compile everything; `compiled` is called after each program."""
        self.iterations.rehearse([self.data.samples(0, self.program.micro_batch)], self.carrier, compiled)

    def prepare(self, step: int) -> None:
        """Samples and empty gradients of iteration `step`."""
        start, size = step * self.program.global_batch, self.program.micro_batch
        numbers = range(start, start + self.program.global_batch, size)
        self.stage.prepare([self.data.samples(number, number + size) for number in numbers])

    def iterate(self) -> float:
        """One iteration; return its seconds."""
        self.recorder.start()
        run_iteration(self.program, self.stage.stage, self.iterations, self.exchange, self.recorder)
        return self.recorder.now_s()


def make_trainer(program: Program, world: JaxWorld, data: Data, *, learning_rate: float, seed: int) -> Trainer:
    """Return what this rank of `world` trains with. ValueError or InputError where JAX cannot run the program."""
    recorder = Recorder(time.perf_counter)
    stage = JaxStage(program, world.rank, world.devices, learning_rate=learning_rate, seed=seed)
    carrier = JaxCarrier(program, world.rank, stage.devices, world.messenger)
    peers = table_peers(program, world.rank)
    return Trainer(
        program=program,
        stage=stage,
        iterations=JaxIterations(stage, TableExchange(peers, world.messenger) if peers else None, recorder),
        carrier=carrier,
        exchange=Exchange(carrier.program, world.rank, carrier, recorder, element_bytes=carrier.dtype.itemsize),
        recorder=recorder,
        data=data,
    )


def train(orders: Orders, world: JaxWorld, emit: Emit) -> None:
    """Train the plan as one rank of `world`; `emit` gets a value for each iteration, and at last what the rank held.

    InputError where JAX cannot run the plan.
    """
    program = ordered_program(orders)
    device = _device(orders, world)
    before = held_bytes(device)
    compiling = {"event": "compiling"}
    emit(compiling)
    trainer = _build(program, orders, world)
    trainer.rehearse(lambda: emit(compiling))
    emit({"event": "ready", "software": f"jax {jax.__version__}, python {platform.python_version()}"})
    for step in range(orders.warm_ups + orders.steps):
        trainer.prepare(step)
        world.barrier(f"step/{step}")
        cpu_s = time.process_time()
        seconds = trainer.iterate()
        emit(
            {
                "event": "step",
                "step": step,
                "seconds": seconds,
                "cpu_seconds": time.process_time() - cpu_s,
                "loss": trainer.stage.take_loss(),
                "spans": [span.to_json() for span in trainer.recorder.spans],
            }
        )
    grown_bytes = peak_growth_bytes(device, before)
    emit({"event": "done", "peak_memory_bytes": grown_bytes, "process_peak_bytes": resident_peak_bytes()})
    world.barrier("done")  # Nobody takes its connections down while another still reads from them.


def _device(orders: Orders, world: JaxWorld) -> Any:
    device = world.devices[world.rank]
    if orders.backend == "nccl" and device.platform == "cpu":
        raise InputError(
            where="run",
            key="--device",
            found="no GPU that JAX can use",
            expected=f"{len(world.devices)}, one for each rank of the plan, and a build of jax for them",
        )
    return device


def _build(program: Program, orders: Orders, world: JaxWorld) -> Trainer:
    data = ordered_data(orders, program)
    try:
        return make_trainer(program, world, data, learning_rate=orders.learning_rate, seed=orders.seed)
    except InputError:
        raise
    except ValueError as error:
        # What the layers cannot be split into.
        raise InputError(where="plan", found=str(error), expected="a plan that the JAX layers can run") from error


def _share(world: JaxWorld, emitted: list[dict[str, Any]], ranks: int, emit: Emit) -> None:
    """Hand all ranks' lines to rank 0, which emits them with their rank; a line at a time, as messages are bounded."""
    if world.rank:
        for number, value in enumerate(emitted):
            world.publish(f"record/{world.rank}/{number}", json.dumps(value))
        world.publish(f"record/{world.rank}", str(len(emitted)))
    else:
        for rank in range(1, ranks):
            for number in range(int(world.look_up(f"record/{rank}"))):
                emit({**json.loads(world.look_up(f"record/{rank}/{number}")), "rank": rank})
    world.barrier("record taken")


def _work(request: dict[str, Any], emit: Emit) -> None:
    """As one of this machine's ranks, or of a launched world, whose rank 0 speaks for all."""
    keep_freed_memory()
    orders = Orders(**request["orders"])
    place = request.get("world") or {
        "rank": request["rank"],
        "world_size": request["world_size"],
        "coordinator": local_coordinator(Path(request["store"]), request["rank"], orders.timeout_s),
    }
    gpu = request["local_rank"] if orders.backend == "nccl" else None
    emitted: list[dict[str, Any]] = []
    note = _noting(emitted, emit) if "world" in request else emit
    try:
        with joined_world(**place, timeout_s=orders.timeout_s, local_gpu=gpu) as world:
            train(orders, world, note)
            if "world" in request:
                _share(world, emitted, place["world_size"], emit)
    except InputError as error:
        about = {"where": error.where, "key": error.key, "found": str(error.found), "expected": error.expected}
        emit({"event": "refused", **about})


def _noting(emitted: list[dict[str, Any]], emit: Emit) -> Callable[[dict[str, Any]], None]:
    def both(value: dict[str, Any]) -> None:
        emitted.append(value)
        emit(value)

    return both


if __name__ == "__main__":
    serve(_work)
