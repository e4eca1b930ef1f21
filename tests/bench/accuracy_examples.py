"""A small run table for tests of the accuracy bench; its measured times are made up."""

from __future__ import annotations

from pathlib import Path

HEADER = (
    "id,gpu,gpu_mem_gb,gpus_total,gpus_per_node,model_family,layers,hidden,heads,vocab,seq_len,global_batch,micro_batch,"
    "tp,pp,dtype,recompute,iter_time_s,peak_mem_gb"
)

ROWS = (
    "VTM-0003 A100 80 16 8 dense_gpt 24 2048 16 51200 1024 64 2 2 2 bf16 full 0.52 8",
    "VTM-0004 A100 80 16 8 dense_gpt 24 2048 16 51200 1024 64 1 4 2 bf16 full 1.2 4",
    "VTM-0005 A100 80 16 8 dense_gpt 24 2048 16 51200 1024 64 1 8 1 bf16 full 2.6 4",
    "VTS-0001 A100 80 8 8 dense_gpt 4 512 8 51200 1024 16 1 2 1 fp16 full 0.06 -",
    "VTS-0002 A100 80 8 8 dense_gpt 8 512 8 51200 1024 16 1 2 1 fp16 full 0.11 -",
    "VTS-0003 A100 80 8 8 dense_gpt 8 512 8 51200 1024 16 1 2 2 fp16 full 0.12 -",
    "VTS-0004 A100 80 8 8 dense_gpt 8 512 8 51200 1024 16 2 2 2 fp16 full 0.12 -",
    "BSA-0001 A100 80 8 8 dense_gpt 24 2048 16 51200 2048 64 2 2 1 fp16 full 1.3 13",
    "BSA-0002 A100 80 8 8 dense_gpt 24 2048 16 51200 2048 64 4 2 1 fp16 full 1.2 15",
    "MPT-0001 H100 80 8 8 dense_gpt 24 2048 16 50368 2048 64 2 1 1 bf16 full 0.45 25",
    "MPT-0002 H100 80 8 8 dense_gpt 24 2048 16 50368 2048 64 4 1 1 bf16 full 0.45 25",
    "own H100 80 8 8 dense_gpt 24 2048 16 50368 2048 64 2 1 1 bf16 none 0.35 -",
    "NTRN-0001 H100 80 8 8 dense_gpt 24 2048 16 50368 2048 - 2 1 1 bf16 none 1.3 -",
)
"""The last one states no global batch and cannot be predicted."""


def write_table(folder: Path) -> Path:
    """train_runs.csv in `folder`."""
    path = folder / "train_runs.csv"
    lines = [HEADER]
    lines += [",".join("" if cell == "-" else cell for cell in row.split()) for row in ROWS]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
