"""From event to event: compute ends, transfers begin, movers end, jobs come and go. Plain functions over arrays or
lists alike, so that they can be compiled as they stand (`estimator.network.player.compiling`)."""

from __future__ import annotations

from estimator.network.player.narrowing import narrow
from estimator.network.player.paces import begin, enter, find_next, leave, log, set_paces
from estimator.network.player.score import (
    BEGINS,
    CHANGED,
    COME,
    COMES,
    COMPUTE_BEGINS,
    COMPUTE_ENDS,
    DONE,
    EVENTS,
    GOES,
    ITERATION_ENDS,
    LATENCY,
    MOVING,
    NEVER,
    NOW,
    PRESENT,
    REFERENCE,
    REFERENCE_ENDED,
    SAVED,
    SINCE_REFERENCE,
    TOUCHED,
    TRANSFER_BEGINS,
    TRANSFER_ENDS,
    WINDOW_ENDED,
    Score,
    State,
)
from estimator.network.player.steadiness import all_steady, forget_rates, look, recurs

REACHED, ALL_GONE, STEADY, RECURS, TIRED = range(5)
"""Why the loop ended: the time was reached; no job is left, or none that moves; every job's rate is steady; the state
is one that was; so many events as were allowed."""

AT_ONCE = 1e-14
"""Events that are nearer to each other, relatively, are one moment."""
WHOLE = 1e-9
"""A part of a period that is no more is none."""
PATIENCE = 4096
"""After so many iterations of others the job at whose iterations states are compared is another: it may be starved."""


def advance(score: Score, state: State, until_s: float, most_events: int) -> int:
    """Play on to `until_s`, or until one of the other reasons to end; return which."""
    clock, tally, present, next_s = state.clock, state.tally, state.present, state.next_s
    coming = len(score.coming)
    while True:
        soonest = NEVER
        for place in range(tally[PRESENT]):
            if next_s[present[place]] < soonest:
                soonest = next_s[present[place]]
        if tally[COME] < coming and score.starts_s[score.coming[tally[COME]]] < soonest:
            soonest = score.starts_s[score.coming[tally[COME]]]
        if soonest > until_s or soonest == NEVER:
            if until_s < NEVER:
                clock[NOW] = until_s
                return REACHED
            return ALL_GONE
        clock[NOW] = soonest
        due = soonest + soonest * AT_ONCE
        while tally[COME] < coming and score.starts_s[score.coming[tally[COME]]] <= due:
            come(score, state, score.coming[tally[COME]])
        for place in range(tally[PRESENT] - 1, -1, -1):
            if next_s[present[place]] <= due:
                attend(score, state, present[place], due)
                if state.went_s[present[place]] < NEVER:
                    tally[PRESENT] -= 1
                    present[place] = present[tally[PRESENT]]
        if tally[CHANGED]:
            narrow(score, state)
        if tally[TOUCHED] > 0:
            set_paces(score, state)
        if tally[CHANGED]:
            forget_rates(score, state)
        elif tally[REFERENCE_ENDED]:
            tally[REFERENCE_ENDED] = 0
            if score.compares[0] and recurs(score, state):
                return RECURS
        if tally[WINDOW_ENDED]:
            tally[WINDOW_ENDED] = 0
            if all_steady(state):
                return STEADY
        if tally[EVENTS] >= most_events:
            return TIRED


def come(score: Score, state: State, job: int) -> None:
    """A job that comes: it idles, then begins."""
    tally, now = state.tally, state.clock[NOW]
    state.present[tally[PRESENT]] = job
    tally[PRESENT] += 1
    tally[COME] += 1
    tally[EVENTS] += 1
    tally[CHANGED] = 1
    state.came_s[job] = now
    log(score, state, COMES, job, 0)
    state.step[job] = score.step_first[job] - 1
    state.step_done[job] = 0
    state.comm[job] = DONE
    state.computing[job] = 1
    state.compute_until_s[job] = now + score.idle_s[job]
    state.due_s[job] = state.compute_until_s[job]
    state.factor[job] = score.factors[job * score.factor_count[0] + state.drawn[job] % score.factor_count[0]]
    state.drawn[job] += 1
    state.next_s[job] = state.compute_until_s[job]


def attend(score: Score, state: State, job: int, due: float) -> None:
    """Do what a job has to do at this moment."""
    tally = state.tally
    goes_on = True
    while goes_on:
        goes_on = False
        if state.computing[job] and state.compute_until_s[job] <= due:
            state.computing[job] = 0
            tally[EVENTS] += 1
            log(score, state, COMPUTE_ENDS, job, state.step[job])
            goes_on = True
        comm = state.comm[job]
        if comm == BEGINS and state.comm_until_s[job] <= due:
            if state.transfer[job] < score.transfer_first[state.step[job] + 1]:
                state.comm[job] = LATENCY
                state.comm_until_s[job] = state.clock[NOW] + score.latency_s[state.transfer[job]]
            else:
                state.comm[job] = DONE
            goes_on = True
        elif comm == LATENCY and state.comm_until_s[job] <= due:
            start_movers(score, state, job)
            goes_on = True
        elif comm == MOVING and end_movers(score, state, job, due):
            goes_on = True
        if state.computing[job] == 0 and state.comm[job] == DONE:
            next_step(score, state, job)
            goes_on = state.went_s[job] == NEVER
    find_next(score, state, job)


