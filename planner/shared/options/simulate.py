"""The options of `simulate`: of one run, and of many."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from planner.shared.options.code import CodeOptions
from planner.shared.options.common import ReportFile
from planner.shared.options.record import HOOK, Option, ProgressHook
from planner.shared.options.topology import TopologyOptions
from planner.shared.options.values import (
    BANDWIDTH,
    DURATION,
    LOAD,
    LOADS,
    NATURAL,
    POSITIVE_INT,
    ROUND,
    SECONDS,
    SPAN,
    Values,
    WrongValueError,
)
from profiles.limits import LIMITS
from profiles.numerals import read_whole
from profiles.records import dataclass

TraceFormat = Literal["auto", "cellplan", "philly", "helios", "acme", "pai", "lingjun", "sacct"]
Fractional = Literal["round-up", "refuse"]
Counts = Literal["keep", "powers"]
Oversize = Literal["refuse", "clip", "spread"]
NoModel = Literal["draw", "keep-durations"]
UnknownDevice = Literal["refuse", "draw"]
PlacementCost = Literal["none", "estimate"]
PolicyOption = str | int | float | bool | None

RESTART_S = 60.0
STORAGE_BANDWIDTH_BYTES_PER_S = 2e9
CHECKPOINT_INTERVAL_S = 1800.0

TRACE = partial(Option, group="the trace")
RUN = partial(Option, group="the run")
FILES = partial(Option, group="files of one run")
MANY = partial(Option, group="many runs")


def _read_policy_option(word: str) -> tuple[str, PolicyOption]:
    """`K=V`; V is a number, true, false, null, or else text."""
    key, equals, text = word.partition("=")
    if not (key and equals):
        raise ValueError(word)
    try:
        value = json.loads(text)
    except ValueError:
        return key, text
    return key, value if value is None or isinstance(value, str | int | float | bool) else text


def _read_seeds(word: str) -> tuple[int, ...]:
    """`0..4`, or whole numbers with commas between."""
    first, dots, last = word.partition("..")
    if not dots:
        return tuple(NATURAL.parse(part) for part in word.split(","))
    seeds = range(NATURAL.parse(first), read_whole(last) + 1)
    if not 0 < len(seeds) <= LIMITS.seeds.most:
        raise WrongValueError(repr(word), f"a range such as 0..4, {LIMITS.seeds.expected}")
    return tuple(seeds)


POLICY_OPTION = Values(expected="NAME=VALUE such as depth=3", read=_read_policy_option)
SEEDS = Values(expected="whole numbers of at least 0, or a range such as 0..4", read=_read_seeds)


@dataclass(frozen=True, kw_only=True)
class TraceOptions(TopologyOptions):
    """Where jobs, pools and Cells come from."""

    command: ClassVar[str] = "simulate"

    trace: Annotated[Path, Option("jobs as people submitted them", "TRACE")] = field(kw_only=False)
    cluster: Annotated[str, Option("such as a40:16x2+a10:16x2, or a YAML file", "C")]
    format: Annotated[TraceFormat, TRACE("(default: %(default)s, by its first line)")] = "auto"
    lenient: Annotated[
        bool, TRACE("skip malformed lines and count them (not models or devices that there are not)")
    ] = False
    job_models: Annotated[
        Path | None,
        TRACE(
            "what jobs train that name no model: a CSV of job_id (or user, or job_type_or_name), model, global_batch"
        ),
    ] = None
    no_model: Annotated[
        NoModel,
        TRACE("jobs that name no model: draw one, which scales, or keep their durations on the devices they asked for"),
    ] = "draw"
    fractional: Annotated[Fractional, TRACE("parts of a GPU")] = "round-up"
    counts: Annotated[Counts, TRACE("devices as asked, or powers of two")] = "keep"
    oversize: Annotated[
        Oversize,
        TRACE("jobs larger than any pool; spread: over several pools of one type, for policies that join sites"),
    ] = "refuse"
    unknown_device: Annotated[UnknownDevice, TRACE("rows on a device that no pool has")] = "refuse"
    window_s: Annotated[tuple[float, float] | None, TRACE("jobs submitted in [A, B) seconds", "A:B", SPAN)] = None
    head: Annotated[int | None, TRACE("the first N jobs")] = None
    load: Annotated[float, TRACE("jobs arrive F times as fast", "F", LOAD)] = 1.0
    seed: Annotated[int, TRACE("of all that is drawn (default: 0)", values=NATURAL)] = 0
    deadlines: Annotated[
        tuple[float, float] | None,
        TRACE("draw deadlines, A to B durations after submission (Crius: 1:3)", "A:B", SPAN),
    ] = None
    cells_file: Annotated[
        Path | None,
        TRACE(
            "Cells of earlier runs, to which this one adds (default: of this cluster, beside the profile store)",
            flag="--cells",
            supplied=True,
            writes="folder",
        ),
    ] = None
    store: Annotated[
        Path | None,
        TRACE(
            "measured profiles and link tables, which count wherever they are (default: all Cells are modelled)", "PATH"
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(CodeOptions, TraceOptions):
    """One run of a trace under a policy, as a plain value that goes over to another process."""

    policy: Annotated[str, Option("its name, or package.module:Class (default: %(default)s)", "P")] = "fcfs"
    option: Annotated[
        Mapping[str, PolicyOption] | None,
        Option("an option of the policy; POLICY.K=V of one among several", "K=V", POLICY_OPTION, repeated=True),
    ] = None
    placer: Annotated[
        str, Option("which free devices a job gets: a rule's name, or package.module:Class (default: %(default)s)", "R")
    ] = "best-fit"
    placer_option: Annotated[
        Mapping[str, PolicyOption] | None,
        Option("an option of the rule; RULE.K=V of one among several", "K=V", POLICY_OPTION, repeated=True),
    ] = None
    placement_cost: Annotated[
        PlacementCost,
        RUN(
            "estimate: an iteration takes what the estimator says of the job's own seats, beside those who share their"
            " NICs and uplinks; none: what the Cell says, wherever the job sits (default: %(default)s)"
        ),
    ] = "none"
    defragment: Annotated[
        float | None,
        RUN("every S seconds the rule of placement may move running jobs, each of which restarts", "S", ROUND),
    ] = None
    network: Annotated[
        str,
        RUN(
            "fair: what jobs send passes the links of the site's fabric, on which those that meet share each of them"
            " max-min fairly, over time; seats have their price; crux, ours, ecmp, ...: a policy of `contention`"
            " (or package.module:Class of yours) decides over paths and levels whenever a job comes to the fabric or"
            " leaves it; none: nobody meets on a wire (default: %(default)s)",
            "none|fair|POLICY",
        ),
    ] = "none"
    network_option: Annotated[
        Mapping[str, PolicyOption] | None, RUN("an option of the network's policy", "K=V", POLICY_OPTION, repeated=True)
    ] = None
    network_levels: Annotated[
        int | None, RUN("priorities that the fabric leaves free (default: 8)", "K", POSITIVE_INT)
    ] = None
    network_change_s: Annotated[
        float | None,
        RUN(
            "a job whose paths or level the policy changes stands still so long (default: 0)",
            "S",
            DURATION,
            flag="--network-change-s",
        ),
    ] = None
    network_change_at_most: Annotated[
        int | None, RUN("of so many jobs that run a decision may change paths and levels", "N", NATURAL)
    ] = None
    round_s: Annotated[float | None, RUN("decide every S seconds (default: after every event)", "S", ROUND)] = None
    failures: Annotated[
        str | None, RUN("seconds between a node's failures and of a repair, or a CSV", "MTBF:REPAIR|FILE")
    ] = None
    restart_s: Annotated[float, RUN("(default: %(default)s)", "S", DURATION, flag="--restart-s")] = RESTART_S
    storage_bandwidth_bytes_per_s: Annotated[
        float,
        RUN(
            "bytes/s at which a restart reads and writes its checkpoint (default: %(default)s)",
            "B",
            BANDWIDTH,
            flag="--storage-bandwidth",
        ),
    ] = STORAGE_BANDWIDTH_BYTES_PER_S
    checkpoint_interval_s: Annotated[
        float,
        RUN(
            "progress between two checkpoints of a job; what came after the last is lost when a node fails"
            " (default: %(default)s; 0: nothing)",
            "S",
            DURATION,
        ),
    ] = CHECKPOINT_INTERVAL_S
    jct: Annotated[
        str | None,
        RUN(
            "predict durations by a model of `cellplan jct train`, or learn from jobs as they end (default:"
            " policies see the trace's durations)",
            "MODEL|online",
        ),
    ] = None
    until_s: Annotated[float | None, RUN("end the simulation then", "S", SECONDS)] = None

    def check(self) -> None:
        """Of several policies some are code of the user's: whether none is, `SweepOptions` says of all."""


