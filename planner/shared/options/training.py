"""What `estimate`, `plan` and `place` share: what is fixed of a training whatever the plan, and how Cells are made."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated, get_args

from estimator.cells.rules import Formula, Method, Partition
from estimator.profiling.setting import Framework
from planner.shared.options.code import CodeOptions
from planner.shared.options.common import StoreIfAny
from planner.shared.options.record import Option, Options
from planner.shared.options.values import (
    CAPACITY,
    IMBALANCE,
    LAYERS,
    MARGIN,
    SAMPLES,
    TOKENS,
    VOCABULARY_MULTIPLE,
    Values,
    words_of,
)
from profiles.records import dataclass
from profiles.vocabulary import AttentionKernel, DType, GradDType, OptimizerName, Overlap

JOB = partial(Option, group="the job")
CELLS = partial(Option, group="the Cells and how they are estimated (crius: as the paper has it)")
SOFTWARE = partial(Option, group="the training software and what it does")

RECOMPUTE = Values(
    expected="auto, none, selective, full, or full:LAYERS such as full:8",
    read=str,
    holds=lambda rule: bool(re.fullmatch(r"auto|none|(selective|full)(:[1-9]\d{0,8})?", rule, re.ASCII)),
)
OVERLAPS = words_of(get_args(Overlap), or_none=True)


@dataclass(frozen=True, kw_only=True)
class JobOptions(CodeOptions):
    """What is trained, and what was measured of it. None: derived, and said how."""

    global_batch: Annotated[int | None, JOB("samples per iteration", values=SAMPLES)] = None
    seq_len: Annotated[int | None, JOB("tokens per sample (default: the model's)", values=TOKENS)] = None
    dtype: Annotated[DType | None, JOB("compute type (default: the software's)")] = None
    optimizer: Annotated[OptimizerName, JOB("(default: %(default)s)")] = "adamw"
    attention: Annotated[AttentionKernel | None, JOB("(default: flash where the device has it, else math)")] = None
    profiles: Annotated[Framework | None, JOB("whose measured layer times count (default: torch's, else JAX's)")] = None
    memory_margin: Annotated[
        str | None,
        JOB(
            "leave so much of each device's memory free: 4GiB, or a share in per cent (default: none, but of plans that"
            " are equally fast a safe one)",
            "BYTES|SHARE",
            MARGIN,
        ),
    ] = None
    store: StoreIfAny = None

    def check(self) -> None:
        """Raise InputError for measured layer times where there is nothing measured."""
        if self.profiles is not None and (self.store is None or not self.store.exists()):
            expected = "a store that has them (--store): `cellplan profile` measures them"
            raise self.wrong(
                "profiles", found=f"{self.profiles} without a store of measured profiles", expected=expected
            )
        super().check()


@dataclass(frozen=True, kw_only=True)
class SoftwareOptions(Options):
    """What the training software does. None: what it is declared to do."""

    software: Annotated[str | None, SOFTWARE("training framework, whose declared features count", "NAME")] = None
    feature: Annotated[
        tuple[str, ...],
        SOFTWARE(
            "in place of what the software is declared to do (all of it: cellplan hardware show NAME)",
            "NAME=VALUE",
            repeated=True,
        ),
    ] = ()
    grad_dtype: Annotated[GradDType | None, SOFTWARE("type of gradients (default: the software's)")] = None
    vocab_pad: Annotated[
        int | None, SOFTWARE("pad the vocabulary to a multiple of this times tp", "N", VOCABULARY_MULTIPLE)
    ] = None
    freeze: Annotated[tuple[int, int] | None, SOFTWARE("layers that do not learn", "FIRST:END", LAYERS)] = None
    lora: Annotated[int | None, SOFTWARE("adapters of this rank learn, all else is frozen", "RANK")] = None
    qlora: Annotated[
        int | None,
        SOFTWARE("as --lora, the frozen matrices of blocks held in 4 bits (NF4, widened for each use)", "RANK"),
    ] = None
    paged: Annotated[
        bool, SOFTWARE("the optimizer's state in memory that device and host share (bitsandbytes' paged optimizers)")
    ] = False
    overlap: Annotated[
        tuple[Overlap, ...] | None,
        SOFTWARE("communication beside compute: dp, tp, p2p, none (default: the software's)", values=OVERLAPS),
    ] = None
    moe_capacity: Annotated[float | None, SOFTWARE("capacity factor of experts (default: dropless)", "F", CAPACITY)] = (
        None
    )
    moe_imbalance: Annotated[float, SOFTWARE("the fullest expert rank's tokens over the mean", "F", IMBALANCE)] = 1.0

    @property
    def adapter_rank(self) -> int:
        """The rank of the adapters that learn; 0: none are asked for."""
        return self.lora or self.qlora or 0

    @property
    def fine_tunes(self) -> bool:
        """Whether only a part of the model learns."""
        return self.adapter_rank > 0 or self.freeze is not None

    @property
    def features(self) -> tuple[str, ...]:
        """What the software does in place of what it is declared to do: as stated, and as other options imply."""
        implied = (("frozen_as=nf4", self.qlora), ("paged_states=yes", self.paged))
        return (*(feature for feature, asked in implied if asked), *self.feature)

    def check(self) -> None:
        """Raise InputError for two kinds of adapters."""
        super().check()
        if self.lora and self.qlora:
            raise self.wrong("qlora", found="--lora too", expected="one of them")


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(SoftwareOptions, JobOptions):
    """What is fixed of a training whatever its plan: what `estimate`, `plan` and `place` share."""


@dataclass(frozen=True, kw_only=True)
class CellOptions(Options):
    """Which Cells are asked for, and how they are split and assembled."""

    stages: Annotated[tuple[int, ...] | None, CELLS("stage counts, such as 1,2,4")] = None
    partition: Annotated[Partition, CELLS("(default: %(default)s)")] = "exact"
    formula: Annotated[Formula, CELLS("(default: %(default)s)")] = "cellplan"
    assembly: Annotated[Method, CELLS("(default: %(default)s)")] = "exact"
