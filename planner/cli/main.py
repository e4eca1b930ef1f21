"""The `cellplan` command: finds the sub-command, runs it, and turns what went wrong into an exit status.

A sub-command is a module of this package with `add_arguments(parser)`, which names the function to run. Only the one
that was asked for is imported, so `cellplan --help` costs next to nothing.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

from profiles.errors import InputError, MachineError, NothingFits

COMMANDS = {
    "models": "the models that the catalogue knows",
    "hardware": "the devices and links that the catalogue knows",
    "profile": "measure a model's layer shards on one device",
    "comm": "link tables: measure collectives, fit and show them",
    "estimate": "how fast a model would train on a cluster: its Cells, or one explicit plan",
    "plan": "the best parallel plan for a model on a cluster",
    "place": "over which sites a job runs, on which devices, under which plan",
    "export": "a plan as what a training framework or a cluster manager is started with",
    "run": "really train some iterations with a plan, measured beside estimated",
    "validate": "predict published or own runs, and say how far off that is",
    "jct": "completion times of jobs: train a predictor, predict, evaluate",
    "simulate": "many jobs on a cluster under a scheduling policy, replayed from a trace",
    "profiles": "measured profiles: export, import, show",
    "mcp": "estimate, plan, explain and export as tools for assistants (Model Context Protocol)",
}


MOST_LETTERS = 2000
"""Of a message."""
OBJECTS_BETWEEN_COLLECTIONS = 50_000
"""Python's own 700 has it look for garbage 140 times while a plan's modules are imported, which leave none."""


class UsageError(Exception):
    """The command line itself is wrong."""


class Parser(argparse.ArgumentParser):
    """argparse without abbreviated options, whose errors are raised so that all of them leave in one way."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see `{self.prog} --help`)")


class _Version(argparse.Action):
    """Prints the version, which is looked up only when asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from planner.shared.version import VERSION

        print(f"cellplan {VERSION}")
        parser.exit()


def make_parser(selected: str | None) -> Parser:
    """The parser of the whole command line; of the sub-commands, `selected` alone knows its arguments."""
    parser = Parser(
        prog="cellplan", description="How fast a large model would train on a cluster, and which parallel plan is best."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        if name == selected:
            add_command_arguments(name, command)
    return parser


def add_command_arguments(name: str, parser: argparse.ArgumentParser) -> None:
    """Give `parser` the arguments of the sub-command called `name`, whose module is imported here."""
    import_module(f"planner.cli.{name}").add_arguments(parser)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (without the program's name; default the process's own) and return its exit status.

    0 done; 2 wrong input; 3 nothing fits; 4 the machine failed; 130 interrupted. What is not expected is our own bug
    and leaves with its traceback.
    """
    if argv is None:  # the process is this command's alone
        gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        _run(words)
        print(end="", flush=True)
    except BrokenPipeError:  # the reader has seen enough, as in `cellplan models list | head -1`
        _discard_stdout()
    except (UsageError, InputError) as error:
        return _fail(str(error), 2)
    except NothingFits as error:
        return _fail(str(error), 3)
    except MachineError as error:
        return _fail(str(error), 4)
    except OSError as error:
        _discard_stdout()
        place = f"{error.filename}: " if error.filename is not None else ""
        return _fail(f"{place}{error.strerror or error}", 4)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    return 0


def _run(words: Sequence[str]) -> None:
    parser = make_parser(next((word for word in words if not word.startswith("-")), None))
    try:
        arguments = parser.parse_args(words)
    except SystemExit:  # --help or --version is printed; errors are raised
        return
    arguments.run(arguments)


def _fail(message: str, status: int) -> int:
    line = " ".join(message.split())
    if len(line) > MOST_LETTERS:  # what was found may be a word of a megabyte
        line = f"{line[: MOST_LETTERS // 2]} ... {line[-MOST_LETTERS // 2 :]}"
    print(f"cellplan: error: {line}", file=sys.stderr)
    return status


def _discard_stdout() -> None:
    """Let the interpreter's last flush go nowhere: what stdout still holds cannot be written."""
    with suppress(OSError):  # a stand-in for stdout may have no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
