"""One rank of a run with torch: a process that `planner.one_job.running.torch_run` starts, or one of a launcher's."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from estimator.frontends.load import load_any_model
from estimator.profiling.host_memory import keep_freed_memory
from estimator.worker_processes import read_request
from planner.one_job.running.data import Data, load_tokens, random_data
from planner.one_job.running.iteration import run_iteration
from planner.one_job.running.program import Program, StageProgram, program_of, tied_tables
from planner.one_job.running.record import Orders
from planner.one_job.running.spans import Recorder
from planner.one_job.running.torch_exchange import Exchange
from planner.one_job.running.torch_groups import Grouped, Groups, make_groups, tensor_parallel
from planner.one_job.running.torch_memory import peak_growth
from planner.one_job.running.torch_stage import Chunk, TorchStage, build_stage
from planner.one_job.running.torch_weights import (
    TORCH_DTYPES,
    FlatWeights,
    FullyShardedWeights,
    PartialGradients,
    TiedTable,
    Weights,
    shard_fully,
)
from planner.shared.plan_file import parse_plan

Emit = Callable[[dict[str, Any]], None]


def train(orders: Orders, *, rank: int, store: dist.Store, world_size: int, local_rank: int, emit: Emit) -> None:
    """Trains as rank `rank`; `emit` gets a value for each iteration, and at last what the rank held."""
    torch.set_num_threads(orders.threads)
    device = torch.device("cuda", local_rank) if orders.backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    plan = parse_plan(orders.plan, "plan")
    program = program_of(plan, load_any_model(plan.model.reference), where="plan")
    dist.init_process_group(
        orders.backend, store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=orders.timeout_s)
    )
    try:
        recorder = Recorder(_clock(device))
        with peak_growth(device) as grown_bytes:
            trainer = _build(program, orders, rank, recorder, device)
            emit({"event": "ready", "software": f"torch {torch.__version__}, python {platform.python_version()}"})
            _train(trainer, orders, rank, emit)
        emit({"event": "done", "peak_memory_bytes": grown_bytes()})
        dist.barrier()  # Nobody takes its connections down while another still reads from them.
    finally:
        dist.destroy_process_group()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trainer:
    program: Program
    stage: StageProgram
    executor: TorchStage
    exchange: Exchange
    recorder: Recorder
    data: Data
    device: torch.device


def _train(trainer: _Trainer, orders: Orders, rank: int, emit: Emit) -> None:
    program, stage = trainer.program, trainer.stage
    first, end = stage.samples(stage.place(rank)[0])
    dtype = TORCH_DTYPES[program.dtype]
    for step in range(orders.warm_ups + orders.steps):
        start = step * program.global_batch
        numbers = range(start, start + program.global_batch, program.micro_batch)
        trainer.executor.prepare(
            [trainer.data.samples(number + first, number + end) for number in numbers], trainer.device, dtype
        )
        dist.barrier()
        cpu_s = time.process_time()
        trainer.recorder.start()
        run_iteration(program, stage, trainer.executor, trainer.exchange, trainer.recorder)
        seconds = trainer.recorder.now_s()
        emit(
            {
                "event": "step",
                "step": step,
                "seconds": seconds,
                "cpu_seconds": time.process_time() - cpu_s,
                "loss": trainer.executor.take_loss(),
                "spans": [span.to_json() for span in trainer.recorder.spans],
            }
        )


def _build(program: Program, orders: Orders, rank: int, recorder: Recorder, device: torch.device) -> _Trainer:
    stage = program.stage_of(rank)
    groups = make_groups(program, rank, device.type)
    tp = tensor_parallel(stage, rank, groups, recorder)
    built = build_stage(program, stage, rank, tp, seed=orders.seed, device=device)
    chunks = [Chunk(layers, program, recorder) for layers in built]
    finish, after_backward = _synchronisation(program, stage, rank, chunks, groups, tp, orders, recorder)
    executor = TorchStage(program, stage, rank, chunks, recorder, finish, after_backward)
    if orders.data is not None:
        data = load_tokens(Path(orders.data), program.model, seq_len=program.seq_len, raw_dtype=orders.data_dtype)
    else:
        data = random_data(program.model, seq_len=program.seq_len, seed=orders.seed)
    exchange = Exchange(program, rank, tp, recorder, device, TORCH_DTYPES[program.dtype])
    return _Trainer(
        program=program,
        stage=stage,
        executor=executor,
        exchange=exchange,
        recorder=recorder,
        data=data,
        device=device,
    )


def _synchronisation(
    program: Program,
    stage: StageProgram,
    rank: int,
    chunks: list[Chunk],
    groups: Groups,
    tp: Grouped,
    orders: Orders,
    recorder: Recorder,
) -> tuple[Callable[[], None], Callable[[], None]]:
    """What ends an iteration, and what follows each backward."""
    tables = tied_tables(program.model)
    shared = [
        weight
        for chunk in chunks
        for (index, _), module in zip(chunk.roles, chunk.layers, strict=True)
        if index in tables
        for name, weight in module.named_parameters()
        if name == tables[index]
    ][:1]
    modules = nn.ModuleList(chunks)
    grad_dtype = TORCH_DTYPES[program.grad_dtype]
    settings: dict[str, Any] = {
        "optimizer": program.optimizer,
        "learning_rate": orders.learning_rate,
        "recorder": recorder,
    }
    flat = {**settings, "groups": groups, "grad_dtype": grad_dtype}
    holders: list[Weights] = []
    if stage.zero == 3:
        shard_fully(chunks, set(shared), groups, grad_dtype)
        weights = [p for p in modules.parameters() if not any(p is weight for weight in shared)]
        holders.append(FullyShardedWeights(weights, **settings))
    else:
        for dtype in sorted({p.dtype for p in modules.parameters()}, key=str):
            alike = [p for p in modules.parameters() if p.dtype == dtype and not any(p is weight for weight in shared)]
            if alike:
                holders.append(FlatWeights(alike, zero=stage.zero, **flat))
    table: TiedTable | None = None
    if shared:
        holders.append(FlatWeights(shared, zero=0, **flat))
        with_table = [other.number for other in program.stages if any(i in tables for i in other.layer_indices())]
        if len(with_table) > 1:
            table = TiedTable(program, stage, rank, with_table)
    partial = PartialGradients(modules, holders, tp)

    def after_backward() -> None:
        if stage.zero == 2:
            partial.complete()
        for holder in holders:
            holder.after_backward()

    def finish() -> None:
        with recorder.span("sync", "gradients"):
            if stage.zero != 2:
                partial.complete()
            for holder in holders:
                holder.reduce()
            if table is not None:
                table.add_others(holders[-1].gradient_of(shared[0]), recorder)
        with recorder.span("optimizer", "optimizer"):
            for holder in holders:
                holder.step()
        with recorder.span("sync", "weights"):
            for holder in holders:
                holder.gather()

    return finish, after_backward


def _clock(device: torch.device) -> Callable[[], float]:
    if device.type == "cpu":
        return time.perf_counter

    def synchronised() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return synchronised


def main() -> None:
    """Read the request that `planner.one_job.running.torch_run` writes, and train."""
    request = read_request()
    keep_freed_memory()
    with Path(request["results"]).open("a", encoding="utf-8") as lines:

        def emit(value: dict[str, Any]) -> None:
            print(json.dumps(value), file=lines, flush=True)

        try:
            train(
                Orders(**request["orders"]),
                rank=request["rank"],
                store=dist.FileStore(request["store"], request["world_size"]),
                world_size=request["world_size"],
                local_rank=request["local_rank"],
                emit=emit,
            )
        except Exception as error:
            lines_of_error = str(error).strip().splitlines()
            print(f"{type(error).__name__}: {lines_of_error[0] if lines_of_error else 'no message'}", file=sys.stderr)
            sys.stderr.flush()
            os._exit(1)  # Other threads may still wait for ranks that will not come.


if __name__ == "__main__":
    main()
