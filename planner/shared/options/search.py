"""The options of `plan` and `place`: what is fixed of the training, what of the space is open, what is asked of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal, get_args

from estimator.cells.rules import MicroBatchRule
from planner.shared.options.common import ClusterName, ModelName, PlanOutput, TimelineFile, Tool
from planner.shared.options.record import HOOK, Option, ProgressHook
from planner.shared.options.training import RECOMPUTE, THE_JOB, CellOptions, TrainingOptions
from planner.shared.options.values import AMOUNT, NATURAL, RATE, SECONDS, TEXTS, number_or, words_of
from profiles.vocabulary import ScheduleName, ZeroStage

Objective = Literal["time", "cost", "energy"]
Search = Literal["exact", "cells", "crius"]
Freedom = Literal["tp-across-islands", "split-everything", "modelled"]
SitesMethod = Literal[
    "compact",
    "exact",
    "spin-search",
    "spin-search-free",
    "spin-search-from-local",
    "spin-search-from-local-free",
    "first-fit",
]
"""How sites are chosen: the names in `planner.many_jobs.sites.choosing.METHODS`, the default first."""

THE_SPACE = "the space of plans that is searched"
SEVERAL = "several searches"
THE_SITES = "the sites"
THE_LINKS = "links between sites as they are now"


@dataclass(frozen=True, kw_only=True)
class SpaceOptions(TrainingOptions):
    """A model on a cluster, and which plans are open. None: open."""

    model: ModelName = field(kw_only=False)
    cluster: ClusterName
    devices: Annotated[
        int | None, Option(help="devices of the cluster to use at most (default: all)", metavar="N", group=THE_JOB)
    ] = None
    micro_batch: Annotated[
        int | None, Option(help="samples per rank and micro-batch (default: open)", metavar="N", group=THE_JOB)
    ] = None
    micro_batches: Annotated[
        int | MicroBatchRule | None,
        Option(
            help="micro-batches an iteration (default: open); for Cells also a rule: crius, fit, best",
            metavar="N|RULE",
            values=number_or(get_args(MicroBatchRule)),
            group=THE_JOB,
        ),
    ] = None
    schedule: Annotated[
        tuple[ScheduleName, ...] | None,
        Option(
            help="schedules to choose from (default: 1f1b,interleaved)",
            metavar="LIST",
            values=words_of(get_args(ScheduleName)),
            group=THE_SPACE,
        ),
    ] = None
    recompute: Annotated[
        str,
        Option(
            help="auto (open; default), none, selective, full, or full:LAYERS of each stage",
            metavar="RULE",
            values=RECOMPUTE,
            group=THE_SPACE,
        ),
    ] = "auto"
    zero: Annotated[ZeroStage | None, Option(help="what is sharded, 0 to 3 (default: open)", group=THE_SPACE)] = None
    sequence_parallel: Annotated[
        bool, Option(help="no plan with tp without it (default: with it where it can be)", group=THE_SPACE)
    ] = False
    no_offload: Annotated[bool, Option(help="no optimizer state in host memory", group=THE_SPACE)] = False
    fix: Annotated[tuple[str, ...], Option(help="such as pp=4", metavar="NAME=N", repeated=True, group=THE_SPACE)] = ()
    max: Annotated[tuple[str, ...], Option(help="such as tp=8", metavar="NAME=N", repeated=True, group=THE_SPACE)] = ()
    min: Annotated[tuple[str, ...], Option(help="such as dp=2", metavar="NAME=N", repeated=True, group=THE_SPACE)] = ()
    tool: Annotated[Tool | None, Option(help="only what this training framework can run", group=THE_SPACE)] = None
    allow: Annotated[
        tuple[Freedom, ...],
        Option(
            help="widen the space: tp-across-islands, split-everything (all cuts of the layers), modelled (layer times"
            " that nobody measured beside measured ones)",
            metavar="LIST",
            values=words_of(get_args(Freedom)),
            group=THE_SPACE,
        ),
    ] = ()
    free: Annotated[
        Path | None,
        Option(
            help="what is free now: output of sinfo, scontrol show node, or kubectl get nodes -o json",
            metavar="FILE",
            group=THE_SPACE,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class SearchOptions(CellOptions, SpaceOptions):
    """One search for the best plan."""

    command: ClassVar[str] = "plan"

    search: Annotated[
        Search | None,
        Option(
            help="exact: the best plan, proved (default); cells: the best Cell's best assembly; crius: that Cell tuned"
            " in the halves that its stages favour",
            group=THE_SPACE,
        ),
    ] = None
    objective: Annotated[Objective, Option(help="what is least (default: %(default)s)", group=THE_SPACE)] = "time"
    limit: Annotated[
        int | None,
        Option(
            help="stop after so many families of plans, with a gap instead of a proof", metavar="N", group=THE_SPACE
        ),
    ] = None
    profile_budget: Annotated[
        float | None,
        Option(
            help="on a cluster local:1xN: really run candidate plans for so many seconds at most, where that can change"
            " which one is best",
            metavar="SECONDS",
            values=RATE,
            group=THE_SPACE,
        ),
    ] = None
    say: Annotated[Callable[[str], None] | None, HOOK] = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class PlanOptions(SearchOptions):
    """The best plan, and what is said and written of it."""

    explain: Annotated[
        bool,
        Option(
            help="also why: what binds, what other plans lose, what changes would bring (some thirty searches more)"
        ),
    ] = False
    compare: Annotated[
        Path | None,
        Option(help="also the plan of this file beside it: what differs, and what it costs", metavar="FILE"),
    ] = None
    output: PlanOutput = None
    timeline: TimelineFile = None
    progress: ProgressHook = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class FrontOptions(SearchOptions):
    """The plans that no other one beats in both time and devices, or time and memory of a device."""

    against: Annotated[
        Literal["devices", "memory"],
        Option(help="the fastest plan for each number of devices, or memory of one", flag="--front", group=SEVERAL),
    ]


@dataclass(frozen=True, kw_only=True)
class SmallestOptions(SearchOptions):
    """The fewest devices on which an iteration takes so many seconds at most."""

    meet_s: Annotated[
        float,
        Option(
            help="the fewest devices on which an iteration takes so long",
            metavar="S",
            flag="--meet",
            values=SECONDS,
            group=SEVERAL,
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class SideBySideOptions(SearchOptions):
    """The best plan on the cluster, and on each of those `beside` it."""

    beside: Annotated[
        tuple[str, ...],
        Option(help="another cluster to compare with; several times", metavar="C", repeated=True, group=SEVERAL),
    ] = ()


@dataclass(frozen=True, kw_only=True)
class PlaceOptions(SpaceOptions):
    """A job to place over the sites of a cluster."""

    command: ClassVar[str] = "place"

    devices: Annotated[int, Option(help="devices that the job wants", metavar="N", group=THE_JOB)] = field(kw_only=True)
    local: Annotated[
        str | None,
        Option(help="the site that the job is submitted at: it is tried first", metavar="SITE", group=THE_SITES),
    ] = None
    method: Annotated[SitesMethod, Option(help="how sites are chosen (default: %(default)s)", group=THE_SITES)] = (
        "compact"
    )
    types: Annotated[
        tuple[str, ...],
        Option(help="device types to take, such as a100-80gb,h100", metavar="LIST", values=TEXTS, group=THE_SITES),
    ] = ()
    one_type: Annotated[bool, Option(help="all devices are of one type", group=THE_SITES)] = False
    all_sites: Annotated[
        bool,
        Option(help="the plan uses every chosen site, also where thin links make it slower", group=THE_SITES),
    ] = False
    alternatives: Annotated[
        int, Option(help="other ways to plan (default: %(default)s)", metavar="N", values=NATURAL, group=THE_SITES)
    ] = 6
    comm: Annotated[
        tuple[Path, ...],
        Option(
            help="what `comm measure --link north--south --json` printed, or measurements",
            metavar="FILE",
            nargs="+",
            group=THE_LINKS,
        ),
    ] = ()
    links: Annotated[
        Path | None,
        Option(
            help="the state of the links: read, and written where --comm adds to it", metavar="FILE", group=THE_LINKS
        ),
    ] = None
    half_life: Annotated[
        float,
        Option(
            help="age at which a measurement counts half (default: 3600)",
            metavar="S",
            values=SECONDS,
            group=THE_LINKS,
        ),
    ] = 3600.0
    now: Annotated[
        float | None,
        Option(help="seconds since 1970 to count ages to (default: now)", metavar="S", values=AMOUNT, group=THE_LINKS),
    ] = None
    output: PlanOutput = None

    def check(self) -> None:
        """Raise InputError for a schedule that plans over sites have not, or a device type said twice."""
        if self.schedule not in (None, ("1f1b",)):
            raise self.wrong("schedule", found=",".join(self.schedule), expected="1f1b, which plans over sites have")
        if len(set(self.types)) != len(self.types):
            raise self.wrong("types", found=",".join(self.types), expected="each type once")
