"""`cellplan profiles`: what the store holds, out of it into a file and back."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from planner import api
from planner.cli.actions import Action, add_actions
from planner.cli.output import format_seconds, print_table


def add_arguments(parser: ArgumentParser) -> None:
    """`profiles export FILE`, `profiles import FILE` and `profiles show`."""
    actions = {
        "export": Action(
            api.profiles_export, _print_exported, "write the store's profiles, rates and link tables into a JSON file"
        ),
        "import": Action(
            api.profiles_import, _print_imported, "add such a file to the store, all or nothing", writes=True
        ),
        "show": Action(api.profiles_show, _print_all, "list the store's profiles"),
    }
    add_actions(parser, **actions)


def _print_exported(count: dict[str, int], arguments: Namespace) -> None:
    parts = f"{count['profiles']} profiles, {count['rates']} device rates, {count['link_tables']} link tables"
    print(f"{parts} written to {arguments.file}")


def _print_imported(count: dict[str, int], _: Namespace) -> None:
    print(f"{count['added']} added, {count['kept']} kept as they were, {count['replaced']} replaced")


def _print_all(profiles: list[dict[str, Any]], _: Namespace) -> None:
    rows = [
        (
            profile["id"],
            profile["layers"][0]
            if profile["kind"] == "layer"
            else f"{len(profile['layers'])} layers, {profile['mode']}",
            profile["shard"]["tp"],
            profile["shard"]["micro_batch_per_rank"],
            profile["shard"]["seq_len"],
            profile["shard"]["dtype"],
            profile["device"],
            format_seconds(profile["forward_s"]),
            format_seconds(profile["backward_s"]),
        )
        for profile in profiles
    ]
    columns = ("id", "layer", "tp", "samples", "tokens", "dtype", "device", "forward", "backward")
    print_table("Profiles", columns, rows)
