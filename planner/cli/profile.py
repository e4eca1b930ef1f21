"""`cellplan profile`: measure a model's layer shards on one device."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from planner import api
from planner.cli.arguments import add_options, chosen, make_user_folder
from planner.cli.output import format_bytes, format_seconds, print_json, print_notes, print_table, progress
from planner.shared.options.measuring import ProfileOptions


def add_arguments(parser: ArgumentParser) -> None:
    """`profile MODEL --device cpu|cuda:0`."""
    add_options(parser, ProfileOptions)
    parser.set_defaults(run=_run)


def _run(arguments: Namespace) -> None:
    make_user_folder()
    with progress(f"profiling {arguments.model}") as report:
        result = api.profile(chosen(arguments, ProfileOptions, progress=report))
    if arguments.json:
        print_json(result)
    else:
        _print_result(arguments.model, result)


def _print_result(model: str, result: dict[str, Any]) -> None:
    device = result["device"]
    measured = [layer for layer in result["layers"] if layer["measured"]]
    rows = [
        (
            layer["name"],
            str(layer["times"]),
            str(layer["tp"]),
            str(layer["micro_batch_per_rank"]),
            format_seconds(layer["forward_s"]),
            format_seconds(layer["backward_s"]),
            format_seconds(layer["optimizer_s"]),
            f"-{layer['relative_low']:.0%} +{layer['relative_high']:.0%}",
            format_bytes(layer["saved_bytes"]),
            format_bytes(layer["peak_memory_bytes"]),
        )
        for layer in measured
    ]
    columns = ("layer", "alike", "tp", "samples", "forward", "backward", "optimizer", "90%", "kept", "peak")
    print_table(f"{model} on {device['device']} ({device['hardware']}, {device['software']})", columns, rows)
    print_notes("stage as one piece:", [_describe_stage(stage) for stage in result["stages"]])
    missing = [layer for layer in result["layers"] if not layer["measured"]]
    print_notes("not measured:", [f"{layer['name']} {_shard(layer)}: {layer['reason']}" for layer in missing])
    elapsed = format_seconds(result["timing"]["elapsed_s"])
    print(f"{result['measured']} measured, {result['reused']} already in the store, in {elapsed}")


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
