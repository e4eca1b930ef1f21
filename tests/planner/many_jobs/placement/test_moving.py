"""Moving running jobs so that another fits whole: against every set of jobs, and what is refused."""

from __future__ import annotations

import random

import pytest

from planner.many_jobs.placement.machines.moving import cheapest_moves
from planner.many_jobs.placement.machines.occupied import Machine
from tests.oracles.moves_oracle import brute_moves


def machine(
    node: int, jobs: dict[str, tuple[int, ...]], *, size: int = 4, held: int = 0, barred: bool = False
) -> Machine:
    """A machine with these jobs on it; `held` of its last GPUs are somebody's."""
    busy = {index for gpus in jobs.values() for index in gpus} | set(range(size - held, size))
    free = () if barred else tuple(index for index in range(size) if index not in busy)
    return Machine(
        site="s", node=node, host=f"n{node}", group=0, device="a100", size=size, island=size, parts=(),
        free=free, jobs=jobs, held=held, barred=barred,
    )  # fmt: skip


def _drawn(rng: random.Random) -> tuple[list[Machine], dict[str, float], int]:
    size = rng.choice((2, 4))
    nodes = rng.randint(2, 6)
    on: list[dict[str, tuple[int, ...]]] = [{} for _ in range(nodes)]
    next_free = [0] * nodes
    held = [rng.choice((0, 0, 0, 1)) for _ in range(nodes)]
    for number in range(rng.randint(1, 8)):
        for node in rng.sample(range(nodes), rng.choice((1, 1, 1, 2, 2, 3)) if nodes > 2 else 1):
            room = size - held[node] - next_free[node]
            if room:
                take = rng.randint(1, room)
                on[node][f"j{number}"] = tuple(range(next_free[node], next_free[node] + take))
                next_free[node] += take
    machines = [
        machine(node, on[node], size=size, held=held[node], barred=rng.random() < 0.05) for node in range(nodes)
    ]
    names = sorted({job for jobs in on for job in jobs})
    cost = {job: float(rng.randint(1, 6)) for job in names if rng.random() < 0.85}
    return machines, cost, rng.randint(1, size * nodes)


@pytest.mark.parametrize("seed", range(400))
def test_no_set_of_jobs_loses_less(seed: int) -> None:
    rng = random.Random(seed)
    machines, cost, devices = _drawn(rng)
    for most in (0, 1, 2, 3):
        moves = cheapest_moves(machines, devices, cost, most)
        brute = brute_moves(machines, devices, cost, most)
        assert (None if moves is None else (moves.lost_device_hours, len(moves.jobs))) == brute
        if moves is not None and moves.jobs:
            # What is told does what it says.
            assert brute_moves([one.without(moves.jobs) for one in machines], devices, {}, 0) == (0, 0)


def test_a_job_that_stays_keeps_its_machine() -> None:
    machines = [machine(0, {"a": (0,)}), machine(1, {"b": (0, 1)})]
    assert cheapest_moves(machines, 4, {"a": 2.0, "b": 1.0}) is not None
    moves = cheapest_moves(machines, 4, {"a": 2.0})
    assert moves is not None
    assert moves.jobs == ("a",)
    assert cheapest_moves(machines, 4, {}) is None


def test_more_jobs_than_are_exact_are_refused() -> None:
    with pytest.raises(ValueError, match="exact for 0 to 3"):
        cheapest_moves([machine(0, {})], 4, {}, 4)
