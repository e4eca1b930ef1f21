"""What schedulers speak of: jobs, pools of equal devices, grants, and what a policy sees and answers.

A pool is the devices of one type at one site. A grant is how many devices of which pools a job has, and as which Cell
it runs there. Policies see a `View` and answer with a `Decision`; who drives them (`planner.many_jobs.simulation`, or a
live cluster) places the devices, counts time and restarts, and checks everything.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from typing import Protocol

from profiles.cluster import SiteLink
from profiles.network import Network
from profiles.records import dataclass
from profiles.vocabulary import DType

AS_LOGGED = "as logged"
"""Stands for the model of a job of which nothing is known but how long it ran on its devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a job trains, as far as its speed goes: jobs with equal workloads share all Cells. `model` as on the command
    line; `seq_len` None: the model's own. Of `AS_LOGGED` `global_batch` is the devices that it ran on: on any other
    number of them nothing is known of it."""

    model: str
    global_batch: int
    seq_len: int | None = None
    dtype: DType = "bf16"

    @property
    def logged_devices(self) -> int | None:
        """The only devices on which it runs, an iteration a second; None: it is a model's."""
        return self.global_batch if self.model == AS_LOGGED else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """That a job is planned: known at `known_s`, to come at `arrival_s` (both times of day). It may come sooner or
    later than that; `cancelled`: it does not come, and its `submit_s` is when that is told."""

    known_s: float
    arrival_s: float
    cancelled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as it was submitted. `devices` of `pool` are what it asked for (its N_G); `iterations` its work, fixed
    before any policy runs. `duration_s` is what the trace says it took. `deadline_s` is a time of day like `submit_s`,
    not a span. Higher `priority` goes first. `checkpoint_bytes` are written and read at every restart. `planned`: it
    was announced before. `preemptible`: it agreed to be suspended for others. `hosts`: where it sat in its trace, in
    the order of its ranks, with how many devices on each."""

    id: str
    submit_s: float
    pool: str
    devices: int
    workload: Workload
    iterations: float
    duration_s: float
    user: str = ""
    virtual_cluster: str = ""
    priority: int = 0
    deadline_s: float | None = None
    checkpoint_bytes: int = 0
    # Not among what names a job in a checkpoint, which has them apart: jobs without them are what they always were.
    planned: Announcement | None = field(default=None, repr=False)
    preemptible: bool = field(default=False, repr=False)
    hosts: tuple[tuple[str, int], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Equal devices at one site: `nodes` of `devices_per_node` each. `devices` counts those of nodes that work."""

    name: str
    site: str
    device: str
    nodes: int
    devices_per_node: int
    devices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CellOption:
    """A Cell as a scheduler sees it: `devices` of `pool` in `stages`, what an iteration takes there, and the assembly
    ("dp", "tp" of each stage)."""

    pool: str
    devices: int
    stages: int
    iteration_time_s: float
    assembly: tuple[str, ...]


NodeCounts = tuple[tuple[int, int], ...]
"""Nodes of a pool by number, each with how many of its devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Devices for a job: so many of each pool, and the stages of the Cell it runs as (None: the fastest there).

    `planner` names who makes its plan (`planner.many_jobs.scheduling.sites.planners`), over several sites too; empty:
    it runs as a Cell, on one pool. `nodes`: of each pool the nodes, in the order of the ranks, with how many devices of
    each; empty: who drives the policy places them, outside all reservations. `turns`: jobs whose grants have the same
    name of turns sit on the same devices and take turns there (`grant_in_turns`); empty: its devices are its own.
    """

    parts: tuple[tuple[str, int], ...]
    stages: int | None = None
    planner: str = ""
    nodes: tuple[tuple[str, NodeCounts], ...] = ()
    turns: str = ""

    @property
    def devices(self) -> int:
        """Devices of all pools."""
        return sum(count for _, count in self.parts)


