"""`cellplan profile`: measure a model's layer shards on one device."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any, get_args

from estimator.profiling.setting import Framework
from planner.cli.options import (
    add_dtype_option,
    add_json_option,
    add_model_argument,
    add_optimizer_option,
    add_store_option,
    layer_range,
    positive_int,
    positive_ints,
    positive_seconds,
    store_path,
)
from planner.cli.output import format_bytes, format_seconds, print_json, print_notes, print_table, progress
from profiles.vocabulary import AttentionKernel, Recompute


def add_arguments(parser: ArgumentParser) -> None:
    """`profile MODEL --device cpu|cuda:0`."""
    add_model_argument(parser)
    parser.add_argument(
        "--framework", choices=get_args(Framework), help="that runs the layers (default: torch, or the factory's own)"
    )
    parser.add_argument("--device", default="cpu", help="torch's name: cpu, cuda:0, ... (default: %(default)s)")
    parser.add_argument(
        "--tp", type=positive_ints, default=(1,), metavar="LIST", help="tensor-parallel degrees (default: 1)"
    )
    parser.add_argument(
        "--micro-batch", type=positive_ints, default=(1,), metavar="LIST", help="samples per rank (default: 1)"
    )
    parser.add_argument(
        "--cluster", metavar="C", help="measure what the Cells on this cluster need, instead of --tp and --micro-batch"
    )
    parser.add_argument("--global-batch", type=positive_int, metavar="N", help="samples per iteration, with --cluster")
    parser.add_argument("--seq-len", type=positive_int, metavar="N", help="tokens per sample (default: the model's)")
    add_dtype_option(parser)
    parser.add_argument(
        "--attention", choices=get_args(AttentionKernel), help="(default: flash where the device has it)"
    )
    parser.add_argument("--threads", type=positive_int, default=1, metavar="N", help="of a CPU worker (default: 1)")
    parser.add_argument(
        "--budget", type=positive_seconds, metavar="SECONDS", help="stop in time; what matters most comes first"
    )
    parser.add_argument("--stage", type=layer_range, metavar="FIRST:END", help="these layers, also as one piece")
    parser.add_argument("--compile", action="store_true", help="the stage as one piece through torch.compile")
    add_optimizer_option(parser)
    parser.add_argument("--sequence-parallel", action="store_true", help="sequence parallelism where tp > 1")
    parser.add_argument(
        "--recompute", choices=get_args(Recompute), default="none", help="of activations (default: %(default)s)"
    )
    add_store_option(parser)
    add_json_option(parser)
    parser.set_defaults(run=_run)


def _run(arguments: Namespace) -> None:
    from planner import api

    with progress(f"profiling {arguments.model}") as report:
        result = api.profile(
            arguments.model,
            framework=arguments.framework,
            device=arguments.device,
            tp=arguments.tp,
            micro_batch=arguments.micro_batch,
            cluster=arguments.cluster,
            global_batch=arguments.global_batch,
            seq_len=arguments.seq_len,
            dtype=arguments.dtype,
            attention=arguments.attention,
            threads=arguments.threads,
            budget=arguments.budget,
            compile=arguments.compile,
            stage=arguments.stage,
            optimizer=arguments.optimizer,
            sequence_parallel=arguments.sequence_parallel,
            recompute=arguments.recompute,
            store=store_path(arguments, to_write=True),
            progress=report,
        )
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
