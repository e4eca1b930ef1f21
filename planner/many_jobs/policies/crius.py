"""Crius (section 6, Algorithm 1): every job on the Cells that make the cluster's objective greatest.

New jobs are placed one after the other, each by the best choice of at most `depth` moves of it and of running jobs; a
job without a choice pends. When devices came back, pending jobs are tried again in their order; with none pending,
running jobs may take what is idle. All of it happens virtually, and changes are made once, at the end.

Where the paper leaves it open, this is done:

- A choice must gain: what it adds outweighs the standstill of every job that it moves (`horizon_s`).
- No running job may grow on a pool where somebody who pends has a Cell: what is idle there is for those who wait.
- Opportunistic execution: a job launched while an earlier one pends is opportunistic. As soon as what is idle and what
  opportunistic jobs hold on one pool are enough for the smallest Cell of the first pending job, those that began to
  wait after it are suspended, the last first, until it fits. What regular jobs give back can go to nobody else for
  good, so that no job starves.

With deadlines (section 8.5, "Crius-DDL") a schedule guarantees them: `planner.many_jobs.scheduling.cells.admission`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from planner.many_jobs.jobs.records import Decision, JobState, View
from planner.many_jobs.scheduling.cells.admission import Admission
from planner.many_jobs.scheduling.cells.board import NOTHING, OBJECTIVES, Board, BoardMaker, weights_of
from planner.many_jobs.scheduling.cells.search import BEAM, Search, take
from planner.many_jobs.scheduling.cells.tables import CRIUS_LEVELS, CellTables
from profiles.errors import InputError


class Crius:
    """Options: `objective` (throughput, jct, fairness), `depth` (moves of a choice), `horizon_s` (a change must pay
    within it), `beam` (partial choices kept a step), `opportunistic` (False: who comes after one that pends waits)."""

    name = "crius"
    adaptive, heterogeneous = True, True

    def __init__(
        self,
        *,
        objective: str = "throughput",
        depth: int = 3,
        horizon_s: float = 3600.0,
        beam: int = BEAM,
        opportunistic: bool = True,
    ) -> None:
        if depth < 0 or beam < 1:
            raise InputError(
                where=f"policy {self.name}",
                key="depth, beam",
                found=f"{depth}, {beam}",
                expected="0 or more; 1 or more",
            )
        tables = CellTables(CRIUS_LEVELS if self.adaptive else (0,), other_pools=self.heterogeneous)
        self.maker = BoardMaker(tables, weights_of(objective, OBJECTIVES), horizon_s)
        self.depth, self.beam, self.opportunistic = depth, beam, opportunistic
        self._pending: dict[str, int] = {}
        self._guests: dict[str, int] = {}
        self._next = 0
        self._sizes: dict[str, int] = {}

    def decide(self, view: View) -> Decision:
        """Algorithm 1: arrivals, then what departures left."""
        self.maker.begin(view)
        sizes = {name: pool.devices for name, pool in view.pools.items()}
        released = bool(view.departed) or sizes != self._sizes
        self._sizes = sizes
        new = self._number(view, view.waiting)
        tried = view.waiting if released else {id_: view.waiting[id_] for id_ in new}
        if not released and not tried:
            return Decision(grants={})
        board = self.maker.make(view, tried)
        wanted = self._launch(board, view, tried)
        self._fill(board, wanted, rounds=max(1, len(view.departed)))
        return Decision(grants=board.changes(self.maker.tables.pools))

    def state(self) -> object:
        """Who pends and who is opportunistic, by their turn, and the pools' sizes of the last decision."""
        return {"pending": self._pending, "guests": self._guests, "next": self._next, "sizes": self._sizes}

    def restore(self, state: object) -> None:
        """Take over what `state` gave."""
        assert isinstance(state, dict)
        self._pending, self._guests = dict(state["pending"]), dict(state["guests"])
        self._next, self._sizes = int(state["next"]), dict(state["sizes"])

    def _number(self, view: View, waiting: Mapping[str, JobState]) -> tuple[str, ...]:
        """Give everybody who begins to wait a turn; returns who did."""
        self._guests = {id_: turn for id_, turn in self._guests.items() if id_ in view.running}
        self._pending = {id_: turn for id_, turn in self._pending.items() if id_ in waiting}
        new = tuple(id_ for id_ in waiting if id_ not in self._pending)
        for id_ in new:
            self._pending[id_] = self._next
            self._next += 1
        return new

    def _launch(self, board: Board, view: View, tried: Mapping[str, JobState]) -> frozenset[int]:
        """Try the jobs in order. Who is placed pends no more; an opportunistic job is so until nobody with an earlier
        turn pends. Returns the pools that somebody who pends has a Cell on."""
        search = Search(board, depth=self.depth, beam=self.beam)
        row_of = {id_: row for row, id_ in enumerate(board.ids)}
        turns = self._pending
        self._pending = {}
        wanted: frozenset[int] = frozenset()
        for id_, turn in turns.items():
            first = not self._pending
            if id_ in tried and (first or self.opportunistic) and self._placed(search, row_of, id_, turn, wanted):
                if not first:
                    self._guests[id_] = turn
            else:
                self._pending[id_] = turn
                if len(wanted) < len(board.free):
                    wanted |= self.maker.row(view, view.waiting[id_].job).pools
        earliest = next(iter(self._pending.values()), self._next)
        self._guests = {id_: turn for id_, turn in self._guests.items() if turn > earliest}
        return wanted

    def _placed(self, search: Search, row_of: Mapping[str, int], id_: str, turn: int, wanted: frozenset[int]) -> bool:
        row = row_of[id_]
        choice = search.best(row, shut=wanted) if search.can_place(row, shut=wanted) else None
        if choice is not None:
            take(search.board, choice)
            return True
        if self._pending:
            return False
        guests = [row_of[guest] for guest, its_turn in reversed(self._guests.items()) if its_turn > turn]
        return self._reclaim(search.board, row, guests)

    def _reclaim(self, board: Board, row: int, guests: Sequence[int]) -> bool:
        """Suspend opportunistic jobs for the first that pends, if that gives its smallest Cell enough."""
        options = []
        for column in _smallest(board, row):
            pool, need = int(board.pool_of[column]), int(board.devices[row, column])
            sitting = [
                guest for guest in guests if board.now[guest] != NOTHING and board.pool_of[board.now[guest]] == pool
            ]
            held = sum(int(board.devices[guest, board.now[guest]]) for guest in sitting)
            if board.free[pool] + held >= need:
                options.append((board.value[row, column], -column, sitting))
        if not options:
            return False
        _, negative, sitting = max(options, key=lambda option: option[:2])
        column = -negative
        pool, need = int(board.pool_of[column]), int(board.devices[row, column])
        for guest in sitting:
            if board.free[pool] >= need:
                break
            board.put(guest, NOTHING)
            self._guests.pop(board.ids[guest], None)
        board.put(row, column)
        return True

    def _fill(self, board: Board, wanted: frozenset[int], rounds: int) -> None:
        """The extra scheduling of Algorithm 1, line 12: running jobs move as long as that gains."""
        search = Search(board, depth=self.depth, beam=self.beam)
        for _ in range(rounds):
            choice = search.best(None, shut=wanted)
            if choice is None:
                return
            take(board, choice)


