"""Arnold's queue: nodes are kept for a large job that is announced, and others use them until it comes."""

from __future__ import annotations

from collections.abc import Collection
from math import ceil, inf
from typing import Literal, get_args

from planner.many_jobs.jobs.records import Decision, Grant, Job, JobState, Reservation, Stateless, View
from planner.many_jobs.scheduling.pool_networks import nodes_by_pod
from planner.many_jobs.scheduling.queueing import can_run, expected_remaining_s
from planner.many_jobs.scheduling.zone_choice import (
    Stop,
    ZoneRequest,
    cheapest_zone,
    least_spread_zone,
)
from planner.many_jobs.scheduling.zone_floor import Floor
from planner.one_job.pods.methods import METHODS

Variant = Literal["arnold", "best-effort", "no-prediction", "true-durations", "no-reservation", "ours"]
Decides = Literal["interval", "point"]
FOREVER_S = 1e9
"""A job that waits too long keeps its nodes until it starts; a reservation has to say some end."""
STOPPED_BESIDE = 0.5
"""What stopping a job costs whatever its size, as a share of a node's devices: of two jobs with as many devices as one,
the one is stopped."""


class Arnold(Stateless):
    """Algorithm 1 of Arnold (sections 5.3, G and H): a zone is reserved for a job that is announced, others go outside
    it, or inside if they should end before it comes, else they wait.

    The listing's slips, and what stands in their place here:

    - it overwrites its argument J by what it takes off the queue: the announced job and the others are told apart;
    - `request < free` turns away a job that fits exactly: it starts;
    - it compares a predicted duration with a time of day: here the end, now + what is left, with the arrival;
    - it never looks whether the zone has room: a job goes there where enough of its nodes are free;
    - nor starts the announced job: when it comes, who sits in its zone is stopped, and it starts there;
    - Q <- O forgets the order and who came meanwhile: the queue is sorted anew by priority and arrival each time;
    - a sleep stands for events: it decides at each (or at rounds, as the driver asks).

    A job that starts inside takes nodes outside first. A preemptible one goes anywhere. A zone is given up `hold_s`
    after the time that was announced, or when the job is cancelled; the job then queues like all others. One that comes
    sooner starts once its zone is free, at the latest at that time.

    Nobody starves: of the jobs of a pool that have waited for `patience_s` the oldest gets a zone of its own, of the
    nodes that should be free first, where nobody else may start; until it has found one no other zone begins there.

    Args:
        variant: "arnold"; "best-effort": whoever does not fit outside goes inside, and nobody is stopped for the
            announced job, which waits (reserving and packing); "no-prediction": the zone stays empty; "true-durations":
            ends are as they will be; "no-reservation": an announced job is like any other; "ours": the zone is the
            cheapest by predicted ends, jobs that would have to be stopped, and spread, and when the job comes nodes
            that are still taken are exchanged for free ones.
        decides: whether the end of the predictor's 90% interval, or its point, must lie before the arrival (None: the
            interval's; for "ours" the point). Without a predictor the duration that a job came with is both.
        hold_s: see above.
        patience_s: see above.
        method: of `planner.one_job.pods`, places the job into pods.
        alpha: what a DP group's spread weighs beside a PP group's.
        stop_cost_s: what stopping a job costs, in seconds of its devices and of half a node's beside them ("ours").
        spread_cost: the share of its time that the announced job loses by a pod more of spread ("ours").
    """

    name = "arnold"

    def __init__(
        self,
        *,
        variant: Variant = "arnold",
        decides: Decides | None = None,
        hold_s: float = 1800.0,
        patience_s: float = 86_400.0,
        method: str = "arnold",
        alpha: float = 0.5,
        stop_cost_s: float = 7200.0,
        spread_cost: float = 0.01,
    ) -> None:
        for name, value, words in (
            ("variant", variant, get_args(Variant)),
            ("decides", decides or "point", get_args(Decides)),
            ("method", method, tuple(METHODS)),
        ):
            if value not in words:
                raise ValueError(f"{name} is {value!r}, and must be one of {', '.join(words)}")
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha is {alpha}, and must be a share from 0 to 1")
        for name, seconds in (("hold_s", hold_s), ("patience_s", patience_s), ("stop_cost_s", stop_cost_s)):
            if not 0 <= seconds < inf:
                raise ValueError(f"{name} is {seconds}, and must be 0 or more")
        if not 0 <= spread_cost < inf:
            raise ValueError(f"spread_cost is {spread_cost}, and must be 0 or more")
        self._decides = decides or ("point" if variant == "ours" else "interval")
        self._variant, self._hold_s, self._patience_s = variant, hold_s, patience_s
        self._method, self._alpha, self._stop_cost_s, self._spread_cost = method, alpha, stop_cost_s, spread_cost

    def decide(self, view: View) -> Decision:
        """Reserve for who is announced, start who has come to a zone of its own, then the queue."""
        turn = _Turn(view)
        queue = sorted(view.waiting.values(), key=_order)
        self._reserve_for_oldest(turn, queue)
        if self._variant != "no-reservation":
            self._reserve(turn)
        for state in queue:
            if state.job.id in turn.zones:
                self._start_in_own_zone(turn, state)
        for state in sorted((*queue, *turn.stopped), key=_order) if turn.stopped else queue:
            if state.job.id not in turn.grants or state in turn.stopped:
                self._start(turn, state)
        return Decision(grants=turn.grants, reservations=turn.reservations)

    def _reserve(self, turn: _Turn) -> None:
        """Zones for those that are announced, the first to come first; other nodes for those of a zone that failed."""
        view = turn.view
        coming = (job for job in view.planned.values() if job.planned is not None)
        for job in sorted(coming, key=lambda job: (_arrival_s(job), job.id)):
            zone = view.reservations.get(job.id)
            floor = turn.floor(job.pool)
            if zone is None and _arrival_s(job) + self._hold_s > view.now_s and job.pool not in turn.closed:
                self._keep(turn, job, self._zone(turn, job))
            elif zone is not None and any(node in floor.down for node in zone.nodes):
                self._mend(turn, job, zone)

    def _keep(self, turn: _Turn, job: Job, nodes: tuple[int, ...] | None) -> None:
        if nodes is not None:
            arrival_s = _arrival_s(job)
            until_s = arrival_s + self._hold_s
            turn.keep(Reservation(job=job.id, pool=job.pool, nodes=nodes, arrival_s=arrival_s, until_s=until_s))

    def _mend(self, turn: _Turn, job: Job, zone: Reservation) -> None:
        """Others in the place of nodes that failed: wholly free ones first, as far as there are others."""
        floor = turn.floor(zone.pool)
        usable = [node for node in floor.outside if node not in floor.down]
        spare = iter(sorted(usable, key=lambda node: floor.counts[node] != floor.size))
        nodes = tuple(next(spare, node) if node in floor.down else node for node in zone.nodes)
        if nodes != zone.nodes:
            self._keep(turn, job, nodes)

    def _zone(self, turn: _Turn, job: Job) -> tuple[int, ...] | None:
        """The nodes to keep for an announced job; None where there are too few, or it can never run there."""
        floor = turn.floor(job.pool)
        usable = [node for node in floor.outside if node not in floor.down]
        if not can_run(turn.view, job):
            return None
        request = self._request(turn, job, usable)
        if not request.fits:
            return None
        if self._variant == "ours":
            return cheapest_zone(request)
        return least_spread_zone(request, {node for node in usable if floor.counts[node] < floor.size})

    def _request(self, turn: _Turn, job: Job, usable: Collection[int]) -> ZoneRequest:
        view, floor = turn.view, turn.floor(job.pool)
        wanted, arrival_s = ceil(job.devices / floor.size), _arrival_s(job)
        columns = _columns(view, job, wanted)
        ahead_s = max(0.0, arrival_s - view.now_s)
        idle = {node: floor.counts[node] * ahead_s for node in usable}
        stops = []
        for state, seats in floor.seated if self._variant == "ours" else ():
            end_s = view.now_s + expected_remaining_s(view, state)
            if end_s > arrival_s or ahead_s == 0.0:
                devices = state.job.devices + STOPPED_BESIDE * floor.size
                cost = devices * (0.0 if state.job.preemptible else self._stop_cost_s)
                stops.append(Stop(nodes=frozenset(node for node, _ in seats), cost=cost))
            else:
                for node, count in seats:
                    if node in idle:
                        idle[node] += count * (arrival_s - end_s)
        return ZoneRequest(
            rows=wanted // columns,
            columns=columns,
            pods=nodes_by_pod(view.networks[job.pool], usable),
            idle=idle,
            stops=tuple(stops),
            alpha=self._alpha,
            pod_cost=self._spread_cost * job.devices * job.duration_s if self._variant == "ours" else 0.0,
            method=self._method,
        )

    def _reserve_for_oldest(self, turn: _Turn, queue: list[JobState]) -> None:
        """A zone in each pool for the job that has waited longest there, if that is too long and it has none."""
        view = turn.view
        late = [state for state in queue if state.waited_s >= self._patience_s and state.job.id not in turn.zones]
        served = {zone.pool for zone in turn.zones.values() if not zone.lent}
        for state in sorted(late, key=lambda state: (-state.waited_s, state.job.id)):
            job = state.job
            if job.pool in served or not can_run(view, job):
                continue
            served.add(job.pool)
            floor = turn.floor(job.pool)
            ends = dict.fromkeys((node for node in floor.outside if node not in floor.down), 0.0)
            for running, seats in floor.seated:
                for node, _ in seats:
                    if node in ends:
                        ends[node] = max(ends[node], expected_remaining_s(view, running))
            wanted = ceil(job.devices / floor.size)
            nodes = tuple(sorted(ends, key=lambda node: (ends[node], node))[:wanted])
            if len(nodes) == wanted:
                until_s = view.now_s + FOREVER_S
                turn.keep(
                    Reservation(
                        job=job.id, pool=job.pool, nodes=nodes, arrival_s=view.now_s, until_s=until_s, lent=False
                    )
                )
            else:
                turn.closed.add(job.pool)

    def _start_in_own_zone(self, turn: _Turn, state: JobState) -> None:
        """Start a job that came to its zone; whoever sits there is stopped for one that was announced."""
        job = state.job
        floor, zone = turn.floor(job.pool), turn.zones[job.id]
        nodes = zone.nodes
        if zone.lent and self._variant == "ours":
            nodes = self._exchanged(turn, job, zone)
        if zone.lent and self._variant != "best-effort" and floor.down.isdisjoint(nodes):
            places = set(nodes)
            sitters = [who.job for who, seats in floor.seated if any(node in places for node, _ in seats)]
            if turn.view.now_s >= zone.arrival_s or all(sitter.preemptible for sitter in sitters):
                floor.stop_on(places, turn.stop)
        made = floor.start_on(nodes, job.devices)
        if made is not None:
            turn.start(state, made)

    def _exchanged(self, turn: _Turn, job: Job, zone: Reservation) -> tuple[int, ...]:
        """The cheapest nodes of the zone and of the free ones outside, now that the job has come."""
        floor = turn.floor(job.pool)
        if turn.view.now_s < zone.arrival_s or len(floor.whole(zone.nodes)) == len(zone.nodes):
            return zone.nodes
        usable = {*zone.nodes, *floor.whole(floor.outside)} - floor.down
        request = self._request(turn, job, usable)
        return cheapest_zone(request) if request.fits else zone.nodes

    def _start(self, turn: _Turn, state: JobState) -> None:
        """Outside of all zones, else where it may be inside, else it waits."""
        job = state.job
        floor = turn.floor(job.pool)
        if job.devices > floor.free or not can_run(turn.view, job):
            return
        zone = turn.zones.get(job.id)
        if zone is not None and turn.view.now_s < zone.arrival_s:
            return
        made = floor.start(job.devices, named=state.grant is not None)
        if made is None and floor.zones:
            lenders = self._lenders(turn, state, floor)
            made = floor.start(job.devices, lenders) if lenders else None
        if made is not None:
            turn.start(state, made)

    def _lenders(self, turn: _Turn, state: JobState, floor: Floor) -> list[str]:
        """For whom the zones are where the job may sit for now."""
        lenders, ends_s = list[str](), inf
        anywhere = state.job.preemptible or self._variant == "best-effort"
        if not anywhere and self._variant != "no-prediction":
            ends_s = self._ends_s(turn.view, state)
        for zone in floor.zones.values():
            if zone.job == state.job.id or (zone.lent and (anywhere or ends_s <= zone.arrival_s)):
                lenders.append(zone.job)
        return lenders

    def _ends_s(self, view: View, state: JobState) -> float:
        """The time of day by which the job should have ended if it starts now as it asked."""
        job = state.job
        restart_s = view.restart_s(job) if state.attained_device_s > 0 else 0.0
        if self._variant == "true-durations":
            iteration_s = view.iteration_time_s(job, Grant(parts=((job.pool, job.devices),)))
            return inf if iteration_s is None else (view.now_s + restart_s) + state.remaining_iterations * iteration_s
        interval = view.predicted_interval_s(job) if self._decides == "interval" else None
        if interval is None:
            return view.now_s + expected_remaining_s(view, state)
        left = min(1.0, state.remaining_iterations / job.iterations) if job.iterations > 0 else 0.0
        return view.now_s + restart_s + (interval[1] * left if left else 0.0)


