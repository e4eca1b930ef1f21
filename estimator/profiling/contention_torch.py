"""One worker of `estimator.profiling.contention`: computes alone in its turn, then beside all others."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.distributed as dist

from estimator.host.memory import keep_freed_memory
from estimator.host.worker_processes import read_request
from estimator.profiling.contention import REFERENCE_BLOCK, REFERENCE_SAMPLES, REFERENCE_TOKENS, compute_for
from estimator.profiling.measure_torch import Training, build_shard
from profiles.vocabulary import Shard


def main() -> None:
    """Writes the seconds of each pass, alone and beside the others."""
    request = read_request()
    keep_freed_memory()
    torch.set_num_threads(request["threads"])
    shard = Shard(micro_batch_per_rank=REFERENCE_SAMPLES, seq_len=REFERENCE_TOKENS, dtype=request["dtype"])
    training = Training(*build_shard(REFERENCE_BLOCK, shard, "cpu"), shard, "adamw")
    compute_for(training, request["round_s"])  # what is loaded on first use is loaded now
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(request["store"], request["world_size"]),
        rank=request["rank"],
        world_size=request["world_size"],
    )
    alone: list[float] = []
    busy: list[float] = []
    for _ in range(request["rounds"]):
        for turn in range(request["world_size"]):
            dist.barrier()
            if turn == request["rank"]:
                alone += compute_for(training, request["round_s"])
        dist.barrier()
        busy += compute_for(training, request["round_s"])
        dist.barrier()
    with Path(request["results"]).open("a", encoding="utf-8") as lines:
        print(json.dumps({"alone_s": alone, "busy_s": busy}), file=lines, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