def start_movers(score: Score, state: State, job: int) -> None:
    """Begin all movers of a job's transfer; their paces are set after the moment's other events."""
    now, transfer = state.clock[NOW], state.transfer[job]
    state.tally[EVENTS] += 1
    log(score, state, TRANSFER_BEGINS, job, transfer)
    state.comm[job] = MOVING
    state.movers_left[job] = score.mover_first[transfer + 1] - score.mover_first[transfer]
    for mover in range(score.mover_first[transfer], score.mover_first[transfer + 1]):
        state.mover_active[mover] = 1
        state.mover_left_s[mover] = score.seconds[mover]
        state.mover_since_s[mover] = now
        first, last = score.entry_first[mover], state.live_end[mover]
        if first == last or score.seconds[mover] <= 0.0:
            pace = state.most_now[mover]
            state.mover_pace[mover] = pace
            state.mover_next_pace[mover] = pace
            state.mover_end_s[mover] = now + score.seconds[mover] / pace if pace > 0.0 else NEVER
        else:
            state.mover_pace[mover] = 0.0
            state.mover_next_pace[mover] = 0.0
            state.mover_end_s[mover] = NEVER
            begin(state, mover)
        for entry in range(first, last):
            enter(score, state, entry, mover)


def end_movers(score: Score, state: State, job: int, due: float) -> bool:
    """End the movers that have arrived; whether the transfer has ended."""
    transfer = state.transfer[job]
    for mover in range(score.mover_first[transfer], score.mover_first[transfer + 1]):
        if state.mover_active[mover] and state.mover_end_s[mover] <= due:
            state.mover_active[mover] = 0
            state.mover_end_s[mover] = NEVER
            state.movers_left[job] -= 1
            state.tally[EVENTS] += 1
            for entry in range(score.entry_first[mover], state.live_end[mover]):
                leave(score, state, entry, mover)
    if state.movers_left[job] > 0:
        return False
    log(score, state, TRANSFER_ENDS, job, transfer)
    state.transfer_done[job] += 1
    if state.transfer_done[job] >= score.transfer_times[transfer]:
        state.transfer_done[job] = 0
        state.transfer[job] += 1
    state.comm[job] = BEGINS
    state.comm_until_s[job] = state.clock[NOW]
    return True


def next_step(score: Score, state: State, job: int) -> None:
    """Begin the next step of a job, of its next iteration after the last; or the job goes."""
    now, step = state.clock[NOW], state.step[job]
    state.step_done[job] += 1
    if step < score.step_first[job] or state.step_done[job] >= score.step_times[step]:
        step += 1
        state.step[job] = step
        state.step_done[job] = 0
    if step >= score.step_first[job + 1]:
        end_iteration(score, state, job)
        if state.went_s[job] < NEVER or is_held(score, state, job):
            return
        step = score.step_first[job]
        state.step[job] = step
    factor = state.factor[job]
    state.computing[job] = 1
    state.compute_until_s[job] = now + score.compute_s[step] * factor
    log(score, state, COMPUTE_BEGINS, job, step)
    state.comm[job] = BEGINS
    state.comm_until_s[job] = now + score.begins_s[step] * factor
    state.transfer[job] = score.transfer_first[step]
    state.transfer_done[job] = 0


def is_held(score: Score, state: State, job: int) -> bool:
    """Whether a job's next iteration is held back: then it waits before its first step, until it is due."""
    now, period_s = state.clock[NOW], score.period_s[job]
    if period_s <= 0.0:
        return False
    due_s = state.due_s[job] + period_s
    if due_s <= now:
        state.due_s[job] = due_s + ((now - due_s) / period_s + WHOLE) // 1.0 * period_s
        return False
    state.due_s[job] = due_s
    state.step[job] = score.step_first[job] - 1
    state.step_done[job] = 0
    state.computing[job] = 1
    state.compute_until_s[job] = due_s
    return True


def end_iteration(score: Score, state: State, job: int) -> None:
    """Count an iteration, look at the rate, and let the job go if that was its last."""
    now, tally = state.clock[NOW], state.tally
    state.done[job] += 1.0
    log(score, state, ITERATION_ENDS, job, 0)
    if score.iterations[job] >= 0.0 and state.done[job] >= score.iterations[job] - 0.5:
        state.went_s[job] = now
        state.comm[job] = DONE
        tally[CHANGED] = 1
        tally[EVENTS] += 1
        log(score, state, GOES, job, 0)
        return
    state.factor[job] = score.factors[job * score.factor_count[0] + state.drawn[job] % score.factor_count[0]]
    state.drawn[job] += 1
    tally[SINCE_REFERENCE] += 1
    if job == tally[REFERENCE] or tally[SINCE_REFERENCE] > PATIENCE:
        if job != tally[REFERENCE]:
            tally[SAVED] = 0
        tally[REFERENCE] = job
        tally[REFERENCE_ENDED] = 1
        tally[SINCE_REFERENCE] = 0
    if score.window[0] > 0:
        look(score, state, job)


HELPERS = (end_iteration, is_held, next_step, end_movers, start_movers, attend, come)
"""What `advance` calls of this module, each after those that it calls."""
