"""What of a part's links can hold anybody among the jobs that are there now, found anew whenever one comes or goes.

`estimator.network.player.folding` asks the same of all jobs that ever come: of thousands over weeks a few dozen are
there at once, and most links that two of them use in all that time are one job's alone at any moment. What is left out
leaves the set of paces that links allow as it is, so that the fair ones stay the same.
"""

from __future__ import annotations

from estimator.network.player.paces import begin, change_pace, enter, find_next
from estimator.network.player.score import (
    BEGUN,
    NARROWED,
    PRESENT,
    TOUCHED,
    Score,
    State,
)

NEVER_FULL = 1 + 1e-12
"""A link on which all that can be asked is no more than this of what it carries holds nobody."""
KEYS = (1 << 31) - 1
"""Users of a link are told apart by a number below this first."""


def narrow(score: Score, state: State) -> None:
    """Find which links still matter; put all movers that are under way on those, for new paces."""
    leave_links(score, state)
    links = ask_links(score, state, 0)
    hold_alone(score, state)
    ask_links(score, state, 1)
    for place in range(links):
        link = state.narrow_links[place]
        crowded = state.link_movers[link] > 1
        state.link_matters[link] = 1 if crowded and state.link_asked[link] > score.bytes_per_s[link] * NEVER_FULL else 0
    drop_looser(score, state, links)
    keep_entries(score, state)
    enter_links(score, state)


def leave_links(score: Score, state: State) -> None:
    """Take every mover off its links."""
    for place in range(state.tally[PRESENT]):
        job = state.present[place]
        for mover in range(score.job_mover_first[job], score.job_mover_first[job + 1]):
            for entry in range(score.entry_first[mover], state.live_end[mover]):
                state.link_count[state.live_link[entry]] = 0


def ask_links(score: Score, state: State, amounts: int) -> int:
    """Sum up what can be on each link at once: of each job the transfer with the most there. Movers (`amounts` 0), or
    bytes/s at their highest paces. Return how many links there are, in `narrow_links`."""
    tally, cells = state.tally, state.link_asked if amounts else state.link_movers
    tally[NARROWED] += 1
    here, links = tally[NARROWED], 0
    for place in range(tally[PRESENT]):
        job = state.present[place]
        tally[NARROWED] += 1
        of_job = tally[NARROWED]
        for transfer in range(
            score.transfer_first[score.step_first[job]], score.transfer_first[score.step_first[job + 1]]
        ):
            tally[NARROWED] += 1
            of_transfer = tally[NARROWED]
            for mover in range(score.mover_first[transfer], score.mover_first[transfer + 1]):
                most = state.most_now[mover] if amounts else 1.0
                for entry in range(score.entry_first[mover], score.entry_first[mover + 1]):
                    link = score.entry_link[entry]
                    if state.narrow_mark[link] < here:
                        cells[link] = 0.0
                        state.narrow_links[links] = link
                        links += 1
                    if state.narrow_mark[link] < of_job:
                        state.link_most_of_job[link] = 0.0
                    if state.narrow_mark[link] < of_transfer:
                        state.link_of_transfer[link] = 0.0
                    state.narrow_mark[link] = of_transfer
                    state.link_of_transfer[link] += score.entry_amount[entry] * most if amounts else 1.0
                    more = state.link_of_transfer[link] - state.link_most_of_job[link]
                    if more > 0.0:
                        cells[link] += more
                        state.link_most_of_job[link] = state.link_of_transfer[link]
    return links


def hold_alone(score: Score, state: State) -> None:
    """What a mover alone has to itself is its own limit."""
    for place in range(state.tally[PRESENT]):
        job = state.present[place]
        for mover in range(score.job_mover_first[job], score.job_mover_first[job + 1]):
            most = score.most[mover]
            for entry in range(score.entry_first[mover], score.entry_first[mover + 1]):
                link = score.entry_link[entry]
                if state.link_movers[link] <= 1:
                    most = min(most, score.bytes_per_s[link] / score.entry_amount[entry])
            state.most_now[mover] = most


