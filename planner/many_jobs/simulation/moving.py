"""Running jobs that a rule of placement moves at stated times: proposed, checked, carried out and paid for.

At the multiples of `Settings.defragment_s`, while jobs run, before the policy decides, which is asked if anybody moved.
A job that moves keeps its grant and its progress, and stands still for a restart, as after any other change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import inf

from planner.many_jobs.jobs.records import Grant, NodeCounts
from planner.many_jobs.placers.catalogue import BEST_FIT, MOVING
from planner.many_jobs.placers.moves import Move, MoveRequest, MovingPlacer, Seated
from planner.many_jobs.placers.records import Placer, no_price
from planner.many_jobs.simulation.applying import run_on, stop
from planner.many_jobs.simulation.asking_placers import PoolView, Sitting, predicted_end_s, wrong_seats
from planner.many_jobs.simulation.placing import PoolNodes
from planner.many_jobs.simulation.run_state import RunState, first_multiple, restart_s
from planner.many_jobs.simulation.settings import PlacerError, Truth
from planner.many_jobs.simulation.states import ActiveJob
from profiles.errors import InputError, MachineError

Moves = list[tuple[ActiveJob, NodeCounts]]


def check_moving(placer: Placer | None, defragment_s: float | None) -> None:
    """Raise InputError where a placer is to move jobs, and is none that does."""
    if defragment_s is not None and not isinstance(placer, MovingPlacer):
        found = BEST_FIT if placer is None else placer.name
        expected = f"one that moves jobs: {', '.join(MOVING)}, or one of your own with a method moves"
        raise InputError(where="simulate", key="--defragment", found=f"placer {found}", expected=expected)


def next_moves_s(run: RunState) -> float:
    """Return when jobs may be moved next after now, seconds on the run's clock; infinity: not while nobody runs."""
    interval_s, now_s = run.settings.defragment_s, run.clock.now_s
    if interval_s is None or not run.running:
        return inf
    number = first_multiple(now_s, interval_s)
    return (number + (number * interval_s == now_s)) * interval_s


def move_jobs(run: RunState, now_s: float) -> bool:
    """Let the placer move jobs if it is time; return whether any was moved. Raise PlacerError for moves that cannot
    be, before any of them is made."""
    interval_s = run.settings.defragment_s
    if interval_s is None or not run.running or now_s != first_multiple(now_s, interval_s) * interval_s:
        return False
    before = len(run.moves)
    known, run.seated = run.seated, {}
    for pool in run.pools:
        _move_in(run, pool, known)
    return len(run.moves) > before


def _move_in(run: RunState, pool: str, known: Mapping[int, tuple[float | None, Seated]]) -> None:
    placer, nodes = run.settings.placer, run.nodes[pool]
    assert isinstance(placer, MovingPlacer)
    movable = {state.job.id: state for state in run.running.values() if _may_move(state, pool)}
    for state in movable.values():
        seated = known.get(state.index)
        if seated is None or seated[0] != state.granted_s:
            seated = state.granted_s, _seated(run, state, pool)
        run.seated[state.index] = seated
    view = _HeldView(nodes, pool, run.sitting, [run.seated[state.index][1] for state in movable.values()])
    request = MoveRequest(pool=pool, size=nodes.size, now_s=run.clock.now_s, network=run.view.networks[pool])
    try:
        proposed = placer.moves(view, request)
    except (InputError, MachineError):
        raise
    except Exception as error:
        raise _error(run, None, f"{type(error).__name__}: {error}", f"moves of jobs on {pool}") from error
    moves = _checked(run, pool, movable, proposed, view.free)
    for state, _ in moves:
        run.moves.append((state.index, run.clock.now_s, state.held * restart_s(run.settings, state.job)))
    for state, grant, seats in [(state, _stopped(run, state), seats) for state, seats in moves]:
        pieces = nodes.take_on(seats)
        run.free[pool] -= grant.devices
        run_on(run, state, grant, {pool: pieces})


