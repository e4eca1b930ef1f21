"""`cellplan profiles`: what the store holds, out of it into a file and back."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from planner import api
from planner.cli.arguments import add_options, chosen, make_user_folder
from planner.cli.output import format_seconds, print_json, print_table
from planner.shared.options.measuring import ProfilesExportOptions, ProfilesImportOptions, ProfilesShowOptions


def add_arguments(parser: ArgumentParser) -> None:
    """`profiles export FILE`, `profiles import FILE` and `profiles show`."""
    actions = parser.add_subparsers(metavar="export|import|show", required=True)
    export = actions.add_parser("export", help="write the store's profiles, rates and link tables into a JSON file")
    load = actions.add_parser("import", help="add such a file to the store, all or nothing")
    show = actions.add_parser("show", help="list the store's profiles")
    for action, kind, run in (
        (export, ProfilesExportOptions, _export),
        (load, ProfilesImportOptions, _import),
        (show, ProfilesShowOptions, _show),
    ):
        add_options(action, kind)
        action.set_defaults(run=run)


def _export(arguments: Namespace) -> None:
    count = api.profiles_export(chosen(arguments, ProfilesExportOptions))
    if arguments.json:
        print_json(count)
    else:
        parts = f"{count['profiles']} profiles, {count['rates']} device rates, {count['link_tables']} link tables"
        print(f"{parts} written to {arguments.file}")


def _import(arguments: Namespace) -> None:
    make_user_folder()
    count = api.profiles_import(chosen(arguments, ProfilesImportOptions))
    if arguments.json:
        print_json(count)
    else:
        print(f"{count['added']} added, {count['kept']} kept as they were, {count['replaced']} replaced")


def _show(arguments: Namespace) -> None:
    profiles = api.profiles_show(chosen(arguments, ProfilesShowOptions))
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
