"""`cellplan export`: a plan as what a training framework or a cluster manager is started with."""

from __future__ import annotations

import sys
from argparse import Action, ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from planner import api
from planner.cli.arguments import add_options, chosen
from planner.cli.output import print_json, print_table
from planner.shared.options.running import ExportOptions


class _Alone(Action):
    """A switch beside which the arguments that it waives are not needed."""

    def __init__(self, *, waives: tuple[Action, ...], **words: Any) -> None:
        super().__init__(nargs=0, default=False, **words)
        self.waives = waives

    def __call__(self, _: ArgumentParser, namespace: Namespace, *__: object) -> None:
        setattr(namespace, self.dest, True)
        for action in self.waives:
            action.required = False


def add_arguments(parser: ArgumentParser) -> None:
    """`export PLAN --to FORMAT`, or `export --list`."""
    add_options(parser, ExportOptions)
    needed = tuple(action for action in parser._actions if action.required)
    parser.add_argument("--list", action=_Alone, waives=needed, help="show the formats")
    parser.set_defaults(run=_run)


def _run(arguments: Namespace) -> None:
    if arguments.list:
        _print_formats(api.export_formats(), as_json=arguments.json)
        return
    result = api.export(chosen(arguments, ExportOptions))
    if arguments.json:
        print_json(result)
        return
    _print_files(result["files"], arguments.output)
    for note in result["notes"]:
        print(f"note: {note}", file=sys.stderr)


def _print_formats(formats: list[dict[str, str]], *, as_json: bool) -> None:
    if as_json:
        print_json(formats)
    else:
        print_table("Formats", ("format", "of"), [(form["format"], form["summary"]) for form in formats])


def _print_files(files: list[dict[str, str]], output: Path | None) -> None:
    """The texts, each under its name where there are several; or where they were written."""
    if output is not None:
        folder = output.is_dir()
        for file in files:
            print(f"written to {output / file['name'] if folder else output}")
        return
    for number, file in enumerate(files):
        if len(files) > 1:
            print(f"{chr(10) if number else ''}==> {file['name']} <==")
        print(file["text"], end="")
