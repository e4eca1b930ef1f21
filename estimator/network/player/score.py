"""What the loop of events reads and writes, as flat arrays: the same functions go over them compiled or not.

`Score` is fixed, `State` changes. Jobs have steps, steps transfers, transfers movers, movers entries (a link and the
bytes/s on it at pace 1); of each, `..._first` says where in the next array its own begin, one past the last at the end.
Compiled, the arrays are numpy's; plain Python goes over lists, which it indexes three times as fast.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Floats = Any
Integers = Any
"""Arrays, or lists of the same."""

NEVER = float("inf")

BEGINS, LATENCY, MOVING, DONE = 0, 1, 2, 3
"""What a job's communication does: waits for its transfer to begin, for its latency, moves bytes, has none left."""

EVENTS, PRESENT, COME, STAMP, SEEDS, SEED_LEVEL, CHANGED, REFERENCE, REFERENCE_ENDED = range(9)
SAVED, SAVED_LENGTH, POWER, SINCE_SAVED, WINDOW_ENDED, LOGGED, SINCE_REFERENCE, TALLIES = range(9, 17)
"""Places in `State.tally`: events so far; jobs present, jobs that have come; marks of one round of new paces: its
number, how many links are to be looked at, the first level that changes; whether jobs came or went since the loop was
entered; the job at whose iterations states are compared, whether it has just ended one; the state that was saved for
that: whether there is one, its length, after how many iterations it is replaced, how many have passed; whether a window
of iterations has ended; rows of the log; iterations since the reference ended one."""

NOW, SAVED_AT, PERIOD = range(3)
"""Places in `State.clock`, in seconds."""

COMPUTE_BEGINS, COMPUTE_ENDS, TRANSFER_BEGINS, TRANSFER_ENDS, ITERATION_ENDS, COMES, GOES = range(7)
"""What a row of the log says of a job: with the number of a step or a transfer."""


class Score(NamedTuple):
    """What is played."""

    step_first: Integers
    compute_s: Floats
    begins_s: Floats
    step_times: Integers
    transfer_first: Integers
    latency_s: Floats
    transfer_times: Integers
    mover_first: Integers
    seconds: Floats
    most: Floats
    weight: Floats
    level: Integers
    mover_job: Integers
    entry_first: Integers
    entry_link: Integers
    entry_amount: Floats
    entry_mover: Integers
    bytes_per_s: Floats
    room_first: Integers
    """Of each link, where its part of `State.room` begins: as wide as movers can use it at once."""
    starts_s: Floats
    idle_s: Floats
    period_s: Floats
    """To which iterations are held; 0: they are not."""
    iterations: Floats
    """After how many each job goes; below 0: never."""
    lasts_s: Floats
    """What an iteration takes at least."""
    coming: Integers
    """The jobs in the order in which they come."""
    factors: Floats
    """What compute takes longer in one iteration after the other, `factor_count` of each job, over and over."""
    factor_count: Integers
    window: Integers
    """Iterations between two looks at a job's rate; 0: nobody looks."""
    most_windows: Integers
    tolerance: Floats
    compares: Integers
    """1: states are compared, and the loop ends when one recurs."""
    log_rows: Integers


class State(NamedTuple):
    """What is going on."""

    clock: Floats
    tally: Integers
    present: Integers
    next_s: Floats
    computing: Integers
    compute_until_s: Floats
    comm: Integers
    comm_until_s: Floats
    step: Integers
    step_done: Integers
    transfer: Integers
    transfer_done: Integers
    movers_left: Integers
    factor: Floats
    drawn: Integers
    done: Floats
    """Iterations, those that were not played but counted among them."""
    came_s: Floats
    due_s: Floats
    """When the iteration that goes on was due, where iterations are held to a period."""
    went_s: Floats
    window_done: Integers
    """Iterations of this window; -1: the next one's end begins the first."""
    windows: Integers
    window_from_s: Floats
    measured_from_s: Floats
    measured: Integers
    last_s: Floats
    steady: Integers
    seconds_s: Floats
    """What an iteration takes, by what was measured since jobs last came or went."""
    saved: Floats
    fresh: Floats
    saved_done: Floats
    mover_active: Integers
    mover_left_s: Floats
    mover_since_s: Floats
    mover_pace: Floats
    mover_end_s: Floats
    entry_place: Integers
    room: Integers
    link_count: Integers
    link_queue: Integers
    link_mark: Integers
    link_left: Floats
    link_load: Floats
    link_open: Integers
    link_unfilled: Integers
    link_share: Floats
    mover_mark: Integers
    job_mark: Integers
    members: Integers
    unsettled: Integers
    held: Integers
    log_time_s: Floats
    log_what: Integers
    log_job: Integers
    log_at: Integers


def fresh_state(score: Score) -> State:
    """Return the state before anything has happened, as arrays."""
    jobs, movers = len(score.starts_s), len(score.seconds)
    links, rows, snapshot = len(score.bytes_per_s), int(score.log_rows[0]), jobs * 8 + movers
    times = _filled(0.0, ("came_s due_s window_from_s measured_from_s last_s factor done saved_done", jobs))
    times |= _filled(0.0, ("mover_left_s mover_since_s mover_pace", movers), ("link_left link_load link_share", links))
    times |= _filled(0.0, ("log_time_s", rows), ("saved fresh", snapshot), ("clock", 3))
    times |= _filled(NEVER, ("next_s compute_until_s comm_until_s went_s seconds_s", jobs), ("mover_end_s", movers))
    counts = _filled(0, ("present computing comm step step_done transfer transfer_done movers_left drawn", jobs))
    counts |= _filled(0, ("window_done windows measured steady", jobs), ("mover_active members unsettled held", movers))
    counts |= _filled(0, ("link_count link_queue link_open link_unfilled", links), ("log_what log_job log_at", rows))
    counts |= _filled(
        0, ("tally", TALLIES), ("entry_place", len(score.entry_link)), ("room", int(score.room_first[-1]))
    )
    counts |= _filled(-1, ("link_mark", links), ("mover_mark", movers), ("job_mark", jobs))
    return State(**times, **counts)


def _filled(value: float, *sizes: tuple[str, int]) -> dict[str, Any]:
    """Arrays of floats for a float, else of whole numbers, by name."""
    kind = np.float64 if isinstance(value, float) else np.int64
    return {name: np.full(size, value, dtype=kind) for names, size in sizes for name in names.split()}
