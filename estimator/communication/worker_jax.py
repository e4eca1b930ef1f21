"""Collectives between the devices of one JAX process, timed: a process that `measure_links` starts for backend xla.

On a CPU the devices are forced host devices, whose collectives copy within the process.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from estimator.communication.measuring import Measured
from estimator.host.worker_processes import read_request
from profiles.vocabulary import CollectiveOp

WARM_UPS = 3
FEWEST_REPEATS = 3
SECONDS_PER_SIZE = 0.15
SECONDS_PER_REPEAT = 1e-3
MOST_CALLS = 8

_ELEMENT_BYTES = 4


def measure_case(op: CollectiveOp, ranks: int, size: int, repeats: int) -> Measured:
    """Seconds of one call in each repeat, among the first `ranks` devices; bytes by nccl-tests' convention."""
    elements = max(1, math.ceil(size / (_ELEMENT_BYTES * ranks))) * ranks
    call = _prepare(op, elements, jax.devices()[:ranks])
    expected_s = min(_time(call, 1) for _ in range(WARM_UPS))
    calls = max(1, min(MOST_CALLS, round(SECONDS_PER_REPEAT / expected_s)))
    count = min(repeats, max(FEWEST_REPEATS, int(SECONDS_PER_SIZE / (expected_s * calls))))
    return Measured(
        op=op,
        ranks=2 if op == "send_recv" else ranks,
        nodes=1,
        bytes=elements * _ELEMENT_BYTES,
        seconds=tuple(_time(call, calls) for _ in range(count)),
    )


def _prepare(op: CollectiveOp, elements: int, devices: list[jax.Device]) -> Callable[[], Any]:
    if op == "send_recv":
        sent = jax.device_put(jnp.ones(elements, jnp.float32), devices[0])
        jax.block_until_ready(sent)
        return lambda: jax.device_put(sent, devices[-1])
    mesh = Mesh(np.array(devices), ("rank",))
    count = len(devices)
    # Each device has a row of its own: what it puts in.
    row_elements = elements // count if op == "all_gather" else elements
    rows = jax.device_put(jnp.ones((count, row_elements), jnp.float32), NamedSharding(mesh, PartitionSpec("rank")))
    bodies: dict[str, Callable[[Any], Any]] = {
        "all_reduce": lambda x: jax.lax.psum(x, "rank"),
        "all_gather": lambda x: jax.lax.all_gather(x[0], "rank", tiled=True)[None],
        "reduce_scatter": lambda x: jax.lax.psum_scatter(x[0], "rank", tiled=True)[None],
        "all_to_all": lambda x: jax.lax.all_to_all(x[0], "rank", 0, 0, tiled=True)[None],
    }
    spec = PartitionSpec() if op == "all_reduce" else PartitionSpec("rank")
    program = jax.jit(jax.shard_map(bodies[op], mesh=mesh, in_specs=PartitionSpec("rank"), out_specs=spec))
    return partial(program, rows)


def _time(call: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        made = call()
        jax.block_until_ready(made)
    return (time.perf_counter() - start) / calls


def main() -> None:
    """Read the request that `measure_torch` writes and measure; a JSON line for each result."""
    request = read_request()
    with Path(request["results"]).open("a", encoding="utf-8") as lines:
        for op, ranks in request["task"]["cases"]:
            for size in request["task"]["sizes"]:
                timing = measure_case(op, ranks, size, request["task"]["repeats"])
                print(json.dumps(asdict(timing)), file=lines, flush=True)


if __name__ == "__main__":
    main()
