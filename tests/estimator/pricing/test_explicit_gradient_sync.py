"""Volumes of gradients and sharded weights by hand, and the exposed part of ZeRO 3 against an event simulation."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.pricing.gradient_sync import (
    Learning,
    ShardedLayer,
    TimeOnAxis,
    exposed_sharding_s,
    exposed_sync_s,
    gather_weights_s,
    hiding_of,
    passes_beside,
    reduce_gradients_s,
    sum_partial_gradients_s,
)
from estimator.pricing.recipe import Recipe, Software
from profiles.vocabulary import CollectiveOp
from tests.oracles.sharding_oracle import simulate_sharded
from tests.seeds import seeds

HELD = Learning(dense=1000, experts=300)
DENSE = Learning(dense=1000, experts=0)


class Bytes:
    """A timer whose seconds are bytes, and which remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: Counter[tuple[CollectiveOp, str | int]] = Counter()

    def timer(self) -> TimeOnAxis:
        def seconds(op: CollectiveOp, size_bytes: float, axis: str | int) -> float:
            self.asked[op, axis] += int(size_bytes)
            return size_bytes

        return seconds


def reduced(
    held: Learning, *, zero: int, sharded_over: int = 1, width: int = 4, micro_batches: int = 1
) -> tuple[dict[tuple[str, str | int], int], float]:
    asked = Bytes()
    found = reduce_gradients_s(
        held,
        zero=zero,
        sharded_over=sharded_over,
        gradient_width=width,
        micro_batches=micro_batches,
        on_axis=asked.timer(),
    )
    return {key: size for key, size in asked.asked.items() if size}, found


def gathered(held: Learning, *, zero: int, width: int = 2) -> dict[tuple[str, str | int], int]:
    asked = Bytes()
    gather_weights_s(held, zero=zero, width=width, on_axis=asked.timer())
    return {key: size for key, size in asked.asked.items() if size}


def test_without_sharding_all_gradients_are_summed_once() -> None:
    assert reduced(DENSE, zero=0) == ({("all_reduce", "dp"): 4000}, 4000)
    assert reduced(DENSE, zero=0, width=2)[1] == 2000
    assert gathered(DENSE, zero=0) == {}


@pytest.mark.parametrize("zero", [1, 2])
def test_sharded_optimizers_scatter_gradients_and_gather_weights(zero: int) -> None:
    """Rajbhandari et al. 2020, section 7.2.1: as many bytes as an all-reduce, in its two halves."""
    assert reduced(DENSE, zero=zero, sharded_over=8)[0] == {
        ("reduce_scatter", "shard"): 4000,
        ("all_reduce", "replicate"): 500,
    }
    assert gathered(DENSE, zero=zero) == {("all_gather", "shard"): 2000}


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_gradients_of_experts_are_summed_over_the_ranks_that_hold_them(zero: int) -> None:
    found, seconds = reduced(HELD, zero=zero, sharded_over=8)
    assert found["reduce_scatter" if zero else "all_reduce", "expert_dp"] == 1200
    assert seconds == reduced(DENSE, zero=zero, sharded_over=8)[1] + 1200
    assert gathered(HELD, zero=zero).get(("all_gather", "expert_dp"), 0) == (600 if zero else 0)


@pytest.mark.parametrize(("zero", "times"), [(0, 1), (1, 1), (2, 16)])
def test_sharded_gradients_are_summed_every_micro_batch(zero: int, times: int) -> None:
    once, often = (reduced(HELD, zero=zero, sharded_over=8, micro_batches=count)[1] for count in (1, 16))
    assert often == times * once


@pytest.mark.parametrize(("zero", "times"), [(0, 1), (1, 1), (2, 16), (3, 1)])
def test_partial_gradients_are_summed_over_the_ranks_that_have_them(zero: int, times: int) -> None:
    asked = Bytes()
    held = Learning(dense=1000, experts=0, partial=((2, 50), (8, 10)))
    seconds = sum_partial_gradients_s(held, zero=zero, gradient_width=4, micro_batches=16, on_axis=asked.timer())
    assert asked.asked == {("all_reduce", 2): 200, ("all_reduce", 8): 40}
    assert seconds == times * 240


def test_sharded_weights_move_within_micro_batches() -> None:
    assert reduced(HELD, zero=3, sharded_over=8) == ({}, 0)
    assert gathered(HELD, zero=3) == {}


def test_nothing_moves_where_nothing_learns() -> None:
    frozen = Learning(dense=0, experts=0)
    for zero in (0, 1, 2):
        assert reduced(frozen, zero=zero) == ({}, 0)
        assert gathered(frozen, zero=zero) == {}


seconds = st.floats(0.01, 10)
layers = st.builds(ShardedLayer, forward_s=seconds, backward_s=seconds, gather_s=seconds, scatter_s=seconds)


def closed(stack: list[tuple[ShardedLayer, int]], *, overlap_cost: float = 0.0) -> float:
    """Compute with what sharding adds, by the closed form."""
    compute = sum(count * (one.forward_s + one.backward_s) for one, count in stack)
    return compute + exposed_sharding_s(stack, overlap_cost=overlap_cost)


@given(layer=layers, count=st.integers(1, 40))
def test_equal_layers_are_never_faster_than_the_events_and_little_slower(layer: ShardedLayer, count: int) -> None:
    """What the closed form counts twice is one layer's: the first gather, the last backward's gather and scatter."""
    simulated = simulate_sharded([layer] * count)
    found = closed([(layer, count)])
    assert found >= simulated * (1 - 1e-9)
    assert found <= simulated + 2 * layer.gather_s + layer.scatter_s + 1e-9


