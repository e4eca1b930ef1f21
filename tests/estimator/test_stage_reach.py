"""Which stages fit where, against the price of each of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations_with_replacement

import numpy as np
import pytest

from estimator.cells.job import Job
from estimator.cells.stage_options import Machine, StageOption, StagePlace, estimate_option
from estimator.cells.stage_reach import Way, add_up, find_reach, guess_in_flight, list_ways
from tests.cell_examples import MODELS, make_job, make_test_machine, mixture, tied_gpt, untied_llama


def fits(job: Job, machine: Machine, first: int, end: int, ways: Sequence[Way], in_flight: int) -> bool:
    """Whether the stage has a price in one of these ways, `in_flight` stages before the pipeline's end."""
    assert isinstance(job.micro_batches, int)
    place = StagePlace(
        first=first,
        layers=job.model.layers[first:end],
        slots=machine.cluster.slots[: ways[0].parallelism.devices],
        index=0,
        stages=in_flight,
        micro_batch=job.global_batch // job.micro_batches,
        micro_batches=job.micro_batches,
    )
    return any(isinstance(estimate_option(job, machine, place, way.parallelism), StageOption) for way in ways)


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_reach_is_what_has_a_price(zero: int) -> None:
    rng = random.Random(zero)
    seen = set()
    for _ in range(12):
        model = rng.choice(MODELS)
        job = make_job(model, zero=zero, micro_batches=8, recompute=rng.choice(["auto", "none", "full"]))
        machine = make_test_machine(job, memory_bytes=round(10 ** rng.uniform(5.8, 7)))
        layers = len(model.layers)
        in_flight = sorted((rng.randint(1, 8) for _ in range(layers)), reverse=True)
        ways = list_ways(job, machine, devices=8, micro_batch=8)
        reach = find_reach(job, machine, ways, in_flight=in_flight)
        triples = [
            (first, end, n)
            for n in reach.device_counts
            for first in range(layers)
            for end in range(first + 1, layers + 1)
        ]
        usable = reach.usable(*np.array(triples).T).tolist()
        for (first, end, n), answer in zip(triples, usable, strict=True):
            assert answer == fits(job, machine, first, end, ways[n], in_flight[first])
        seen |= set(usable)
    assert seen == {True, False}


def test_ways_are_the_degrees_that_most_layers_can_have() -> None:
    """Batches of 6 divide by 1, 2, 3, 6; 4 heads by 1, 2, 4. Twelve cut an embedding, but no block."""
    job = make_job(tied_gpt(), global_batch=24)
    ways = list_ways(job, make_test_machine(job), devices=12, micro_batch=6)
    found = {
        count: [(way.parallelism.dp, way.parallelism.tp, way.parallelism.recompute) for way in some]
        for count, some in ways.items()
    }
    assert found == {
        1: [(1, 1, "none"), (1, 1, "full")],
        2: [(2, 1, "none"), (2, 1, "full"), (1, 2, "none"), (1, 2, "full")],
        3: [(3, 1, "none"), (3, 1, "full")],
        4: [(1, 4, "none"), (1, 4, "full")],
        6: [(6, 1, "none"), (6, 1, "full")],
    }


def test_degrees_follow_the_layers() -> None:
    """Four experts are shared by at most four ranks; twelve heads by twelve, which hold four key-value heads thrice."""
    job = make_job(mixture())
    assert list(list_ways(job, make_test_machine(job), devices=8, micro_batch=1)) == [1, 2, 4]
    llama = make_job(untied_llama())
    assert list(list_ways(llama, make_test_machine(llama), devices=12, micro_batch=1)) == [1, 2, 4, 12]


def test_nothing_is_a_way_without_the_dtype() -> None:
    job = make_job()
    assert list_ways(job, make_test_machine(job, "v100-32gb:1x8"), devices=8, micro_batch=8) == {}


def test_guesses_of_what_is_in_flight() -> None:
    """Six layers: three guesses for 1F1B, the same for every stage of GPipe."""
    job = make_job(tied_gpt())
    assert guess_in_flight(job, stages=3, micro_batches=8) == (
        (3, 2, 1, 1, 1, 1),
        (3, 3, 2, 2, 1, 1),
        (3, 2, 2, 2, 2, 2),
    )
    assert guess_in_flight(job, stages=6, micro_batches=2) == ((2, 2, 2, 2, 2, 1), (2, 2, 2, 2, 2, 2))
    assert guess_in_flight(job, stages=1, micro_batches=4) == ((1,) * 6,)
    gpipe = make_job(tied_gpt(), schedule="gpipe")
    assert guess_in_flight(gpipe, stages=3, micro_batches=8) == ((8,) * 6,)


def test_counts_that_add_up() -> None:
    rng = random.Random(3)
    for _ in range(300):
        counts = rng.sample(range(1, 12), k=rng.randint(1, 4))
        stages, devices = rng.randint(1, 4), rng.randint(1, 40)
        expected = any(sum(some) == devices for some in combinations_with_replacement(counts, stages))
        assert add_up(counts, stages=stages, devices=devices) == expected
    assert not add_up([], stages=2, devices=4)
