"""Crius, section 2.2: BERT-2.6B moved from four A100 to four V100 has to use tensor parallelism."""

from __future__ import annotations

from typing import Any

from planner.many_jobs.jobs.records import Workload
from planner.many_jobs.scheduling.cell_book import EstimatedCells, pools_of
from profiles.cluster_file import load_cluster


def print_parallelism() -> list[dict[str, Any]]:
    """The Cells of BERT-2.6B on four devices of each kind, by stage count; batches of Crius, table 2."""
    print(
        "\n## parallelism: Crius 2.2, BERT-2.6B on four devices (the paper does not state A100's memory or the batch)\n"
    )
    print("| devices | batch | one stage | s | all Cells: stages, assembly, s |")
    print("| :-- | --: | :-- | --: | :-- |")
    rows: list[dict[str, Any]] = []
    for name in ("a100-80gb", "a100-40gb", "v100-32gb"):
        cluster = load_cluster(f"{name}:1x4")
        book = EstimatedCells(cluster=cluster, pools=pools_of(cluster))
        for batch in (128, 256, 512):
            workload = Workload(model="bert-2.6b", global_batch=batch, dtype="fp16")
            options = book.options(workload, name, 4)
            single = next((one for one in options if one.stages == 1), None)
            listed = "; ".join(
                f"{one.stages} {'/'.join(dict.fromkeys(one.assembly))} {one.iteration_time_s:.2f}" for one in options
            )
            print(
                f"| 4 x {name} | {batch} | {single.assembly[0] if single else '-'} |"
                f" {single.iteration_time_s if single else float('nan'):.2f} | {listed} |"
            )
            rows.append(
                {
                    "device": name,
                    "global_batch": batch,
                    "single_stage": single.assembly[0] if single else None,
                    "cells": [[one.stages, list(one.assembly), one.iteration_time_s] for one in options],
                }
            )
    return rows