@dataclass(frozen=True, kw_only=True)
class SimulateOptions(ReplayOptions):
    """One run with the files that it keeps and writes. `stop` says whether it must end, which it does with a
    checkpoint, where there is a file for it, and KeyboardInterrupt."""

    checkpoint: Annotated[Path | None, RUN("keep there what it takes to go on", writes="file")] = None
    checkpoint_every_s: Annotated[float, RUN("this machine's seconds (default: 60)", "S", DURATION)] = 60.0
    resume: Annotated[bool, RUN("go on from --checkpoint, where there is one")] = False
    jobs_csv: Annotated[Path | None, FILES("a row for each job", writes="file")] = None
    series_csv: Annotated[Path | None, FILES("the cluster over time", writes="file")] = None
    timeline: Annotated[Path | None, FILES("who sat where when, for Perfetto (.json, .json.gz)", writes="file")] = None
    plot: Annotated[Path | None, FILES("throughput, queue and JCTs (.svg, .png)", writes="file")] = None
    report: ReportFile = None
    bound: Annotated[bool, FILES("also say what no policy can beat, and how far this one is")] = False
    progress: ProgressHook = field(default=None, compare=False, repr=False)
    stop: Annotated[Callable[[], bool] | None, HOOK] = field(default=None, compare=False, repr=False)

    def check(self) -> None:
        """Raise InputError for a run that goes on from no file, or keeps none every so often."""
        if self.checkpoint is None and "checkpoint_every_s" in self.changed():
            found = f"{self.checkpoint_every_s:g} without --checkpoint"
            raise self.wrong("checkpoint_every_s", found=found, expected="the file to keep")
        if self.resume and self.checkpoint is None:
            raise self.wrong("resume", found="no --checkpoint", expected="the file to go on from")


