"""Decisions that look best by arithmetic, from several starts: to be played."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from random import Random

import numpy as np

from planner.contention.policies import arithmetic_kernel as kernel
from planner.contention.policies.arithmetic_kernel import State, Table
from planner.contention.policies.intensity import bottleneck_s
from planner.contention.policies.loads import bytes_by_connection, link_seconds, path_of
from planner.contention.policies.pair import first_byte_s
from planner.contention.policies.path_selection import least_congested_paths
from planner.contention.policies.records import Choice, Contender, View
from planner.contention.policies.stepwise import Start

VISITS = 20_000_000
"""Pairs of jobs that are looked at in all, some 0.5 s where the kernel is compiled."""
LEAST = 1e-6
"""A step that gains no more of the work is none."""
SWAPS = 20_000
"""Pairs of jobs that may swap levels, at most."""
SHAKES = 12
"""So often the best is changed at random and climbed from again."""
SHAKEN = 0.15
"""The share of connections and levels that are changed then."""


def promising(view: View, starts: Sequence[Start], *, seed: int = 0, visits: int = VISITS) -> list[tuple[float, Start]]:
    """Return decisions with their work a second by arithmetic, the greatest first: what is reached from each start, and
    from the best of these shaken. Those that may not change do not."""
    if not view.jobs or not starts:
        return []
    table = table_of(view)
    rng, climb = Random(seed), _compiled()[1]
    reached: list[tuple[float, Start]] = []

    def climb_from(start: Start, visits: int) -> int:
        state = state_of(view, table, start)
        order = np.array(rng.sample(range(len(table.moves)), len(table.moves)), dtype=np.int64)
        visits = int(climb(table, state, order, visits, LEAST))
        work = float(np.dot(table.flops, state.rate))
        reached.append((work, _start_of(view, state)))
        return visits

    each = visits // 2 // len(starts)
    for start in starts:
        climb_from(start, each)
    left = visits // 2
    for _ in range(SHAKES):
        if left <= 0:
            break
        left = climb_from(_shaken(view, max(reached, key=lambda it: it[0])[1], rng), left)
    distinct: dict[Start, float] = {start: work for work, start in reached}
    return sorted(((work, start) for start, work in distinct.items()), key=lambda it: -it[0])


def works_by_arithmetic(view: View, starts: Sequence[Start]) -> list[float]:
    """Return the work a second of each of several decisions, FLOP/s, by arithmetic alone."""
    table = table_of(view)
    return [float(np.dot(table.flops, state_of(view, table, start).rate)) for start in starts]


def table_of(view: View) -> Table:
    """Return what the kernel needs of a view."""
    connections, options = [0], [0]
    entries: list[int] = [0]
    links: list[int] = []
    seconds: list[float] = []
    numbers: dict[int, int] = {}
    users: dict[int, set[int]] = {}
    moves: list[tuple[int, int, int]] = []
    levels = view.levels or max(len(view.jobs), 1)
    for number, job in enumerate(view.jobs):
        for its, now, size in zip(job.paths, job.now, bytes_by_connection(job), strict=True):
            paths = [*its, path_of(its, None)] if now is None else list(its)
            if job.may_change and len(its) > 1 and now is not None and size > 0:
                moves += [(1, len(options) - 1, number * 65536 + option) for option in range(len(its))]
            for path in paths:
                for link, share in path if size > 0 else ():
                    rate = view.bytes_per_s[link]
                    links.append(numbers.setdefault(link, len(numbers)))
                    seconds.append(size * share / rate if rate > 0 else DOWN_S)
                    users.setdefault(link, set()).add(number)
                entries.append(len(links))
            options.append(options[-1] + len(paths))
        connections.append(len(options) - 1)
    near: list[set[int]] = [set() for _ in view.jobs]
    for together in users.values():
        for number in together:
            near[number] |= together
    pairs = [sorted(its - {number}) for number, its in enumerate(near)]
    free = [number for number, job in enumerate(view.jobs) if job.may_change and pairs[number]]
    moves += [(0, number, level) for number in free for level in range(min(levels, len(view.jobs)))]
    swaps = [(2, one, other) for one in free for other in pairs[one] if other > one and view.jobs[other].may_change]
    moves += swaps[:: max(-(-len(swaps) // SWAPS), 1)]
    return Table(
        flops=np.array([job.flops for job in view.jobs]),
        compute_s=np.array([sum(step.times * step.compute_s for step in job.steps) for job in view.jobs]),
        alone_s=np.array([job.alone_s for job in view.jobs]),
        first_byte_s=np.array([first_byte_s(job.steps) for job in view.jobs]),
        least_wire_s=np.array([least_wire_s(view, job) for job in view.jobs]),
        connection_first=np.array(connections),
        option_first=np.array(options),
        entry_first=np.array(entries),
        entry_link=np.array(links, dtype=np.int64),
        entry_s=np.array(seconds),
        near_first=np.concatenate([[0], np.cumsum([len(its) for its in pairs])]).astype(np.int64),
        near=np.array([other for its in pairs for other in its], dtype=np.int64),
        moves=np.array(moves, dtype=np.int64).reshape(-1, 3),
        levels=levels,
    )


def least_wire_s(view: View, job: Contender) -> float:
    """Return how long a job's bytes keep a link busy on the paths that it has if it is there alone."""
    alone = replace(view, jobs=(replace(job, now=(0,) * len(job.paths)),))
    return min(bottleneck_s(job, link_seconds(alone, least_congested_paths(alone, (0,)))[0]), DOWN_S)


