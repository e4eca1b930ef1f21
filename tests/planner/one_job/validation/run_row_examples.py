"""A row of a run table that can be prepared, for tests to change."""

from __future__ import annotations

from typing import Any

from planner.one_job.validation.columns import DEGREES, RunRow


def run_row(**fields: Any) -> RunRow:
    """A row that can be prepared, with some fields changed."""
    base = {
        "id": "x-1",
        "where": "runs.csv, line 2",
        "gpu": "A100",
        "gpu_mem_gb": 80.0,
        "gpus_total": 16,
        "gpus_per_node": 8,
        "model_name": "GPT-x",
        "model_family": "gpt",
        "layers": 24,
        "hidden": 2048,
        "heads": 16,
        "vocab": 51200,
        "seq_len": 1024,
        "global_batch": 64,
        "micro_batch": 2,
        "dtype": "bf16",
    }
    stated = {**base, **fields}
    degrees = tuple((name, value) for name in DEGREES if (value := stated.pop(name, None)) is not None)
    return RunRow(degrees=degrees, **stated)
