"""Options that several commands share, and the types of their values."""

from __future__ import annotations

import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace, _ActionsContainer
from collections.abc import Callable
from pathlib import Path
from typing import cast, get_args

from estimator.job import MicroBatchRule, RecomputeRule
from estimator.memory import OPTIMIZERS, Schedule, Zero
from planner.api import JobOptions
from profiles.vocabulary import AttentionKernel, DType

MICRO_BATCH_RULES = get_args(MicroBatchRule)


def positive_int(text: str) -> int:
    """A whole number of at least 1."""
    if not (text.isascii() and text.isdigit() and len(text) <= 18 and int(text)):
        raise ArgumentTypeError(f"found {text!r}, expected a whole number of at least 1")
    return int(text)


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


def add_model_argument(parser: ArgumentParser) -> None:
    """MODEL."""
    parser.add_argument(
        "model", metavar="MODEL", help="a zoo name, a path to a Hugging Face config.json, or package.module:factory"
    )


def add_dtype_option(parser: _ActionsContainer) -> None:
    """`--dtype`."""
    parser.add_argument("--dtype", choices=get_args(DType), default="bf16", help="compute type (default: %(default)s)")


def add_optimizer_option(parser: _ActionsContainer) -> None:
    """`--optimizer`."""
    parser.add_argument("--optimizer", choices=tuple(OPTIMIZERS), default="adamw", help="(default: %(default)s)")


def add_job_options(parser: ArgumentParser) -> None:
    """MODEL, `--cluster` and everything that `estimate` and `plan` have in common."""
    add_model_argument(parser)
    parser.add_argument(
        "--cluster",
        required=True,
        metavar="C",
        help="such as a100-80gb:2x8 (2 nodes of 8), a sum of such with +, local:1x2, or a YAML file",
    )
    job = parser.add_argument_group("the job")
    job.add_argument("--devices", type=positive_int, metavar="N", help="devices of the cluster to use (default: all)")
    job.add_argument("--global-batch", type=positive_int, metavar="N", help="samples per iteration")
    job.add_argument("--micro-batch", type=positive_int, metavar="N", help="samples per rank and micro-batch")
    job.add_argument(
        "--micro-batches",
        type=micro_batch_rule,
        default="fit",
        metavar="N|RULE",
        help="micro-batches per iteration, or crius (4 per stage), fit (more where those do not fit; default), best",
    )
    job.add_argument("--seq-len", type=positive_int, metavar="N", help="tokens per sample (default: the model's)")
    add_dtype_option(job)
    add_optimizer_option(job)
    job.add_argument("--schedule", choices=get_args(Schedule), default="1f1b", help="(default: %(default)s)")
    job.add_argument(
        "--recompute", choices=get_args(RecomputeRule), default="auto", help="auto: only where needed to fit (default)"
    )
    job.add_argument(
        "--zero", type=int, choices=get_args(Zero), default=0, help="optimizer sharding (default: %(default)s)"
    )
    job.add_argument(
        "--attention", choices=get_args(AttentionKernel), help="(default: flash where the device has it, else math)"
    )
    job.add_argument("--sequence-parallel", action="store_true", help="sequence parallelism where tp > 1")
    space = parser.add_argument_group("the Cells and how they are estimated (crius: as the paper has it)")
    space.add_argument("--stages", type=positive_ints, metavar="LIST", help="stage counts, such as 1,2,4")
    space.add_argument("--partition", choices=("exact", "crius"), default="exact", help="(default: %(default)s)")
    space.add_argument("--formula", choices=("cellplan", "crius"), default="cellplan", help="(default: %(default)s)")
    space.add_argument("--assembly", choices=("exact", "enumerate"), default="exact", help="(default: %(default)s)")
    add_store_option(parser)
    add_json_option(parser)


def job_options(arguments: Namespace) -> JobOptions:
    """What `add_job_options` collected for `planner.api.estimate` and `plan`."""
    return cast(JobOptions, {name: getattr(arguments, name) for name in JobOptions.__annotations__})
