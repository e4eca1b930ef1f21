"""What a simulation is told besides jobs, pools, Cells and policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from estimator.communication.phases import Algorithm
from planner.many_jobs.jobs.records import Grant, Job, Use
from planner.many_jobs.placers.records import Available, Placer
from planner.many_jobs.simulation.failures import Failures
from planner.many_jobs.simulation.placing import Pieces
from planner.many_jobs.simulation.seat_shapes import PartLevel
from planner.shared.options.simulate import CHECKPOINT_INTERVAL_S, RESTART_S, STORAGE_BANDWIDTH_BYTES_PER_S
from profiles.cluster import SiteLink
from profiles.errors import InputError
from profiles.network import Network
from profiles.records import dataclass

Placement = Mapping[str, Pieces]
"""Where a job sits: for each pool, its nodes and the devices there, see `planner.many_jobs.simulation.placing`."""

Truth = Callable[[Job, Grant, Placement | None], float | None]
"""Seconds that an iteration of the job really takes; None where it does not fit. Without a placement: on whatever nodes
it may get. It must be a function of its arguments alone."""


Uses = Callable[[Job, Grant], Use | None]
"""What an iteration of the job needs of its devices and links; None where that is not known. A function of its
arguments alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seated:
    """A running job with its grant, where it sits, and what it shares there: names of things that others may use too,
    each with how much of it. `mates`: who else takes turns on its devices; `uses` is then what all of them use."""

    job: Job
    grant: Grant
    placement: Placement
    uses: Mapping[str, int]
    mates: tuple[Seated, ...] = ()