def _may_move(state: ActiveJob, pool: str) -> bool:
    """Whether the job sits on that pool alone, on devices of its own that no policy named, and works."""
    grant = state.grant
    return (
        grant is not None
        and len(grant.parts) == 1
        and grant.parts[0][0] == pool
        and not (grant.nodes or grant.turns)
        and (state.producing)
    )


def _seated(run: RunState, state: ActiveJob, pool: str) -> Seated:
    assert state.grant is not None
    told = run.settings.seat_times
    return Seated(
        job=state.job,
        seats=tuple((node, mask.bit_count()) for node, mask in state.placement[pool]),
        devices=state.grant.devices,
        from_s=state.began_s,
        end_s=predicted_end_s(state, state.granted_s or 0.0, state.began_with),
        restart_s=restart_s(run.settings, state.job),
        iteration_s=partial(_price_s, told, state, state.grant, pool) if told else no_price,
    )


def _price_s(told: Truth, state: ActiveJob, grant: Grant, pool: str, counts: NodeCounts) -> float | None:
    return told(state.job, grant, {pool: tuple((node, (1 << some) - 1) for node, some in counts)})


class _HeldView(PoolView):
    """A `planner.many_jobs.placers.moves.SeatedNodes` of a run's pool, while a rule is asked."""

    __slots__ = ("_at", "_everybody")

    def __init__(self, nodes: PoolNodes, pool: str, sitting: Sitting, everybody: Sequence[Seated]) -> None:
        super().__init__(nodes, pool, sitting)
        self._everybody = everybody
        self._at: dict[int, list[Seated]] | None = None

    def seated(self, node: int) -> Sequence[Seated]:
        """As `SeatedNodes`."""
        if self._at is None:
            self._at = {}
            for seated in self._everybody:
                for place, _ in seated.seats:
                    self._at.setdefault(place, []).append(seated)
        return self._at.get(node, ())

    def all_seated(self) -> Iterable[Seated]:
        """As `SeatedNodes`."""
        return self._everybody


def _checked(
    run: RunState, pool: str, movable: Mapping[str, ActiveJob], proposed: object, free: Sequence[int]
) -> Moves:
    """The moves that change something, on what is free and what those who move leave."""
    if not isinstance(proposed, list | tuple) or not all(isinstance(move, Move) for move in proposed):
        raise _error(run, None, f"{proposed!r:.80}", "a list of Move")
    seen: set[str] = set()
    for move in proposed:
        if move.job not in movable:
            raise _error(run, move.job, "a move of it", f"of a job that works on {pool}, and on that alone")
        if move.job in seen:
            raise _error(run, move.job, "two moves of it", "one")
        seen.add(move.job)
    moves: Moves = [(movable[move.job], move.seats) for move in proposed]
    left = list(free)
    barred = run.nodes[pool].barred
    for state, _ in moves:
        for node, mask in state.placement[pool]:
            left[node] += 0 if node in barred else mask.bit_count()
    for state, seats in moves:
        wrong = wrong_seats(seats, left, sum(_counts(state, pool).values()))
        if wrong is not None:
            raise _error(run, state.job.id, *wrong)
        for node, count in seats:
            left[node] -= count
    return [(state, seats) for state, seats in moves if dict(seats) != _counts(state, pool)]


def _counts(state: ActiveJob, pool: str) -> dict[int, int]:
    return {node: mask.bit_count() for node, mask in state.placement[pool]}


def _stopped(run: RunState, state: ActiveJob) -> Grant:
    grant = state.grant
    assert grant is not None
    stop(run, state)
    return grant


def _error(run: RunState, job: str | None, found: str, expected: str) -> PlacerError:
    assert run.settings.placer is not None
    about = "" if job is None else f", job {job}"
    where = f"placer {run.settings.placer.name} at {run.clock.now_s:g} s{about}"
    return PlacerError(where=where, found=found, expected=expected)
