"""The options of `plan`: what is fixed of the training, what of the space is open, what is asked of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from planner.shared.options.choices import CHOICES, ChoiceOptions, unsaid
from planner.shared.options.code import CodeOfFileOptions
from planner.shared.options.common import (
    LARGEST,
    ClusterName,
    LargestOf,
    ModelName,
    PlanOutput,
    ReportFile,
    TimelineFile,
    Tool,
)
from planner.shared.options.record import HOOK, Option, ProgressHook
from planner.shared.options.topology import TopologyOptions
from planner.shared.options.training import JOB, CellOptions
from planner.shared.options.values import RATE, SECONDS
from planner.shared.options.whole import LimitedTrainingOptions
from profiles.records import dataclass
from profiles.vocabulary import ScheduleName

Objective = Literal["time", "cost", "energy"]
Search = Literal["exact", "cells", "crius"]
Freedom = Literal["tp-across-islands", "split-everything", "modelled"]
SPACE = partial(Option, group="the space of plans that is searched")
SEVERAL = partial(Option, group="several searches")


@dataclass(frozen=True, kw_only=True)
class SpaceOptions(TopologyOptions, ChoiceOptions):
    """A model on a cluster, and which plans are open. None: open."""

    model: ModelName = field(kw_only=False)
    cluster: ClusterName
    devices: Annotated[int | None, JOB("devices of the cluster to use at most (default: all)")] = None
    schedule: Annotated[tuple[ScheduleName, ...] | None, CHOICES(f"schedules to choose from {unsaid('schedule')}")] = (
        None
    )
    no_offload: Annotated[bool, CHOICES(f"no optimizer state in host memory {unsaid('no_offload')}")] = False
    fix: Annotated[tuple[str, ...], SPACE("such as pp=4 (as --pp 4) or devices=32", "NAME=N", repeated=True)] = ()
    max: Annotated[tuple[str, ...], SPACE("such as tp=8", "NAME=N", repeated=True)] = ()
    min: Annotated[tuple[str, ...], SPACE("such as dp=2", "NAME=N", repeated=True)] = ()
    tool: Annotated[Tool | None, SPACE("only what this training framework can run")] = None
    allow: Annotated[
        tuple[Freedom, ...],
        SPACE(
            "widen the space: tp-across-islands, split-everything (all cuts of the layers), modelled (layer times"
            " that nobody measured beside measured ones)"
        ),
    ] = ()
    free: Annotated[
        Path | None, SPACE("what is free now: output of sinfo, scontrol show node, or kubectl get nodes -o json")
    ] = None
    lenient: Annotated[bool, SPACE("leave out, and count, free nodes that the cluster's network does not name")] = False


@dataclass(frozen=True, kw_only=True)
class SearchOptions(LimitedTrainingOptions, CellOptions, SpaceOptions):
    """One search for the best plan."""

    command: ClassVar[str] = "plan"

    search: Annotated[
        Search | None,
        SPACE(
            "exact: the best plan, proved (default); cells: the best Cell's best assembly; crius: that Cell tuned"
            " in the halves that its stages favour"
        ),
    ] = None
    objective: Annotated[Objective, SPACE("what is least (default: %(default)s)")] = "time"
    limit: Annotated[int | None, SPACE("stop after so many families of plans, with a gap instead of a proof")] = None
    profile_budget: Annotated[
        float | None,
        SPACE(
            "on a cluster local:1xN: really run candidate plans for so many seconds at most, where that can change"
            " which one is best",
            "SECONDS",
            RATE,
        ),
    ] = None
    say: Annotated[Callable[[str], None] | None, HOOK] = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class PlanOptions(CodeOfFileOptions, SearchOptions):
    """The best plan, and what is said and written of it."""

    explain: Annotated[
        bool,
        Option("also why: what binds, what other plans lose, what changes would bring (some thirty searches more)"),
    ] = False
    why: Annotated[
        tuple[str, ...],
        Option(
            "also why not: the best plan with this beside the best, as tp=8 or tp=8,recompute=full (several times)",
            "NAME=VALUE",
            repeated=True,
        ),
    ] = ()
    compare: Annotated[Path | None, Option("also the plan of this file beside it: what differs, and what it costs")] = (
        None
    )
    output: PlanOutput = None
    timeline: TimelineFile = None
    report: ReportFile = None
    progress: ProgressHook = field(default=None, compare=False, repr=False)

    @property
    def explains(self) -> bool:
        """Whether it is said why: a page says it too."""
        return self.explain or self.report is not None

    def check(self) -> None:
        """Raise InputError for code of a file where no file is read."""
        super().check()
        if self.code and self.compare is None:
            raise self.wrong("code", found=", ".join(self.code), expected="--compare beside it: MODEL runs as it is")


@dataclass(frozen=True, kw_only=True)
class FrontOptions(SearchOptions):
    """The plans that no other one beats in both time and devices, or time and memory of a device."""

    against: Annotated[
        Literal["devices", "memory"],
        SEVERAL("the fastest plan for each number of devices, or memory of one", flag="--front"),
    ]


@dataclass(frozen=True, kw_only=True)
class SmallestOptions(SearchOptions):
    """The fewest devices on which an iteration takes so many seconds at most."""

    meet_s: Annotated[float, SEVERAL("the fewest devices on which an iteration takes so long", "S", SECONDS)]


@dataclass(frozen=True, kw_only=True)
class LargestOptions(SearchOptions):
    """The longest sequence, the largest micro-batch or the largest model of a family for which any plan fits."""

    largest: Annotated[LargestOf, SEVERAL(LARGEST)]
    output: PlanOutput = None


@dataclass(frozen=True, kw_only=True)
class SideBySideOptions(SearchOptions):
    """The best plan on the cluster, and on each of those `beside` it."""

    beside: Annotated[
        tuple[str, ...], SEVERAL("another cluster to compare with; several times", "C", repeated=True)
    ] = ()


@dataclass(frozen=True, kw_only=True)
class AffordOptions(SideBySideOptions):
    """A whole training within a budget or so many days, on some of the cluster's devices, or of those of the clusters
    `beside` it."""

    output: PlanOutput = None

    def check(self) -> None:
        """Raise InputError where no limit is said, or the plan is not the fastest."""
        super().check()
        if self.budget is None and self.days is None:
            raise self.wrong("budget", found="no limit", expected="--budget, --days or both")
        if self.objective != "time":
            raise self.wrong("objective", found=self.objective, expected="time beside --budget and --days")
