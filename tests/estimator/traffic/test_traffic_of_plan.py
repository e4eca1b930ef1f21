"""What a plan sends: replayed alone it takes what the evaluation says, and it carries every byte that was priced."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.network.traffic import Exchange, Traffic
from estimator.pricing.build import uniform_setup
from estimator.pricing.evaluate import evaluate_priced
from estimator.pricing.parts import PricedSetup, price_setup
from estimator.pricing.recipe import Overlap, Recipe, ScheduleName, Setup, StageSetup
from estimator.traffic.of_plan import traffic_of
from estimator.traffic.replay import replay_s
from models_zoo.catalogue import load_model
from profiles.cluster_file import load_cluster
from tests.explicit_examples import EXPERTS, GPT, LLAMA, Draft, build, convolutions, drafts, with_recipe


def priced(setup: Setup) -> PricedSetup:
    parts = price_setup(setup)
    assert isinstance(parts, PricedSetup), parts
    return parts


def alone(setup: Setup) -> tuple[float, float, Traffic]:
    """Seconds of an iteration by the evaluation and by the replay of what it sends."""
    parts = priced(setup)
    traffic = traffic_of(parts, 1.0)
    return evaluate_priced(parts).iteration_time_s, replay_s(traffic), traffic


def sent(traffic: Traffic) -> Iterator[tuple[Exchange, float]]:
    """Every exchange, those beside others too, and how often an iteration has it."""
    for span in traffic.spans:
        for exchange in span.exchanges:
            yield from _with_those_beside(exchange, span.times)


def _with_those_beside(exchange: Exchange, times: int) -> Iterator[tuple[Exchange, float]]:
    yield exchange, times * exchange.times
    for other in exchange.beside:
        yield from _with_those_beside(other, times * exchange.times)


def sent_bytes(traffic: Traffic, axis: str) -> float:
    """Bytes of all exchanges of an axis, as their collectives count them, over all groups."""
    return math.fsum(
        times * exchange.size_bytes * len(exchange.groups) for exchange, times in sent(traffic) if exchange.axis == axis
    )


@given(draft=drafts())
def test_replayed_alone_a_plan_takes_what_its_evaluation_says(draft: Draft) -> None:
    evaluated_s, replayed_s, traffic = alone(with_recipe(draft.setup(), overlap=frozenset()))
    assert replayed_s == pytest.approx(evaluated_s, rel=1e-9)
    assert all(span.times >= 1 and span.compute_s >= 0 <= span.begins_s <= span.compute_s for span in traffic.spans)


@given(draft=drafts(), experts=st.booleans())
def test_what_hides_by_formula_hides_by_time(draft: Draft, experts: bool) -> None:
    """Within 1%, and never sooner."""
    setup = draft.setup()
    overlap = setup.recipe.overlap | ({"ep"} if experts else set())
    evaluated_s, replayed_s, _ = alone(with_recipe(setup, overlap=overlap))
    assert 1 - 1e-9 <= replayed_s / evaluated_s <= 1.01


@pytest.mark.parametrize(
    ("model", "tp", "nodes", "algorithm"),
    [("llama3-8b", 8, 2, None), ("llama3-8b", 8, 64, None), ("gpt-tiny", 1, 8, "tree"), ("gpt-tiny", 1, 64, "tree")],
)
def test_sums_go_by_the_algorithm_that_is_priced(model: str, tp: int, nodes: int, algorithm: str | None) -> None:
    """A ring of many nodes waits for each of them, a tree for the logarithm of their number: what takes few bytes."""
    setup = uniform_setup(
        load_model(model),
        load_cluster(f"h100:{nodes}x8"),
        Recipe(global_batch=512, seq_len=512, dtype="bf16"),
        tp=tp,
        dp=8 * nodes // tp,
    )
    assert isinstance(setup, Setup), setup
    parts = priced(setup)
    sums = [exchange for exchange, _ in sent(traffic_of(parts, 1.0)) if exchange.axis == "dp"]
    assert {exchange.op for exchange in sums} == {"all_reduce"}
    largest = max(sums, key=lambda exchange: exchange.size_bytes)
    assert largest.algorithm == algorithm
    hop_s = parts.links.groups_of(setup.stages[0], "dp").group.levels[-1].latency_s
    assert (largest.latency_s < 2 * (nodes - 1) * hop_s) == (algorithm == "tree")


def test_what_a_data_parallel_plan_sends_is_its_gradients_once() -> None:
    setup = build(LLAMA, dp=32, micro_batch_per_rank=1)
    traffic = alone(setup)[2]
    gradient_bytes = 4 * priced(setup).costs[0].chunks[0].counted.dense_learning
    assert sent_bytes(traffic, "dp") == pytest.approx(gradient_bytes)
    exchange = next(exchange for exchange, _ in sent(traffic))
    assert exchange.groups == (tuple(range(32)),)
    assert exchange.op == "all_reduce"


@pytest.mark.parametrize("overlap", [frozenset(), frozenset({"p2p"})])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zb-h1", "dualpipe"])
def test_each_boundary_carries_all_activations_and_gradients(
    schedule: ScheduleName, overlap: frozenset[Overlap]
) -> None:
    """Bytes by pair of ranks, however long the path through the pipeline is."""
    recipe = Recipe(global_batch=32, seq_len=512, schedule=schedule, overlap=overlap)
    setup = build(LLAMA, recipe=recipe, pp=4, dp=2, vpp=2 if schedule == "interleaved" else 1)
    traffic = alone(setup)[2]
    by_pair: defaultdict[tuple[int, ...], float] = defaultdict(float)
    for exchange, times in sent(traffic):
        if exchange.op == "send_recv":
            for pair in exchange.groups:
                by_pair[pair] += times * exchange.size_bytes
    activation = 512 * 512 * 2
    rounds, chunks = setup.micro_batches, 2 if schedule == "interleaved" else 1
    expected = {}
    for stage in range(4):
        for rank in range(2):
            here, there = 2 * stage + rank, 2 * ((stage + 1) % 4) + rank
            passes = rounds * chunks if stage < 3 else rounds * (chunks - 1)
            if passes:
                expected[here, there] = expected[there, here] = passes * activation
    assert {pair: size for pair, size in by_pair.items() if size} == pytest.approx(expected)


def test_sharded_weights_are_gathered_in_each_pass() -> None:
    setup = build(GPT, dp=8, zero=3, recipe=Recipe(global_batch=32, seq_len=512, overlap=frozenset({"dp"})))
    _, _, traffic = alone(setup)
    weights = priced(setup).costs[0].chunks[0].counted.dense
    gathered = math.fsum(
        times * exchange.size_bytes for exchange, times in sent(traffic) if exchange.op == "all_gather"
    )
    assert gathered == pytest.approx(2 * setup.micro_batches * 2 * weights)


def test_what_hides_is_felt_only_when_its_window_is_full() -> None:
    """Sharded weights whose way is short beside the passes: a fifth longer, all but the ends' is hidden still."""
    recipe = Recipe(global_batch=256, seq_len=2048, overlap=frozenset({"dp"}))
    setup = build(load_model("llama3-8b"), load_cluster("h100:4x8"), recipe, dp=32, zero=3, micro_batch_per_rank=4)
    _, replayed_s, traffic = alone(setup)
    longer = replace(
        traffic,
        spans=tuple(
            replace(span, exchanges=tuple(replace(each, alone_s=1.2 * each.alone_s) for each in span.exchanges))
            for span in traffic.spans
        ),
    )
    sending_s = math.fsum(span.times * each.times * each.alone_s for span in traffic.spans for each in span.exchanges)
    assert 0 < replay_s(longer) - replayed_s < 0.2 * 0.2 * sending_s


