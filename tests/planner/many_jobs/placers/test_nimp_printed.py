"""What is wrong with Titan's formulas and algorithms as printed: each on an instance that one can check by hand."""

from __future__ import annotations

from random import Random

import pytest

from estimator.communication.phases import Phase, collective_phases
from tests.oracles.nimp_oracle import least_nodes, ways
from tests.oracles.nimp_printed import (
    allowed_by_the_ratio,
    feasible_workers,
    merge,
    most_used,
    place,
    reduction,
)

FOUR = frozenset(range(4))


def some_bandwidth(_here: int, _there: int) -> float:
    return 0.25


def nothing(_here: int, _there: int) -> float:
    return 0.0


def test_the_most_machines_in_use_are_the_fewer_of_machines_and_workers() -> None:
    for free, workers in (([2, 2, 2], 2), ([4, 4], 5)):
        truly = max(sum(count > 0 for count in counts) for counts in ways(free, workers))
        assert truly == min(len(free), workers) < most_used(len(free), workers)


def test_h_is_how_many_sets_were_chosen_whichever_they_are() -> None:
    """As long as a worker is left, so that the greedy step has nothing to choose by."""
    rng, workers = Random(0), frozenset(range(9))
    for _ in range(200):
        order = rng.sample(sorted(workers), 9)
        cuts = sorted(rng.sample(range(1, 9), rng.randint(1, 5)))
        chosen = [frozenset(order[a:b]) for a, b in zip([0, *cuts[:-1]], cuts, strict=True)]
        assert frozenset[int]().union(*chosen) < workers
        assert reduction(chosen, workers) == len(chosen)
    values = {reduction([frozenset((worker,))], workers) for worker in workers}
    assert values == {1}


def test_to_maximise_h_is_to_use_more_machines() -> None:
    alone = [frozenset((worker,)) for worker in FOUR]
    together = [FOUR]
    assert reduction(alone, FOUR) == 3 > reduction(together, FOUR) == 0
    # Lemma 3 bounds the greedy choice of so many sets; without a number of sets all of them are the maximum.
    assert max(reduction(alone[:count], FOUR) for count in range(5)) == reduction(alone, FOUR)


def test_the_ratio_allows_nearly_two_hundred_machines_where_two_suffice() -> None:
    assert allowed_by_the_ratio(512, 2) == 189


def test_algorithm_1_takes_a_worker_of_whom_one_pair_in_one_phase_fits() -> None:
    """Halves of the vector do not fit in the first phase; the text has every pair of every phase."""
    phases = collective_phases("halving-doubling", "all_reduce", 4)
    assert phases[0].flows[0] == (0, 2, 0.5)
    feasible, _ = feasible_workers(1, [2], {0: 0}, phases, nothing, some_bandwidth)
    assert feasible == {2}


def test_algorithm_1_finds_nothing_for_the_first_machine() -> None:
    """Nobody is placed yet, so that no pair is ever asked for."""
    phases = collective_phases("ring", "all_reduce", 4)
    assert feasible_workers(0, FOUR, {}, phases, nothing, lambda *_: 1e9) == (frozenset(), 0)


def test_algorithm_1_does_not_look_at_free_gpus_and_asks_every_pair_in_every_phase() -> None:
    phases = (Phase(flows=()),) * 3
    feasible, asked = feasible_workers(0, range(10, 30), dict.fromkeys(range(10), 1), phases, nothing, some_bandwidth)
    assert len(feasible) == 20  # whatever the machine has
    assert asked == 20 * 10 * 3  # |N|^2 T, not |N| T


def test_algorithm_2_grows_its_best_set_instead_of_replacing_it() -> None:
    """So the sets have workers in common: one worker on several machines."""
    chosen = merge([0, 1, 2], [0, 1, 2], frozenset(range(6)), Random(1))
    assert any(one & other for number, one in enumerate(chosen) for other in chosen[:number])


@pytest.mark.parametrize("seed", range(5))
def test_algorithm_2_leaves_the_others_to_one_machine_whatever_its_size(seed: int) -> None:
    """Eight machines of four GPUs and 32 workers fit; at most one worker is added a round, and the rest is too many."""
    chosen = merge(range(8), range(8), frozenset(range(32)), Random(seed))
    assert len(chosen[-1]) > 4


def test_algorithm_2_goes_over_idle_machines_whichever_it_is_given() -> None:
    """On machines that are not idle it chooses nobody, and leaves all to one of them."""
    chosen = merge([0, 1, 2], [], FOUR, Random(0))
    assert [len(some) for some in chosen] == [0, 0, 0, 4]


def test_algorithm_3_fails_where_idle_machines_cannot_hold_the_job() -> None:
    """One idle machine of four, and two free on each of two others: eight workers fit."""
    free, workers = [4, 2, 2], frozenset(range(8))
    assert least_nodes(free, 4, 8) == (1, 3)
    idle = [0]
    assert max(map(len, merge(idle, idle, workers, Random(0)))) > 4
    for seed in range(20):
        placed = place(free, 4, workers, Random(seed))
        assert any(len(some) > 4 for some in placed) or len([some for some in placed if some]) > 3


def test_algorithm_3_prefers_the_idle_machine() -> None:
    """Its second step is to use as few as may be of the others and of those idle ones that the first step chose: one
    idle machine in place of two parts, the reverse of the objectives' order."""
    free, size, workers = [4, 2, 2], 4, 4
    fewest = min(sum(count > 0 for count in counts) for counts in ways(free, workers))
    of_step_2 = [counts for counts in ways(free, workers) if sum(count > 0 for count in counts) == fewest]
    assert of_step_2 == [(4, 0, 0)]
    assert least_nodes(free, size, workers) == (0, 2)


def test_the_printed_constraint_binds_inside_a_machine_and_not_on_its_nics() -> None:
    """Over all pairs of machines a machine and itself are one. And each of three pairs may be within 100 while the
    three flows into one machine are 300."""
    phase = Phase(flows=((1, 0, 100.0), (2, 0, 100.0), (3, 0, 100.0)))
    together, apart = dict.fromkeys(range(4), 0), {worker: worker for worker in range(4)}

    def sent(seats: dict[int, int], here: int, there: int) -> float:
        return sum(size for a, b, size in phase.flows if (seats[a], seats[b]) == (here, there))

    assert sent(together, 0, 0) == 300.0
    assert max(sent(apart, here, there) for here in range(4) for there in range(4)) == 100.0
    assert sum(sent(apart, here, 0) for here in (1, 2, 3)) == 300.0
