"""What the catalogue and the store know as values that `json.dumps` takes: what `models`, `hardware` and `profiles`
print with `--json`. They price nothing, so nothing that prices is imported here."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from estimator.layers.graph import LayerGraph, LayerNode, build_graph
from estimator.profiling.lookup import to_layer_time
from models_zoo.model import Model
from planner.shared.model_sizes import model_sizes
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
    values = asdict(device) | {"peak_flops_per_s": dict(device.peak_flops_per_s)}
    del values["margin_bytes"]  # of a request, not of the device
    return values


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
