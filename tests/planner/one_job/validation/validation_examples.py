"""Made-up rows for the tests of `cellplan validate`."""

from __future__ import annotations

from typing import Any

from planner.one_job.validation.results import RowResult


def row(number: int = 1, **changes: Any) -> RowResult:
    """Row `X-number`: measured 10 s, estimated 9 s, alone in its configuration and plan unless `changes` says else."""
    fields: dict[str, Any] = {
        "id": f"X-{number:04}",
        "source": "X",
        "device": "a100-80gb",
        "generation": "ampere",
        "devices": 8,
        "parallel": "dp",
        "model_size": "1-10B",
        "configuration": ("model", number),
        "plan": (1,),
        "measured_iteration_time_s": 10.0,
        "estimated_iteration_time_s": 9.0,
        "interval_90_s": (8.0, 11.0),
        "estimated_oom": False,
        "compute": "modelled",
        "communication": "modelled",
    }
    return RowResult(**fields | changes)


def skipped(number: int, reason: str, **changes: Any) -> RowResult:
    """Row `X-number` without an estimate."""
    nothing = {"estimated_iteration_time_s": None, "interval_90_s": None, "estimated_oom": None}
    return row(number, **nothing | {"compute": None, "communication": None, "skipped": reason} | changes)
