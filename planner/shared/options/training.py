"""What `estimate`, `plan` and `place` share: what is fixed of a training whatever the plan, and how Cells are made."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, get_args

from estimator.cells.rules import Formula, Method, Partition
from estimator.profiling.setting import Framework
from planner.shared.options.common import StoreIfAny
from planner.shared.options.record import Option, Options
from planner.shared.options.values import LAYERS, POSITIVE_INT, RATE, Values, list_of, words_of
from profiles.vocabulary import AttentionKernel, DType, GradDType, OptimizerName, Overlap

THE_JOB = "the job"
THE_CELLS = "the Cells and how they are estimated (crius: as the paper has it)"
THE_SOFTWARE = "the training software and what it does"

RECOMPUTE = Values(
    expected="auto, none, selective, full, or full:LAYERS such as full:8",
    read=str,
    holds=lambda rule: bool(re.fullmatch(r"auto|none|(selective|full)(:[1-9]\d{0,8})?", rule)),
)
OVERLAPS = words_of(get_args(Overlap), or_none=True)
IMBALANCE = Values(
    expected="at least 1: the fullest rank's tokens over the mean",
    read=float,
    holds=lambda value: 1 <= value < float("inf"),
    schema={"minimum": 1},
)


@dataclass(frozen=True, kw_only=True)
class JobOptions(Options):
    """What is trained, and what was measured of it. None: derived, and said how."""

    global_batch: Annotated[int | None, Option(help="samples per iteration", metavar="N", group=THE_JOB)] = None
    seq_len: Annotated[
        int | None, Option(help="tokens per sample (default: the model's)", metavar="N", group=THE_JOB)
    ] = None
    dtype: Annotated[DType, Option(help="compute type (default: %(default)s)", group=THE_JOB)] = "bf16"
    optimizer: Annotated[OptimizerName, Option(help="(default: %(default)s)", group=THE_JOB)] = "adamw"
    attention: Annotated[
        AttentionKernel | None, Option(help="(default: flash where the device has it, else math)", group=THE_JOB)
    ] = None
    profiles: Annotated[
        Framework | None,
        Option(help="whose measured layer times count (default: torch's, else JAX's)", group=THE_JOB),
    ] = None
    store: StoreIfAny = None


@dataclass(frozen=True, kw_only=True)
class SoftwareOptions(Options):
    """What the training software does. None: what it is declared to do."""

    software: Annotated[
        str | None,
        Option(help="training framework, whose declared features count", metavar="NAME", group=THE_SOFTWARE),
    ] = None
    feature: Annotated[
        tuple[str, ...],
        Option(
            help="in place of what the software is declared to do (all of it: cellplan hardware show NAME)",
            metavar="NAME=VALUE",
            repeated=True,
            group=THE_SOFTWARE,
        ),
    ] = ()
    grad_dtype: Annotated[
        GradDType | None, Option(help="type of gradients (default: the software's)", group=THE_SOFTWARE)
    ] = None
    vocab_pad: Annotated[
        int | None,
        Option(help="pad the vocabulary to a multiple of this times tp", metavar="N", group=THE_SOFTWARE),
    ] = None
    freeze: Annotated[
        tuple[int, int] | None,
        Option(help="layers that do not learn", metavar="FIRST:END", values=LAYERS, group=THE_SOFTWARE),
    ] = None
    lora: Annotated[
        int | None,
        Option(help="adapters of this rank learn, all else is frozen", metavar="RANK", group=THE_SOFTWARE),
    ] = None
    overlap: Annotated[
        tuple[Overlap, ...] | None,
        Option(
            help="communication beside compute: dp, tp, p2p, none (default: the software's)",
            metavar="LIST",
            values=OVERLAPS,
            group=THE_SOFTWARE,
        ),
    ] = None
    moe_capacity: Annotated[
        float | None,
        Option(help="capacity factor of experts (default: dropless)", metavar="F", values=RATE, group=THE_SOFTWARE),
    ] = None
    moe_imbalance: Annotated[
        float,
        Option(
            help="the fullest expert rank's tokens over the mean", metavar="F", values=IMBALANCE, group=THE_SOFTWARE
        ),
    ] = 1.0


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(SoftwareOptions, JobOptions):
    """What is fixed of a training whatever its plan: what `estimate`, `plan` and `place` share."""


@dataclass(frozen=True, kw_only=True)
class CellOptions(Options):
    """Which Cells are asked for, and how they are split and assembled."""

    stages: Annotated[
        tuple[int, ...] | None,
        Option(
            help="stage counts, such as 1,2,4",
            metavar="LIST",
            values=list_of(POSITIVE_INT, rising=True),
            group=THE_CELLS,
        ),
    ] = None
    partition: Annotated[Partition, Option(help="(default: %(default)s)", group=THE_CELLS)] = "exact"
    formula: Annotated[Formula, Option(help="(default: %(default)s)", group=THE_CELLS)] = "cellplan"
    assembly: Annotated[Method, Option(help="(default: %(default)s)", group=THE_CELLS)] = "exact"
