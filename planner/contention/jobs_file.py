"""The jobs of a file, each on its devices of a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from estimator.communication.collectives import time_collective
from estimator.communication.groups import describe_group
from estimator.network.connections import Seat
from estimator.network.traffic import Exchange, Span, Traffic
from planner.contention.jobs_schema import WrittenJob, WrittenJobs, WrittenTraffic
from planner.contention.plan_traffic import SentByPlan, read_own_places, sent_by_file, sent_by_model
from planner.one_job.free_devices.nodes import gpu_indices
from planner.one_job.free_devices.running_records import RunningJob
from profiles.cluster import Cluster, DeviceSlot
from profiles.errors import InputError, NothingFits
from profiles.host_lists import expand_hosts
from profiles.limits import LIMITS
from profiles.records import dataclass
from profiles.schema import validate
from profiles.yaml_files import read_yaml

HOSTS = "the hosts of each job, or a plan that names its own, or --running of `contention`"


MOST_NODES = 2**32


@dataclass(frozen=True, kw_only=True)
class PlacedJob:
    """A job on its devices, rank by rank. `flops`: nobody said what work its iteration is where None. Of two jobs on
    one link that of the lower `level` comes first; inside a level shares go by `weight`. `first_ports` draws its source
    ports (None: its first device does, so that neither other jobs nor their order in a file change them)."""

    id: str
    seats: tuple[Seat, ...]
    traffic: Traffic
    flops: float | None
    level: int = 0
    weight: float = 1.0
    first_ports: int | None = None

    @property
    def port_seed(self) -> int:
        """What draws its source ports, as `estimator.network.connections.playing_of` takes it."""
        if self.first_ports is not None:
            return self.first_ports
        first = min(self.seats, key=lambda seat: (seat.node, seat.device))
        return first.node + MOST_NODES * first.device


class Places:
    """A cluster's devices by the names of their hosts."""

    def __init__(self, cluster: Cluster) -> None:
        self._devices: list[list[DeviceSlot]] = []
        names: list[str] = []
        nodes: dict[tuple[str, int], int] = {}
        self._nodes = nodes
        hosts = {site.name: site.network.hosts for site in cluster.sites}
        for slot in cluster.slots:
            place = (slot.site, slot.node)
            if place not in nodes:
                nodes[place] = len(names)
                own = hosts[slot.site]
                names.append(own[slot.node] if own else f"node{len(names)}")
                self._devices.append([])
            self._devices[nodes[place]].append(slot)
        self.numbers = {name: number for number, name in enumerate(names)}
        self.names = tuple(names)

    @property
    def by_host(self) -> dict[str, Sequence[DeviceSlot]]:
        """The devices of each host."""
        return dict(zip(self.names, self._devices, strict=True))

    def seat(self, slot: DeviceSlot) -> Seat:
        """Return a device as the network numbers it."""
        return Seat(node=self._nodes[slot.site, slot.node], device=slot.index)

    def devices(self, node: int) -> Sequence[DeviceSlot]:
        """Return the devices of a node."""
        return self._devices[node]


def read_jobs(path: Path, cluster: Cluster, running: Mapping[str, RunningJob] | None = None) -> tuple[PlacedJob, ...]:
    """Return the jobs of the file at `path` on the devices of `cluster`; those that name no hosts sit where `running`
    says.

    Raises:
        InputError: a job twice, on a host that there is not, on a device with another, or with a plan for another
            number of devices; what is no such file.
    """
    where = str(path)
    written = validate(WrittenJobs, read_yaml(path), where=where)
    LIMITS.jobs.check(len(written.jobs), where=where)
    twice = next((name for name, count in Counter(job.id for job in written.jobs).items() if count > 1), None)
    if twice is not None:
        raise InputError(where=where, key="id", found=f"{twice!r} twice", expected="each job once")
    places = Places(cluster)
    jobs: list[PlacedJob] = []
    holders: dict[Seat, str] = {}
    for number, job in enumerate(written.jobs):
        key = f"jobs[{number}]"
        _check(job, where, key)
        seats = _seats(job, places, path, key, running)
        for seat in seats:
            other = holders.setdefault(seat, job.id)
            if other != job.id:
                found = f"device {seat.device} of {places.names[seat.node]}, which {other} has"
                raise InputError(where=where, key=f"{key}.hosts", found=found, expected="one job on a device")
        jobs.append(_placed(job, seats, places, cluster, path, key))
    return tuple(jobs)


