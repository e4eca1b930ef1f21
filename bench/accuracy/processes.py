"""The same function of many things, over the cores of this machine."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from estimator.host.children import process_pool

Thing = TypeVar("Thing")
Result = TypeVar("Result")

MOST_PROCESSES = 8

_tasks: list[Callable[[int], object]] = []
"""What forked processes are to do, inherited: rows and their plans need not be sent."""


def map_forked(function: Callable[[Thing], Result], things: Sequence[Thing]) -> Iterator[Result]:
    """Yield `function` of each of `things`, in their order, worked out by as many processes as there are cores, at most
    `MOST_PROCESSES`. One after another where there is one core or processes cannot be forked."""
    workers = min(os.cpu_count() or 1, MOST_PROCESSES, len(things))
    if workers < 2 or "fork" not in multiprocessing.get_all_start_methods():
        yield from map(function, things)
        return

    def nth(number: int) -> Result:
        return function(things[number])

    _tasks.append(nth)
    try:
        with process_pool(workers, "fork") as pool:
            yield from pool.map(_do, [len(_tasks) - 1] * len(things), range(len(things)))  # type: ignore[misc]
    finally:
        _tasks.pop()


def _do(task: int, number: int) -> object:
    return _tasks[task](number)
