"""The `cellplan` command: finds the sub-command, runs it, and turns what went wrong into an exit status, a message and,
with `--json`, a document.

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
from typing import Any, NoReturn, TextIO

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
    "network": "the switches and cables between the nodes of a cluster",
    "contention": "jobs that slow each other on one network: whom, by how much, on which links",
    "profiles": "measured profiles: export, import, show",
    "serve": "a page to play with: model, cluster and degrees to time, memory and the best plan",
    "mcp": "estimate, plan, explain and export as tools for assistants (Model Context Protocol)",
}


OBJECTS_BETWEEN_COLLECTIONS = 200_000
"""Python's own 700 has it look for garbage 140 times while a plan's modules are imported, which leave none; a plan of
Llama-3 8B makes some 100,000."""


class UsageError(ValueError):
    """The command line itself is wrong: `where` is the command, `key` the option; with what was `found` there and what
    `expected`, as far as that is said."""

    def __init__(self, message: str, *, where: str, error: argparse.ArgumentError | None = None) -> None:
        super().__init__(f"{message} (see `{where} --help`)")
        self.where, self.key = where, None if error is None else error.argument_name
        wrong: BaseException | None = error
        while wrong is not None and not hasattr(wrong, "found"):
            wrong = wrong.__context__
        self.found, self.expected = getattr(wrong, "found", None), getattr(wrong, "expected", None)


class Parser(argparse.ArgumentParser):
    """argparse without abbreviated options, whose errors are raised so that all of them leave in one way."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("exit_on_error", False)
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, for all that parses."""
        try:
            return super().parse_known_args(args, namespace)
        except argparse.ArgumentError as error:
            raise UsageError(str(error), where=self.prog, error=error) from None

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, where=self.prog)


class _Version(argparse.Action):
    """Prints the version, which is looked up only when asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from planner.shared.version import VERSION

        print(f"cellplan {VERSION}")
        parser.exit()


def make_parser(selected: str | None, *, alone: bool = False) -> Parser:
    """The parser of the whole command line; of the sub-commands, `selected` alone knows its arguments; if `alone`, it
    is the only one there."""
    parser = Parser(
        prog="cellplan", description="How fast a large model would train on a cluster, and which parallel plan is best."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        if alone and name != selected:
            continue
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
    if argv is not None:
        return _status_of(argv)
    # The process is this command's alone.
    _open_standard_streams()
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    try:
        return _status_of(sys.argv[1:])
    finally:
        gc.freeze()  # or Python looks once more through all that there is, before it leaves


def _status_of(words: Sequence[str]) -> int:
    try:
        _run(words)
        print(end="", flush=True)
    except BrokenPipeError:  # the reader has seen enough, as in `cellplan models list | head -1`
        _discard(sys.stdout)
    except (UsageError, InputError, NothingFits, MachineError, OSError, MemoryError, KeyboardInterrupt) as error:
        return _fail(error, words)
    return 0


def _run(words: Sequence[str]) -> None:
    selected = next((word for word in words if not word.startswith("-")), None)
    parser = make_parser(selected, alone=words[:1] == [selected] and selected in COMMANDS)
    try:
        arguments = parser.parse_args(words)
    except SystemExit:  # --help or --version is printed; errors are raised
        return
    arguments.run(arguments)


def _fail(error: BaseException, words: Sequence[str]) -> int:
    """Say what went wrong in a line on stderr, and with `--json` in a document on stdout; return the exit status."""
    from planner.shared.documents import command_of, describe_failure

    document = describe_failure(error, command=command_of(words))
    failure = document["failure"]
    if isinstance(error, OSError) and error.filename is None:
        _discard(sys.stdout)  # which may be what failed, with a document half written
    elif asks_json(words) and _speaks():
        from planner.cli.output import print_json

        try:
            print_json(document)
            print(end="", flush=True)
        except OSError:
            _discard(sys.stdout)
    try:
        print(f"cellplan: error: {failure['message']}", file=sys.stderr, flush=True)
    except OSError:
        _discard(sys.stderr)
    return int(failure["status"])


def asks_json(words: Sequence[str]) -> bool:
    """Return whether a command line asks for a document, wrong as it may be otherwise."""
    return "--json" in words[: words.index("--") if "--" in words else None]


def _speaks() -> bool:
    """Whether this process prints the answer: of those that torchrun started, the first alone does."""
    return os.environ.get("RANK", "0") == "0" or "MASTER_ADDR" not in os.environ


def _discard(stream: TextIO) -> None:
    """Let the interpreter's last flush go nowhere: what `stream` still holds cannot be written."""
    with suppress(OSError):  # a stand-in for stdout may have no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _open_standard_streams() -> None:
    """Put the null device where a standard stream is closed: the next file to be opened would take its place, and all
    that is printed."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # The lowest number that is free.
            setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))  # noqa: SIM115


if __name__ == "__main__":
    sys.exit(main())
