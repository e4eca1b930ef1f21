"""Options that several commands share, and the types of their values."""

from __future__ import annotations

import os
from argparse import Action, ArgumentParser, ArgumentTypeError, Namespace, _ActionsContainer
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_origin

from estimator.cells.job import MicroBatchRule
from estimator.pricing.recipe import OffloadPart, Overlap, ScheduleName
from estimator.profiling.setting import MEASURED_OPTIMIZERS
from planner.shared.options import Freedom, Group, Option, options_of
from profiles.vocabulary import DType

MICRO_BATCH_RULES = get_args(MicroBatchRule)

GROUP_TITLES: dict[Group, str] = {
    "job": "the job",
    "cells": "the Cells and how they are estimated (crius: as the paper has it)",
    "space": "the space of plans that is searched",
    "software": "the training software and what it does",
    "plan": "one explicit plan, in place of the Cells (any degree of parallelism makes it one)",
    "training": "the whole training, of an explicit plan",
}


def positive_int(text: str) -> int:
    """A whole number of at least 1."""
    if not (text.isascii() and text.isdigit() and len(text) <= 18 and int(text)):
        raise ArgumentTypeError(f"found {text!r}, expected a whole number of at least 1")
    return int(text)


def natural(text: str) -> int:
    """A whole number of at least 0."""
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise ArgumentTypeError(f"found {text!r}, expected a whole number of at least 0")
    return int(text)


def positive_rate(text: str) -> float:
    """A number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ArgumentTypeError(f"found {text!r}, expected a number above 0")
    return value


def positive_ints(text: str) -> tuple[int, ...]:
    """Whole numbers of at least 1 with commas between: `1,2,4`. Each once, ascending."""
    return tuple(sorted({positive_int(part) for part in text.split(",")}))


def words_of(allowed: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    """The type of a list of `allowed` words with commas between."""

    def words(text: str) -> tuple[str, ...]:
        found = tuple(text.split(","))
        for word in found:
            if word not in allowed:
                raise ArgumentTypeError(f"found {word!r}, expected one or more of {', '.join(allowed)}")
        return found

    return words


def micro_batch_rule(text: str) -> int | str:
    """A number of micro-batches, or the name of a rule."""
    if text in MICRO_BATCH_RULES:
        return text
    try:
        return positive_int(text)
    except ArgumentTypeError:
        expected = f"a whole number of at least 1, or {', '.join(MICRO_BATCH_RULES)}"
        raise ArgumentTypeError(f"found {text!r}, expected {expected}") from None


def positive_seconds(text: str) -> float:
    """Seconds above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ArgumentTypeError(f"found {text!r}, expected seconds above 0")
    return value


def layer_range(text: str) -> tuple[int, int]:
    """Layers [first, end) as `FIRST:END`."""
    first, colon, end = text.partition(":")
    if not (
        colon and first.isascii() and first.isdigit() and end.isascii() and end.isdigit() and int(first) < int(end)
    ):
        raise ArgumentTypeError(f"found {text!r}, expected FIRST:END, layers from 0, END not included, such as 1:5")
    return int(first), int(end)


def add_json_option(parser: ArgumentParser) -> None:
    """`--json`."""
    parser.add_argument("--json", action="store_true", help="machine-readable output alone on stdout")


def add_store_option(parser: ArgumentParser) -> None:
    """`--store`."""
    parser.add_argument(
        "--store",
        type=Path,
        metavar="PATH",
        help="the store of measured profiles and link tables (default: $CELLPLAN_STORE, else the user's own)",
    )


def store_path(arguments: Namespace, *, to_write: bool = False) -> Path:
    """The store that was asked for, or the user's own, whose folder is made where it is `to_write`.

    Only the command line looks into the environment.
    """
    if arguments.store is not None:
        return Path(arguments.store)
    if named := os.environ.get("CELLPLAN_STORE"):
        return Path(named)
    data = os.environ.get("XDG_DATA_HOME")
    folder = (Path(data) if data else Path.home() / ".local" / "share") / "cellplan"
    if to_write:
        folder.mkdir(parents=True, exist_ok=True)
    return folder / "store.sqlite"


