"""Which movers get new paces when one begins or ends, and what these are: of those alone that links join to it.

They are the paces of `estimator.network.rates.fair_paces`, an event's worth at a time: what that does to thousands of
users at once in arrays, this does to the few dozen of an event one after the other.
"""

from __future__ import annotations

from estimator.network.player.score import (
    DONE,
    LOGGED,
    MOVING,
    NEVER,
    NOW,
    SEED_LEVEL,
    SEEDS,
    STAMP,
    Score,
    State,
)

AS_FULL = 1e-12
"""Links whose fair shares differ by less, relatively, are full at the same time."""
NOTHING = 16e-12
"""What rounding leaves of a link that is full, relatively."""
AS_BEFORE = 1e-14
"""A pace that moves by less, relatively, stays."""
NO_LEVEL = 1 << 60


def seed(score: Score, state: State, link: int, mover: int) -> None:
    """Remember that a mover began or ended on a link."""
    tally = state.tally
    if tally[SEEDS] == 0:
        tally[STAMP] += 1
        tally[SEED_LEVEL] = NO_LEVEL
    if state.link_mark[link] != tally[STAMP]:
        state.link_mark[link] = tally[STAMP]
        state.link_queue[tally[SEEDS]] = link
        tally[SEEDS] += 1
    if score.level[mover] < tally[SEED_LEVEL]:
        tally[SEED_LEVEL] = score.level[mover]


def set_paces(score: Score, state: State) -> None:
    """Give new paces to the movers that links join to those links on which something began or ended. Levels before all
    that began or ended keep theirs, and join nobody."""
    tally, queue = state.tally, state.link_queue
    stamp, links, found, changing = tally[STAMP], tally[SEEDS], 0, tally[SEED_LEVEL]
    place = 0
    while place < links:
        link = queue[place]
        place += 1
        left, first = score.bytes_per_s[link], score.room_first[link]
        for where in range(first, first + state.link_count[link]):
            mover = score.entry_mover[state.room[where]]
            if score.level[mover] < changing:
                left -= state.live_amount[state.room[where]] * state.mover_pace[mover]
            elif state.mover_mark[mover] != stamp:
                state.mover_mark[mover] = stamp
                state.members[found] = mover
                found += 1
                for entry in range(score.entry_first[mover], state.live_end[mover]):
                    beyond = state.live_link[entry]
                    if state.link_mark[beyond] != stamp:
                        state.link_mark[beyond] = stamp
                        queue[links] = beyond
                        links += 1
        state.link_left[link] = left if left > score.bytes_per_s[link] * NOTHING else 0.0
    tally[SEEDS] = 0
    level = -1
    while True:
        following = NO_LEVEL
        for place in range(found):
            other = score.level[state.members[place]]
            if level < other < following:
                following = other
        if following == NO_LEVEL:
            break
        level = following
        fill_level(score, state, level, found, links)
    for place in range(found):
        job = score.mover_job[state.members[place]]
        if state.job_mark[job] != stamp:
            state.job_mark[job] = stamp
            find_next(score, state, job)


def fill_level(score: Score, state: State, level: int, found: int, links: int) -> None:
    """Fill what is left of the links with the movers of a level, all at the same pace over weight until a link is full
    or a mover has its most."""
    unsettled, waiting = state.unsettled, 0
    for place in range(links):
        state.link_load[state.link_queue[place]] = 0.0
        state.link_open[state.link_queue[place]] = 0
    for place in range(found):
        mover = state.members[place]
        if score.level[mover] == level:
            unsettled[waiting] = mover
            state.mover_open[mover] = 1
            waiting += 1
            for entry in range(score.entry_first[mover], state.live_end[mover]):
                link = state.live_link[entry]
                state.link_load[link] += state.live_amount[entry] * score.weight[mover]
                state.link_open[link] += 1
    unfilled = 0
    for place in range(links):
        link = state.link_queue[place]
        if state.link_open[link] > 0:
            load = state.link_load[link]
            state.link_share[link] = state.link_left[link] / load if load > 0.0 else NEVER
            state.link_unfilled[unfilled] = link
            unfilled += 1
    while waiting > 0:
        share, unfilled = least_share(score, state, waiting, unfilled)
        waiting = settle_some(score, state, waiting, unfilled, share)


def least_share(score: Score, state: State, waiting: int, unfilled: int) -> tuple[float, int]:
    """Return at which pace over weight the first unsettled mover is held, and on how many links one still is."""
    share, kept = NEVER, 0
    for place in range(unfilled):
        link = state.link_unfilled[place]
        if state.link_open[link] > 0:
            state.link_unfilled[kept] = link
            kept += 1
            if state.link_share[link] < share:
                share = state.link_share[link]
    for place in range(waiting):
        mover = state.unsettled[place]
        if state.most_now[mover] < share * score.weight[mover]:
            share = state.most_now[mover] / score.weight[mover]
    return share, kept


def settle_some(score: Score, state: State, waiting: int, unfilled: int, share: float) -> int:
    """Settle the movers that are held at this share, by a link or by their own most; return how many are left."""
    unsettled, held_movers, open_movers = state.unsettled, state.held, state.mover_open
    full, kept, count = share + share * AS_FULL, 0, 0
    for place in range(unfilled):
        link = state.link_unfilled[place]
        if state.link_share[link] <= full:
            first = score.room_first[link]
            for where in range(first, first + state.link_count[link]):
                mover = score.entry_mover[state.room[where]]
                if open_movers[mover]:
                    open_movers[mover] = 0
                    held_movers[count] = mover
                    count += 1
    for place in range(waiting):
        mover = unsettled[place]
        if open_movers[mover] and state.most_now[mover] <= full * score.weight[mover]:
            open_movers[mover] = 0
            held_movers[count] = mover
            count += 1
        if open_movers[mover]:
            unsettled[kept] = mover
            kept += 1
    for place in range(count):
        mover = held_movers[place]
        settle(score, state, mover, min(share * score.weight[mover], state.most_now[mover]))
    return kept


def settle(score: Score, state: State, mover: int, pace: float) -> None:
    """Give a mover its pace, and leave the rest of its links to others."""
    for entry in range(score.entry_first[mover], state.live_end[mover]):
        link = state.live_link[entry]
        state.link_open[link] -= 1
        state.link_load[link] -= state.live_amount[entry] * score.weight[mover]
        left = state.link_left[link] - state.live_amount[entry] * pace
        state.link_left[link] = left if left > score.bytes_per_s[link] * NOTHING else 0.0
        if state.link_open[link] > 0:
            load = state.link_load[link]
            state.link_share[link] = state.link_left[link] / load if load > 0.0 else NEVER
    before = state.mover_pace[mover]
    if abs(pace - before) > AS_BEFORE * before or before <= 0.0:
        change_pace(state, mover, pace)


def change_pace(state: State, mover: int, pace: float) -> None:
    """Go on at another pace."""
    now, before = state.clock[NOW], state.mover_pace[mover]
    left_s = state.mover_left_s[mover] - before * (now - state.mover_since_s[mover])
    left_s = left_s if left_s > 0.0 else 0.0
    state.mover_left_s[mover] = left_s
    state.mover_since_s[mover] = now
    state.mover_pace[mover] = pace
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


HELPERS = (log, find_next, change_pace, settle, settle_some, least_share, fill_level, set_paces, seed)
"""What compiled code calls of this module, each after those that it calls."""
