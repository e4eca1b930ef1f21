"""One emulated worker of a job: sleeps as long as it would compute, then sums the gradients with the others of its job.

A round is jobs that run at the same time, on workers of their own; rounds follow each other.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from bench.testbed.machines.moves import moves
from bench.testbed.sleeping import sleep
from estimator.host.worker_processes import read_request

_TIMEOUT = timedelta(seconds=120)


def main() -> None:
    """Write a line for each iteration of each job that this rank has a part in, and one for each round."""
    request = read_request()
    rank, world_size = request["rank"], request["world_size"]
    torch.set_num_threads(1)
    with Path(request["results"]).open("a", encoding="utf-8") as lines:
        store = dist.TCPStore(request["address"], request["port"], world_size, is_master=rank == 0, timeout=_TIMEOUT)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=_TIMEOUT)
        for number, jobs in enumerate(request["rounds"]):
            for value in _round(jobs, rank):
                print(json.dumps({"round": number, **value}), file=lines, flush=True)
        dist.barrier()
        dist.destroy_process_group()


def _round(jobs: list[dict[str, Any]], rank: int) -> list[dict[str, Any]]:
    groups = [dist.new_group(sorted(job["ranks"])) for job in jobs]
    dist.barrier()
    found: list[dict[str, Any]] = []
    cpu_s = _cpu_s()
    for number, (job, group) in enumerate(zip(jobs, groups, strict=True)):
        if rank in job["ranks"]:
            found = [{"job": number, **one} for one in _run(job, group, rank)]
    found.append({"cpu_s": _cpu_s() - cpu_s})
    dist.barrier()
    for group in groups:
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)
    return found


def _run(job: dict[str, Any], group: dist.ProcessGroup, rank: int) -> list[dict[str, Any]]:
    """Begin and end of each iteration and the seconds of its all-reduce, after one to warm up. Raise RuntimeError where
    the sum is wrong."""
    ranks: list[int] = job["ranks"]
    vector = torch.zeros(job["elements"])
    communicate = ALGORITHMS[job["algorithm"]]
    found = []
    dist.barrier(group)
    sleep(job["delay_s"])
    for step in range(job["steps"] + 1):
        vector.fill_(float(ranks.index(rank)))
        if job["together"]:
            dist.barrier(group)
        began_s = time.perf_counter()
        sleep(job["compute_s"])
        computed_s = time.perf_counter()
        communicate(vector, ranks, rank, group)
        ended_s = time.perf_counter()
        if step:
            found.append({"began_s": began_s, "ended_s": ended_s, "all_reduce_s": ended_s - computed_s})
    expected = len(ranks) * (len(ranks) - 1) / 2
    if job["algorithm"] != "send_recv" and not bool((vector == expected).all()):
        raise RuntimeError(f"{job['algorithm']} over {len(ranks)} ranks: a sum that is wrong")
    return found


def _halving_doubling(vector: torch.Tensor, ranks: list[int], rank: int, group: dist.ProcessGroup) -> None:
    """Each receive is announced before the send begins: gloo's word that a rank is ready would wait behind the data
    that it sends itself, and the two halves of an exchange would follow each other."""
    for move in moves(ranks.index(rank), len(ranks), len(vector)):
        peer, pending = ranks[move.peer], []
        if move.receives is not None:
            here = vector[slice(*move.receives)]
            received = torch.empty_like(here) if move.adds else here
            pending.append(dist.irecv(received, peer, group=group))
        if move.sends is not None:
            pending.append(dist.isend(vector[slice(*move.sends)], peer, group=group))
        for one in pending:
            assert one is not None
            one.wait()
        if move.receives is not None and move.adds:
            here += received


def _ring(vector: torch.Tensor, _ranks: list[int], _rank: int, group: dist.ProcessGroup) -> None:
    dist.all_reduce(vector, group=group)


def _there_and_back(vector: torch.Tensor, ranks: list[int], rank: int, group: dist.ProcessGroup) -> None:
    first = rank == ranks[0]
    for turn in (dist.send, dist.recv) if first else (dist.recv, dist.send):
        turn(vector, ranks[first], group=group)


ALGORITHMS: dict[str, Callable[[torch.Tensor, list[int], int, dist.ProcessGroup], None]] = {
    "halving-doubling": _halving_doubling,
    "ring": _ring,
    "send_recv": _there_and_back,
}
"""`send_recv` goes there and back: whoever reads halves it."""


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system


if __name__ == "__main__":
    main()
