"""Functions of `planner.api` as commands: the arguments of a function's record, a call, its answer as JSON or for
people."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY
from functools import partial
from typing import Any

from estimator.communication.measuring import World
from planner.cli.arguments import add_options, chosen, make_user_folder
from planner.cli.output import print_json, progress, status
from profiles.errors import InputError
from profiles.records import dataclass


@dataclass(frozen=True, slots=True)
class Action:
    """How a `function` of `planner.api` is a command. `show` prints its answer for people, given the arguments too.

    `doing` is the title of its progress bar (or of the line about a function that does not say how far it is), with
    arguments in braces; empty: it has none. `writes`: whether it does
    into the user's own store, whose folder must be there, or with which switches.
    """

    function: Callable[..., Any]
    show: Callable[[Any, Namespace], None]
    help: str = ""
    _: KW_ONLY
    doing: str = ""
    writes: bool | tuple[str, ...] = False


def add_action(parser: ArgumentParser, action: Action) -> None:
    """Make `parser` the command that `action` is."""
    record = _record(action)
    add_options(parser, *(() if record is None else (record,)))
    parser.set_defaults(run=partial(_run, action))


def add_actions(parser: ArgumentParser, **actions: Action) -> None:
    """Give `parser` a sub-command for each of `actions`, by name."""
    below = parser.add_subparsers(metavar="|".join(actions), required=True)
    for name, action in actions.items():
        add_action(below.add_parser(name, help=action.help), action)


def _record(action: Action) -> Any:
    """The class of the options that the function takes; None where it takes nothing."""
    return getattr(action.function, "options", None)


def _run(action: Action, arguments: Namespace) -> None:
    record = _record(action)
    hooks = () if record is None else record.hooks()
    world = launched_world() if "world" in hooks else None
    switches = () if isinstance(action.writes, bool) else action.writes
    writes = action.writes is True or any(getattr(arguments, switch) for switch in switches)
    if writes and getattr(arguments, "store", None) is None:
        make_user_folder()
    tell: Callable[[str], AbstractContextManager[Any]] = progress if "progress" in hooks else status
    with tell(action.doing.format(**vars(arguments))) if action.doing else nullcontext() as report:
        options = () if record is None else (chosen(arguments, record, progress=report, world=world),)
        answer = action.function(*options)
    if answer is None or (world is not None and world.rank != 0):
        return
    if arguments.json:
        print_json(answer)
    else:
        action.show(answer, arguments)


def launched_world() -> World | None:
    """Return this process's place among torchrun's, from the variables that torchrun sets; None if it started none.
    Raise InputError if these are no numbers."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT")
    if not all(name in os.environ for name in (*names, "MASTER_ADDR")):
        return None
    try:
        rank, world_size, ranks_per_node, port = (int(os.environ[name]) for name in names)
    except ValueError:
        numbers = ", ".join(f"{name}={os.environ[name]}" for name in names)
        raise InputError(where="environment", found=numbers, expected="the numbers that torchrun sets") from None
    return World(
        rank=rank,
        world_size=world_size,
        ranks_per_node=ranks_per_node,
        address=os.environ["MASTER_ADDR"],
        port=port,
        agent_store=os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )
