"""One rank of `measure_between`: rank 0 writes the table's points to its results, as JSON."""

from __future__ import annotations

import json
from pathlib import Path

from estimator.communication.measure_torch import measure_links
from estimator.communication.measuring import World
from estimator.host.worker_processes import read_request


def main() -> None:
    request = read_request()
    world = World(
        rank=request["rank"],
        world_size=request["world_size"],
        ranks_per_node=request["world_size"],
        address=request["address"],
        port=request["port"],
        agent_store=False,
    )
    (table,) = measure_links(
        link_name="testbed",
        ranks=(world.world_size,),
        sizes=tuple(request["sizes"]),
        ops=(request["op"],),
        repeats=request["repeats"],
        timeout_s=request["timeout_s"],
        world=world,
    )
    if world.rank == 0:
        with Path(request["results"]).open("a", encoding="utf-8") as lines:
            print(json.dumps({"points": table.points}), file=lines, flush=True)


if __name__ == "__main__":
    main()
