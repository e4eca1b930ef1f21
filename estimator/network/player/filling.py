"""Movers of a level share what others leave of their links: all at the same pace over weight, until a link is full or a
mover has its most."""

from __future__ import annotations

from estimator.network.player.score import JOINED, NEVER, STAMP, TOUCHED, Score, State

AS_FULL = 1e-12
"""Links whose fair shares differ by less, relatively, are full at the same time."""
NOTHING = 16e-12
"""What rounding leaves of a link that is full, relatively."""
ITS_MOST, OPEN, FRESH = -1, -2, -3
"""Holders of movers that are no links: its own most; nothing known, of one whose pace is found anew; the same, of one
that has just begun."""


def fill_level(score: Score, state: State, level: int, first: int) -> None:
    """Find the next paces of the movers in `joined` from `first` on, of this level, beside others that keep theirs."""
    unsettled, waiting, stamp = state.unsettled, 0, state.tally[STAMP]
    for place in range(first, state.tally[JOINED]):
        mover = state.joined[place]
        unsettled[waiting] = mover
        state.mover_open[mover] = 1
        waiting += 1
    unfilled = 0
    for place in range(state.tally[TOUCHED]):
        link = state.touched[place]
        begins, count, load = score.room_first[link], 0, 0.0
        left = score.bytes_per_s[link]
        for where in range(begins, begins + state.link_count[link]):
            mover = state.room_mover[where]
            if score.level[mover] == level and state.mover_mark[mover] == stamp:
                load += state.room_amount[where] * score.weight[mover]
                count += 1
            elif score.level[mover] <= level:
                left -= state.room_amount[where] * state.mover_pace[mover]
        if count > 0:
            left = left if left > score.bytes_per_s[link] * NOTHING else 0.0
            state.link_left[link] = left
            state.link_load[link] = load
            state.link_open[link] = count
            state.link_share[link] = left / load if load > 0.0 else NEVER
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
                mover = state.room_mover[where]
                if open_movers[mover]:
                    open_movers[mover] = 0
                    state.mover_holder[mover] = link
                    held_movers[count] = mover
                    count += 1
    for place in range(waiting):
        mover = unsettled[place]
        if open_movers[mover] and state.most_now[mover] <= full * score.weight[mover]:
            open_movers[mover] = 0
            state.mover_holder[mover] = ITS_MOST
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
    """Give a mover its next pace, and leave the rest of its links to others."""
    for entry in range(score.entry_first[mover], state.live_end[mover]):
        link = state.live_link[entry]
        state.link_open[link] -= 1
        state.link_load[link] -= state.live_amount[entry] * score.weight[mover]
        left = state.link_left[link] - state.live_amount[entry] * pace
        state.link_left[link] = left if left > score.bytes_per_s[link] * NOTHING else 0.0
        if state.link_open[link] > 0:
            load = state.link_load[link]
            state.link_share[link] = state.link_left[link] / load if load > 0.0 else NEVER
    state.mover_next_pace[mover] = pace


HELPERS = (settle, settle_some, least_share, fill_level)
"""What compiled code calls of this module, each after those that it calls."""