class Sharing(Protocol):
    """How jobs slow each other: what a job uses of what others use too (the workers of a node, a link between sites, a
    cable), and how long iterations take side by side. Jobs that share something, by way of others too, are a component;
    whenever a job comes or goes, its component is asked for anew, and those whose times are others go on at their new
    speed. Both must be functions of their arguments alone."""

    def uses(self, job: Job, grant: Grant, placement: Placement) -> Mapping[str, int]:
        """How much the job uses of what, by name; empty if it shares nothing."""

    def iterations_s(self, together: Sequence[Seated]) -> Sequence[float]:
        """Seconds of an iteration of each job of a component, beside all the others of it; of one job: alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steered:
    """What a policy of the network has made of running jobs, by number: seconds of an iteration of each that is on it,
    and how long those have to stand still whose paths or levels it changed."""

    seconds: Mapping[int, float]
    pauses_s: Mapping[int, float]


@runtime_checkable
class Steering(Protocol):
    """A `Sharing` whose times follow from what a policy decides for all running jobs at once, and has decided before:
    it keeps what is in force. `iterations_s` it answers for one job alone."""

    @property
    def policy_name(self) -> str: ...
    @property
    def decisions(self) -> int: ...
    @property
    def changes(self) -> int: ...
    @property
    def calls_s(self) -> Sequence[float]: ...

    def steer(self, running: Mapping[int, Seated]) -> Steered:
        """Have the policy decide for all running jobs, by number; called whenever one that shares something came or
        went."""

    def state(self) -> dict[str, Any]:
        """Return what is in force and what was counted, as JSON takes it."""

    def restore(self, state: Mapping[str, Any], running: Mapping[int, Seated]) -> None:
        """Go on from `state`, with these jobs running. Raise KeyError, TypeError, ValueError or IndexError for what is
        none."""


@runtime_checkable
class SharedInTurns(Protocol):
    """A `Sharing` that knows jobs that take turns on the same devices (`Seated.mates`): of these its `iterations_s`
    says the seconds of a round, in which each of them makes an iteration."""

    def uses_in_turns(self, mates: Sequence[Seated]) -> Mapping[str, int]:
        """How much jobs that take turns use of what, by name."""


@runtime_checkable
class NetworkShares(Protocol):
    """A `Sharing` of NICs and uplinks that can say what is left of them."""

    def available(self, pool: str, in_use: Mapping[str, int]) -> Available:
        """Return the bytes/s left in a pool beside what is in use, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What an iteration of a job is: floating-point operations of all of its devices (Crux, eq. 1), and the seconds in
    which they compute, summed over them."""

    flops: float
    busy_device_s: float


@runtime_checkable
class KnowsWork(Protocol):
    """A `Sharing` that knows what iterations are made of."""

    def work(self, job: Job, grant: Grant, placement: Placement) -> Work | None:
        """Return what an iteration computes; None of a job of which nothing is known but its time."""


class Predictor(Protocol):
    """A predictor of durations that learns while the simulation runs."""

    def submitted(self, job: Job, now_s: float) -> float: ...
    def finished(self, job: Job, now_s: float) -> None: ...


@runtime_checkable
class IntervalPredictor(Protocol):
    """A predictor that also says between which times it expects a duration."""

    def interval_s(self, job: Job) -> tuple[float, float]:
        """Return the 90% interval, in seconds, of a job that was `submitted` and has not finished; infinity above where
        it does not say."""


class PolicyError(InputError):
    """A policy decided what cannot be: says which policy, at what time, and about which job."""


class PlacerError(InputError):
    """A rule of placement gave or moved what cannot be: says which rule, at what time, and to or of which job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFile:
    """Where a run writes what it needs to go on: at least `every_s` seconds of this machine's clock apart; `resume`:
    go on from what the file holds, if it is there. `label` says what else must be the same then (the options of the
    policy and of the rule of placement, which the simulator does not see)."""

    path: Path
    every_s: float = 60.0
    resume: bool = False
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a simulation runs.

    `round_s`: the policy decides at the multiples of so many seconds; None: after every event. A restart costs
    `restart_s` + the job's checkpoint bytes / `storage_bandwidth_bytes_per_s`, the first start `start_s`. A job whose
    node fails goes on from the last of its checkpoints, which it writes every `checkpoint_interval_s` seconds of
    progress (0: it loses nothing). At `until_s` all stops, and what runs or waits is unfinished. `truth` None: the
    Cells' own times, on one pool. `site_links` are those between the pools' sites and `networks` the trees above the
    nodes of pools, for policies to see. `placer` says which devices a job gets whose grant names no nodes (None: best-
    fit, see `planner.many_jobs.simulation.placing`), and `seat_times` what it is told that an iteration takes where
    (None: nothing). `uses` says what jobs need that take turns on the same devices (None: nobody knows, and none does).
    `defragment_s`: at the multiples of so many seconds the placer may move running jobs, each of which
    restarts (None: never). `uplinks` are those above the nodes of pools, whose load is counted. `sharing` None: jobs do
    not slow each other; else `truth` is what policies are told, and `sharing` what is so. `prices` of a device's hour
    are by pool, and `all_reduce` is the algorithm by whose flows gradients are counted between nodes: neither changes
    what happens. `series` and `slices`: keep the figures of every event, and who sat where when. Every `look_every`
    events the run looks at the clock for its checkpoint and its progress, and whether `stop` wants it to end, which it
    does with a checkpoint, where there is a file for it, and KeyboardInterrupt.
    """

    round_s: float | None = None
    restart_s: float = RESTART_S
    storage_bandwidth_bytes_per_s: float = STORAGE_BANDWIDTH_BYTES_PER_S
    start_s: float = 0.0
    failures: Failures | None = None
    checkpoint_interval_s: float = CHECKPOINT_INTERVAL_S
    until_s: float | None = None
    truth: Truth | None = None
    site_links: tuple[SiteLink, ...] = ()
    networks: Mapping[str, Network] = field(default_factory=dict)
    uplinks: Mapping[str, tuple[PartLevel, ...]] = field(default_factory=dict)
    placer: Placer | None = None
    seat_times: Truth | None = None
    uses: Uses | None = None
    defragment_s: float | None = None
    sharing: Sharing | None = None
    prices: Mapping[str, float] = field(default_factory=dict)
    all_reduce: Algorithm = "ring"
    predictor: Predictor | None = None
    series: bool = False
    slices: bool = False
    checkpoint: CheckpointFile | None = None
    stop: Callable[[], bool] | None = None
    look_every: int = 256
    progress: Callable[[int, int, float | None, str], None] | None = None

    def __post_init__(self) -> None:
        for name in ("round_s", "defragment_s", "storage_bandwidth_bytes_per_s", "until_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} is {value}, and must be above 0")
        if self.look_every < 1:
            raise ValueError(f"look_every is {self.look_every}, and must be 1 or more")
        for name in ("restart_s", "start_s", "checkpoint_interval_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, and must be 0 or more")