def test_stages_that_are_split_differently_send_what_each_needs() -> None:
    setup = build(LLAMA, recipe=Recipe(global_batch=32, seq_len=512), pp=2, dp=4, tp=2)
    slots = setup.stages[1].slots
    second = replace(setup.stages[1], tp=1, dp=8)
    assert isinstance(second, StageSetup)
    assert len(slots) == 8
    mixed = replace(setup, stages=(setup.stages[0], second), micro_batch=8)
    evaluated_s, replayed_s, traffic = alone(mixed)
    assert replayed_s == pytest.approx(evaluated_s, rel=1e-9)
    assert sent_bytes(traffic, "pp") > 0


def test_a_model_without_tokens_and_one_on_two_types_of_device_are_told_of() -> None:
    for setup in (convolutions(), _on_two_devices()):
        evaluated_s, replayed_s, _ = alone(setup)
        assert replayed_s == pytest.approx(evaluated_s, rel=1e-9)


def _on_two_devices() -> Setup:
    found = uniform_setup(
        EXPERTS,
        load_cluster("a100-40gb:1x8+v100-32gb:1x8"),
        Recipe(global_batch=32, seq_len=512, dtype="fp16"),
        dp=16,
        ep=8,
    )
    assert isinstance(found, Setup), found
    return found
