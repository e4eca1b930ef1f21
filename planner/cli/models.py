"""`cellplan models`: the catalogue of models."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from itertools import groupby
from typing import Any

from planner import api
from planner.cli.actions import Action, add_actions
from planner.cli.output import format_bytes, format_count, print_table, print_text


def add_arguments(parser: ArgumentParser) -> None:
    """`models list` and `models show MODEL`."""
    add_actions(
        parser,
        list=Action(api.models_list, _print_all, "all models"),
        show=Action(api.models_show, _print_one, "one model, layer by layer"),
    )


def _print_all(models: list[dict[str, Any]], _: Namespace) -> None:
    rows = [
        (
            model["name"],
            model["family"],
            format_count(model["sizes"]["parameters"]),
            model["sizes"]["layers"],
            model["seq_len"],
            model["global_batch"],
        )
        for model in models
    ]
    print_table("Models", ("name", "family", "parameters", "layers", "tokens per sample", "global batch"), rows)


def _print_one(model: dict[str, Any], _: Namespace) -> None:
    rows = []
    for (_kind, *figures), group in groupby(model["layers"], key=_alike):
        alike = list(group)
        names = alike[0]["name"]
        if len(alike) > 1:
            names += f" .. {alike[-1]['name'].rpartition('.')[2]}"
        rows.append((names, len(alike), *figures))
    title = f"{model['name']}: {format_count(model['sizes']['parameters'])} parameters; per sample in {model['dtype']}"
    if model["seq_len"]:
        title += f" of {model['seq_len']} tokens"
    columns = ("layer", "layers", "parameters", "forward", "backward", "kept", "sent on", "tp")
    print_table(title, columns, rows)
    print_text(f"source: {model['source']}")


def _alike(layer: dict[str, Any]) -> tuple[str, ...]:
    """What two layers must have in common to share a row: their kind, and the figures that the row shows."""
    return (
        layer["kind"],
        format_count(layer["parameters"]),
        format_count(layer["forward_flops"], "FLOP"),
        format_count(layer["backward_flops"], "FLOP"),
        format_bytes(layer["saved_bytes"]),
        format_bytes(layer["cut_bytes"]),
        ",".join(degree for degree, what in layer["tp"].items() if not isinstance(what, str)),
    )
