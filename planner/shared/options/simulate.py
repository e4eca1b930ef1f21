"""The options of `simulate`: of one run, and of many."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from planner.shared.options.record import HOOK, Option, Options, ProgressHook
from planner.shared.options.values import (
    AMOUNT,
    NATURAL,
    RATE,
    SECONDS,
    SPAN,
    TEXTS,
    Values,
    WrongValueError,
    list_of,
    read_whole,
)

TraceFormat = Literal["auto", "cellplan", "philly", "helios", "pai", "sacct"]
Fractional = Literal["round-up", "refuse"]
Counts = Literal["keep", "powers"]
Oversize = Literal["refuse", "clip", "spread"]
UnknownDevice = Literal["refuse", "draw"]
PolicyOption = str | int | float | bool | None

RESTART_S = 60.0
STORAGE_BANDWIDTH_BYTES_PER_S = 2e9
CHECKPOINT_INTERVAL_S = 1800.0

THE_TRACE = "the trace"
THE_RUN = "the run"
FILES = "files of one run"
MANY = "many runs"


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
    if not 0 < len(seeds) <= 10_000:
        raise WrongValueError(repr(word), "a range such as 0..4 of at most 10000 seeds")
    return tuple(seeds)


POLICY_OPTION = Values(expected="NAME=VALUE such as depth=3", read=_read_policy_option)
SEEDS = Values(expected="whole numbers of at least 0, or a range such as 0..4", read=_read_seeds)


@dataclass(frozen=True, kw_only=True)
class TraceOptions(Options):
    """Where jobs, pools and Cells come from."""

    command: ClassVar[str] = "simulate"

    trace: Annotated[Path, Option(help="jobs as people submitted them", metavar="TRACE")] = field(kw_only=False)
    cluster: Annotated[str, Option(help="such as a40:16x2+a10:16x2, or a YAML file", metavar="C")]
    format: Annotated[TraceFormat, Option(help="(default: %(default)s, by its first line)", group=THE_TRACE)] = "auto"
    lenient: Annotated[
        bool,
        Option(help="skip malformed lines and count them (not models or devices that there are not)", group=THE_TRACE),
    ] = False
    fractional: Annotated[Fractional, Option(help="parts of a GPU", group=THE_TRACE)] = "round-up"
    counts: Annotated[Counts, Option(help="devices as asked, or powers of two", group=THE_TRACE)] = "keep"
    oversize: Annotated[
        Oversize,
        Option(
            help="jobs larger than any pool; spread: over several pools of one type, for policies that join sites",
            group=THE_TRACE,
        ),
    ] = "refuse"
    unknown_device: Annotated[UnknownDevice, Option(help="rows on a device that no pool has", group=THE_TRACE)] = (
        "refuse"
    )
    window_s: Annotated[
        tuple[float, float] | None,
        Option(help="jobs submitted in [A, B) seconds", metavar="A:B", flag="--window", values=SPAN, group=THE_TRACE),
    ] = None
    head: Annotated[int | None, Option(help="the first N jobs", metavar="N", group=THE_TRACE)] = None
    load: Annotated[float, Option(help="jobs arrive F times as fast", metavar="F", values=RATE, group=THE_TRACE)] = 1.0
    seed: Annotated[
        int, Option(help="of all that is drawn (default: 0)", metavar="N", values=NATURAL, group=THE_TRACE)
    ] = 0
    deadlines: Annotated[
        tuple[float, float] | None,
        Option(
            help="draw deadlines, A to B durations after submission (Crius: 1:3)",
            metavar="A:B",
            values=SPAN,
            group=THE_TRACE,
        ),
    ] = None
    cells_file: Annotated[
        Path | None,
        Option(
            help="Cells of earlier runs, to which this one adds (default: of this cluster, beside the profile store)",
            metavar="FILE",
            flag="--cells",
            group=THE_TRACE,
            supplied=True,
        ),
    ] = None
    store: Annotated[
        Path | None,
        Option(
            help="measured profiles and link tables, which count wherever they are (default: all Cells are modelled)",
            metavar="PATH",
            group=THE_TRACE,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(TraceOptions):
    """One run of a trace under a policy, as a plain value that goes over to another process."""

    policy: Annotated[str, Option(help="its name, or package.module:Class (default: %(default)s)", metavar="P")] = (
        "fcfs"
    )
    option: Annotated[
        Mapping[str, PolicyOption] | None,
        Option(
            help="an option of the policy; POLICY.K=V of one among several",
            metavar="K=V",
            values=POLICY_OPTION,
            repeated=True,
        ),
    ] = None
    round_s: Annotated[
        float | None,
        Option(
            help="decide every S seconds (default: after every event)",
            metavar="S",
            flag="--round",
            values=SECONDS,
            group=THE_RUN,
        ),
    ] = None
    failures: Annotated[
        str | None,
        Option(
            help="seconds between a node's failures and of a repair, or a CSV",
            metavar="MTBF:REPAIR|FILE",
            group=THE_RUN,
        ),
    ] = None
    restart_s: Annotated[float, Option(help="(default: %(default)s)", metavar="S", values=AMOUNT, group=THE_RUN)] = (
        RESTART_S
    )
    storage_bandwidth_bytes_per_s: Annotated[
        float,
        Option(
            help="bytes/s at which a restart reads and writes its checkpoint (default: %(default)s)",
            metavar="B",
            flag="--storage-bandwidth",
            values=RATE,
            group=THE_RUN,
        ),
    ] = STORAGE_BANDWIDTH_BYTES_PER_S
    checkpoint_interval_s: Annotated[
        float,
        Option(
            help="progress between two checkpoints of a job; what came after the last is lost when a node fails"
            " (default: %(default)s; 0: nothing)",
            metavar="S",
            flag="--checkpoint-interval",
            values=AMOUNT,
            group=THE_RUN,
        ),
    ] = CHECKPOINT_INTERVAL_S
    jct: Annotated[
        str | None,
        Option(
            help="predict durations by a model of `cellplan jct train`, or learn from jobs as they end (default:"
            " policies see the trace's durations)",
            metavar="MODEL|online",
            group=THE_RUN,
        ),
    ] = None
    until_s: Annotated[
        float | None,
        Option(help="end the simulation then", metavar="S", flag="--until", values=SECONDS, group=THE_RUN),
    ] = None


@dataclass(frozen=True, kw_only=True)
class SimulateOptions(ReplayOptions):
    """One run with the files that it keeps and writes. `stop` says whether it must end, which it does with a
    checkpoint, where there is a file for it, and KeyboardInterrupt."""

    checkpoint: Annotated[
        Path | None, Option(help="keep there what it takes to go on", metavar="FILE", group=THE_RUN)
    ] = None
    checkpoint_every_s: Annotated[
        float,
        Option(
            help="this machine's seconds (default: 60)",
            metavar="S",
            flag="--checkpoint-every",
            values=AMOUNT,
            group=THE_RUN,
        ),
    ] = 60.0
    resume: Annotated[bool, Option(help="go on from --checkpoint, where there is one", group=THE_RUN)] = False
    jobs_csv: Annotated[Path | None, Option(help="a row for each job", metavar="FILE", group=FILES)] = None
    series_csv: Annotated[Path | None, Option(help="the cluster over time", metavar="FILE", group=FILES)] = None
    timeline: Annotated[
        Path | None,
        Option(help="who sat where when, for Perfetto (.json, .json.gz)", metavar="FILE", group=FILES),
    ] = None
    plot: Annotated[
        Path | None, Option(help="throughput, queue and JCTs (.svg, .png)", metavar="FILE", group=FILES)
    ] = None
    bound: Annotated[bool, Option(help="also say what no policy can beat, and how far this one is", group=FILES)] = (
        False
    )
    progress: ProgressHook = field(default=None, compare=False, repr=False)
    stop: Annotated[Callable[[], bool] | None, HOOK] = field(default=None, compare=False, repr=False)

    def check(self) -> None:
        """Raise InputError for a run that goes on from no file."""
        if self.resume and self.checkpoint is None:
            raise self.wrong("resume", found="no --checkpoint", expected="the file to go on from")


@dataclass(frozen=True, kw_only=True)
class SweepOptions(ReplayOptions):
    """A run for each policy, seed and load. An option `crius.depth` is one of the policy `crius` alone."""

    policies: Annotated[
        tuple[str, ...] | None,
        Option(help="in place of --policy", metavar="P,Q,...", values=TEXTS, group=MANY),
    ] = None
    seeds: Annotated[
        tuple[int, ...] | None, Option(help="in place of --seed", metavar="A..B|LIST", values=SEEDS, group=MANY)
    ] = None
    loads: Annotated[
        tuple[float, ...] | None,
        Option(help="in place of --load", metavar="LIST", values=list_of(RATE), group=MANY),
    ] = None
    workers: Annotated[int, Option(help="processes (default: 1)", metavar="N", group=MANY)] = 1
    ray: Annotated[
        str | None,
        Option(help="run on this Ray cluster (`auto`: the one that runs here)", metavar="ADDRESS", group=MANY),
    ] = None
    csv: Annotated[Path | None, Option(help="a row for each run", metavar="FILE", group=MANY)] = None
    progress: ProgressHook = field(default=None, compare=False, repr=False)

    def check(self) -> None:
        """Raise InputError where several are given beside the one that they are in place of, or one comes twice."""
        for single, several in (("policy", "policies"), ("load", "loads"), ("seed", "seeds")):
            values: tuple[Any, ...] | None = getattr(self, several)
            if values is None:
                continue
            if single in self.changed():
                raise self.wrong(several, found=f"--{single} too", expected="one of them")
            if not values or len(set(values)) != len(values):
                found = ",".join(map(str, values)) or "nothing"
                raise self.wrong(several, found=found, expected="one or more, each once")
