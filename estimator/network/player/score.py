"""What the loop of events reads and writes, as flat arrays: the same functions go over them compiled or not.

`Score` is fixed, `State` changes. Jobs have steps, steps transfers, transfers movers, movers entries (a link and the
bytes/s on it at pace 1); of each, `..._first` says where in the next array its own begin, one past the last at the end.
Compiled, the arrays are numpy's; plain Python goes over lists, which it indexes three times as fast.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

Floats = Any
Integers = Any
"""Arrays, or lists of the same."""

NEVER = float("inf")

BEGINS, LATENCY, MOVING, DONE = 0, 1, 2, 3
"""What a job's communication does: waits for its transfer to begin, for its latency, moves bytes, has none left."""

EVENTS, PRESENT, COME, STAMP, TOUCHED, FIRST_LEVEL, SEEN, BEGUN, JOINED, CHANGED = range(10)
REFERENCE, REFERENCE_ENDED, SAVED, SAVED_LENGTH, POWER, SINCE_SAVED, WINDOW_ENDED = range(10, 17)
LOGGED, SINCE_REFERENCE, NARROWED, TALLIES = range(17, 21)
"""Places in `State.tally`: events so far; jobs present, jobs that have come; of one round of new paces: its number, how
many links are to be looked at, the first level that changes, bits of the levels there, how many movers began, how many
get new paces; whether jobs came or went since the loop was entered; the job at whose iterations states are compared,
whether it has just ended one; the state that was saved for that: whether there is one, its length, after how many
iterations it is replaced, how many have passed; whether a window of iterations has ended; rows of the log; iterations
since the reference ended one; marks of what was looked at when links were narrowed down."""

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
    job_mover_first: Integers
    seconds: Floats
    most: Floats
    weight: Floats
    level: Integers
    """Counted without gaps, the first served from 0."""
    levels: Integers
    """How many there are."""
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
    most_now: Floats
    live_end: Integers
    """Of each mover's entries those that matter now, from its first to here, in `live_link` and `live_amount`."""
    live_link: Integers
    live_amount: Floats
    entry_place: Integers
    room: Integers
    """Of each link the entries of the movers that use it now, in any order; beside it their movers and amounts."""
    room_mover: Integers
    room_amount: Floats
    link_count: Integers
    link_mark: Integers
    touched: Integers
    """The links of a round of new paces, the first `TOUCHED` of them; so `begun` and `joined`, of movers."""
    link_levels: Integers
    """Bits of the levels on each of them (`estimator.network.player.holders`)."""
    link_left: Floats
    link_load: Floats
    link_open: Integers
    link_unfilled: Integers
    link_share: Floats
    mover_mark: Integers
    job_mark: Integers
    begun: Integers
    joined: Integers
    mover_holder: Integers
    """The link that holds each mover to its pace, or what else (`estimator.network.player.paces`)."""
    mover_next_pace: Floats
    """Each mover's pace, or where a round is about to give it another one, that."""
    unsettled: Integers
    mover_open: Integers
    held: Integers
    link_matters: Integers
    link_movers: Floats
    link_asked: Floats
    link_most_of_job: Floats
    link_of_transfer: Floats
    link_key: Integers
    narrow_links: Integers
    narrow_mark: Integers
    narrow_table: Integers
    user_first: Integers
    user_end: Integers
    users: Integers
    log_time_s: Floats
    log_what: Integers
    log_job: Integers
    log_at: Integers


def fresh_state(score: Score) -> State:
    """Return the state before anything has happened, as arrays."""
    jobs, movers = len(score.starts_s), len(score.seconds)
    links, rows, snapshot = len(score.bytes_per_s), int(score.log_rows[0]), jobs * 8 + movers
    times = _filled(
        0.0,
        ("came_s due_s window_from_s measured_from_s last_s factor done saved_done", jobs),
        ("mover_left_s mover_since_s mover_pace mover_next_pace", movers),
        ("link_left link_load link_share link_movers link_asked link_most_of_job link_of_transfer", links),
        ("room_amount", int(score.room_first[-1])),
        ("log_time_s", rows),
        ("saved fresh", snapshot),
        ("clock", 3),
    )
    times |= _filled(NEVER, ("next_s compute_until_s comm_until_s went_s seconds_s", jobs), ("mover_end_s", movers))
    counts = _filled(
        0,
        ("present computing comm step step_done transfer transfer_done movers_left drawn", jobs),
        ("window_done windows measured steady", jobs),
        ("mover_active begun joined mover_holder unsettled mover_open held", movers),
        ("link_count touched link_levels link_open link_unfilled", links),
        ("link_matters link_key narrow_links narrow_mark user_first user_end", links),
        ("narrow_table", 2 * links + 1),
        ("room room_mover", int(score.room_first[-1])),
        ("entry_place users", len(score.entry_link)),
        ("log_what log_job log_at", rows),
        ("tally", TALLIES),
    )
    counts |= _filled(-1, ("link_mark", links), ("mover_mark", movers), ("job_mark", jobs))
    live = {"most_now": score.most.copy(), "live_end": score.entry_first[1:].copy()}
    live |= {"live_link": score.entry_link.copy(), "live_amount": score.entry_amount.copy()}
    return State(**times, **counts, **live)


def _filled(value: float, *sizes: tuple[str, int]) -> dict[str, Any]:
    """Arrays of floats for a float, else of whole numbers, by name: parts of one, which is made once."""
    named = [(name, size) for names, size in sizes for name in names.split()]
    ends = list(accumulate(size for _, size in named))
    whole = np.full(ends[-1], value, dtype=np.float64 if isinstance(value, float) else np.int64)
    return {name: whole[end - size : end] for (name, size), end in zip(named, ends, strict=True)}