def test_equal_layers_that_hide_everything_are_exact() -> None:
    layer = ShardedLayer(forward_s=1.0, backward_s=2.0, gather_s=0.5, scatter_s=0.75)
    for count in (1, 2, 20):
        assert closed([(layer, count)]) == pytest.approx(simulate_sharded([layer] * count))


def model_like(rng: random.Random, blocks: int, most: float) -> list[tuple[ShardedLayer, int]]:
    """An embedding with a large table and little work, blocks, a head; a block's forward is 1, its gather up to
    `most`."""
    gather, vocabulary = rng.uniform(0.05, most), rng.uniform(0.3, 4)
    scatter = gather * rng.uniform(1, 2)
    block = ShardedLayer(forward_s=1.0, backward_s=2.0, gather_s=gather, scatter_s=scatter)
    ends = [
        ShardedLayer(forward_s=work, backward_s=2 * work, gather_s=gather * vocabulary, scatter_s=scatter * vocabulary)
        for work in (0.02, 1.2 * vocabulary)
    ]
    return [(ends[0], 1), (block, blocks), (ends[1], 1)]


@pytest.mark.parametrize(
    ("blocks", "most", "low", "high"), [(4, 1.5, -0.07, 0.15), (32, 1.5, -0.02, 0.05), (32, 0.5, -0.01, 0.035)]
)
def test_how_far_a_models_layers_are_from_the_events(blocks: int, most: float, low: float, high: float) -> None:
    """A wait is compared with the layer's own work, not with its neighbour's: the ends are where that shows."""
    rng = random.Random(blocks)
    errors = []
    for _ in seeds(500):
        stack = model_like(rng, blocks, most)
        simulated = simulate_sharded([one for one, count in stack for _ in range(count)])
        errors.append(closed(stack) / simulated - 1)
    assert low <= min(errors) <= max(errors) <= high
    assert sum(map(abs, errors)) / len(errors) < high / 2


@given(stack=st.lists(st.tuples(layers, st.integers(1, 4)), min_size=1, max_size=6), cost=st.floats(0, 1))
def test_exposed_time_is_positive_grows_with_its_cost_and_has_a_bound(
    stack: list[tuple[ShardedLayer, int]], cost: float
) -> None:
    free, costly = (exposed_sharding_s(stack, overlap_cost=x) for x in (0.0, cost))
    waited = exposed_sharding_s(stack, overlap_cost=cost, overlapped=False)
    moved = sum(count * (2 * one.gather_s + one.scatter_s) for one, count in stack)
    assert 0 <= free <= costly * (1 + 1e-12)
    assert costly <= waited * (1 + 1e-12)
    assert waited == pytest.approx(moved)


@given(stack=st.lists(st.tuples(layers, st.integers(1, 4)), min_size=1, max_size=6), which=st.integers(0, 5))
def test_shorter_collectives_or_work_never_take_longer(stack: list[tuple[ShardedLayer, int]], which: int) -> None:
    one, count = stack[which % len(stack)]
    for name in ("forward_s", "backward_s", "gather_s", "scatter_s"):
        values = {field: getattr(one, field) for field in ("forward_s", "backward_s", "gather_s", "scatter_s")}
        shorter = [*stack]
        shorter[which % len(stack)] = (ShardedLayer(**values | {name: values[name] / 2}), count)
        assert closed(shorter, overlap_cost=0.3) <= closed(stack, overlap_cost=0.3) * (1 + 1e-9)


def test_passes_over_memory_are_always_waited_for() -> None:
    layer = ShardedLayer(forward_s=1.0, backward_s=2.0, gather_s=0.5, scatter_s=0.75, copy_s=0.125)
    plain = ShardedLayer(forward_s=1.0, backward_s=2.0, gather_s=0.5, scatter_s=0.75)
    assert closed([(layer, 4)]) == closed([(plain, 4)]) + 4 * 0.125


@given(stages=st.integers(2, 8), chunks=st.integers(1, 8), groups=st.integers(1, 4), part_s=st.floats(0.01, 20))
def test_sums_of_interleaved_chunks_hide_behind_what_follows_them(
    stages: int, chunks: int, groups: int, part_s: float
) -> None:
    """Event by event on one rank: groups of as many micro-batches as stages pass backward, chunk after chunk, a second
    each; a chunk's sum starts after its last one and after the sum before it."""
    done_s = 0.0
    for chunk in range(chunks):
        # Of the last group, each chunk before this one and this one itself have had all of its micro-batches.
        left_at_s = float((chunk + 1) * stages)
        done_s = max(done_s, left_at_s) + part_s
    waited_s = done_s - chunks * stages
    micro_batches, whole_s = groups * stages, chunks * part_s
    beside = passes_beside("interleaved", stages, chunks, micro_batches)
    recipe = Recipe(global_batch=1, seq_len=1, software=Software(name="any"))
    hiding = hiding_of(recipe, [1], micro_batches, overlapped=True, beside=beside)
    exposed_s, _ = exposed_sync_s(hiding, 0.0, whole_s, 0.0, 0.0, 0.0, float(chunks))
    # The closed form lets the last part hide beside its own micro-batch, as without chunks: never more than that.
    assert waited_s - 1 - part_s <= exposed_s <= waited_s + 1e-9


def test_sums_hide_behind_one_pass_unless_interleaved() -> None:
    assert passes_beside("1f1b", 8, 1, 64) == passes_beside("interleaved", 8, 1, 64) == 1.0
    assert passes_beside("interleaved", 8, 4, 64) == (1 + 8 * 3) / 4
    assert passes_beside("interleaved", 8, 4, 4) < passes_beside("interleaved", 8, 4, 8)