DOWN_S = 1e9
"""For what is sent over a link that is down."""


def state_of(view: View, table: Table, start: Start) -> State:
    """Return the state of a decision, with its rates."""
    jobs, links = len(view.jobs), int(table.entry_link.max(initial=-1)) + 1
    choice = [
        len(options) if its is None else its
        for job, choices in zip(view.jobs, start.paths, strict=True)
        for options, its in zip(job.paths, choices, strict=True)
    ]
    state = State(
        level=np.array(start.levels, dtype=np.int64),
        choice=np.array(choice, dtype=np.int64),
        seconds=np.zeros((jobs, links)),
        wire_s=np.zeros(jobs),
        lost=np.zeros(len(table.near)),
        rate=1.0 / table.alone_s,
        trial=1.0 / table.alone_s,
        touched=np.zeros(jobs, dtype=np.int64),
        mark=np.zeros(jobs, dtype=np.int64),
    )
    _compiled()[0](table, state)
    return state


def _start_of(view: View, state: State) -> Start:
    paths: list[tuple[Choice, ...]] = []
    at = 0
    for job in view.jobs:
        chosen = state.choice[at : at + len(job.paths)].tolist()
        paths.append(tuple(None if it == len(options) else it for it, options in zip(chosen, job.paths, strict=True)))
        at += len(job.paths)
    return Start(paths=tuple(paths), levels=tuple(state.level.tolist()))


def _shaken(view: View, start: Start, rng: Random) -> Start:
    """The decision with some connections and levels drawn anew."""
    top = min(view.levels or len(view.jobs), len(view.jobs))
    paths, levels = [], []
    for job, choices, level in zip(view.jobs, start.paths, start.levels, strict=True):
        paths.append(
            tuple(
                rng.randrange(len(options)) if it is not None and job.may_change and rng.random() < SHAKEN else it
                for options, it in zip(job.paths, choices, strict=True)
            )
        )
        levels.append(rng.randrange(top) if job.may_change and rng.random() < SHAKEN else level)
    return Start(paths=tuple(paths), levels=tuple(levels))


@cache
def _compiled() -> tuple[Callable[..., None], Callable[..., int]]:
    """The kernel's `ready` and `climb`, compiled where numba is there."""
    import importlib.util

    if importlib.util.find_spec("numba") is None:
        return kernel.ready, kernel.climb
    import numba
    from numba.extending import register_jitable

    for helper in kernel.HELPERS:
        register_jitable(error_model="numpy")(helper)
    try:
        made = [numba.njit(cache=True, error_model="numpy")(function) for function in (kernel.ready, kernel.climb)]
    except RuntimeError:  # numba finds no folder that it may write into
        made = [numba.njit(error_model="numpy")(function) for function in (kernel.ready, kernel.climb)]
    return made[0], made[1]