class _Turn:
    """What one decision has come to so far. `closed` are pools where no zone may begin: one waits there for its own."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.zones = dict(view.reservations)
        self.grants: dict[str, Grant | None] = {}
        self.reservations: dict[str, Reservation | None] = {}
        self.stopped: list[JobState] = []
        self.closed: set[str] = set()
        self._floors: dict[str, Floor] = {}

    def floor(self, pool: str) -> Floor:
        """The nodes of a pool."""
        if pool not in self._floors:
            self._floors[pool] = Floor(self.view, pool)
        return self._floors[pool]

    def keep(self, zone: Reservation) -> None:
        """A zone begins, or changes."""
        self.reservations[zone.job] = self.zones[zone.job] = zone
        self.floor(zone.pool).keep(zone)

    def stop(self, state: JobState) -> None:
        """A job leaves."""
        self.stopped.append(state)
        self.grants[state.job.id] = None

    def start(self, state: JobState, made: Grant) -> None:
        """A job starts; a zone of its own ends."""
        self.grants[state.job.id] = made
        self.reservations.pop(state.job.id, None)
        zone = self.zones.pop(state.job.id, None)
        if zone is not None:
            self.floor(zone.pool).free_zone(zone.job)


def _order(state: JobState) -> tuple[int, float, str]:
    return -state.job.priority, state.job.submit_s, state.job.id


def _arrival_s(job: Job) -> float:
    return job.submit_s if job.planned is None else job.planned.arrival_s


def _columns(view: View, job: Job, nodes: int) -> int:
    """The columns of the job's matrix of nodes: the stages of its Cell; where they do not take nodes alike, one."""
    best = view.cells.best(job.workload, job.pool, job.devices)
    stages = 1 if best is None else best.stages
    if stages >= nodes:
        return nodes if stages % nodes == 0 else 1
    return stages if nodes % stages == 0 else 1
