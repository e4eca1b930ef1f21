"""Whether jobs have come to steady rates: by windows of iterations, or by a state that recurs."""

from __future__ import annotations

from estimator.network.player.score import (
    BEGINS,
    CHANGED,
    LATENCY,
    MOVING,
    NEVER,
    NOW,
    PERIOD,
    POWER,
    PRESENT,
    REFERENCE,
    REFERENCE_ENDED,
    SAVED,
    SAVED_AT,
    SAVED_LENGTH,
    SINCE_REFERENCE,
    SINCE_SAVED,
    WINDOW_ENDED,
    Score,
    State,
)

SAME = 1e-9
"""States whose times differ by less, beside an iteration, are the same."""


def look(score: Score, state: State, job: int) -> None:
    """At the end of a window of iterations: is the rate that of the window before? What is measured leaves the first
    window out, in which the jobs find their places."""
    now = state.clock[NOW]
    state.window_done[job] += 1
    if state.window_done[job] == 0:
        state.window_from_s[job] = now
        state.measured_from_s[job] = now
        return
    state.measured[job] += 1
    state.seconds_s[job] = (now - state.measured_from_s[job]) / state.measured[job]
    if state.window_done[job] < score.window[0]:
        return
    state.windows[job] += 1
    seconds_s = (now - state.window_from_s[job]) / score.window[0]
    if state.windows[job] == 1:
        state.measured[job] = 0
        state.measured_from_s[job] = now
    else:
        near = abs(seconds_s - state.last_s[job]) <= score.tolerance[0] * state.last_s[job]
        state.steady[job] = 1 if near else 2 if state.windows[job] >= score.most_windows[0] else 0
        state.tally[WINDOW_ENDED] = 1
    state.last_s[job] = seconds_s
    state.window_from_s[job] = now
    state.window_done[job] = 0


def all_steady(state: State) -> bool:
    """Whether all jobs are: 1 steady, 2 given up after so many windows as were allowed."""
    unsteady = 0
    for place in range(state.tally[PRESENT]):
        if state.steady[state.present[place]] == 0:
            unsteady += 1
    return unsteady == 0


def forget_rates(score: Score, state: State) -> None:
    """Jobs have come or gone: all rates are looked at anew. The reference is the job whose iterations last longest."""
    tally, now = state.tally, state.clock[NOW]
    tally[CHANGED] = 0
    tally[REFERENCE_ENDED] = 0
    tally[SINCE_REFERENCE] = 0
    tally[SAVED] = 0
    longest = -1.0
    for place in range(tally[PRESENT]):
        job = state.present[place]
        state.window_done[job] = -1
        state.windows[job] = 0
        state.measured[job] = 0
        state.measured_from_s[job] = now
        state.steady[job] = 0
        state.seconds_s[job] = NEVER
        if score.lasts_s[job] > longest:
            longest = score.lasts_s[job]
            tally[REFERENCE] = job


def recurs(score: Score, state: State) -> bool:
    """Whether the state is the one that was saved. Which is saved changes after 1, 2, 4, ... iterations of the
    reference (Brent, "An improved Monte Carlo factorization algorithm", 1980), so that any cycle is found within three
    times its start and length."""
    tally, clock = state.tally, state.clock
    length = snapshot(score, state, state.fresh)
    if tally[SAVED] and length == tally[SAVED_LENGTH]:
        near, same = SAME * score.lasts_s[tally[REFERENCE]], True
        for place in range(length):
            if abs(state.fresh[place] - state.saved[place]) > near:
                same = False
                break
        if same:
            clock[PERIOD] = clock[NOW] - clock[SAVED_AT]
            for place in range(tally[PRESENT]):
                job = state.present[place]
                count = state.done[job] - state.saved_done[job]
                state.seconds_s[job] = clock[PERIOD] / count if count > 0.0 else NEVER
                state.steady[job] = 1
            return True
    if not tally[SAVED]:
        tally[POWER] = 1
        save(state, length)
        return False
    tally[SINCE_SAVED] += 1
    if tally[SINCE_SAVED] == tally[POWER]:
        tally[POWER] *= 2
        save(state, length)
    return False


def save(state: State, length: int) -> None:
    """Keep the fresh snapshot to compare later ones with."""
    state.tally[SAVED] = 1
    state.tally[SAVED_LENGTH] = length
    state.tally[SINCE_SAVED] = 0
    state.clock[SAVED_AT] = state.clock[NOW]
    for place in range(length):
        state.saved[place] = state.fresh[place]
    for place in range(state.tally[PRESENT]):
        state.saved_done[state.present[place]] = state.done[state.present[place]]


def snapshot(score: Score, state: State, out: list[float]) -> int:
    """Write what decides all that comes, beside the time of day; return how many figures."""
    now, at = state.clock[NOW], 0
    for place in range(state.tally[PRESENT]):
        job = state.present[place]
        comm = state.comm[job]
        out[at] = float(state.step[job])
        out[at + 1] = float(state.step_done[job])
        out[at + 2] = float(comm)
        out[at + 3] = state.compute_until_s[job] - now if state.computing[job] else -1.0
        out[at + 4] = state.comm_until_s[job] - now if comm in (BEGINS, LATENCY) else -1.0
        out[at + 5] = float(state.transfer[job])
        out[at + 6] = float(state.transfer_done[job])
        out[at + 7] = state.due_s[job] - now if score.period_s[job] > 0.0 else 0.0
        at += 8
        if comm == MOVING:
            transfer = state.transfer[job]
            for mover in range(score.mover_first[transfer], score.mover_first[transfer + 1]):
                gone_s = state.mover_pace[mover] * (now - state.mover_since_s[mover])
                out[at] = state.mover_left_s[mover] - gone_s if state.mover_active[mover] else -1.0
                at += 1
    return at


HELPERS = (snapshot, save, recurs, forget_rates, all_steady, look)
"""What compiled code calls of this module, each after those that it calls."""
