"""What a Cell that nobody asked for takes: a scheduler's first look at a workload, on every pool.

    python -m bench.scheduling.cold_cells [--models gpt2-1.3b,llama3-8b,...] [--most 64] [--repeats 3]

A book that knows nothing is asked for the options of one workload after the other on 1, 2, 4, ... devices of each pool:
1, 2, 4, ... stages each. Milliseconds of the processor a Cell, the least of the repeats; what Cells of one workload
share is priced once, as a scheduler's are. No seed; everything modelled.
"""

from __future__ import annotations

import argparse
import os
import platform
import time

from estimator.cells.stages import crius_stage_counts
from estimator.frontends.load import load_file_model
from estimator.host.cpu import cpu_name
from planner.many_jobs.jobs.records import Workload
from planner.many_jobs.scheduling.cell_book import EstimatedCells, pools_of
from profiles.cluster_file import load_cluster

CLUSTER = "a100-40gb:80x4+a40:160x2+a10:160x2+v100-32gb:20x16"
BATCHES = {"gpt2-1.3b": 128, "llama3-8b": 128, "bert-2.6b": 256, "moe-2.4b": 256, "wide-resnet-2b": 512}


def main() -> int:
    """Print a line a workload."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(BATCHES))
    parser.add_argument("--most", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    ask_all(Workload(model="gpt-tiny", global_batch=16, dtype="fp16"), "a40:1x2", most=2)  # imports
    print(f"{CLUSTER}, up to {args.most} devices; {cpu_name()}, {os.cpu_count()} cores, {platform.platform()}\n")
    print("| workload | Cells | ms each | CPU |\n| :-- | --: | --: | --: |")
    for model in args.models.split(","):
        workload = Workload(model=model, global_batch=BATCHES.get(model, 128), dtype="fp16")
        runs = [ask_all(workload, CLUSTER, most=args.most) for _ in range(args.repeats)]
        cells, seconds = min(runs, key=lambda run: run[1])
        print(
            f"| {model}, batch {workload.global_batch} | {cells} | {1e3 * seconds / cells:.1f} | {seconds:.2f} s |",
            flush=True,
        )
    return 0


def ask_all(workload: Workload, cluster_text: str, *, most: int) -> tuple[int, float]:
    """Ask a new book for all options of `workload`; return how many Cells that took, and seconds of the processor."""
    cluster = load_cluster(cluster_text)
    pools = pools_of(cluster)
    book = EstimatedCells(cluster=cluster, pools=pools)
    sizes = [1 << doubling for doubling in range(most.bit_length())]
    layers = len(load_file_model(workload.model).layers)
    started = time.process_time()
    for pool in pools:
        for devices in sizes:
            book.options(workload, pool, devices)
    seconds = time.process_time() - started
    return len(pools) * sum(len(crius_stage_counts(devices, layers)) for devices in sizes), seconds


if __name__ == "__main__":
    raise SystemExit(main())
