"""One rank of `measure_between`: reads its request from standard input; rank 0 prints the table's points, as JSON."""

from __future__ import annotations

import json
import os
import sys
import threading

from estimator.communication.measure_torch import World, measure_links


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


def main() -> None:
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    world = World(**request["world"])
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
        print(json.dumps({"points": table.points}), flush=True)


if __name__ == "__main__":
    main()
