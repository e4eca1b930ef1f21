"""Whether movers still go as fast as they fairly can, where others begin, end or change.

Paces are fair when each mover is at its own most or has a link that holds it: full, and nobody's pace over weight above
its own there (Bertsekas and Gallager, "Data Networks", 2nd edition, section 6.5.2: such paces are the only max-min fair
ones). So what an event changes need be followed only as far as somebody's link stops holding it.
"""

from __future__ import annotations

from estimator.network.player.filling import FRESH, ITS_MOST, NOTHING, OPEN
from estimator.network.player.score import JOINED, NEVER, SEEN, STAMP, TOUCHED, Score, State

ALIKE = 4e-12
"""Paces over weight that differ by less, relatively, are equal."""
BITS = 62
"""Of a whole number, to note levels in."""


def bit_of(level: int) -> int:
    """Return the bit of a level: levels far from each other may share one, and are told apart where it matters."""
    return 1 << level % BITS


def see_levels(score: Score, state: State, link: int) -> None:
    """Note the levels of the movers on a link."""
    first, bits = score.room_first[link], 0
    for where in range(first, first + state.link_count[link]):
        bits |= bit_of(score.level[state.room_mover[where]])
    state.link_levels[link] = bits
    state.tally[SEEN] |= bits


def join(score: Score, state: State, mover: int, holder: int) -> None:
    """A mover gets a new pace, and all its links are looked at."""
    tally = state.tally
    state.mover_mark[mover] = tally[STAMP]
    state.mover_holder[mover] = holder
    state.joined[tally[JOINED]] = mover
    tally[JOINED] += 1
    for entry in range(score.entry_first[mover], state.live_end[mover]):
        link = state.live_link[entry]
        if state.link_mark[link] != tally[STAMP]:
            state.link_mark[link] = tally[STAMP]
            state.touched[tally[TOUCHED]] = link
            tally[TOUCHED] += 1
            see_levels(score, state, link)


def join_all(score: Score, state: State, level: int) -> None:
    """Join all movers of a level that links join to those that are looked at."""
    place = 0
    while place < state.tally[TOUCHED]:
        link = state.touched[place]
        first = score.room_first[link]
        for where in range(first, first + state.link_count[link]):
            mover = state.room_mover[where]
            if score.level[mover] == level and state.mover_mark[mover] != state.tally[STAMP]:
                join(score, state, mover, OPEN)
        place += 1


def join_loose(score: Score, state: State, level: int) -> None:
    """Join the movers of a level that nothing holds any longer, or that hold others to less than they have."""
    bit = bit_of(level)
    for place in range(state.tally[TOUCHED]):
        if state.link_levels[state.touched[place]] & bit:
            join_loose_of(score, state, level, state.touched[place])


def join_loose_of(score: Score, state: State, level: int, link: int) -> None:
    """The same, of the movers on one link."""
    begins, stamp = score.room_first[link], state.tally[STAMP]
    ends = begins + state.link_count[link]
    if ends - begins <= 1 and (ends == begins or state.mover_holder[state.room_mover[begins]] != link):
        return
    left, load, of_level, top, least = score.bytes_per_s[link], 0.0, 0.0, 0.0, NEVER
    fresh, highest, lowest = False, -1.0, NEVER
    for where in range(begins, ends):
        mover = state.room_mover[where]
        if score.level[mover] > level:
            continue
        amount = state.room_amount[where]
        sends = amount * state.mover_next_pace[mover]
        left -= sends
        if score.level[mover] < level:
            continue
        share = state.mover_next_pace[mover] / score.weight[mover]
        load += amount * score.weight[mover]
        of_level += sends
        top = max(top, share)
        holder = state.mover_holder[mover]
        if state.mover_mark[mover] != stamp:
            highest = max(highest, share)
            if holder == link:
                lowest = min(lowest, share)
        elif holder == link:
            least = min(least, share)
        elif holder == FRESH:
            fresh = True
    nothing = score.bytes_per_s[link] * NOTHING
    if highest >= 0.0 and (fresh or left < -nothing):
        least = min(least, max(left + of_level, 0.0) / load)
    # Whoever this link held has to have as much as anybody there has.
    enough = top - top * ALIKE if left <= nothing else NEVER
    if highest > least + least * ALIKE or lowest < enough:
        join_beyond(score, state, level, link, least + least * ALIKE, enough)


def join_beyond(score: Score, state: State, level: int, link: int, least: float, enough: float) -> None:
    """Join the movers of a level on a link whose pace over weight is above `least`, or, where the link was their
    holder, below `enough` and nothing else holds them."""
    begins = score.room_first[link]
    for where in range(begins, begins + state.link_count[link]):
        mover = state.room_mover[where]
        if score.level[mover] != level or state.mover_mark[mover] == state.tally[STAMP]:
            continue
        share = state.mover_pace[mover] / score.weight[mover]
        held_here = share < enough and state.mover_holder[mover] == link
        if share > least or (held_here and not finds_holder(score, state, mover, level)):
            join(score, state, mover, OPEN)


def finds_holder(score: Score, state: State, mover: int, level: int) -> bool:
    """Whether another link holds a mover, or its own most does; it is its holder then."""
    pace = state.mover_pace[mover]
    if pace >= state.most_now[mover]:
        state.mover_holder[mover] = ITS_MOST
        return True
    share = pace / score.weight[mover]
    for entry in range(score.entry_first[mover], state.live_end[mover]):
        link = state.live_link[entry]
        if holds(score, state, link, share, level):
            state.mover_holder[mover] = link
            return True
    return False


def holds(score: Score, state: State, link: int, share: float, level: int) -> bool:
    """Whether a link is full, and nobody's pace over weight is above this there."""
    begins, left = score.room_first[link], score.bytes_per_s[link]
    for where in range(begins, begins + state.link_count[link]):
        mover = state.room_mover[where]
        if score.level[mover] > level:
            continue
        pace = state.mover_next_pace[mover]
        if score.level[mover] == level and pace > (share + share * ALIKE) * score.weight[mover]:
            return False
        left -= state.room_amount[where] * pace
    return bool(left <= score.bytes_per_s[link] * NOTHING)


HELPERS = (bit_of, see_levels, join, holds, finds_holder, join_beyond, join_loose_of, join_loose, join_all)
"""What compiled code calls of this module, each after those that it calls."""