def grant(pool: str, devices: int, stages: int | None = None) -> Grant:
    """Return a grant of `devices` on one pool, run as the Cell with so many `stages` (None: the fastest)."""
    return Grant(parts=((pool, devices),), stages=stages)


def grant_on(pool: str, nodes: NodeCounts, stages: int | None = None) -> Grant:
    """Return a grant of these devices of these nodes of one pool."""
    return Grant(parts=((pool, sum(count for _, count in nodes)),), stages=stages, nodes=((pool, nodes),))


def grant_in_turns(pool: str, devices: int, turns: str, stages: int | None = None) -> Grant:
    """Return a grant of `devices` on one pool that all jobs share whose grants have this name of turns: of the same
    pool, with as many devices. The first of them is placed, the others join it and leave it as they come and go."""
    return Grant(parts=((pool, devices),), stages=stages, turns=turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What an iteration of a job needs of its devices and of the links between them, as far as it is known.

    Alone it takes `iteration_s`. For `compute_s` of that its devices compute (those of the stage that limits the
    pipeline); the rest it sends, or waits, with idle devices. `hidden_s` it sends behind its own compute.
    `memory_bytes` is what its fullest device holds, reserves included, of the device's `device_memory_bytes`.
    """

    iteration_s: float
    compute_s: float
    hidden_s: float = 0.0
    memory_bytes: int = 0
    device_memory_bytes: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.hidden_s <= self.compute_s <= self.iteration_s or self.iteration_s <= 0:
            stated = f"{self.iteration_s} s of which {self.compute_s} s compute and hide {self.hidden_s} s"
            raise ValueError(f"an iteration of {stated}; it takes time, computes for some, and hides no more than that")

    @property
    def rest_s(self) -> float:
        """Seconds of an iteration in which its devices do not compute."""
        return self.iteration_s - self.compute_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A zone: whole `nodes` of a pool, in the order of the ranks, kept for a job until it starts, and no longer than
    `until_s`. `arrival_s` is when the job should come (both times of day).

    Others get devices there by grants that name the nodes, and where the zone is not `lent` by none. Who sits there
    already stays until the policy says otherwise. Zones have no node in common.
    """

    job: str
    pool: str
    nodes: tuple[int, ...]
    arrival_s: float
    until_s: float
    lent: bool = True


class JobState(Protocol):
    """A job that has arrived and not ended. Read it, never write it; all figures are as of `View.now_s`."""

    @property
    def job(self) -> Job: ...
    @property
    def grant(self) -> Grant | None:
        """None while it waits."""

    @property
    def remaining_iterations(self) -> float: ...
    @property
    def attained_device_s(self) -> float:
        """Devices times seconds that it has held, restarts included; of devices that several jobs take turns on its
        equal part."""

    @property
    def waited_s(self) -> float:
        """Seconds without devices, since it was submitted."""

    @property
    def granted_s(self) -> float | None:
        """When it got its present grant."""

    @property
    def restarts(self) -> int: ...
    @property
    def iteration_now_s(self) -> float | None:
        """Seconds of an iteration where it sits, beside those who share something with it now; None while it waits."""

    @property
    def iteration_alone_s(self) -> float | None:
        """Seconds of an iteration where it sits if all others were gone; None while it waits."""

    @property
    def placement(self) -> Mapping[str, tuple[tuple[int, int], ...]]:
        """Where it runs: of each pool its nodes, each with its devices there as bits; empty while it waits."""


class NodeView(Protocol):
    """The nodes of a pool, by number. Live, and not to be changed."""

    @property
    def counts(self) -> Sequence[int]:
        """Free devices of each node; 0 of one that is down."""

    @property
    def down(self) -> Collection[int]:
        """Nodes that have failed and are not repaired yet."""


class CellBook(Protocol):
    """What is known of workloads on pools. All methods are cached: asking again costs nothing."""

    def options(self, workload: Workload, pool: str, devices: int) -> tuple[CellOption, ...]:
        """The Cells on so many devices that fit, one for each stage count, fastest first."""

    def best(self, workload: Workload, pool: str, devices: int) -> CellOption | None:
        """The fastest Cell there; None where none fits."""

    def data_parallel_s(self, workload: Workload, pool: str, devices: int) -> float | None:
        """Seconds an iteration as a scheduler believes that profiles data parallelism alone; where that never fits on
        this pool, scaled from the smallest Cell that does. None where not even that fits."""

    def least_devices(self, workload: Workload, pool: str) -> int | None:
        """The smallest power of two on which some Cell fits; None where none does on the whole pool."""


class View(Protocol):
    """What a policy sees. Its mappings are live and must not be changed."""

    @property
    def now_s(self) -> float: ...
    @property
    def pools(self) -> Mapping[str, Pool]: ...
    @property
    def free(self) -> Mapping[str, int]:
        """Devices of each pool that no job holds."""

    @property
    def waiting(self) -> Mapping[str, JobState]:
        """By id, in the order in which they began to wait."""

    @property
    def running(self) -> Mapping[str, JobState]:
        """By id, in the order in which they got their devices."""

    @property
    def arrived(self) -> Sequence[str]:
        """Ids submitted since the last decision."""

    @property
    def departed(self) -> Sequence[str]:
        """Ids that finished or were dropped since the last decision."""

    @property
    def cells(self) -> CellBook: ...
    @property
    def site_links(self) -> Sequence[SiteLink]:
        """What joins the pools' sites; empty where there is one, or nothing joins them."""

    @property
    def nodes(self) -> Mapping[str, NodeView]:
        """The nodes of each pool."""

    @property
    def networks(self) -> Mapping[str, Network]:
        """The tree above the nodes of each pool, and their names, where they have any."""

    @property
    def planned(self) -> Mapping[str, Job]:
        """Jobs that are announced and have neither come nor been cancelled, by id, in the order in which they became
        known."""

    @property
    def reservations(self) -> Mapping[str, Reservation]:
        """The zones, by the id of the job that each is for. One ends when its job starts, ends or is cancelled, and at
        its `until_s`."""

    def neighbours(self, id_: str) -> Collection[str]:
        """Ids of the running jobs that share something with this one now: a node's NICs, a cable, a link between
        sites. Empty where nothing is shared, and of a job that does not run."""

    def iteration_time_s(self, job: Job, grant: Grant) -> float | None:
        """What an iteration of the job really takes under a grant; None where it does not fit."""

    def use(self, job: Job, grant: Grant) -> Use | None:
        """What an iteration of the job's Cell needs under a grant; None where that is not known: such a job takes no
        turns with others."""

    def restart_s(self, job: Job) -> float:
        """What a change of grant, or coming back, costs the job."""

    def predicted_duration_s(self, job: Job) -> float | None:
        """What a predictor of completion times says of the job as it was submitted; None: there is none."""

    def predicted_interval_s(self, job: Job) -> tuple[float, float] | None:
        """Between which times the predictor expects its duration with 90%, as it was submitted (infinity: it does not
        say); None: there is no predictor, or one that says no intervals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What changes: for each job named, its new grant (None: it is suspended); and who is dropped for good. A job that
    is not named keeps what it has. All changes happen at once: what one gives up another may take. `reservations`: new
    zones, by the ids of their jobs (None: that zone ends); those not named stay."""

    grants: Mapping[str, Grant | None]
    dropped: tuple[str, ...] = ()
    reservations: Mapping[str, Reservation | None] = field(default_factory=dict)


class Policy(Protocol):
    """A scheduler. It may keep state of its own, which `state` and `restore` carry over a checkpoint as plain JSON."""

    @property
    def name(self) -> str: ...
    def decide(self, view: View) -> Decision:
        """Called after every batch of events of one time, or once a round. Must be deterministic."""

    def state(self) -> object: ...
    def restore(self, state: object) -> None: ...


class Stateless:
    """The base of policies that keep nothing."""

    def state(self) -> object:
        """Nothing."""
        return None

    def restore(self, state: object) -> None:
        """Nothing to do."""