def drop_looser(score: Score, state: State, links: int) -> None:
    """Of links with equal users leave those that hold them most."""
    list_users(score, state, links)
    size = len(state.narrow_table)
    for slot in range(size):
        state.narrow_table[slot] = -1
    for place in range(links):
        link = state.narrow_links[place]
        if state.link_matters[link] == 0:
            continue
        slot = state.link_key[link] % size
        while state.narrow_table[slot] >= 0:
            other = state.narrow_table[slot]
            order = compare_links(score, state, link, other)
            if order == LOOSER:
                state.link_matters[link] = 0
                break
            if order == TIGHTER:
                state.link_matters[other] = 0
                break
            slot = slot + 1 if slot + 1 < size else 0
        if state.link_matters[link]:
            state.narrow_table[slot] = link


def list_users(score: Score, state: State, links: int) -> None:
    """Write the entries of each link that matters one after the other, `user_first` to `user_end`, and a number by
    which links with other users are told apart."""
    for place in range(links):
        link = state.narrow_links[place]
        state.user_end[link] = 0
        state.link_key[link] = 0
    for turn in range(2):
        for place in range(state.tally[PRESENT]):
            job = state.present[place]
            for entry in range(
                score.entry_first[score.job_mover_first[job]], score.entry_first[score.job_mover_first[job + 1]]
            ):
                link = score.entry_link[entry]
                if state.link_matters[link]:
                    if turn:
                        state.users[state.user_end[link]] = entry
                        state.link_key[link] = (state.link_key[link] * 31 + score.entry_mover[entry] + 1) % KEYS
                    state.user_end[link] += 1
        if turn == 0:
            first = 0
            for place in range(links):
                link = state.narrow_links[place]
                count = state.user_end[link]
                state.user_first[link] = first
                state.user_end[link] = first
                first += count


LOOSER, TIGHTER, OTHERS = range(3)
"""A link holds the same users as another one, each less; each as much or more; or other users, or some more and some
less."""


def compare_links(score: Score, state: State, link: int, other: int) -> int:
    """Return how a link stands to another."""
    count = state.user_end[link] - state.user_first[link]
    if state.link_key[link] != state.link_key[other] or count != state.user_end[other] - state.user_first[other]:
        return OTHERS
    looser, tighter = True, True
    for place in range(count):
        entry, its = state.users[state.user_first[link] + place], state.users[state.user_first[other] + place]
        if score.entry_mover[entry] != score.entry_mover[its]:
            return OTHERS
        # Cross-multiplied: a link may carry nothing.
        share = score.entry_amount[entry] * score.bytes_per_s[other]
        other_share = score.entry_amount[its] * score.bytes_per_s[link]
        looser = looser and share <= other_share * NEVER_FULL
        tighter = tighter and other_share <= share
        if not looser and not tighter:
            return OTHERS
    return LOOSER if looser else TIGHTER


def keep_entries(score: Score, state: State) -> None:
    """Write each mover's entries on links that matter to the front of its own."""
    for place in range(state.tally[PRESENT]):
        job = state.present[place]
        for mover in range(score.job_mover_first[job], score.job_mover_first[job + 1]):
            live = score.entry_first[mover]
            for entry in range(live, score.entry_first[mover + 1]):
                if state.link_matters[score.entry_link[entry]]:
                    state.live_link[live] = score.entry_link[entry]
                    state.live_amount[live] = score.entry_amount[entry]
                    live += 1
            state.live_end[mover] = live


def enter_links(score: Score, state: State) -> None:
    """Put every mover that is under way on its links, all of which get new paces; one without any has its highest."""
    tally = state.tally
    tally[TOUCHED] = 0
    tally[BEGUN] = 0
    for place in range(tally[PRESENT]):
        job = state.present[place]
        for mover in range(score.job_mover_first[job], score.job_mover_first[job + 1]):
            if not state.mover_active[mover]:
                continue
            first, last = score.entry_first[mover], state.live_end[mover]
            if first == last:
                change_pace(state, mover, state.most_now[mover])
            else:
                begin(state, mover)
            for entry in range(first, last):
                enter(score, state, entry, mover)
        find_next(score, state, job)


HELPERS = (
    enter_links,
    keep_entries,
    compare_links,
    list_users,
    drop_looser,
    hold_alone,
    ask_links,
    leave_links,
    narrow,
)
"""What compiled code calls of this module, each after those that it calls."""
