"""One worker of `estimator.profiling.contention` with JAX: computes alone in its turn, then beside all others."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from estimator.communication.world_jax import JaxWorld, joined_world, local_coordinator
from estimator.host.memory import keep_freed_memory
from estimator.host.worker_processes import read_request
from estimator.profiling.contention import REFERENCE_BLOCK, REFERENCE_SAMPLES, REFERENCE_TOKENS, WORLD_TIMEOUT_S
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
    _compute(training, round_s)  # what is compiled on first use is compiled now
    alone: list[float] = []
    busy: list[float] = []
    for number in range(request["rounds"]):
        for turn in range(world_size):
            world.barrier(f"alone/{number}/{turn}")
            if turn == world.rank:
                alone += _compute(training, round_s)
        world.barrier(f"busy/{number}")
        busy += _compute(training, round_s)
        world.barrier(f"done/{number}")
    return alone, busy


def _compute(training: Training, seconds: float) -> list[float]:
    """Seconds of each pass for so long; the last one, which others may have left alone, is not counted."""
    pass_times_s: list[float] = []
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s or len(pass_times_s) < 3:
        training.prepare()
        start_s = time.perf_counter()
        training.forward()
        training.backward()
        pass_times_s.append(time.perf_counter() - start_s)
    return pass_times_s[:-1]


if __name__ == "__main__":
    main()
