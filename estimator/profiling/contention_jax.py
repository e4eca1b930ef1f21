"""One worker of `estimator.profiling.contention` with JAX: computes alone in its turn, then beside all others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from estimator.communication.world_jax import JaxWorld, joined_world, local_coordinator
from estimator.host.memory import keep_freed_memory
from estimator.host.worker_processes import read_request
from estimator.profiling.contention import (
    REFERENCE_BLOCK,
    REFERENCE_SAMPLES,
    REFERENCE_TOKENS,
    WORLD_TIMEOUT_S,
    compute_for,
)
from estimator.profiling.measure_jax import build_shard
from estimator.profiling.training_jax import Training
from profiles.vocabulary import Shard


def main() -> None:
    """Write the seconds of each pass, alone and beside the others."""
    request = read_request()
    keep_freed_memory()
    rank, world_size = request["rank"], request["world_size"]
    coordinator = local_coordinator(Path(request["store"]), rank, WORLD_TIMEOUT_S)
    with joined_world(rank, world_size, coordinator, timeout_s=WORLD_TIMEOUT_S) as world:
        alone, busy = _measure(world, world_size, request)
        with Path(request["results"]).open("a", encoding="utf-8") as lines:
            print(json.dumps({"alone_s": alone, "busy_s": busy}), file=lines, flush=True)
        world.barrier("measured")  # Nobody takes the coordination service down while another still asks it.


def _measure(world: JaxWorld, world_size: int, request: dict[str, Any]) -> tuple[list[float], list[float]]:
    shard = Shard(micro_batch_per_rank=REFERENCE_SAMPLES, seq_len=REFERENCE_TOKENS, dtype=request["dtype"])
    training = Training(*build_shard(REFERENCE_BLOCK, shard), shard, "adamw")
    round_s = request["round_s"]
    compute_for(training, round_s)  # what is compiled on first use is compiled now
    alone: list[float] = []
    busy: list[float] = []
    for number in range(request["rounds"]):
        for turn in range(world_size):
            world.barrier(f"alone/{number}/{turn}")
            if turn == world.rank:
                alone += compute_for(training, round_s)
        world.barrier(f"busy/{number}")
        busy += compute_for(training, round_s)
        world.barrier(f"done/{number}")
    return alone, busy


if __name__ == "__main__":
    main()
