"""`cellplan profile`: measure a model's layer shards on one device."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from planner import api
from planner.cli.actions import Action, add_action
from planner.cli.output import format_seconds, print_notes, print_table, print_text


def add_arguments(parser: ArgumentParser) -> None:
    """`profile MODEL --device cpu|cuda:0`."""
    add_action(parser, Action(api.profile, _print_result, doing="profiling {model}", writes=True))


def _print_result(result: dict[str, Any], arguments: Namespace) -> None:
    device = result["device"]
    measured = [layer for layer in result["layers"] if layer["measured"]]
    names = list(dict.fromkeys(layer["name"] for layer in measured))
    measured.sort(key=lambda layer: (names.index(layer["name"]), layer["tp"], layer["micro_batch_per_rank"]))
    rows = [
        (
            f"{layer['name']} x{layer['times']}" if layer["times"] > 1 else layer["name"],
            layer["tp"],
            layer["micro_batch_per_rank"],
            format_seconds(layer["forward_s"]),
            format_seconds(layer["backward_s"]),
            format_seconds(layer["optimizer_s"]),
            f"-{layer['relative_low']:.0%} +{layer['relative_high']:.0%}",
            _mib(layer["saved_bytes"]),
            _mib(layer["peak_memory_bytes"]),
        )
        for layer in measured
    ]
    columns = ("layer", "tp", "batch", "forward", "backward", "optimizer", "90%", "kept", "peak")
    measured_on = f"{device['device']} ({device['hardware']}, {device['software']})"
    print_text(f"{arguments.model} on {measured_on}")
    print_table("a layer's times; memory kept and at its peak in MiB", columns, rows)
    print_notes("stage as one piece:", [_describe_stage(stage) for stage in result["stages"]])
    missing = [layer for layer in result["layers"] if not layer["measured"]]
    print_notes("not measured:", [f"{layer['name']} {_shard(layer)}: {layer['reason']}" for layer in missing])
    elapsed = format_seconds(result["timing"]["elapsed_s"])
    print(f"{result['measured']} measured, {result['reused']} already in the store, in {elapsed}")


def _mib(amount_bytes: float) -> str:
    """A figure without its unit, which the title has."""
    mib = amount_bytes / 2**20
    return f"{mib:.0f}" if mib >= 100 else f"{mib:.3g}" if mib >= 0.01 else "0.01"


def _describe_stage(stage: dict[str, Any]) -> str:
    about = f"{stage['layers']} layers, {_shard(stage)}, {'compiled' if stage['compiled'] else 'eager'}"
    if not stage["measured"]:
        return f"{about}: not measured, {stage['reason']}"
    whole = stage["stage_forward_s"] + stage["stage_backward_s"]
    layers = stage["layers_forward_s"] + stage["layers_backward_s"]
    ratio = f"{stage['ratio']:.2f}"
    return f"{about}: {format_seconds(whole)}, the sum of its layers {format_seconds(layers)} (ratio {ratio})"


def _shard(entry: dict[str, Any]) -> str:
    return f"tp={entry['tp']} samples={entry['micro_batch_per_rank']}"
