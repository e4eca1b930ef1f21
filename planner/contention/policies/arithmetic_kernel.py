"""Rates by arithmetic, and a climb by them. Plain functions over arrays, so that they can be compiled as they stand.

A job j sends for w_j seconds in an iteration, and begins r_j iterations a second. While k sends, j loses the share o_jk
of its pace: what both ask of the link that they share and is more than there is, over what j asks. Of k's bytes j meets

    u_jk = w_k r_k o_jk, a share of the time, in pieces of L_jk = w_k o_jk seconds.

They come by chance, from j's point of view. Before j go those of lower levels: of j's time

    left_j = prod over k before j of (1 - u_jk)

is left, and the piece that goes when j begins to send lasts L_jk / 2 on. Those of its own level share with it. So

    more_j = w_j / left_j * (1 + sum over k beside j of u_jk) - w0_j + sum over k before j of u_jk L_jk / 2 / left_j

is what j's transfers take longer in the mean than the w0_j that they take on paths where its own connections meet
least. Compute hides `slack_j` of it; what varies is taken as exponential:

    1 / r_j = alone_j + more_j exp(-slack_j / more_j).

Jobs are gone through level by level, a few rounds each, since those of one level need each other's rates. Of 51
decisions for 46 jobs on 2,048 GPUs it said the work of all to 3 points of what playing says, in their order (r = 0.98).
Real jobs do not meet by chance (they lock into each other), so nothing is decided by this alone: the best are played.
"""

from __future__ import annotations

from math import exp
from typing import Any, NamedTuple

Floats = Any
Integers = Any
"""Arrays of numpy."""

ROUNDS = 3
LEAST_LEFT = 1e-3


class Table(NamedTuple):
    """What there is. Jobs have connections, these options, these entries (a link, and the seconds that an iteration's
    bytes keep it busy); `..._first` says where in the next array each begins, one past the last at the end."""

    flops: Floats
    compute_s: Floats
    alone_s: Floats
    first_byte_s: Floats
    least_wire_s: Floats
    connection_first: Integers
    option_first: Integers
    entry_first: Integers
    entry_link: Integers
    entry_s: Floats
    near_first: Integers
    near: Integers
    """Of each job those that may share a link with it, whatever paths they take."""
    moves: Integers
    """Rows of (kind, job or connection, level, option or other job): steps that may be taken."""
    levels: int


class State(NamedTuple):
    """What is decided, and what follows from it."""

    level: Integers
    choice: Integers
    seconds: Floats
    """(jobs, links)."""
    wire_s: Floats
    lost: Floats
    """By pair of `Table.near`: the share of its pace that the job loses while the other sends."""
    rate: Floats
    trial: Floats
    touched: Integers
    mark: Integers


def place(table: Table, state: State, job: int) -> None:
    """Put a job's bytes on its links, and see what it loses to whom and who to it."""
    links = state.seconds.shape[1]
    for link in range(links):
        state.seconds[job, link] = 0.0
    for connection in range(table.connection_first[job], table.connection_first[job + 1]):
        option = table.option_first[connection] + state.choice[connection]
        for entry in range(table.entry_first[option], table.entry_first[option + 1]):
            state.seconds[job, table.entry_link[entry]] += table.entry_s[entry]
    wire_s = 0.0
    for link in range(links):
        if state.seconds[job, link] > wire_s:
            wire_s = state.seconds[job, link]
    state.wire_s[job] = wire_s


def meet(table: Table, state: State, job: int) -> None:
    """Set what a job loses to those near it, and they to it."""
    for pair in range(table.near_first[job], table.near_first[job + 1]):
        other = table.near[pair]
        mine, others = 0.0, 0.0
        for connection in range(table.connection_first[job], table.connection_first[job + 1]):
            option = table.option_first[connection] + state.choice[connection]
            for entry in range(table.entry_first[option], table.entry_first[option + 1]):
                link = table.entry_link[entry]
                other_s = state.seconds[other, link]
                if other_s > 0.0:
                    asks = state.seconds[job, link] / state.wire_s[job]
                    other_asks = other_s / state.wire_s[other]
                    over = asks + other_asks - 1.0
                    if over > 0.0:
                        if over / asks > mine:
                            mine = over / asks
                        if over / other_asks > others:
                            others = over / other_asks
        state.lost[pair] = min(mine, 1.0)
        for back in range(table.near_first[other], table.near_first[other + 1]):
            if table.near[back] == job:
                state.lost[back] = min(others, 1.0)
                break


