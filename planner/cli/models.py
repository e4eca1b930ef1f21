"""`cellplan models`: the catalogue of models."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from itertools import groupby
from typing import Any

from planner import api
from planner.cli.arguments import add_options, chosen
from planner.cli.output import format_bytes, format_count, print_json, print_table, print_text
from planner.shared.options.catalogue import ModelsShowOptions


def add_arguments(parser: ArgumentParser) -> None:
    """`models list` and `models show MODEL`."""
    actions = parser.add_subparsers(metavar="list|show", required=True)
    listing = actions.add_parser("list", help="all models")
    add_options(listing)
    listing.set_defaults(run=_list)
    show = actions.add_parser("show", help="one model, layer by layer")
    add_options(show, ModelsShowOptions)
    show.set_defaults(run=_show)


def _list(arguments: Namespace) -> None:
    models = api.models_list()
    if arguments.json:
        print_json(models)
        return
    rows = [
        (
            model["name"],
            model["family"],
            format_count(model["sizes"]["parameters"]),
            str(model["sizes"]["layers"]),
            str(model["seq_len"] or "-"),
            str(model["global_batch"] or "-"),
        )
        for model in models
    ]
    print_table("Models", ("name", "family", "parameters", "layers", "tokens per sample", "global batch"), rows)


def _show(arguments: Namespace) -> None:
    model = api.models_show(chosen(arguments, ModelsShowOptions))
    if arguments.json:
        print_json(model)
        return
    rows = []
    for (_, *figures), group in groupby(model["layers"], key=_alike):
        alike = list(group)
        names = alike[0]["name"]
        if len(alike) > 1:
            names += f" .. {alike[-1]['name'].rpartition('.')[2]}"
        rows.append((names, str(len(alike)), *figures))
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
