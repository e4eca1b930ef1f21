"""The machines of a cluster with the GPUs of each by index: free, or held and by whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property

from planner.many_jobs.placement.free_now import occupancy_of
from planner.one_job.free_devices.coming_free import EQUAL_S, Occupancy
from planner.one_job.free_devices.nodes import FreeNode, brief
from planner.one_job.free_devices.reading import named_by, read_free_nodes, with_free_nodes
from planner.one_job.free_devices.running_records import RunningJob
from planner.one_job.site_pods.free_nodes import alike_nodes
from planner.shared.options.place import PlaceOptions
from profiles.cluster import Cluster, DeviceSlot, NodeGroup, map_groups
from profiles.errors import InputError
from profiles.records import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A node: where it stands in the cluster, `parts` of the network's tree that prices tell apart, the indices of its
    `free` GPUs, and those that each job holds. `held` counts GPUs that no job of the file holds and that are not free;
    `barred`: it takes no new job."""

    site: str
    node: int
    host: str
    group: int
    device: str
    size: int
    island: int
    parts: tuple[int, ...]
    free: tuple[int, ...]
    jobs: Mapping[str, tuple[int, ...]]
    held: int = 0
    barred: bool = False

    @property
    def kind(self) -> tuple[str, str, int]:
        """What a job's machines have in common: site, device, and how many of them."""
        return self.site, self.device, self.size

    @property
    def is_idle(self) -> bool:
        """Whether all of its GPUs are free."""
        return len(self.free) == self.size

    def slots(self, count: int) -> tuple[DeviceSlot, ...]:
        """Return so many of its free GPUs, on as few islands as can be, of these the tightest."""
        islands: dict[int, list[int]] = {}
        for index in self.free:
            islands.setdefault(index // self.island, []).append(index)
        taken: list[int] = []
        while len(taken) < count:
            left = count - len(taken)
            holding = [indices for indices in islands.values() if len(indices) >= left]
            island = min(holding, key=len) if holding else max(islands.values(), key=len)
            taken += island[:left]
            islands = {number: indices for number, indices in islands.items() if indices is not island}
        return tuple(
            DeviceSlot(site=self.site, node=self.node, index=index, group=self.group, device=self.device)
            for index in sorted(taken)
        )

    def idle(self) -> Machine:
        """Return it as if all of it were free."""
        return replace(self, free=tuple(range(self.size)), jobs={}, held=0)

    def without(self, ended: Collection[str]) -> Machine:
        """Return it once these jobs have ended."""
        gone = [job for job in self.jobs if job in ended]
        if not gone or self.barred:
            return self
        freed = {index for job in gone for index in self.jobs[job]}
        jobs = {job: gpus for job, gpus in self.jobs.items() if job not in ended}
        return replace(self, free=tuple(sorted({*self.free, *freed})), jobs=jobs)


@dataclass(frozen=True, kw_only=True)
class Occupied:
    """All machines of a cluster, whose nodes have names, and what is known of the jobs on them (None: nothing).
    `notes` say what was assumed."""

    cluster: Cluster
    machines: tuple[Machine, ...]
    occupancy: Occupancy | None
    notes: tuple[str, ...]

    @cached_property
    def running(self) -> Mapping[str, RunningJob]:
        """The jobs that hold some of it, by name."""
        if self.occupancy is None:
            return {}
        return {job.job: job for jobs in self.occupancy.jobs_on.values() for job in jobs}

    def after(self, wait_s: float) -> tuple[Machine, ...]:
        """Return the machines when all jobs have ended whose end comes within so long."""
        if not wait_s or self.occupancy is None:
            return self.machines
        ended = {job for job in self.occupancy.endings if self.end_s(job) <= wait_s + EQUAL_S}
        return tuple(machine.without(ended) for machine in self.machines)

    def end_s(self, job: str) -> float:
        """Return in how many seconds a job ends, whose end is known."""
        assert self.occupancy is not None, "somebody said which jobs run"
        return self.occupancy.ends_in_s(job)

    def comes_free_s(self, machine: Machine) -> float | None:
        """Return when the last job on it ends; None where nobody knows, 0 where none is on it."""
        if self.occupancy is None:
            return None if len(machine.free) < machine.size else 0.0
        ends = [self.end_s(job) if job in self.occupancy.endings else None for job in machine.jobs]
        if machine.held or any(end is None for end in ends):
            return None
        return max((end for end in ends if end is not None), default=0.0)


def read_occupied(cluster: Cluster, options: PlaceOptions) -> Occupied:
    """Return the machines of a cluster as `--free` and `--running` have them. Nodes get the names of the file where the
    cluster has none.

    Raise InputError for a GPU that a node lacks, one that two jobs hold, and for what the files' readers refuse.
    """
    told = None if options.free is None else read_free_nodes(options.free)
    cluster = map_groups(cluster, lambda group: replace(group, free=None))
    notes: list[str] = []
    if told is not None:
        unnamed = not all(site.network.hosts for site in cluster.sites)
        cluster = named_by(cluster, told, str(options.free))
        seen = with_free_nodes(cluster, told, str(options.free), lenient=options.lenient or unnamed)
        notes += [note for note in seen.notes if note not in cluster.notes]
    occupancy = occupancy_of(cluster, options)
    told_of = {} if told is None else {node.name: node for node in told.nodes}
    machines = tuple(_machine(place, told_of, told is not None, occupancy) for place in _places(cluster))
    notes += _notes(machines, told_of, occupancy)
    return Occupied(cluster=cluster, machines=machines, occupancy=occupancy, notes=tuple(notes))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    site: str
    node: int
    host: str
    number: int
    group: NodeGroup
    parts: tuple[int, ...]


def _places(cluster: Cluster) -> Iterator[_Place]:
    for site in cluster.sites:
        node, parts = 0, alike_nodes(site.network)
        for number, group in enumerate(site.nodes):
            for _ in range(group.count):
                yield _Place(
                    site=site.name,
                    node=node,
                    host=site.network.hosts[node],
                    number=number,
                    group=group,
                    parts=parts[node] if parts else (),
                )
                node += 1


def _machine(place: _Place, told: Mapping[str, FreeNode], is_told: bool, occupancy: Occupancy | None) -> Machine:
    node, size = told.get(place.host), place.group.devices
    here = () if occupancy is None else occupancy.jobs_on.get(place.host, ())
    jobs = _known_gpus(here, place.host, size, "" if occupancy is None else occupancy.where)
    known = {index for gpus in jobs.values() for index in gpus}
    unsaid = [job.job for job in here if job.gpus_on(place.host) is None and job.count_on(place.host) is None]
    if node is None:
        busy = set(range(size)) if is_told or unsaid else known
    else:
        busy = known | set(_held(node, known, size))
        if unsaid and not busy - known:
            busy = set(range(size))  # A job is on it, whatever the older file says.
    counted = _counted_gpus(here, place.host, busy - known, [index for index in range(size) if index not in busy])
    jobs |= counted
    known |= {index for gpus in counted.values() for index in gpus}
    busy |= known
    spare = sorted(busy - known)
    if unsaid:
        share = -(-len(spare) // len(unsaid))
        jobs |= {job: tuple(spare[number * share : (number + 1) * share]) for number, job in enumerate(unsaid)}
        spare = []
    return Machine(
        site=place.site,
        node=place.node,
        host=place.host,
        group=place.number,
        device=place.group.device.name,
        size=size,
        island=min(place.group.island_size, size),
        parts=place.parts,
        free=tuple(index for index in range(size) if index not in busy),
        jobs=jobs,
        held=len(spare),
        barred=node.barred if node is not None else is_told,
    )


def _known_gpus(jobs: Sequence[RunningJob], host: str, size: int, where: str) -> dict[str, tuple[int, ...]]:
    """The GPUs of a host that jobs are known to hold. InputError for one that it lacks, or that two hold."""
    holder: dict[int, str] = {}
    known: dict[str, tuple[int, ...]] = {}
    for job in jobs:
        gpus = job.gpus_on(host)
        if gpus is None:
            continue
        for index in gpus:
            key = f"job {job.job}: GPU {index} of {host}"
            if index >= size:
                expected = f"an index from 0 to {size - 1}: {host} has {size} GPUs"
                raise InputError(where=where, key=key, found=f"GPU {index}", expected=expected)
            if index in holder:
                raise InputError(
                    where=where, key=key, found=f"job {holder[index]} on it, too", expected="one job a GPU"
                )
            holder[index] = job.job
        known[job.job] = gpus
    return known


def _counted_gpus(
    jobs: Sequence[RunningJob], host: str, held: Collection[int], free: Sequence[int]
) -> dict[str, tuple[int, ...]]:
    """The GPUs of jobs that say how many they hold of a host: of those that nobody says whose they are, then, where an
    older file of nodes counts fewer, of the free ones."""
    left = [*sorted(held), *free]
    counted = {}
    for job in jobs:
        count = job.count_on(host)
        if count is not None:
            counted[job.job], left = tuple(sorted(left[:count])), left[count:]
    return counted


def _held(node: FreeNode, known: set[int], size: int) -> Sequence[int]:
    """The indices that are not free by the word on the node: those that it names, else those that jobs are known to
    hold and, up to its number, the last ones."""
    beyond = range(node.devices, size)
    if node.held is not None and len(node.held) == node.devices - node.free:
        return [*node.held, *beyond]
    others = [index for index in reversed(range(node.devices)) if index not in known]
    more = max(0, node.devices - node.free - len(known))
    return [*others[:more], *beyond]


def _notes(machines: Sequence[Machine], told: Mapping[str, FreeNode], occupancy: Occupancy | None) -> Iterator[str]:
    counted = [
        machine.host
        for machine in machines
        for node in (told.get(machine.host),)
        if node is not None and node.held is None and 0 < node.free < node.devices
    ]
    if counted:
        yield (
            "how many GPUs are held is said of these nodes, not which (scontrol show node -d says it): those of jobs"
            f" that say theirs, then the last ones: {brief(counted)}"
        )
    if occupancy is None:
        return
    yield from occupancy.notes
    shared = Counter(
        host
        for host, jobs in occupancy.jobs_on.items()
        if len(jobs) > 1 and any(job.gpus_on(host) is None and job.count_on(host) is None for job in jobs)
    )
    if shared:
        yield f"jobs share these nodes and do not say which GPUs are whose, taken in equal parts: {brief(list(shared))}"