def rate_of(table: Table, state: State, job: int) -> float:
    """The job's rate beside the others at theirs (`State.trial`)."""
    wire_s: float = state.wire_s[job]
    alone_s: float = table.alone_s[job]
    if wire_s <= 0.0:
        return 1.0 / alone_s
    left, shared, waits_s = 1.0, 0.0, 0.0
    for pair in range(table.near_first[job], table.near_first[job + 1]):
        if state.lost[pair] > 0.0:
            other = table.near[pair]
            piece_s = state.wire_s[other] * state.lost[pair]
            busy = piece_s * state.trial[other]
            if state.level[other] < state.level[job]:
                left *= max(1.0 - busy, LEAST_LEFT)
                waits_s += busy * piece_s / 2.0
            elif state.level[other] == state.level[job]:
                shared += busy
    left = max(left, LEAST_LEFT)
    more_s: float = wire_s / left * (1.0 + shared) - table.least_wire_s[job] + waits_s / left
    if more_s <= 0.0:
        return 1.0 / alone_s
    if alone_s <= table.compute_s[job]:
        slack_s = max(alone_s - table.least_wire_s[job] - table.first_byte_s[job], 0.0)
        more_s *= exp(-slack_s / more_s)
    rate = 1.0 / (alone_s + more_s)
    return min(rate, left / wire_s)


def settle(table: Table, state: State, count: int) -> float:
    """Set the trial rates of the touched jobs (`count` of them), level by level; return the work that these gain."""
    for level in range(table.levels):
        for round in range(ROUNDS):
            for place_ in range(count):
                job = state.touched[place_]
                if state.level[job] == level:
                    rate = rate_of(table, state, job)
                    state.trial[job] = rate if round == 0 else 0.5 * (rate + state.trial[job])
    gain = 0.0
    for place_ in range(count):
        job = state.touched[place_]
        gain += table.flops[job] * (state.trial[job] - state.rate[job])
    return gain


def touch(table: Table, state: State, count: int, job: int) -> int:
    """Add a job and those near it to the touched ones; return how many there are."""
    if state.mark[job] == 0:
        state.mark[job] = 1
        state.touched[count] = job
        count += 1
    for pair in range(table.near_first[job], table.near_first[job + 1]):
        other = table.near[pair]
        if state.mark[other] == 0:
            state.mark[other] = 1
            state.touched[count] = other
            count += 1
    return count


def settle_all(table: Table, state: State) -> float:
    """Set all rates anew; return the work of all."""
    jobs = len(table.flops)
    for job in range(jobs):
        state.touched[job] = job
        state.trial[job] = 1.0 / table.alone_s[job]
    settle(table, state, jobs)
    work = 0.0
    for job in range(jobs):
        state.rate[job] = state.trial[job]
        work += table.flops[job] * state.rate[job]
    return work


def ready(table: Table, state: State) -> None:
    """Place all jobs, and set all rates."""
    for job in range(len(table.flops)):
        place(table, state, job)
    for job in range(len(table.flops)):
        meet(table, state, job)
    settle_all(table, state)


def apply(table: Table, state: State, kind: int, one: int, value: int) -> int:
    """Take a step; return what would take it back. Kinds: 0 a job's level, 1 the option of a connection of a job
    (which is `value` // 65536), 2 two jobs swap levels."""
    if kind == 0:
        before: int = state.level[one]
        state.level[one] = value
        return before
    if kind == 2:
        level = state.level[one]
        state.level[one] = state.level[value]
        state.level[value] = level
        return value
    job, option = value // 65536, value % 65536
    chosen: int = state.choice[one]
    state.choice[one] = option
    place(table, state, job)
    meet(table, state, job)
    return job * 65536 + chosen


def idle(state: State, kind: int, one: int, value: int) -> bool:
    """Whether a step changes nothing."""
    if kind == 0:
        return bool(state.level[one] == value)
    if kind == 2:
        return bool(state.level[one] == state.level[value])
    return bool(state.choice[one] == value % 65536)


def climb(table: Table, state: State, order: Integers, visits: int, least: float) -> int:
    """Take steps in `order` (numbers of `Table.moves`), each that gains more than `least` of the work, until none does
    or `visits` pairs have been looked at; return how many are left."""
    work = settle_all(table, state)
    since, at, moves = 0, 0, len(order)
    while since < moves and visits > 0:
        kind, one, value = table.moves[order[at], 0], table.moves[order[at], 1], table.moves[order[at], 2]
        at = at + 1 if at + 1 < moves else 0
        since += 1
        if idle(state, kind, one, value):
            continue
        back = apply(table, state, kind, one, value)
        count = touch(table, state, 0, value // 65536 if kind == 1 else one)
        if kind == 2:
            count = touch(table, state, count, value)
        for place_ in range(count):
            job = state.touched[place_]
            state.mark[job] = 0
            state.trial[job] = state.rate[job]
            visits -= table.near_first[job + 1] - table.near_first[job]
        gain = settle(table, state, count)
        if gain > least * work:
            work += gain
            since = 0
            for place_ in range(count):
                job = state.touched[place_]
                state.rate[job] = state.trial[job]
        else:
            apply(table, state, kind, one, back)
            for place_ in range(count):
                job = state.touched[place_]
                state.trial[job] = state.rate[job]
    return visits


HELPERS = (place, meet, rate_of, settle, touch, settle_all, apply, idle)
"""What `climb` calls, each after those that it calls."""