class CriusNA(Crius):
    """Without adaptivity (section 8.6): jobs keep the number of devices they asked for."""

    name = "crius-na"
    adaptive = False


class CriusNH(Crius):
    """Without heterogeneity (section 8.6): jobs stay on the type they asked for."""

    name = "crius-nh"
    heterogeneous = False


class CriusDDL(Admission):
    """With deadlines (section 8.5): whoever is admitted ends in time as long as nothing fails, and who cannot end in
    time is dropped early, see `planner.many_jobs.scheduling.cells.admission`. What admitted jobs leave goes by
    `objective`.

    Options: `objective`, `horizon_s` as of `Crius`; `levels` (halvings and doublings of what a job asked for: the
    paper follows ElasticFlow here, which knows all powers of two); `round_s` (see `Cadence`)."""

    name = "crius-ddl"

    def __init__(
        self, *, objective: str = "throughput", horizon_s: float = 3600.0, levels: int = 5, round_s: float = 300.0
    ) -> None:
        maker = BoardMaker(CellTables(tuple(range(-levels, levels + 1))), weights_of(objective, OBJECTIVES), horizon_s)
        super().__init__(maker, replacing=False, round_s=round_s)


def _smallest(board: Board, row: int) -> list[int]:
    """The columns of the job's Cells with the fewest devices."""
    usable = np.flatnonzero(np.isfinite(board.value[row]))
    if not len(usable):
        return []
    least = board.devices[row, usable].min()
    return [column for column in usable.tolist() if board.devices[row, column] == least]