def _seats(
    job: WrittenJob, places: Places, path: Path, key: str, running: Mapping[str, RunningJob] | None
) -> tuple[Seat, ...]:
    """Its devices, host by host in the order in which they are named; of a plan that alone names them, rank by rank."""
    where = str(path)
    runs = (running or {}).get(job.id)
    if job.hosts is not None:
        listed = job.hosts if isinstance(job.hosts, str) else ",".join(job.hosts)
        hosts = expand_hosts(listed, where, f"{key}.hosts")
        texts = [] if job.gpus is None else str(job.gpus).split("/")
        lists = [gpu_indices(text, None, where, f"{key}.gpus") for text in texts]
    elif runs is not None:
        hosts, lists = runs.hosts, list(runs.gpus)
    elif job.plan is not None:
        return tuple(places.seat(slot) for slot in read_own_places(path.parent / job.plan, places.by_host))
    else:
        found = "none" if running is None else f"none, and no job {job.id} among those that run"
        raise InputError(where=where, key=f"{key}.hosts", found=found, expected=HOSTS)
    if len(set(hosts)) < len(hosts):
        raise InputError(where=where, key=f"{key}.hosts", found="a host twice", expected="each host once")
    if lists and len(lists) not in (1, len(hosts)):
        expected = f"indices for each of {len(hosts)} hosts with a slash between, or one list for all"
        raise InputError(where=where, key=f"{key}.gpus", found=f"{len(lists)} lists", expected=expected)
    lists = lists * len(hosts) if len(lists) == 1 else lists
    seats: list[Seat] = []
    for number, host in enumerate(hosts):
        node = places.numbers.get(host)
        if node is None:
            expected = f"one of the cluster's {len(places.names)} hosts, such as {places.names[0]}"
            raise InputError(where=where, key=f"{key}.hosts", found=host, expected=expected)
        count = len(places.devices(node))
        indices = lists[number] if lists else tuple(range(count))
        wrong = next((index for index in indices if index >= count), None)
        if wrong is not None or len(set(indices)) < len(indices):
            found = f"{indices}" if wrong is None else f"GPU {wrong} of {host}"
            raise InputError(where=where, key=f"{key}.gpus", found=found, expected=f"each of 0 to {count - 1} once")
        seats += [Seat(node=node, device=index) for index in indices]
    return tuple(seats)


def _placed(
    job: WrittenJob, seats: tuple[Seat, ...], places: Places, cluster: Cluster, path: Path, key: str
) -> PlacedJob:
    slots = tuple(places.devices(seat.node)[seat.device] for seat in seats)
    if job.traffic is not None:
        traffic, flops = _by_hand(job, job.traffic, slots, cluster), job.traffic.flops
    else:
        sent = _by_plan(job, slots, cluster, path, key)
        seats = tuple(places.seat(slot) for slot in sent.slots)
        traffic, flops = sent.traffic, sent.traffic.flops
    return PlacedJob(id=job.id, seats=seats, traffic=traffic, flops=flops, level=job.level, weight=job.weight)


def _by_plan(job: WrittenJob, slots: tuple[DeviceSlot, ...], cluster: Cluster, path: Path, key: str) -> SentByPlan:
    if job.plan is not None:
        return sent_by_file(path.parent / job.plan, slots, cluster, job=job.id)
    return sent_by_model(str(job.model), job.degrees, slots, cluster, job=job.id, where=f"{path}: {key}")


def _check(job: WrittenJob, where: str, key: str) -> None:
    """Raise InputError unless it says in one way what it sends."""
    said = [name for name in ("traffic", "plan", "model") if getattr(job, name) is not None]
    if len(said) != 1:
        expected = "traffic, plan or model, one of them"
        if not said:
            expected += f"; `cellplan network measure` says what job {job.id} sends from counters of its NICs"
        raise InputError(where=where, key=key, found=" and ".join(said) or "none", expected=expected)
    if job.degrees and job.model is None:
        raise InputError(where=where, key=f"{key}.degrees", found=f"them beside {said[0]}", expected="model")
    if job.gpus is not None and job.hosts is None:
        raise InputError(where=where, key=f"{key}.gpus", found="them without hosts", expected="hosts")
    by_hand = job.traffic
    if by_hand is not None and by_hand.begins_s is not None and by_hand.begins_s > by_hand.compute_s:
        expected = f"at most compute_s, {by_hand.compute_s:g}: it begins while the job computes, or as that ends"
        raise InputError(where=where, key=f"{key}.traffic.begins_s", found=f"{by_hand.begins_s:g}", expected=expected)


def _by_hand(job: WrittenJob, written: WrittenTraffic, slots: Sequence[DeviceSlot], cluster: Cluster) -> Traffic:
    try:
        return traffic_by_hand(written, slots, cluster)
    except InputError as error:
        raise NothingFits(f"job {job.id} cannot communicate: {error}") from None


def traffic_by_hand(written: WrittenTraffic, slots: Sequence[DeviceSlot], cluster: Cluster) -> Traffic:
    """Return an iteration of so much compute and one collective, which alone takes what the estimate says. Raise
    InputError for nodes without NICs, or sites that no link joins."""
    exchanges: tuple[Exchange, ...] = ()
    if len(slots) > 1 and written.bytes > 0:
        took = time_collective(written.op, written.bytes, describe_group(cluster, slots))
        exchanges = (
            Exchange(
                axis="dp",
                op=written.op,
                size_bytes=written.bytes,
                groups=(tuple(range(len(slots))),),
                alone_s=took.seconds,
                times=written.times,
            ),
        )
    begins_s = written.compute_s if written.begins_s is None else written.begins_s
    span = Span(compute_s=written.compute_s, exchanges=exchanges, begins_s=begins_s)
    return Traffic(devices=len(slots), spans=(span,), flops=written.flops or 0.0)
