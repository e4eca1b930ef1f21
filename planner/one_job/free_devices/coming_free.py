"""A cluster as it is free now and later: the nodes that no job holds, and those that come free as running jobs end."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from planner.one_job.free_devices.endings import Ending, Prediction, ending_of
from planner.one_job.free_devices.nodes import FreeNode, FreeNodes, brief
from planner.one_job.free_devices.reading import read_free_nodes, with_free_nodes
from planner.one_job.free_devices.running_jobs import read_running
from planner.one_job.free_devices.running_records import RunningJob
from profiles.cluster import Cluster
from profiles.errors import InputError, NothingFits
from profiles.records import dataclass, replace

Predict = Callable[[Sequence[RunningJob], Cluster], Mapping[str, Prediction]]
"""What is predicted of running jobs on the nodes of a cluster, by job."""

EQUAL_S = 1.0
"""Ends that are nearer to each other are one."""
SOONEST_S = 60.0
"""A job that is beyond its time limit, or completes, ends within so long."""


@dataclass(frozen=True, kw_only=True)
class Occupancy:
    """What holds the nodes of `cluster`, all of which have names: `nodes` with what is free of each now, at `now_s`
    (seconds since 1970); the jobs on each host; when each job ends (none: nobody knows). `where` is the file of jobs;
    `notes` say what was assumed of them, `free_notes` what the file of free nodes left out."""

    cluster: Cluster
    nodes: tuple[FreeNode, ...]
    jobs_on: Mapping[str, tuple[RunningJob, ...]]
    endings: Mapping[str, Ending]
    now_s: float
    where: str
    lenient: bool
    predicted: bool
    notes: tuple[str, ...]
    free_notes: tuple[str, ...]

    @cached_property
    def waits_s(self) -> tuple[float, ...]:
        """Seconds from now to each coming end, the nearest first."""
        waits: list[float] = []
        for wait_s in sorted(map(self._wait_s, self.endings.values())):
            if not waits or wait_s > waits[-1] + EQUAL_S:
                waits.append(wait_s)
        return tuple(waits)

    def comes_free_s(self, host: str) -> float | None:
        """Return in how many seconds the last job on a host has ended, 0 where none is on it; None where nobody knows
        when."""
        return self._comes_free_s.get(host, 0.0)

    @cached_property
    def _comes_free_s(self) -> dict[str, float | None]:
        """The same of every host that a job is on."""
        waits_s: dict[str, float | None] = {}
        for host, jobs in self.jobs_on.items():
            ends = [self.endings.get(job.job) for job in jobs]
            known = [self._wait_s(end) for end in ends if end is not None]
            waits_s[host] = max(known, default=0.0) if len(known) == len(ends) else None
        return waits_s

    def ends_in_s(self, job: str) -> float:
        """Return in how many seconds a job ends. Raise KeyError for one whose end nobody knows."""
        return self._wait_s(self.endings[job])

    def ending_at(self, wait_s: float) -> tuple[str, ...]:
        """Return the jobs that end then."""
        waits_s, jobs = self._ends
        ending = jobs[bisect_left(waits_s, wait_s) : bisect_right(waits_s, wait_s + EQUAL_S)]
        return tuple(job for _, job in sorted(ending))

    @cached_property
    def _ends(self) -> tuple[list[float], list[tuple[int, str]]]:
        """Seconds to the end of every job, the nearest first; the number and name of each."""
        ends = sorted((self._wait_s(end), number, job) for number, (job, end) in enumerate(self.endings.items()))
        return [wait_s for wait_s, _, _ in ends], [(number, job) for _, number, job in ends]

    def chance_free(self, hosts: Sequence[str], wait_s: float) -> float:
        """Return the chance that all jobs on these hosts have ended then."""
        jobs = {job.job for host in hosts for job in self.jobs_on.get(host, ())}
        chance = 1.0
        for job in sorted(jobs):
            chance *= self.endings[job].chance_by(self.now_s + wait_s + EQUAL_S) if job in self.endings else 0.0
        return chance

    def free_nodes(self, wait_s: float | None) -> tuple[FreeNode, ...]:
        """Return the nodes with what is free of each after waiting so long; None: now."""
        return tuple(self._later(node, wait_s) for node in self.nodes)

    def free_devices(self, wait_s: float | None) -> int:
        """Return how many devices are free then."""
        waits_s, devices = self._freed
        coming = 0 if wait_s is None else bisect_right(waits_s, wait_s + EQUAL_S)
        return devices[coming]

    @cached_property
    def _freed(self) -> tuple[list[float], list[int]]:
        """Seconds to the coming free of each node, the nearest first; the devices that are free when none, one, ... of
        them have."""
        coming: list[tuple[float, int]] = []
        for node in self.nodes:
            wait_s = self._node_wait_s(node)
            if wait_s is not None:
                coming.append((wait_s, node.devices - node.free))
        coming.sort()
        now = sum(node.free for node in self.nodes)
        return [wait_s for wait_s, _ in coming], list(accumulate((more for _, more in coming), initial=now))

    def cluster_at(self, wait_s: float | None) -> Cluster:
        """Return the cluster as it is free then. Raise NothingFits where nothing is."""
        free = FreeNodes(nodes=self.free_nodes(wait_s), notes=(*self.free_notes, *self.notes))
        return with_free_nodes(self.cluster, free, self.where, lenient=self.lenient)

    def first_with(self, devices: int) -> float | None:
        """Return after how many seconds so many devices are free: 0 now, None never."""
        if self.free_devices(None) >= devices:
            return 0.0
        # What is free only grows.
        number = bisect_left(self.waits_s, True, key=lambda wait_s: self.free_devices(wait_s) >= devices)
        return self.waits_s[number] if number < len(self.waits_s) else None

    def _wait_s(self, end: Ending) -> float:
        return max(SOONEST_S, end.likely_s - self.now_s)

    def _node_wait_s(self, node: FreeNode) -> float | None:
        """In how many seconds a node comes free that jobs are on; None where none is, or nobody knows, or it is kept
        from jobs."""
        return None if node.barred else self._comes_free_s.get(node.name)

    def _later(self, node: FreeNode, wait_s: float | None) -> FreeNode:
        comes_s = self._node_wait_s(node)
        if wait_s is None or comes_s is None or comes_s > wait_s + EQUAL_S:
            return node
        return replace(node, free=node.devices)


def read_occupancy(
    cluster: Cluster,
    running: Path,
    *,
    free: Path | None = None,
    predict: Predict | None = None,
    now_s: float | None = None,
    lenient: bool = False,
) -> Occupancy:
    """Return what holds the nodes of `cluster`: the jobs of the file `running`; what is free now by the file `free`
    (None: what no job is on). `predict` says how long these jobs run; without it they run to their time limits. `now_s`
    None: when the file of jobs was written, or now.

    Raise InputError for a cluster whose nodes have no names, or a host that it lacks, unless `lenient`.
    """
    where = str(running)
    if not all(site.network.hosts for site in cluster.sites):
        expected = "a cluster whose nodes have names: --topology FILE, or `names` in the cluster file"
        raise InputError(where=where, found=f"jobs on hosts, and no names in {cluster.text}", expected=expected)
    told = read_running(running)
    predicted = None if predict is None else predict(told.jobs, cluster)
    if predicted is not None and told.jobs and all(job.start_s is None for job in told.jobs):
        raise InputError(where=where, found="no start of any job", expected="squeue --json, where --jct is given")
    now_s = now_s if now_s is not None else told.written_s if told.written_s is not None else time.time()
    jobs_on, absent = _by_host(told.jobs, cluster, where, lenient=lenient)
    held = {job.job for jobs in jobs_on.values() for job in jobs}
    endings = {}
    for job in told.jobs:
        end = ending_of(job, (predicted or {}).get(job.job), now_s) if job.job in held else None
        if end is not None:
            endings[job.job] = end
    told_free = None if free is None else read_free_nodes(free)
    nodes, notes = _nodes_now(cluster, told_free, jobs_on, str(free))
    if absent:
        notes.append(f"hosts of jobs that {cluster.text} does not have are left out: {brief(absent)}")
    past = sorted(job.job for job in told.jobs if job.job in held and job.limit_s is not None and job.limit_s < now_s)
    if past:
        notes.append(f"jobs whose end has passed, counted as ending now: {brief(past)}")
    endless = sorted(held - endings.keys())
    if endless:
        notes.append(f"jobs whose end nobody knows, so that their nodes never come free here: {brief(endless)}")
    if predicted is not None:
        notes += _by_limit_notes({job.job: job for job in told.jobs if job.job in held}, predicted, endings)
    return Occupancy(
        cluster=cluster,
        nodes=nodes,
        jobs_on=jobs_on,
        endings=endings,
        now_s=now_s,
        where=where,
        lenient=lenient,
        predicted=predicted is not None,
        notes=tuple(notes),
        free_notes=() if told_free is None else tuple(f"{free}: {note}" for note in told_free.notes),
    )


def _by_limit_notes(
    jobs: Mapping[str, RunningJob], predicted: Mapping[str, Prediction], endings: Mapping[str, Ending]
) -> Iterator[str]:
    """Notes on the jobs that end by their time limits though predictions were asked for, and why."""
    why: defaultdict[str, list[str]] = defaultdict(list)
    for name in sorted(jobs):
        if name not in endings:
            continue
        if name not in predicted:
            why["jobs without a prediction"].append(name)
        elif jobs[name].start_s is None:
            why["jobs predicted, whose start nobody knows"].append(name)
        elif endings[name].by_limit:
            why["jobs that have outrun their prediction, or whose limit comes before it"].append(name)
    for what, names in why.items():
        yield f"{what}, by their time limits: {brief(names)}"


def _by_host(
    jobs: Sequence[RunningJob], cluster: Cluster, where: str, *, lenient: bool
) -> tuple[dict[str, tuple[RunningJob, ...]], list[str]]:
    """The jobs on every host, and the hosts that the cluster lacks."""
    names = {host for site in cluster.sites for host in site.network.hosts}
    on: defaultdict[str, list[RunningJob]] = defaultdict(list)
    absent: dict[str, None] = {}
    for job in jobs:
        for host in dict.fromkeys(job.hosts):
            if host in names:
                on[host].append(job)
            elif lenient:
                absent[host] = None
            else:
                expected = f"one of the {len(names)} nodes that {cluster.text} has (or --lenient)"
                raise InputError(where=where, key=f"job {job.job}", found=f"the host {host}", expected=expected)
    return {host: tuple(jobs_here) for host, jobs_here in on.items()}, list(absent)


def _nodes_now(
    cluster: Cluster, told: FreeNodes | None, jobs_on: Mapping[str, tuple[RunningJob, ...]], where: str
) -> tuple[tuple[FreeNode, ...], list[str]]:
    """The nodes with what is free of each now, and notes: by what the file `where` told, but for wholly free ones that
    a job is on; without a file all that no job is on."""
    if told is None:
        return tuple(_nodes_without(cluster, jobs_on)), []
    notes = []
    taken = [node.name for node in told.nodes if node.free == node.devices and jobs_on.get(node.name)]
    if taken:
        notes.append(f"idle by {where}, and a job is on them, so that they count as busy: {brief(taken)}")
    idle = Counter(bool(jobs_on.get(node.name)) for node in told.nodes if not node.free and not node.barred)
    if idle[False]:
        notes.append(f"busy by {where}, and no job that runs is on them, so that they never come free: {idle[False]}")
    names = set(taken)
    return tuple(replace(node, free=0) if node.name in names else node for node in told.nodes), notes


def _nodes_without(cluster: Cluster, jobs_on: Mapping[str, tuple[RunningJob, ...]]) -> Iterator[FreeNode]:
    """The nodes of the cluster, wholly free but for those that a job is on."""
    for site in cluster.sites:
        groups = [group for group in site.nodes for _ in range(group.count)]
        for host, group in zip(site.network.hosts, groups, strict=True):
            name, count = group.device.name, group.devices
            yield FreeNode(name=host, device=name, said=name, devices=count, free=0 if jobs_on.get(host) else count)


def too_few(occupancy: Occupancy, devices: int, cluster: str) -> NothingFits:
    """Return what is raised where too few devices are free now: how many, and when enough come free."""
    free = occupancy.free_devices(None)
    said = f"{devices} devices wanted, {free} free now: {devices - free} too few"
    first_s = occupancy.first_with(devices)
    if first_s is None:
        most = max((occupancy.free_devices(wait_s) for wait_s in occupancy.waits_s), default=free)
        return NothingFits(f"{cluster}: {said}; when all jobs whose end is known have ended {most} are")
    jobs = occupancy.ending_at(first_s)
    ends = f"job{'s' * (len(jobs) > 1)} {brief(list(jobs), 4)} end{'s' * (len(jobs) == 1)}"
    return NothingFits(
        f"{cluster}: {said}; {occupancy.free_devices(first_s)} are in {first_s / 3600:.3g} h, when {ends}"
        " (--reserve places the job then)"
    )