def add_model_argument(parser: ArgumentParser, *, required: bool = True) -> None:
    """MODEL."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs=None if required else "?",
        help="a zoo name, a path to a Hugging Face config.json, or package.module:factory",
    )


def add_dtype_option(parser: _ActionsContainer) -> None:
    """`--dtype`."""
    parser.add_argument("--dtype", choices=get_args(DType), default="bf16", help="compute type (default: %(default)s)")


def add_optimizer_option(parser: _ActionsContainer) -> None:
    """`--optimizer`."""
    parser.add_argument("--optimizer", choices=MEASURED_OPTIMIZERS, default="adamw", help="(default: %(default)s)")


def add_cluster_option(parser: ArgumentParser, *, required: bool = True) -> None:
    """`--cluster`."""
    parser.add_argument(
        "--cluster",
        required=required,
        metavar="C",
        help="such as a100-80gb:2x8 (2 nodes of 8), a sum of such with +, local:1x2, or a YAML file",
    )


def add_options(parser: ArgumentParser, kind: type[Any]) -> None:
    """The options of `kind`, one of the classes of `planner.shared.options`, in their groups."""
    groups: dict[Group, _ActionsContainer] = {}
    for name, (declared, option) in options_of(kind).items():
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(GROUP_TITLES[option.group])
        _add_option(groups[option.group], name, declared, option)


class _Collect(Action):
    """Keeps all values of an option that is given several times."""

    def __call__(
        self,
        _: ArgumentParser,
        namespace: Namespace,
        values: Any,
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        setattr(namespace, self.dest, (*getattr(namespace, self.dest), values))


def _add_option(group: _ActionsContainer, name: str, declared: Any, option: Option) -> None:
    """One option: a flag, one of some words, or what `READERS` or its type reads."""
    flag = f"--{name.replace('_', '-')}"
    if name in REPEATED:
        group.add_argument(flag, action=_Collect, default=(), metavar=option.metavar, help=option.help)
        return
    if declared is bool:
        group.add_argument(flag, action="store_true", help=option.help)
        return
    members = [part for part in (get_args(declared) or (declared,)) if part is not type(None)]
    words = option.choices or [word for part in members for word in (get_args(part) or (part,))]
    # `--schedule` is one word of an estimate and a list of them where plans are searched.
    lists = any(get_origin(part) is tuple for part in members)
    reader = READERS.get(name) if lists or name != "schedule" else None
    reader = reader or (positive_int if int in members else None)
    if reader is not None:
        group.add_argument(flag, type=reader, default=option.default, metavar=option.metavar, help=option.help)
    elif str in words:
        group.add_argument(flag, default=option.default, metavar=option.metavar, help=option.help)
    else:
        # Of one type all: words, or the numbers of ZeRO's stages.
        group.add_argument(flag, type=type(words[0]), choices=words, default=option.default, help=option.help)


def chosen_options(arguments: Namespace, kind: type[Any]) -> dict[str, Any]:
    """What `add_options` collected."""
    return {name: getattr(arguments, name) for name in options_of(kind)}


def number(text: str) -> float:
    """A number of at least 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ArgumentTypeError(f"found {text!r}, expected a number of at least 0")
    return value


def large_number(text: str) -> float:
    """A number above 0, with k, M, G (or B), T or P behind it for powers of a thousand."""
    sizes = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12, "p": 1e15}
    size = sizes.get(text[-1:].lower())
    try:
        value = float(text[:-1]) * size if size else float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ArgumentTypeError(f"found {text!r}, expected a number above 0 such as 1.4T or 300e9")
    return value


def shard_times_replicate(text: str) -> tuple[int, int]:
    """`SHARDxREPLICATE`."""
    shard, _, replicate = text.partition("x")
    try:
        return positive_int(shard), positive_int(replicate)
    except ArgumentTypeError:
        raise ArgumentTypeError(f"found {text!r}, expected SHARDxREPLICATE such as 8x4") from None


def words_or_none(allowed: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    """The type of a list of `allowed` words with commas between, each once and in their order, or `none`."""

    def words(text: str) -> tuple[str, ...]:
        found = () if text == "none" else text.split(",")
        for word in found:
            if word not in allowed:
                raise ArgumentTypeError(f"found {word!r}, expected none, or one or more of {', '.join(allowed)}")
        return tuple(word for word in allowed if word in found)

    return words


REPEATED = ("fix", "max", "min", "feature")
"""Options that can be given several times."""

READERS: dict[str, Callable[[str], Any]] = {
    "micro_batches": micro_batch_rule,
    "stages": positive_ints,
    "hsdp": shard_times_replicate,
    "offload": words_or_none(get_args(OffloadPart)),
    "schedule": words_of(get_args(ScheduleName)),
    "allow": words_of(get_args(Freedom)),
    "freeze": layer_range,
    "overlap": words_or_none(get_args(Overlap)),
    "moe_capacity": number,
    "moe_imbalance": number,
    "train_tokens": large_number,
    "failure_rate": number,
    "profile_budget": positive_rate,
    "checkpoint_time": number,
    "restart_time": number,
}
"""How the words of an option are read, where its type does not tell."""
