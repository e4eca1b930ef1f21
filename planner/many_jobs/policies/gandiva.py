"""Gandiva: jobs go wherever devices are free, take turns where they are not, and grow into idle ones."""

from __future__ import annotations

from collections.abc import Iterator

from planner.many_jobs.jobs.records import Decision, Grant, JobState, Stateless, View, grant
from planner.many_jobs.scheduling.beliefs import believed_rate
from planner.many_jobs.scheduling.queueing import can_run


class Gandiva(Stateless):
    """The mechanisms of Xiao et al., "Gandiva: Introspective Cluster Scheduling for Deep Learning", OSDI 2018 (section
    3: suspend-resume, migration, grow-shrink; section 4: reactive and introspective mode). It ignores the types of
    devices (Crius section 8.1): a pool is as good as another.

    Waiting jobs, longest waiting first, start with as many devices as they asked for on the pool with the largest free
    share. Where none has room, jobs that have grown shrink back; then one running job is migrated to another pool if
    that makes room; then jobs that have had their turn of `quantum_s` are suspended and go to the end of the queue. If
    nobody waits that could run, running jobs double their devices while the data-parallel profile promises at least
    `grow_gain` times the rate, the largest promise first, up to `grow_limit` times what they asked for.

    Simplifications: no two jobs share a device, so there is no packing, and turns are changed by checkpoint and restart
    at the engine's price (theirs: about a second, at a quantum of one minute), hence the long quantum. Choosing nodes
    within a pool is the engine's matter. Turns end when the policy is next asked.
    """

    name = "gandiva"

    def __init__(self, *, quantum_s: float = 3600.0, grow_gain: float = 1.3, grow_limit: int = 4) -> None:
        self._quantum_s, self._grow_gain, self._grow_limit = float(quantum_s), float(grow_gain), int(grow_limit)

    def decide(self, view: View) -> Decision:
        """Place, take turns, grow."""
        board = _Board(view)
        unplaced = 0
        hopeless = set[int]()
        for state in view.waiting.values():
            devices = state.job.devices
            # Whoever is as large as one for which no room could be made is tried again only at the next decision.
            if devices in hopeless and devices > max(board.free.values(), default=0):
                continue
            if not board.homes(state) or board.start(state):
                continue
            unplaced += 1
            if devices in hopeless:
                continue
            if not (board.shrink_for(state) or board.migrate_for(state) or board.turn_for(state, self._quantum_s)):
                hopeless.add(devices)
        if not unplaced:
            self._grow(board)
        return Decision(grants=board.found)

    def _grow(self, board: _Board) -> None:
        view = board.view
        wishes = list[tuple[float, float, str, int]]()
        for id_, (pool, count) in board.held.items():
            job = board.states[id_].job
            if board.states[id_].grant is None or 2 * count > self._grow_limit * job.devices:
                continue
            if board.free[pool] < count or not can_run(view, job, pool, 2 * count):
                continue
            granted_s = board.states[id_].granted_s
            if granted_s is not None and view.now_s < granted_s + min(600.0, self._quantum_s):
                continue
            now = believed_rate(view.cells, job.workload, pool, count)
            then = believed_rate(view.cells, job.workload, pool, 2 * count)
            if now and then and then / now >= self._grow_gain:
                wishes.append((-then / now, job.submit_s, id_, count))
        for _, _, id_, count in sorted(wishes):
            pool = board.held[id_][0]
            if id_ not in board.found and board.free[pool] >= count:
                board.give(id_, pool, 2 * count)


class _Board:
    """The devices while a decision is made: who holds what, what is free, and what has been decided."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.free = dict(view.free)
        self.found: dict[str, Grant | None] = {}
        self.states: dict[str, JobState] = dict(view.running)
        self.held = {id_: state.grant.parts[0] for id_, state in view.running.items() if state.grant}
        self._homes: dict[str, list[str]] = {}
        self._grown = [id_ for id_, (_, count) in self.held.items() if count > self.states[id_].job.devices]

    def homes(self, state: JobState) -> list[str]:
        """The pools that the job fits on, were they empty; it is known from then on."""
        id_, devices = state.job.id, state.job.devices
        if id_ not in self._homes:
            self.states[id_] = state
            self._homes[id_] = [pool for pool in self.view.pools if can_run(self.view, state.job, pool, devices)]
        return self._homes[id_]

    def give(self, id_: str, pool: str | None, devices: int = 0) -> None:
        """Change what a job holds; None: suspend it."""
        if id_ in self.held:
            old, count = self.held.pop(id_)
            self.free[old] += count
        if pool is None:
            self.found[id_] = None
            return
        self.free[pool] -= devices
        self.held[id_] = (pool, devices)
        self.found[id_] = grant(pool, devices)

    def start(self, state: JobState) -> bool:
        """Start the job on the pool with the largest free share that has room."""
        job = state.job
        pool = self._roomiest(state)
        if pool is None:
            return False
        self.give(job.id, pool, job.devices)
        return True

    def _roomiest(self, state: JobState, besides: str | None = None) -> str | None:
        fits = [pool for pool in self.homes(state) if self.free[pool] >= state.job.devices and pool != besides]
        return max(fits, key=lambda pool: self.free[pool] / self.view.pools[pool].devices, default=None)

    def _untouched(self, pool: str) -> Iterator[tuple[str, int]]:
        """Who runs on the pool and has not been decided about."""
        return ((id_, count) for id_, (name, count) in self.held.items() if name == pool and id_ not in self.found)

    def shrink_for(self, state: JobState) -> bool:
        """Take back what jobs have grown by, until the job fits somewhere."""
        for pool in self.homes(state) if self._grown else ():
            grown = [id_ for id_ in self._grown if id_ not in self.found and self.held[id_][0] == pool]
            grown = [id_ for id_ in grown if pool in self.homes(self.states[id_])]
            extra = sum(self.held[id_][1] - self.states[id_].job.devices for id_ in grown)
            if self.free[pool] + extra < state.job.devices:
                continue
            for id_ in grown:
                if self.free[pool] >= state.job.devices:
                    break
                self.give(id_, pool, self.states[id_].job.devices)
            if self.start(state):
                return True
        return False

    def migrate_for(self, state: JobState) -> bool:
        """Move the smallest running job that makes room on its pool to another pool."""
        for pool in self.homes(state):
            lacking = state.job.devices - self.free[pool]
            for id_, count in sorted(self._untouched(pool), key=lambda entry: (entry[1], entry[0])):
                if count < lacking or count != self.states[id_].job.devices:
                    continue
                target = self._roomiest(self.states[id_], besides=pool)
                if target is not None:
                    self.give(id_, target, count)
                    return self.start(state)
        return False

    def turn_for(self, state: JobState, quantum_s: float) -> bool:
        """Suspend those who have had their turn for longest, until the job fits somewhere."""
        for pool in self.homes(state):
            had = [
                (granted_s, id_, count)
                for id_, count in self._untouched(pool)
                if (granted_s := self.states[id_].granted_s) is not None and granted_s + quantum_s <= self.view.now_s
            ]
            if self.free[pool] + sum(count for _, _, count in had) < state.job.devices:
                continue
            for _, id_, _ in sorted(had):
                if self.free[pool] >= state.job.devices:
                    break
                self.give(id_, None)
            return self.start(state)
        return False
