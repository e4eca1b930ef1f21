"""Cells as values that `json.dumps` takes: what `estimate` prints with `--json`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from estimator.cells.cell import CellEstimate, CellFailure
from estimator.cells.stage_pricing import Favour
from planner.one_job.explicit.figures import count_setup_flops
from planner.one_job.explicit.recording import record_estimate, record_stages
from planner.shared.plan import PlanEstimate, PlanStage


def describe_cells(cells: Sequence[CellEstimate | CellFailure], *, best: CellEstimate | None) -> list[dict[str, Any]]:
    """Return every Cell with the same keys; the figures of one that cannot be had are None, and `reason` says why."""
    return [
        _describe_failure(cell) if isinstance(cell, CellFailure) else _describe_estimate(cell) | {"best": cell is best}
        for cell in cells
    ]


def _describe_estimate(cell: CellEstimate) -> dict[str, Any]:
    setup, evaluation = cell.setup, cell.evaluation
    return {
        "device": cell.device,
        "devices": setup.devices,
        "stages": len(setup.stages),
        "fits": True,
        "reason": None,
        "lacking_bytes": None,
        "assembly": list(cell.assembly),
        "micro_batch": setup.micro_batch,
        "micro_batches": setup.micro_batches,
        **asdict(record_estimate(setup, evaluation, count_setup_flops(setup))),
        "provenance": {
            "compute": evaluation.compute_provenance,
            "communication": evaluation.communication_provenance,
            "link_table_ids": list(evaluation.link_table_ids),
        },
        "split": [
            _describe_stage(stage, favour)
            for stage, favour in zip(record_stages(setup, evaluation), cell.assembly, strict=True)
        ],
        "assemblies": cell.assemblies,
        "dropped": list(cell.dropped),
    }


def _describe_stage(stage: PlanStage, favour: Favour) -> dict[str, Any]:
    return {
        "layers": list(stage.chunks[0]),
        "devices": len(stage.ranks),
        "favour": favour,
        "dp": stage.dp,
        "tp": stage.tp,
        "zero": stage.sharding.zero,
        "recompute": asdict(stage.recompute),
        "compute_s": stage.compute_s,
        "communication_s": stage.communication_s,
        "memory_bytes": stage.memory_bytes,
    }


def _describe_failure(cell: CellFailure) -> dict[str, Any]:
    figures = dict.fromkeys(field.name for field in fields(PlanEstimate))
    return {
        "device": cell.device,
        "devices": cell.devices,
        "stages": cell.stages,
        "fits": False,
        "reason": cell.failure.reason,
        "lacking_bytes": cell.failure.lacking_bytes,
        "assembly": [],
        "micro_batch": None,
        "micro_batches": None,
        **figures,
        "provenance": None,
        "split": None,
        "assemblies": 0,
        "dropped": list(cell.dropped),
        "best": False,
    }
