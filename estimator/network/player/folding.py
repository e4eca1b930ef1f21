"""What of a network can hold anybody: links that one mover alone uses become its own limit, links that cannot fill are
left out, of links with equal users the tightest stay; movers that then differ in nothing become one. What is left of
links joins jobs to parts that do not touch each other.

All of it leaves the set of paces that links allow as it is, so that the fair ones stay the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from estimator.network.player.packing import Floats, Integers, Packed
from profiles.records import dataclass

Flags = NDArray[np.bool_]

NEVER_FULL = 1 + 1e-12
"""A link on which all that can be asked is no more than this of what it carries holds nobody."""


@dataclass(frozen=True, kw_only=True)
class FoldedMover:
    """Movers of a transfer as one: `way` of (link, bytes/s at pace 1) holds the links alone that still matter."""

    way: tuple[tuple[int, float], ...]
    seconds: float
    most: float
    level: int
    weight: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """Jobs, by number, that share links with each other and nobody else; of each job's transfers the movers."""

    jobs: tuple[int, ...]
    movers: tuple[tuple[tuple[FoldedMover, ...], ...], ...]


def fold(jobs: Sequence[Packed], bytes_per_s: Floats) -> tuple[Part, ...]:
    """Return the parts, in the order of their first jobs, with what is left of their movers' ways."""
    table = _table(jobs)
    most, kept = _matters(table, bytes_per_s)
    ways: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
    for entry in np.flatnonzero(kept):
        ways[int(table.mover[entry])].append((int(table.link[entry]), float(table.amount[entry])))
    links_of_jobs: defaultdict[int, set[int]] = defaultdict(set)
    of_jobs: list[tuple[tuple[FoldedMover, ...], ...]] = []
    mover = 0
    for number, job in enumerate(jobs):
        transfers = []
        for count in job.mover_count:
            members = range(mover, mover + int(count))
            seconds, levels, weights = table.seconds, table.level, table.weight
            alike = [
                FoldedMover(
                    way=tuple(ways.get(each, ())),
                    seconds=float(seconds[each]),
                    most=float(most[each]),
                    level=int(levels[each]),
                    weight=float(weights[each]),
                )
                for each in members
            ]
            transfers.append(_merged(alike))
            for each in members:
                links_of_jobs[number].update(link for link, _ in ways.get(each, ()))
            mover += int(count)
        of_jobs.append(tuple(transfers))
    return tuple(
        Part(jobs=members_of, movers=tuple(of_jobs[job] for job in members_of))
        for members_of in _joined(len(jobs), links_of_jobs)
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Table:
    """All jobs' movers, and the entries of their ways."""

    mover: Integers
    link: Integers
    amount: Floats
    seconds: Floats
    most: Floats
    level: Integers
    weight: Floats
    transfer: Integers
    job: Integers


def _table(jobs: Sequence[Packed]) -> _Table:
    def joined(name: str) -> Floats:
        return np.concatenate([getattr(job, name) for job in jobs]) if jobs else np.empty(0)

    entry_count, mover_count = joined("entry_count").astype(np.int64), joined("mover_count").astype(np.int64)
    movers = [len(job.mover_seconds) for job in jobs]
    return _Table(
        mover=np.repeat(np.arange(len(entry_count)), entry_count),
        link=joined("entry_link").astype(np.int64),
        amount=joined("entry_amount"),
        seconds=joined("mover_seconds"),
        most=joined("mover_most"),
        level=joined("mover_level").astype(np.int64),
        weight=joined("mover_weight"),
        transfer=np.repeat(np.arange(len(mover_count)), mover_count),
        job=np.repeat(np.arange(len(jobs)), movers),
    )


def _matters(table: _Table, bytes_per_s: Floats) -> tuple[Floats, Flags]:
    """What each mover's pace is at most, and which entries of the table still hold anybody."""
    most = table.most.copy()
    if not len(table.link):
        return most, np.ones(0, dtype=bool)
    links, place = np.unique(table.link, return_inverse=True)
    rates, together = bytes_per_s[links], _Together(table, place)
    alone = (together.most(np.ones(len(place))) <= 1)[place]
    with np.errstate(over="ignore"):  # Next to no bytes are through at once.
        paces = rates[place] / table.amount
    np.minimum.at(most, table.mover[alone], paces[alone])
    asked = together.most(table.amount * most[table.mover])
    kept = ~alone & (asked > rates * NEVER_FULL)[place]
    looser = np.zeros(len(links), dtype=bool)
    looser[_looser(table, kept, place, rates)] = True
    return most, kept & ~looser[place]


class _Together:
    """What is on each link at once at most: of each job the transfer with the most there."""

    def __init__(self, table: _Table, place: Integers) -> None:
        transfers, jobs = int(table.transfer[-1]) + 1, int(table.job[-1]) + 1
        job_of = np.zeros(transfers, dtype=np.int64)
        job_of[table.transfer] = table.job
        pairs, self._pair = np.unique(place * transfers + table.transfer[table.mover], return_inverse=True)
        # Transfers are numbered job by job, so that pairs are in the order of links and jobs too.
        owners = pairs // transfers * jobs + job_of[pairs % transfers]
        self._begins = np.flatnonzero(np.diff(owners, prepend=-1))
        self._link = owners[self._begins] // jobs

    def most(self, values: Floats) -> Floats:
        """Return the sum on each link of the values of what can be there at once."""
        greatest = np.maximum.reduceat(np.bincount(self._pair, values), self._begins)
        return np.bincount(self._link, greatest).astype(np.float64)


def _looser(table: _Table, kept: Flags, place: Integers, rates: Floats) -> list[int]:
    """The links that others with the same users hold back more, whoever of them sends."""
    entries = np.flatnonzero(kept)
    entries = entries[np.argsort(place[entries], kind="stable")]
    begins = [*np.flatnonzero(np.diff(place[entries], prepend=-1)).tolist(), len(entries)]
    users, of_link = table.mover[entries], place[entries]
    with np.errstate(divide="ignore"):
        shares = table.amount[entries] / rates[of_link]
    tight: defaultdict[bytes, list[tuple[int, Floats]]] = defaultdict(list)
    looser: list[int] = []
    for begin, end in pairwise(begins):
        link, share = int(of_link[begin]), shares[begin:end]
        others = tight[users[begin:end].tobytes()]
        if any(bool((share <= other * NEVER_FULL).all()) for _, other in others):
            looser.append(link)
            continue
        looser += [other for other, its in others if bool((its <= share).all())]
        others[:] = [(other, its) for other, its in others if not bool((its <= share).all())]
        others.append((link, share))
    return looser


def _merged(movers: Sequence[FoldedMover]) -> tuple[FoldedMover, ...]:
    """Of movers that nothing shared holds the last to arrive; those that are alike in all as one that puts all their
    bytes on the links."""
    free = [mover for mover in movers if not mover.way]
    counts: defaultdict[FoldedMover, int] = defaultdict(int)
    for mover in movers:
        if mover.way:
            counts[mover] += 1
    held = [
        FoldedMover(
            way=tuple((link, amount * count) for link, amount in mover.way),
            seconds=mover.seconds,
            most=mover.most,
            level=mover.level,
            weight=mover.weight,
        )
        for mover, count in counts.items()
    ]
    last = [max(free, key=lambda mover: mover.seconds / mover.most if mover.most else float("inf"))] if free else []
    return (*last, *held)


def _joined(jobs: int, links_of_jobs: dict[int, set[int]]) -> list[tuple[int, ...]]:
    """The jobs that links join, each part in order."""
    leader = list(range(jobs))

    def find(job: int) -> int:
        while leader[job] != job:
            leader[job] = leader[leader[job]]
            job = leader[job]
        return job

    user: dict[int, int] = {}
    for job in range(jobs):
        for link in links_of_jobs.get(job, ()):
            first = find(user.setdefault(link, job))
            here = find(job)
            leader[max(first, here)] = min(first, here)
    parts: defaultdict[int, list[int]] = defaultdict(list)
    for job in range(jobs):
        parts[find(job)].append(job)
    return [tuple(parts[first]) for first in sorted(parts)]
