"""Which stages fit where, against the price of each of them."""

from __future__ import annotations

import random
from itertools import combinations_with_replacement

import numpy as np
import pytest

from estimator.cells.held_stages import StagePlace
from estimator.cells.stage_pricing import StagePricing
from estimator.cells.stage_reach import add_up, find_reach, guess_in_flight, list_ways
from tests.cell_examples import MODELS, make_hardware, make_job, mixture, tied_gpt, untied_llama
from tests.estimator.cells.test_cell import tight_hardware
from tests.seeds import seeds


def fits(pricing: StagePricing, first: int, end: int, devices: int, in_flight: int) -> bool:
    """Whether the stage has a price, `in_flight` stages before the pipeline's end."""
    assert isinstance(pricing.job.micro_batches, int)
    slots = pricing.hardware.cluster.slots
    place = StagePlace(
        first=first,
        end=end,
        slots=slots[:devices],
        others=slots[devices : devices + 1],
        index=0,
        stages=in_flight,
        micro_batch=pricing.job.global_batch // pricing.job.micro_batches,
    )
    return any(isinstance(pricing.options(place, dp=dp, tp=tp), tuple) for dp, tp in ((devices, 1), (1, devices)))


@pytest.mark.parametrize("zero", [(0,), (1,), (3,), (0, 1, 2, 3)])
def test_reach_is_what_has_a_price(zero: tuple[int, ...]) -> None:
    """All that has a price is in reach, and nothing else."""
    rng = random.Random(str(zero))
    seen: set[bool] = set()
    for _ in range(8):
        model = rng.choice(MODELS)
        rule = rng.choice(["auto", ("none", None), ("full", None)])
        job = make_job(model, zero=zero, micro_batches=8, recompute=rule)
        pricing = StagePricing(job, tight_hardware(job, "a100-80gb:2x8", 4, 2, rng.uniform(0, 1)))
        layers = len(model.layers)
        in_flight = sorted((rng.randint(2, 8) for _ in range(layers)), reverse=True)
        ways = list_ways(pricing, devices=8, micro_batch=8)
        reach = find_reach(pricing, ways, stages=2, micro_batch=8, in_flight=in_flight)
        triples = [
            (first, end, n)
            for n in reach.device_counts
            for first in range(layers)
            for end in range(first + 1, layers + 1)
        ]
        usable = reach.usable(*np.array(triples).T).tolist()
        for (first, end, n), answer in zip(triples, usable, strict=True):
            assert fits(pricing, first, end, n, in_flight[first]) == answer
        seen |= set(usable)
    assert seen == {True, False}


def test_ways_are_the_degrees_that_most_layers_can_have() -> None:
    """Batches of 6 divide by 1, 2, 3, 6; 4 heads by 1, 2, 4. Twelve cut an embedding, but no block."""
    pricing = StagePricing(make_job(tied_gpt(), global_batch=24), make_hardware("a100-80gb:2x6"))
    assert list_ways(pricing, devices=12, micro_batch=6) == {
        1: ((1, 1),),
        2: ((2, 1), (1, 2)),
        3: ((3, 1),),
        4: ((1, 4),),
        6: ((6, 1),),
    }


def counts_of(pricing: StagePricing, devices: int) -> list[int]:
    return list(list_ways(pricing, devices=devices, micro_batch=1))


def test_degrees_follow_the_layers() -> None:
    """Eight heads are shared by at most eight ranks, and so are four experts, split beyond four; twelve heads by
    twelve, which hold four key-value heads thrice."""
    assert counts_of(StagePricing(make_job(mixture()), make_hardware("a100-80gb:2x8")), 16) == [1, 2, 4, 8]
    assert counts_of(StagePricing(make_job(untied_llama()), make_hardware("a100-80gb:2x6")), 12) == [1, 2, 4, 12]


def test_guesses_of_what_is_in_flight() -> None:
    """Six layers: three guesses for 1F1B, the same for every stage of GPipe."""
    assert guess_in_flight("1f1b", 6, stages=3, micro_batches=8) == (
        (3, 2, 1, 1, 1, 1),
        (3, 3, 2, 2, 1, 1),
        (3, 2, 2, 2, 2, 2),
    )
    assert guess_in_flight("1f1b", 6, stages=6, micro_batches=2) == ((2, 2, 2, 2, 2, 1), (2, 2, 2, 2, 2, 2))
    assert guess_in_flight("1f1b", 6, stages=1, micro_batches=4) == ((1,) * 6,)
    assert guess_in_flight("gpipe", 6, stages=3, micro_batches=8) == ((8,) * 6,)


def test_counts_that_add_up() -> None:
    rng = random.Random(3)
    for _ in seeds(300):
        counts = rng.sample(range(1, 12), k=rng.randint(1, 4))
        stages, devices = rng.randint(1, 4), rng.randint(1, 40)
        expected = any(sum(some) == devices for some in combinations_with_replacement(counts, stages))
        assert add_up(counts, stages=stages, devices=devices) == expected
    assert not add_up([], stages=2, devices=4)
