"""Stages of a Cell against brute force, and the rules that hold for any input."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.cells.partition import Usable
from estimator.cells.stages import (
    StageSplit,
    bottleneck_flops_per_device,
    boundary_bytes,
    crius_stage_counts,
    partition_crius,
    partition_exact,
    stage_counts,
)
from profiles.vocabulary import Infeasible
from tests.oracles.partition_oracle import best_crius_partition, best_partition, is_power_of_two
from tests.seeds import examples, seeds


def value(split: StageSplit | Infeasible, flops: Sequence[int], cuts: Sequence[int]) -> tuple[Fraction, int] | None:
    if isinstance(split, Infeasible):
        return None
    return bottleneck_flops_per_device(split, flops), boundary_bytes(split, cuts)


def random_holes(rng: random.Random, density: float) -> Callable[[int, int, int], bool]:
    holes = {(a, e, n) for a in range(8) for e in range(8) for n in range(15) if rng.random() < density}
    return lambda a, e, n: (a, e, n) not in holes


def elementwise(usable: Callable[[int, int, int], bool]) -> Usable:
    return np.vectorize(usable, otypes=[bool])


def check_against_brute_force(
    flops: Sequence[int],
    cuts: Sequence[int],
    devices: int,
    stages: int,
    usable: Callable[[int, int, int], bool] | None = None,
    allowed: Sequence[int] | None = None,
) -> bool:
    """Whether there is a split; asserts that it is the best one."""

    def legal(a: int, e: int, n: int) -> bool:
        return (allowed is None or n in allowed) and (usable is None or usable(a, e, n))

    split = partition_exact(
        flops, cuts, devices, stages, usable=usable and elementwise(usable), allowed_devices=allowed
    )
    assert value(split, flops, cuts) == best_partition(flops, cuts, devices, stages, legal)
    if isinstance(split, Infeasible):
        return False
    assert (len(split.bounds), split.bounds[-1][1], sum(split.devices)) == (stages, len(flops), devices)
    assert all(legal(a, e, n) for (a, e), n in zip(split.bounds, split.devices, strict=True))
    return True


@pytest.mark.parametrize("mask", ["none", "powers", "some counts", "holes", "few devices per layer"])
@pytest.mark.parametrize("scale", [1, 10**20])
def test_exact_equals_brute_force(mask: str, scale: int) -> None:
    rng = random.Random(f"{mask} {scale}")
    found = 0
    for _ in seeds(60):
        layers, stages, devices = rng.randint(1, 7), rng.randint(1, 4), rng.randint(1, 12)
        flops = [rng.choice([0, rng.randint(0, 6), rng.randint(1, scale)]) for _ in range(layers)]
        cuts = [rng.choice([0, 1, rng.randint(0, 9)]) for _ in range(layers - 1)]
        allowed = {"powers": [1, 2, 4, 8], "some counts": rng.sample(range(1, 13), k=4)}.get(mask)
        usable = {"holes": random_holes(rng, 0.5), "few devices per layer": lambda a, e, n: n <= 2 * (e - a)}.get(mask)
        found += check_against_brute_force(flops, cuts, devices, stages, usable, allowed)
    assert 0 < found < 60


def test_counts_that_hardly_add_up_equal_brute_force() -> None:
    """Where the devices to spare of the best relaxed split cannot be shared out, other splits are searched."""
    rng = random.Random(6)
    for _ in seeds(500):
        layers, stages, devices = rng.randint(3, 7), rng.randint(2, 4), rng.randint(5, 14)
        allowed = rng.choice([(1, 4), (2, 3), (3, 5), (1, 4, 6), (2, 3, 7), (1, 3, 5), (2, 4, 6)])
        flops, cuts = [rng.randint(0, 9) for _ in range(layers)], [rng.randint(0, 9) for _ in range(layers - 1)]
        check_against_brute_force(flops, cuts, devices, stages, random_holes(rng, 0.3), allowed)


@pytest.mark.parametrize(
    ("flops", "cuts", "devices", "stages", "allowed"),
    [
        ([0, 3, 0, 3, 1, 3, 0, 1], [0, 9, 5, 5, 7, 1, 1], 13, 4, (1, 3, 4, 6)),
        ([2, 0, 3, 3, 3, 1, 1, 1], [5, 9, 5, 9, 6, 4, 1], 9, 3, (1, 3, 4, 6)),
        ([1, 1, 1, 0, 2, 1, 0], [2, 2, 0, 4, 5, 5], 14, 4, (1, 2, 4, 7)),
    ],
)
def test_fewest_bytes_among_sums_that_only_some_counts_reach(
    flops: list[int], cuts: list[int], devices: int, stages: int, allowed: tuple[int, ...]
) -> None:
    """Found by search: here the most even counts that add up would cost more bytes than others that do."""
    assert check_against_brute_force(flops, cuts, devices, stages, allowed=allowed)


def test_crius_takes_the_smallest_cuts_and_powers_of_two() -> None:
    rng = random.Random(4)
    for _ in seeds(120):
        layers = rng.randint(1, 7)
        devices = rng.choice([1, 2, 4, 8, 8, 16, 3, 6, 12])
        stages = rng.choice([s for s in (1, 2, 3, 4) if s <= min(layers, devices)])
        flops = [rng.randint(0, 9) for _ in range(layers)]
        cuts = [rng.randint(1, 4) for _ in range(layers - 1)]
        split = partition_crius(flops, cuts, devices, stages)
        assert isinstance(split, StageSplit)
        assert value(split, flops, cuts) == best_crius_partition(flops, cuts, devices, stages)
        assert boundary_bytes(split, cuts) == sum(sorted(cuts)[: stages - 1])
        assert sum(split.devices) == devices
        if is_power_of_two(devices):
            assert all(map(is_power_of_two, split.devices))


def test_crius_takes_the_nearest_powers_where_they_add_up() -> None:
    rng = random.Random(5)
    added_up = 0
    for _ in range(300):
        flops = [rng.randint(1, 400) for _ in range(rng.randint(2, 6))]
        shares = [16 * f / sum(flops) for f in flops]
        nearest = tuple(2 ** max(0, round(math.log2(share))) for share in shares)
        if sum(nearest) == 16:
            added_up += 1
            split = partition_crius(flops, [1] * (len(flops) - 1), devices=16, stages=len(flops))
            assert isinstance(split, StageSplit)
            assert split.devices == nearest
    assert added_up > 30


def test_crius_example_of_section_4_2() -> None:
    """Six operators on 8 devices, OP1 1/16 and OP2 3/16 of the FLOPs; the rest is ours (see the doctest)."""
    flops, cuts = [1, 3, 4, 4, 2, 2], [8, 2, 7, 3, 1]
    assert [Fraction(8 * f, sum(flops)) for f in flops[:2]] == [Fraction(1, 2), Fraction(3, 2)]
    split = partition_crius(flops, cuts, devices=8, stages=4)
    assert isinstance(split, StageSplit)
    assert split.bounds == ((0, 2), (2, 4), (4, 5), (5, 6))  # the cuts of 2, 3 and 1 bytes
    assert split.devices == (2, 4, 1, 1)  # the sums of 0.5 and 1.5, of 2 and 2, of 1, and of 1
    assert boundary_bytes(split, cuts) == 6


def test_equal_layers_give_equal_stages() -> None:
    for partition in (partition_exact, partition_crius):
        split = partition([5] * 32, [7] * 31, devices=32, stages=4)
        assert split == StageSplit(bounds=((0, 8), (8, 16), (16, 24), (24, 32)), devices=(8, 8, 8, 8))


def fewest_devices_below(bottleneck: Fraction, flops: Sequence[int], stages: int) -> float:
    """Devices that some split into `stages` needs for every stage to stay strictly below `bottleneck`."""
    layers = len(flops)
    fewest = [0.0, *[math.inf] * layers]
    for _ in range(stages):
        fewest = [
            min((fewest[a] + sum(flops[a:e]) // bottleneck + 1 for a in range(e)), default=math.inf)
            for e in range(layers + 1)
        ]
    return fewest[layers]


@pytest.mark.parametrize(("layers", "devices", "stages"), [(26, 18, 7), (60, 500, 13), (34, 24, 5)])
def test_larger_splits_meet_their_certificate(layers: int, devices: int, stages: int) -> None:
    """Too large for brute force (26 layers: three nodes of six in seven stages): nothing is strictly better."""
    rng = random.Random(8)
    for flops in ([0, *[9] * (layers - 2), 4], [rng.randint(10**17, 10**20) for _ in range(layers)]):
        split = partition_exact(flops, [1] * (layers - 1), devices, stages)
        assert isinstance(split, StageSplit)
        assert (len(split.bounds), sum(split.devices)) == (stages, devices)
        assert fewest_devices_below(bottleneck_flops_per_device(split, flops), flops, stages) > devices


def test_spare_devices_go_where_they_save_time() -> None:
    """On 3 devices the long layer is slowest, a fourth beside it cannot help: it goes to the longer of the others."""
    split = partition_exact([0, 12, 5, 6], [1, 1, 1], 5, 4, usable=lambda a, _, n: (n == 1) | (a != 1))
    assert split == StageSplit(bounds=((0, 1), (1, 2), (2, 3), (3, 4)), devices=(1, 1, 1, 2))


@pytest.mark.parametrize(
    ("layers", "devices", "stages", "allowed", "lacking"),
    [
        (3, 8, 4, None, "divisibility"),
        (8, 3, 4, None, "devices"),
        (8, 8, 3, [4], "devices"),
        (8, 7, 2, [2, 4, 6], "divisibility"),
        (8, 8, 2, [1, 2], "divisibility"),
    ],
)
def test_what_cannot_be_is_a_value(
    layers: int, devices: int, stages: int, allowed: list[int] | None, lacking: str
) -> None:
    split = partition_exact([1] * layers, [1] * (layers - 1), devices, stages, allowed_devices=allowed)
    assert isinstance(split, Infeasible)
    assert split.lacking == lacking


def test_nothing_usable_is_a_value() -> None:
    split = partition_exact([1] * 4, [1] * 3, 4, 2, usable=lambda a, _, n: a > n + 4)
    assert split == Infeasible(reason="no 2 stages are usable on at most 4 devices", lacking="devices")


def test_wrong_arguments_are_refused() -> None:
    calls: tuple[Callable[[], object], ...] = (
        lambda: partition_exact([], [], 1, 1),
        lambda: partition_exact([1, 2], [], 2, 1),
        lambda: partition_exact([1, -2], [1], 2, 1),
        lambda: partition_exact([1, 2], [1 << 62], 2, 1),
        lambda: partition_exact([1, 2], [1], 0, 1),
        lambda: partition_exact([1, 2], [1], 2, 0),
        lambda: partition_exact([1, 2], [1], 2, 1, allowed_devices=[]),
        lambda: partition_crius([1, 2], [1], 2, 0),
        lambda: StageSplit(bounds=((0, 2), (3, 4)), devices=(1, 1)),
        lambda: StageSplit(bounds=((0, 2), (2, 2)), devices=(1, 1)),
        lambda: StageSplit(bounds=((0, 2),), devices=(0,)),
        lambda: StageSplit(bounds=(), devices=()),
    )
    for call in calls:
        with pytest.raises(ValueError, match="expected"):
            call()


def test_stage_counts() -> None:
    assert crius_stage_counts(8, 100) == (1, 2, 4, 8)
    assert crius_stage_counts(100, 5) == (1, 2, 4)
    assert stage_counts(18, 26) == (1, 2, 3, 4, 6, 8, 9, 16, 18)
    assert stage_counts(1, 26) == (1,)


layer_lists = st.lists(st.integers(0, 10**20), min_size=1, max_size=12)


@settings(max_examples=examples(60), deadline=None)
@given(layer_lists, st.integers(1, 24), st.integers(1, 6), st.integers(2, 10**6), st.randoms(use_true_random=False))
def test_exact_properties(flops: list[int], devices: int, stages: int, factor: int, rng: random.Random) -> None:
    """Sums and contiguity; the lower bound; scale; direction; one device more, or fewer choices, and what they do."""
    cuts = [rng.randint(0, 50) for _ in flops[1:]]
    split = partition_exact(flops, cuts, devices, stages)
    if stages > min(len(flops), devices):
        assert isinstance(split, Infeasible)
        return
    assert isinstance(split, StageSplit)
    assert (len(split.bounds), sum(split.devices), split.bounds[-1][1]) == (stages, devices, len(flops))
    worst, dear = bottleneck_flops_per_device(split, flops), boundary_bytes(split, cuts)
    assert worst >= Fraction(sum(flops), devices)

    scaled = partition_exact([f * factor for f in flops], [c * factor for c in cuts], devices, stages)
    assert isinstance(scaled, StageSplit)
    assert scaled.bounds == split.bounds
    assert bottleneck_flops_per_device(scaled, flops) == worst
    assert value(partition_exact(flops[::-1], cuts[::-1], devices, stages), flops[::-1], cuts[::-1]) == (worst, dear)

    more = partition_exact(flops, cuts, devices + 1, stages)
    assert isinstance(more, StageSplit)
    assert bottleneck_flops_per_device(more, flops) <= worst
    crius = partition_crius(flops, cuts, devices, stages)
    assert isinstance(crius, StageSplit)
    assert bottleneck_flops_per_device(crius, flops) >= worst
