"""Records as values that `json.dumps` takes: what the commands print with `--json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from estimator.cells.cell import CellEstimate, CellFailure
from estimator.cells.stage_pricing import Favour
from estimator.layers.graph import LayerGraph, LayerNode, build_graph
from estimator.profiling.lookup import to_layer_time
from models_zoo.model import Model
from planner.one_job.explicit.figures import count_setup_flops
from planner.one_job.explicit.recording import record_estimate, record_stages
from planner.shared.model_sizes import model_sizes
from planner.shared.plan import PlanEstimate, PlanStage
from profiles.measurements import Profile
from profiles.vocabulary import Device, Infeasible, Shard


def describe_model(model: Model) -> dict[str, Any]:
    """A model in numbers."""
    parameters = build_graph(model, shard=Shard(seq_len=model.seq_len), degrees=()).parameters
    return {
        "name": model.name,
        "family": model.family,
        "sizes": asdict(model_sizes(model, parameters=parameters)),
        "published_parameters": model.published_parameters,
        "seq_len": model.seq_len or None,
        "global_batch": model.global_batch,
        "source": model.source,
        "notes": list(model.notes),
    }


def describe_layers(graph: LayerGraph) -> list[dict[str, Any]]:
    """Each layer of a model in numbers; `tp` holds what each degree communicates, or why it cannot be had."""
    return [_describe_layer(node) for node in graph.nodes]


def _describe_layer(node: LayerNode) -> dict[str, Any]:
    return {
        "name": node.name,
        "kind": type(node.layer).__name__,
        "parameters": node.parameters,
        "forward_flops": node.forward_flops,
        "backward_flops": node.backward_flops,
        "saved_bytes": node.saved_bytes,
        "cut_bytes": node.cut_bytes,
        "tp": {
            str(degree): what.reason if isinstance(what, Infeasible) else [asdict(collective) for collective in what]
            for degree, what in node.collectives_by_degree
        },
    }


def describe_device(device: Device) -> dict[str, Any]:
    """A device of the catalogue."""
    return asdict(device) | {"peak_flops_per_s": dict(device.peak_flops_per_s)}


def describe_profile(profile: Profile) -> dict[str, Any]:
    """A stored measurement: what it is of, and its figures."""
    key, figures = profile.key, to_layer_time(profile)
    return {
        "id": profile.id,
        "kind": key.kind,
        "layers": [json.loads(text)["type"] for text in key.layers],
        "shard": asdict(key.shard),
        "mode": key.mode,
        "optimizer": key.optimizer,
        "threads": key.threads,
        "device": key.device,
        "hardware": key.hardware,
        "software": key.software,
        "forward_s": figures.forward_s,
        "backward_s": figures.backward_s,
        "optimizer_s": figures.optimizer_s,
        "relative_low": figures.relative_low,
        "relative_high": figures.relative_high,
        "saved_bytes": figures.saved_bytes,
        "peak_memory_bytes": figures.peak_memory_bytes,
        "samples": len(profile.measurement.forward_s),
    }


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
