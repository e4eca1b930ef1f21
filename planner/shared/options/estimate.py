"""The options of `estimate`: of Cells, or of one explicit plan."""

from __future__ import annotations

from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Literal, get_args

from planner.shared.options.choices import CHOICES, DEGREE, SIZES, ChoiceOptions, PlanSizes, unsaid
from planner.shared.options.code import CodeOfFileOptions
from planner.shared.options.common import (
    LARGEST,
    ClusterIfAny,
    LargestOf,
    Launcher,
    ModelIfAny,
    ReportFile,
    TimelineFile,
)
from planner.shared.options.record import Option
from planner.shared.options.topology import TopologyOptions
from planner.shared.options.training import JOB, CellOptions
from planner.shared.options.values import SHARD_X_REPLICATE, words_of
from planner.shared.options.whole import WholeTrainingOptions
from profiles.errors import InputError
from profiles.records import dataclass
from profiles.vocabulary import OffloadPart, ScheduleName

FILES = partial(Option, group="the plan as a file")
LARGEST_FIT = partial(Option, group="several estimates")

DEGREES = (*SIZES, "hsdp")
"""Any of these makes an estimate that of one explicit plan, as software that is named does."""


@dataclass(frozen=True, kw_only=True)
class DegreeOptions(PlanSizes):
    """How one explicit plan shares the work. None: as `planner.shared.options.choices` has it."""

    hsdp: Annotated[
        tuple[int, int] | None,
        DEGREE("shard over so many ranks, with so many replicas", "SHARDxREPLICATE", SHARD_X_REPLICATE),
    ] = None
    offload: Annotated[
        tuple[OffloadPart, ...] | None,
        CHOICES(f"held in host memory {unsaid('offload')}", "PARTS", words_of(get_args(OffloadPart), or_none=True)),
    ] = None


@dataclass(frozen=True, kw_only=True)
class EstimateOptions(
    TopologyOptions, WholeTrainingOptions, DegreeOptions, CellOptions, CodeOfFileOptions, ChoiceOptions
):
    """A model on a cluster: its Cells; or one explicit plan, by its degrees, by a plan file, or as a launcher's present
    settings."""

    command: ClassVar[str] = "estimate"

    model: ModelIfAny = field(default=None, kw_only=False)
    cluster: ClusterIfAny = None
    devices: Annotated[int | None, JOB("devices of the cluster to use (default: all)")] = None
    schedule: Annotated[ScheduleName | None, CHOICES(f"{unsaid('schedule')}; of Cells 1f1b")] = None
    largest: Annotated[LargestOf | None, LARGEST_FIT(LARGEST)] = None
    plan: Annotated[Path | None, FILES("estimate the plan in this file, in place of MODEL and options")] = None
    network: Annotated[
        Literal["flow"] | None,
        FILES("of --plan: time its collectives as flows on the links of the cluster's fabric, beside the closed form"),
    ] = None
    beside_jobs: Annotated[
        Path | None,
        FILES(
            "with --network flow: the plan also beside these jobs of its cluster (YAML, as of `contention`)",
            "JOBS",
            flag="--beside",
        ),
    ] = None
    output: Annotated[Path | None, FILES("write the explicit plan to this file", short="-o", writes="file")] = None
    timeline: TimelineFile = None
    report: ReportFile = None
    launcher: Annotated[
        tuple[Launcher, str] | None,
        Option(
            "estimate a launcher's present settings: megatron ARGS or a script, torchtitan FILE.toml, deepspeed"
            " FILE.json (with MODEL), accelerate FILE.yaml (with MODEL), trainer FILE (transformers' TrainingArguments:"
            " JSON, YAML or a script), llama-factory, axolotl, torchtune, llm-foundry or nanotron"
            " FILE.yaml",
            ("FORMAT", "SETTINGS"),
            flag="--from",
            nargs=2,
        ),
    ] = None

    @property
    def explicit(self) -> bool:
        """Whether one plan is asked for: by a file, by a launcher's settings, by its software, by the part of
        the model that learns, or by a degree of parallelism."""
        named = self.plan is not None or self.launcher is not None or self.software is not None or self.fine_tunes
        return named or any(getattr(self, name) is not None for name in DEGREES)

    def check(self) -> None:
        """Raise InputError for options that contradict each other."""
        super().check()
        if self.code and self.plan is None:
            raise self.wrong("code", found=", ".join(self.code), expected="--plan beside it: MODEL runs as it is")
        if self.network is not None and self.plan is None:
            raise self.wrong("network", found=self.network, expected="--plan beside it: ranks need their places")
        if self.beside_jobs is not None and self.network is None:
            expected = "--network flow beside it: jobs meet on the links of a fabric"
            raise self.wrong("beside_jobs", found=str(self.beside_jobs), expected=expected)
        if self.launcher is not None and self.plan is not None:
            raise InputError(where="estimate", key="--from", found=f"--plan {self.plan} too", expected="one of them")
        if self.launcher is not None and self.timeline is not None:
            expected = "`estimate --plan PLAN --timeline FILE` of what -o PLAN writes"
            raise self.wrong("timeline", found="--from too", expected=expected)
        if self.largest is not None and (self.plan or self.launcher or not self.explicit):
            expected = "MODEL with degrees (--tp, --pp, ...); over all plans `cellplan plan --largest` answers"
            raise self.wrong("largest", found=self.largest, expected=expected)
        if self.largest is not None and self.timeline is not None:
            raise self.wrong("timeline", found="--largest too", expected="one of them")
        if self.timeline is not None and not self.explicit:
            expected = "one plan to draw: --plan, --tp, --pp, --dp or another degree; or `cellplan plan`"
            raise self.wrong("timeline", found="Cells", expected=expected)
        self.refuse_prices()
