"""A worker that stays: it trains parts of jobs one after the other, or sleeps instead of computing.

Its standard input gives a line of JSON for each: `run` (do so many iterations of a plan as one of its ranks, unless
stopped) and `stop`. Rank 0 answers with a line for every iteration and for the end. All ranks of a job agree after
every iteration whether to stop, so that none waits for one that has left.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from bench.testbed.sleeping import SleepingStage, layer_sleeps
from estimator.frontends.load import load_file_model
from estimator.host.memory import keep_freed_memory
from planner.one_job.running.iteration import run_iteration
from planner.one_job.running.program import program_of
from planner.one_job.running.record import Orders
from planner.one_job.running.spans import Recorder
from planner.one_job.running.torch_exchange import torch_exchange
from planner.one_job.running.torch_groups import make_groups, tensor_parallel
from planner.one_job.running.torch_worker import train
from planner.shared.plan_file import parse_plan

TIMEOUT_S = 300.0
Say = Callable[[dict[str, Any]], None]


class StoppedError(Exception):
    """All ranks agreed to stop here."""


class Turn:
    """One job's part on this rank: counts its iterations, and asks after each whether it is to stop."""

    def __init__(self, request: dict[str, Any], say: Say, wanted: set[int]) -> None:
        self.request, self.say, self.wanted = request, say, wanted
        self.done = 0

    def ended_iteration(self) -> None:
        """Tell of it; StoppedError, on all ranks at once, where one was told to stop."""
        number, several = self.request["run"], self.request["world_size"] > 1
        stop = torch.tensor([number in self.wanted], dtype=torch.int32)
        if several:
            dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        self.done += 1
        if self.request["rank"] == 0:
            self.say({"run": number, "event": "iteration", "done": self.done})
        if stop.item():
            if several:
                dist.barrier()  # Nobody takes its connections down while another still reads from them.
            raise StoppedError


def main() -> None:
    """Run what comes until standard input ends."""
    keep_freed_memory()
    torch.set_num_threads(1)
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def say(value: dict[str, Any]) -> None:
        print(json.dumps(value), file=out, flush=True)

    wanted: set[int] = set()
    requests: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_listen, args=(requests, wanted), daemon=True).start()
    say({"event": "ready"})
    while True:
        request = requests.get()
        turn = Turn(request, say, wanted)
        try:
            (_sleep_through if request["sleeps"] else _train)(turn)
        except StoppedError:
            pass
        except Exception as error:
            say({"run": request["run"], "event": "failed", "reason": f"{type(error).__name__}: {error}"})
            continue
        say({"run": request["run"], "event": "left", "rank": request["rank"]})


def _listen(requests: queue.Queue[dict[str, Any]], wanted: set[int]) -> None:
    for line in sys.stdin:
        value = json.loads(line)
        if value["do"] == "stop":
            wanted.add(value["run"])
        else:
            requests.put(value)
    os._exit(0)


def _store(request: dict[str, Any]) -> dist.FileStore:
    return dist.FileStore(request["store"], request["world_size"])


def _train(turn: Turn) -> None:
    """As `cellplan run` trains, from new weights."""
    request = turn.request
    orders = Orders(
        plan=request["plan"],
        steps=request["iterations"],
        warm_ups=0,
        seed=0,
        learning_rate=1e-4,
        backend="gloo",
        timeout_s=TIMEOUT_S,
        threads=1,
        data=None,
        data_dtype="uint16",
    )

    def emit(value: dict[str, Any]) -> None:
        if value["event"] == "step":
            turn.ended_iteration()

    train(
        orders,
        rank=request["rank"],
        store=_store(request),
        world_size=request["world_size"],
        local_rank=request["rank"],
        emit=emit,
    )


def _sleep_through(turn: Turn) -> None:
    """As `bench.testbed` runs a plan: layers sleep, what they communicate is real."""
    request, rank = turn.request, turn.request["rank"]
    plan = parse_plan(request["plan"], "plan")
    program = program_of(plan, load_file_model(plan.model.reference), where="plan")
    dist.init_process_group(
        "gloo",
        store=_store(request),
        rank=rank,
        world_size=request["world_size"],
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    try:
        stage = program.stage_of(rank)
        recorder = Recorder(time.perf_counter)
        groups = make_groups(program, rank, "cpu")
        tp = tensor_parallel(stage, rank, groups, recorder)
        times = {int(index): tuple(seconds) for index, seconds in request["times"][stage.number].items()}
        sleeps = layer_sleeps(program, stage, stage.place(rank)[0], times)
        executor = SleepingStage(program, stage, rank, sleeps, groups, tp, recorder)
        exchange = torch_exchange(program, rank, tp, recorder, torch.device("cpu"), torch.float32)
        for _ in range(request["iterations"]):
            recorder.start()
            run_iteration(program, stage, executor, exchange, recorder)
            turn.ended_iteration()
        if request["world_size"] > 1:
            dist.barrier()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
