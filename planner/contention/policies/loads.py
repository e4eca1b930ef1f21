"""What jobs put on links: bytes by connection, seconds of each link, who shares links with whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from estimator.network.steps import Mover, Step
from planner.contention.policies.records import Choice, Contender, Path, View
from planner.contention.policies.sending import shared_evenly

LinkSeconds = Mapping[int, float]
"""Of each link that a job uses, how long an iteration's bytes keep it busy: M_{j,e} / B_e of Crux, eq. 2."""


def bytes_by_connection(job: Contender) -> tuple[float, ...]:
    """Return the bytes of an iteration on each of the job's connections."""
    return job.sending.bytes_of_connections


def path_of(options: Sequence[Path], choice: Choice) -> Path:
    """Return the links of the chosen path; of all of them evenly where none is chosen."""
    return shared_evenly(options) if choice is None else options[choice]


def path_taken(job: Contender, connection: int, choice: Choice) -> Path:
    """Return the same of a connection of a job."""
    return job.sending.evenly[connection] if choice is None else job.paths[connection][choice]


def spread_paths(view: View) -> tuple[tuple[Choice, ...], ...]:
    """Return the choices that spread each connection evenly over its paths."""
    return tuple((None,) * len(job.paths) for job in view.jobs)


def paths_now(view: View) -> tuple[tuple[Choice, ...], ...]:
    """Return the choices that are in force."""
    return tuple(job.now for job in view.jobs)


def link_seconds(view: View, paths: Sequence[Sequence[Choice]]) -> tuple[LinkSeconds, ...]:
    """Return for each job how long an iteration's bytes keep each link busy. Infinite on a link that is down."""
    return tuple(_seconds_of_one(job, choices, view) for job, choices in zip(view.jobs, paths, strict=True))


def _seconds_of_one(job: Contender, choices: Sequence[Choice], view: View) -> LinkSeconds:
    if all(choice is None for choice in choices):
        return _seconds_evenly(job, view)
    seconds: dict[int, float] = {}
    bytes_per_s = view.bytes_per_s
    for connection, (choice, size) in enumerate(zip(choices, job.sending.bytes_of_connections, strict=True)):
        if size > 0:
            for link, share in path_taken(job, connection, choice):
                rate = bytes_per_s[link]
                seconds[link] = seconds.get(link, 0.0) + (size * share / rate if rate > 0 else float("inf"))
    return seconds


def _seconds_evenly(job: Contender, view: View) -> LinkSeconds:
    sent = job.sending.evenly_sent
    with np.errstate(divide="ignore"):
        parts_s = sent.sizes / np.maximum(view.rates[sent.numbers], 0.0)[sent.place]
    seconds = np.bincount(sent.place, parts_s, minlength=len(sent.links))
    return dict(zip(sent.links, seconds.tolist(), strict=True))


def users_of_links(seconds: Iterable[LinkSeconds]) -> dict[int, list[int]]:
    """Return of each link that is used the jobs on it, by number."""
    users: dict[int, list[int]] = defaultdict(list)
    for job, its in enumerate(seconds):
        for link in its:
            users[link].append(job)
    return dict(users)


def contending_pairs(seconds: Sequence[LinkSeconds]) -> set[tuple[int, int]]:
    """Return the pairs of jobs that share a link, the lower number first."""
    sets = {tuple(jobs) for jobs in users_of_links(seconds).values() if len(jobs) > 1}
    return {pair for jobs in sets for pair in combinations(jobs, 2)}


def contending_jobs(seconds: Sequence[LinkSeconds]) -> tuple[int, ...]:
    """Return the jobs that share a link with any other."""
    return tuple(sorted({job for jobs in users_of_links(seconds).values() if len(jobs) > 1 for job in jobs}))


def steps_on(job: Contender, choices: Sequence[Choice]) -> tuple[Step, ...]:
    """Return the job's steps with links in the place of connections."""
    ways = [path_taken(job, connection, choice) for connection, choice in enumerate(choices)]
    return tuple(
        replace(
            step,
            transfers=tuple(
                replace(transfer, movers=tuple(_on_links(mover, ways) for mover in transfer.movers))
                for transfer in step.transfers
            ),
        )
        for step in job.steps
    )


def _on_links(mover: Mover, ways: Sequence[Path]) -> Mover:
    amounts: dict[int, float] = {}
    for connection, bytes_per_s in mover.way:
        for link, share in ways[connection]:
            amounts[link] = amounts.get(link, 0.0) + bytes_per_s * share
    return replace(mover, way=tuple(sorted(amounts.items())))
