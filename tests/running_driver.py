"""A worker that runs many plans one after another, so that a grid of plans pays once for starting, and once for torch.

Its request holds the plans' texts and how many `processes` they need: it forks one for each rank. Ranks that a plan
does not have sit it out.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch.distributed as dist

from estimator.host.tied import tie_to
from estimator.host.worker_processes import Limits, WorkerSpec, python_worker, read_request, run_workers
from planner.one_job.running.record import Orders
from planner.one_job.running.torch_worker import train


def run_grid(orders: Mapping[str, Orders], ranks: Mapping[str, int], on_line: Callable[[dict[str, Any]], None]) -> None:
    """Run each plan on so many ranks; `on_line` gets what they say, with `run`, the plan's name, and `rank`."""
    request = {
        "runs": {name: asdict(order) for name, order in orders.items()},
        "ranks": dict(ranks),
        "processes": max(ranks.values()),
    }
    run_workers(
        [WorkerSpec(command=python_worker("tests.running_driver"), request=request)],
        what="grid",
        limits=Limits(silent_s=120.0),
        on_line=lambda _worker, value: on_line(value),
    )


def main() -> None:
    request, parent = read_request(), os.getpid()
    children = set()
    for rank in range(request["processes"]):
        child = os.fork()
        if not child:
            tie_to(parent)
            run_as(rank, request)
        children.add(child)
    while children:
        child, status = os.wait()
        children.remove(child)
        if status:
            os._exit(1)


def run_as(rank: int, request: dict[str, Any]) -> None:
    """Run all plans as one of their ranks, and end this process."""
    try:
        # One write a line: the others write to the same file.
        lines = os.open(request["results"], os.O_WRONLY | os.O_APPEND)
        for number, (name, orders) in enumerate(request["runs"].items()):
            ranks = request["ranks"][name]
            if rank >= ranks:
                continue

            def emit(value: dict[str, Any], name: str = name) -> None:
                os.write(lines, json.dumps({"run": name, "rank": rank, **value}).encode() + b"\n")

            store = dist.FileStore(f"{request['store']}.{number}", ranks)
            train(Orders(**orders), rank=rank, store=store, world_size=ranks, local_rank=rank, emit=emit)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
