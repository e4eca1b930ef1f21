"""Decisions with guarantees: who is admitted, what admitted jobs have, and what is left over for whom."""

from __future__ import annotations

import math

import numpy as np

from planner.many_jobs.jobs.records import Decision, View
from planner.many_jobs.scheduling.cells.board import NOTHING, Board, BoardMaker
from planner.many_jobs.scheduling.cells.guarantees import Schedule
from planner.many_jobs.scheduling.cells.timeline import Cadence

MOST_REPLACED = 12
"""Admitted jobs that are tried for that, for each job that asks."""


class Admission:
    """What policies with guarantees are. It keeps the places of admitted jobs that wait for their turn, as (pool,
    devices, start).

    Who cannot be admitted now waits, without devices, and asks again at every decision: a departure may do. It is
    dropped when no Cell, were all devices free, would bring it to its end in time.

    Of those that ask at one time the cheapest go first.

    `replacing`: a job that cannot be admitted may take the place of an admitted one that still costs more (Moore,
    Management Science 15, 1968: of jobs that cannot all be in time the largest goes). That one is not guaranteed any
    more, and asks again while it could be in time. Without it a guarantee is final.
    """

    def __init__(self, maker: BoardMaker, *, replacing: bool, round_s: float) -> None:
        self.maker, self.replacing = maker, replacing
        self.cadence = Cadence(round_s)
        self._places: dict[str, tuple[str, int, float]] = {}

    def decide(self, view: View) -> Decision:
        """Drop, admit, fill."""
        self.maker.begin(view)
        self.cadence.see(view)
        dropped = self.maker.hopeless(view)
        waiting = {id_: state for id_, state in view.waiting.items() if id_ not in dropped}
        board = self.maker.make(view, waiting, deadlines=True)
        gone = set(dropped)
        board.value[[row for row, id_ in enumerate(board.ids) if id_ in gone]] = -np.inf
        schedule = Schedule(board, view.now_s, gap_s=self.cadence.gap_s)
        late = self._as_before(schedule, gone)
        asking = [
            row
            for row, id_ in enumerate(board.ids)
            if not schedule.holds(row) and id_ not in gone and math.isfinite(board.due_s[row])
        ]
        asking.sort(key=lambda row: (schedule.least_cost(row), row))
        for row in schedule.admit_all(asking):
            if self.replacing:
                _replace(schedule, row)
        for row in late:
            # Late on what it has, and without a place: it stays there while nobody needs the devices.
            if not schedule.holds(row) and schedule.lines[int(board.pool_of[board.real[row]])].room(
                view.now_s, math.inf
            ) >= int(board.devices[row, board.real[row]]):
                schedule.put(row, board.real[row], view.now_s)
        schedule.compress()
        schedule.fill()
        schedule.compress()
        self._note(schedule)
        grants = {id_: given for id_, given in board.changes(self.maker.tables.pools).items() if id_ not in gone}
        return Decision(grants=grants, dropped=dropped)

    def state(self) -> object:
        """The places of admitted jobs that wait for their turn, as JSON."""
        return {"places": {id_: list(place) for id_, place in self._places.items()}, "calls": self.cadence.state()}

    def restore(self, state: object) -> None:
        """Take over what `state` gave."""
        assert isinstance(state, dict)
        places, calls = state["places"], state["calls"]
        assert isinstance(places, dict)
        assert isinstance(calls, list)
        self._places = {id_: (str(pool), int(count), float(at_s)) for id_, (pool, count, at_s) in places.items()}
        self.cadence.restore(calls)

    def _as_before(self, schedule: Schedule, gone: set[str]) -> list[int]:
        """Put in who runs, on what it has, and who has a place, there; returns the running ones that are late."""
        board, now_s, late = schedule.board, schedule.now_s, []
        for row in range(board.held):
            if board.ids[row] in gone:
                continue
            if schedule.in_time(row, board.real[row], now_s):
                schedule.put(row, board.real[row], now_s)
            else:
                late.append(row)
        row_of = {id_: row for row, id_ in enumerate(board.ids[board.held :], start=board.held)}
        for id_, (pool, count, start_s) in sorted(self._places.items(), key=lambda place: (place[1][2], place[0])):
            if id_ not in row_of or pool not in self.maker.tables.pools:
                continue
            row, at_s = row_of[id_], max(now_s, start_s)
            there = board.pool_of == self.maker.tables.pools.index(pool)
            columns = np.flatnonzero(there & (board.devices[row] == count)).tolist()
            if columns and schedule.fits(row, columns[0], at_s):
                schedule.put(row, columns[0], at_s)
        return late

    def _note(self, schedule: Schedule) -> None:
        """Write down the places, and give the board what begins now."""
        board, pools = schedule.board, self.maker.tables.pools
        self._places = {}
        for row, column in enumerate(schedule.column):
            now = schedule.start_s[row] <= schedule.now_s
            board.put(row, column if now else NOTHING)
            if column != NOTHING and not now:
                pool, count = pools[int(board.pool_of[column])], int(board.devices[row, column])
                self._places[board.ids[row]] = (pool, count, schedule.start_s[row])


def _replace(schedule: Schedule, row: int) -> bool:
    """Let the job take the place of one that still costs more; whether it did."""
    most = schedule.least_cost(row)
    board: Board = schedule.board
    held = [other for other in range(len(board.ids)) if schedule.holds(other) and math.isfinite(board.due_s[other])]
    cost = {other: _left(schedule, other) for other in held}
    larger = sorted((other for other in held if cost[other] > most), key=lambda other: (-cost[other], other))
    for other in larger[:MOST_REPLACED]:
        before = schedule.copy()
        schedule.remove(other)
        if schedule.insert(row):
            schedule.insert(other)
            return True
        schedule.restore(before)
    return False


def _left(schedule: Schedule, row: int) -> float:
    return min(schedule.least_cost(row), float(schedule.cost[row, schedule.column[row]]))
