"""One rank of a run with torch: a process that `planner.one_job.running.launch` starts, or one of a launcher's."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from estimator.host.memory import keep_freed_memory, resident_peak_bytes
from models_zoo.torch_layers.parallel import DTYPES
from planner.one_job.running.data import Data
from planner.one_job.running.exchange import Exchange
from planner.one_job.running.iteration import run_iteration
from planner.one_job.running.program import Program, StageProgram, tied_tables
from planner.one_job.running.record import Orders
from planner.one_job.running.spans import Recorder
from planner.one_job.running.tied_table import table_peers
from planner.one_job.running.torch_exchange import torch_exchange
from planner.one_job.running.torch_groups import Grouped, Groups, make_groups, tensor_parallel
from planner.one_job.running.torch_memory import peak_growth
from planner.one_job.running.torch_stage import Chunk, TorchStage, build_stage
from planner.one_job.running.torch_weights import (
    FlatWeights,
    FullyShardedWeights,
    PartialGradients,
    TiedTable,
    Weights,
    shard_fully,
)
from planner.one_job.running.worker import Emit, ordered_data, ordered_program, serve
from profiles.records import dataclass


def train(orders: Orders, *, rank: int, store: dist.Store, world_size: int, local_rank: int, emit: Emit) -> None:
    """Trains as rank `rank`; `emit` gets a value for each iteration, and at last what the rank held."""
    torch.set_num_threads(orders.threads)
    device = torch.device("cuda", local_rank) if orders.backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    program = ordered_program(orders)
    dist.init_process_group(
        orders.backend, store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=orders.timeout_s)
    )
    try:
        recorder = Recorder(_clock(device))
        with peak_growth(device) as grown_bytes:
            trainer = _build(program, orders, rank, recorder, device)
            emit({"event": "ready", "software": f"torch {torch.__version__}, python {platform.python_version()}"})
            _train(trainer, orders, rank, emit)
        emit({"event": "done", "peak_memory_bytes": grown_bytes(), "process_peak_bytes": resident_peak_bytes()})
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
    dtype = DTYPES[program.dtype]
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
    exchange = torch_exchange(program, rank, tp, recorder, device, DTYPES[program.dtype])
    return _Trainer(
        program=program,
        stage=stage,
        executor=executor,
        exchange=exchange,
        recorder=recorder,
        data=ordered_data(orders, program),
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
    shared = _table_of(chunks, tables)
    modules = nn.ModuleList(chunks)
    settings: dict[str, Any] = {
        "optimizer": program.optimizer,
        "learning_rate": orders.learning_rate,
        "recorder": recorder,
    }
    flat = {**settings, "groups": groups, "grad_dtype": DTYPES[program.grad_dtype]}
    if stage.zero == 3:
        shard_fully(chunks, set() if shared is None else {shared}, groups, DTYPES[program.grad_dtype])
    # Sharding puts others in the place of the parameters.
    weights = [weight for weight in modules.parameters() if weight is not shared]
    holders: list[Weights] = (
        [FullyShardedWeights(weights, **settings)]
        if stage.zero == 3
        else [FlatWeights(alike, zero=stage.zero, **flat) for alike in _by_dtype(weights)]
    )
    peers = table_peers(program, rank) if shared is not None else None
    table = TiedTable(peers) if peers is not None else None
    if shared is not None:
        holders.append(FlatWeights([shared], zero=0, **flat))
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
                table.add_others(holders[-1].gradient_of(shared), recorder)
        with recorder.span("optimizer", "optimizer"):
            for holder in holders:
                holder.step()
        with recorder.span("sync", "weights"):
            for holder in holders:
                holder.gather()

    return finish, after_backward


def _by_dtype(weights: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """The weights of each type."""
    types = sorted({weight.dtype for weight in weights}, key=str)
    return [[weight for weight in weights if weight.dtype == dtype] for dtype in types]


def _table_of(chunks: Sequence[Chunk], tables: Mapping[int, str]) -> nn.Parameter | None:
    """The rank's one tensor of the table that layers share, None where it holds none of them."""
    return next(
        (
            weight
            for chunk in chunks
            for (index, _), module in zip(chunk.roles, chunk.layers, strict=True)
            for name, weight in module.named_parameters()
            if name == tables.get(index)
        ),
        None,
    )


def _clock(device: torch.device) -> Callable[[], float]:
    if device.type == "cpu":
        return time.perf_counter

    def synchronised() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return synchronised


def _work(request: dict[str, Any], emit: Emit) -> None:
    keep_freed_memory()
    train(
        Orders(**request["orders"]),
        rank=request["rank"],
        store=dist.FileStore(request["store"], request["world_size"]),
        world_size=request["world_size"],
        local_rank=request["local_rank"],
        emit=emit,
    )


if __name__ == "__main__":
    serve(_work)
