"""A worker that runs many plans one after another, so that a grid of plans pays for starting processes once.

Its request holds the plans' texts; ranks that a plan does not have sit it out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch.distributed as dist

from estimator.host.worker_processes import read_request
from planner.one_job.running.record import Orders
from planner.one_job.running.torch_worker import train


def main() -> None:
    request = read_request()
    rank = request["rank"]
    with Path(request["results"]).open("a", encoding="utf-8") as lines:
        for number, (name, orders) in enumerate(request["runs"].items()):
            ranks = request["ranks"][name]
            if rank >= ranks:
                continue

            def emit(value: dict[str, Any], name: str = name) -> None:
                print(json.dumps({"run": name, **value}), file=lines, flush=True)

            store = dist.FileStore(f"{request['store']}.{number}", ranks)
            train(Orders(**orders), rank=rank, store=store, world_size=ranks, local_rank=rank, emit=emit)


if __name__ == "__main__":
    main()
