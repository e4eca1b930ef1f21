"""Which movers get new paces when one begins or ends, and what these are.

They are the paces of `estimator.network.rates.fair_paces`, an event's worth at a time: found for the few movers whose
pace the event changes, and proved by what holds each of them (`estimator.network.player.holders`).
"""

from __future__ import annotations

from estimator.network.player.filling import FRESH, fill_level
from estimator.network.player.holders import bit_of, join, join_all, join_loose, see_levels
from estimator.network.player.score import (
    BEGUN,
    DONE,
    FIRST_LEVEL,
    JOINED,
    LOGGED,
    MOVING,
    NEVER,
    NOW,
    SEEN,
    STAMP,
    TOUCHED,
    Score,
    State,
)

AS_BEFORE = 1e-14
"""A pace that moves by less, relatively, stays."""
NO_LEVEL = 1 << 60
PATIENCE = 6
"""After so many rounds of a level all that links join to it get new paces."""


def touch(score: Score, state: State, link: int, mover: int) -> None:
    """Remember that a mover began or ended on a link."""
    tally = state.tally
    if tally[TOUCHED] == 0:
        tally[STAMP] += 1
        tally[FIRST_LEVEL] = NO_LEVEL
    if state.link_mark[link] != tally[STAMP]:
        state.link_mark[link] = tally[STAMP]
        state.touched[tally[TOUCHED]] = link
        tally[TOUCHED] += 1
    if score.level[mover] < tally[FIRST_LEVEL]:
        tally[FIRST_LEVEL] = score.level[mover]


def enter(score: Score, state: State, entry: int, mover: int) -> None:
    """Put a mover on a link of its way."""
    link = state.live_link[entry]
    place = score.room_first[link] + state.link_count[link]
    state.room[place] = entry
    state.room_mover[place] = mover
    state.room_amount[place] = state.live_amount[entry]
    state.entry_place[entry] = place
    state.link_count[link] += 1
    touch(score, state, link, mover)


def leave(score: Score, state: State, entry: int, mover: int) -> None:
    """Take a mover off a link of its way; the last in the link's room takes its place there."""
    link, place = state.live_link[entry], state.entry_place[entry]
    state.link_count[link] -= 1
    last = score.room_first[link] + state.link_count[link]
    state.room[place] = state.room[last]
    state.room_mover[place] = state.room_mover[last]
    state.room_amount[place] = state.room_amount[last]
    state.entry_place[state.room[place]] = place
    touch(score, state, link, mover)


def begin(state: State, mover: int) -> None:
    """Remember that a mover began, which has no pace yet."""
    state.begun[state.tally[BEGUN]] = mover
    state.tally[BEGUN] += 1


def set_paces(score: Score, state: State) -> None:
    """Give new paces, level by level, to the movers that began and to those that others leave more or less now."""
    tally = state.tally
    tally[JOINED] = 0
    tally[SEEN] = 0
    for place in range(tally[TOUCHED]):
        see_levels(score, state, state.touched[place])
    for level in range(tally[FIRST_LEVEL], score.levels[0]):
        if tally[SEEN] & bit_of(level):
            pace_level(score, state, level)
    tally[TOUCHED] = 0
    tally[BEGUN] = 0
    stamp = tally[STAMP]
    for place in range(tally[JOINED]):
        job = score.mover_job[state.joined[place]]
        if state.job_mark[job] != stamp:
            state.job_mark[job] = stamp
            find_next(score, state, job)


def pace_level(score: Score, state: State, level: int) -> None:
    """Set the paces of a level: of ever more of its movers, until all others are held as they were."""
    tally = state.tally
    first = tally[JOINED]
    for place in range(tally[BEGUN]):
        mover = state.begun[place]
        if score.level[mover] == level and state.mover_active[mover]:
            join(score, state, mover, FRESH)
    join_loose(score, state, level)
    filled, rounds = first, 0
    while filled < tally[JOINED]:
        rounds += 1
        if rounds > PATIENCE:
            join_all(score, state, level)
        filled = tally[JOINED]
        fill_level(score, state, level, first)
        if rounds <= PATIENCE:
            join_loose(score, state, level)
    for place in range(first, tally[JOINED]):
        mover = state.joined[place]
        pace, before = state.mover_next_pace[mover], state.mover_pace[mover]
        if abs(pace - before) > AS_BEFORE * before or before <= 0.0:
            change_pace(state, mover, pace)
        else:
            state.mover_next_pace[mover] = before


def change_pace(state: State, mover: int, pace: float) -> None:
    """Go on at another pace."""
    now, before = state.clock[NOW], state.mover_pace[mover]
    left_s = state.mover_left_s[mover] - before * (now - state.mover_since_s[mover])
    left_s = left_s if left_s > 0.0 else 0.0
    state.mover_left_s[mover] = left_s
    state.mover_since_s[mover] = now
    state.mover_pace[mover] = pace
    state.mover_next_pace[mover] = pace
    state.mover_end_s[mover] = now + left_s / pace if pace > 0.0 else NEVER


def find_next(score: Score, state: State, job: int) -> None:
    """When something next happens to a job."""
    soonest = NEVER
    if state.computing[job]:
        soonest = state.compute_until_s[job]
    comm = state.comm[job]
    if comm == MOVING:
        transfer = state.transfer[job]
        for mover in range(score.mover_first[transfer], score.mover_first[transfer + 1]):
            if state.mover_end_s[mover] < soonest:
                soonest = state.mover_end_s[mover]
    elif comm != DONE and state.comm_until_s[job] < soonest:
        soonest = state.comm_until_s[job]
    state.next_s[job] = soonest


def log(score: Score, state: State, what: int, job: int, at: int) -> None:
    """Write a row of the log, while there is room."""
    row = state.tally[LOGGED]
    if row < score.log_rows[0]:
        state.log_time_s[row] = state.clock[NOW]
        state.log_what[row] = what
        state.log_job[row] = job
        state.log_at[row] = at
        state.tally[LOGGED] = row + 1


HELPERS = (log, find_next, change_pace, pace_level, set_paces, begin, touch, leave, enter)
"""What compiled code calls of this module, each after those that it calls."""
