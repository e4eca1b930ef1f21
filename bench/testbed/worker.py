"""One emulated worker: probes the links with all others, then runs plans whose compute is slept."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from bench.testbed.sleeping import SleepingStage, layer_sleeps
from estimator.communication.worker_torch import all_gather_single, reduce_scatter_single
from estimator.frontends.load import load_file_model
from estimator.host.worker_processes import read_request
from planner.one_job.running.iteration import run_iteration
from planner.one_job.running.program import program_of
from planner.one_job.running.spans import Recorder
from planner.one_job.running.torch_exchange import torch_exchange
from planner.one_job.running.torch_groups import make_groups, tensor_parallel
from planner.shared.plan_file import parse_plan

WARM_UPS = 1
Emit = Callable[[dict[str, Any]], None]


def main() -> None:
    """Writes a line for each probe's repeat on this rank, and for each iteration of each plan."""
    request = read_request()
    rank, world_size = request["rank"], request["world_size"]
    torch.set_num_threads(1)
    with Path(request["results"]).open("a", encoding="utf-8") as lines:

        def emit(value: dict[str, Any]) -> None:
            print(json.dumps(value), file=lines, flush=True)

        store = dist.TCPStore(
            request["address"], request["port"], world_size, is_master=rank == 0, timeout=timedelta(seconds=300)
        )
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=300))
        for number, case in enumerate(request["cases"]):
            for probe_number, probe in enumerate(case["probes"]):
                emit({"event": "probe", "case": number, "probe": probe_number, "seconds": _probe(probe, rank)})
            _run(case, rank, partial(_emit_step, emit, number))
        dist.barrier()
        dist.destroy_process_group()


def _emit_step(emit: Emit, case: int, step: int, seconds: float, spans: list[dict[str, Any]]) -> None:
    emit({"event": "step", "case": case, "step": step, "seconds": seconds, "spans": spans})


def _probe(probe: dict[str, Any], rank: int) -> list[float]:
    """Seconds of each repeat on this rank, none where it has no part. All groups go at once, as in an iteration."""
    groups = [dist.new_group(ranks) for ranks in probe["groups"]]
    own = next((i for i, ranks in enumerate(probe["groups"]) if rank in ranks), None)
    seconds = []
    for _ in range(probe["repeats"] + 1):
        dist.barrier()
        start_s = time.perf_counter()
        if own is not None:
            _communicate(probe["op"], probe["bytes"], probe["groups"][own], rank, groups[own])
        seconds.append(time.perf_counter() - start_s)
    return [] if own is None else seconds[1:]


def _communicate(op: str, size: int, ranks: list[int], rank: int, group: dist.ProcessGroup) -> None:
    count = max(len(ranks), size // 4 // len(ranks) * len(ranks))
    whole = torch.ones(count)
    match op:
        case "all_reduce":
            dist.all_reduce(whole, group=group)
        case "all_gather":
            all_gather_single(whole, torch.ones(count // len(ranks)), group=group)
        case "reduce_scatter":
            reduce_scatter_single(torch.ones(count // len(ranks)), whole, group=group)
        case "send_recv":
            # There and back; whoever reads halves it.
            peer = ranks[1 - ranks.index(rank)]
            turns = (dist.send, dist.recv) if rank == ranks[0] else (dist.recv, dist.send)
            for turn in turns:
                turn(whole, peer)


def _run(case: dict[str, Any], rank: int, emit: Callable[[int, float, list[dict[str, Any]]], None]) -> None:
    plan = parse_plan(case["plan"], "plan")
    program = program_of(plan, load_file_model(plan.model.reference), where="plan")
    stage = program.stage_of(rank)
    recorder = Recorder(time.perf_counter)
    groups = make_groups(program, rank, "cpu")
    tp = tensor_parallel(stage, rank, groups, recorder)
    times = {int(index): tuple(seconds) for index, seconds in case["times"][stage.number].items()}
    sleeps = layer_sleeps(program, stage, stage.place(rank)[0], times)
    executor = SleepingStage(program, stage, rank, sleeps, groups, tp, recorder)
    exchange = torch_exchange(program, rank, tp, recorder, torch.device("cpu"), torch.float32)
    for step in range(WARM_UPS + case["steps"]):
        dist.barrier()
        recorder.start()
        run_iteration(program, stage, executor, exchange, recorder)
        seconds = recorder.now_s()
        if step >= WARM_UPS:
            emit(step - WARM_UPS, seconds, [span.to_json() for span in recorder.spans])


if __name__ == "__main__":
    main()
