"""`cellplan profiles`: what the store holds, out of it into a file and back."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from planner.cli.options import add_json_option, add_store_option, store_path
from planner.cli.output import format_seconds, print_json, print_table


def add_arguments(parser: ArgumentParser) -> None:
    """`profiles export FILE`, `profiles import FILE` and `profiles show`."""
    actions = parser.add_subparsers(metavar="export|import|show", required=True)
    export = actions.add_parser("export", help="write the store's profiles, rates and link tables into a JSON file")
    export.add_argument("file", type=Path, metavar="FILE", help="the file to write")
    load = actions.add_parser("import", help="add such a file to the store, all or nothing")
    load.add_argument("file", type=Path, metavar="FILE", help="the file to read")
    load.add_argument("--replace", action="store_true", help="let the file win over what the store holds already")
    show = actions.add_parser("show", help="list the store's profiles")
    for action, run in ((export, _export), (load, _import), (show, _show)):
        add_store_option(action)
        add_json_option(action)
        action.set_defaults(run=run)


def _export(arguments: Namespace) -> None:
    from planner import api

    count = api.profiles_export(arguments.file, store=store_path(arguments))
    if arguments.json:
        print_json(count)
    else:
        parts = f"{count['profiles']} profiles, {count['rates']} device rates, {count['link_tables']} link tables"
        print(f"{parts} written to {arguments.file}")


def _import(arguments: Namespace) -> None:
    from planner import api

    count = api.profiles_import(arguments.file, replace=arguments.replace, store=store_path(arguments, to_write=True))
    if arguments.json:
        print_json(count)
    else:
        print(f"{count['added']} added, {count['kept']} kept as they were, {count['replaced']} replaced")


def _show(arguments: Namespace) -> None:
    from planner import api

    profiles = api.profiles_show(store=store_path(arguments))
    if arguments.json:
        print_json(profiles)
        return
    rows = [
        (
            profile["id"],
            profile["layers"][0]
            if profile["kind"] == "layer"
            else f"{len(profile['layers'])} layers, {profile['mode']}",
            str(profile["shard"]["tp"]),
            str(profile["shard"]["micro_batch_per_rank"]),
            str(profile["shard"]["seq_len"] or "-"),
            profile["shard"]["dtype"],
            profile["device"],
            format_seconds(profile["forward_s"]),
            format_seconds(profile["backward_s"]),
        )
        for profile in profiles
    ]
    columns = ("id", "layer", "tp", "samples", "tokens", "dtype", "device", "forward", "backward")
    print_table("Profiles", columns, rows)