SINGLE_AND_SEVERAL = (
    ("policy", "policies"),
    ("placer", "placers"),
    ("network", "networks"),
    ("load", "loads"),
    ("seed", "seeds"),
)
"""Options of one run, and those of many in their place."""


@dataclass(frozen=True, kw_only=True)
class SweepOptions(ReplayOptions):
    """A run for each policy, rule of placement, network, seed and load. An option `crius.depth` is one of the policy
    `crius` alone."""

    policies: Annotated[tuple[str, ...] | None, MANY("in place of --policy", "P,Q,...")] = None
    placers: Annotated[tuple[str, ...] | None, MANY("in place of --placer", "R,S,...")] = None
    networks: Annotated[tuple[str, ...] | None, MANY("in place of --network", "N,M,...")] = None
    seeds: Annotated[tuple[int, ...] | None, MANY("in place of --seed", "A..B|LIST", SEEDS)] = None
    loads: Annotated[tuple[float, ...] | None, MANY("in place of --load", values=LOADS)] = None
    workers: Annotated[int, MANY("processes (default: 1)")] = 1
    ray: Annotated[str | None, MANY("run on this Ray cluster (`auto`: the one that runs here)", "ADDRESS")] = None
    csv: Annotated[Path | None, MANY("a row for each run", writes="file")] = None
    report: ReportFile = None
    progress: ProgressHook = field(default=None, compare=False, repr=False)

    def check(self) -> None:
        """Raise InputError where several are given beside the one that they are in place of, or one comes twice; for a
        limit of code that nothing names."""
        CodeOptions.check(self)
        for single, several in SINGLE_AND_SEVERAL:
            values: tuple[Any, ...] | None = getattr(self, several)
            if values is None:
                continue
            if single in self.changed():
                raise self.wrong(several, found=f"--{single} too", expected="one of them")
            if not values or len(set(values)) != len(values):
                given = ",".join(map(str, values)) or "nothing"
                raise self.wrong(several, found=given, expected="one or more, each once")
