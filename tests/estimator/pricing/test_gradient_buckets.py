"""Buckets in which gradients are summed: as Megatron grows them, and what more ranks do to an iteration."""

from __future__ import annotations

from dataclasses import replace

import pytest

from estimator.pricing.recipe import Recipe, Software
from estimator.pricing.software import load_framework
from estimator.pricing.stage_cost import bucket_elements
from profiles.cluster_file import load_cluster
from tests.explicit_examples import build, evaluated, with_recipe
from tests.zoo_families import gpt

MODEL = gpt("gpt", hidden=4096, layers=8, heads=32, vocab=51200, seq_len=2048)


def recipe(nodes: int, software: str = "megatron-core", overlap: frozenset[str] = frozenset({"dp"})) -> Recipe:
    return Recipe(
        global_batch=8 * nodes,
        seq_len=512,
        grad_dtype="bf16",
        overlap=overlap,  # type: ignore[arg-type]
        software=load_framework(software).software,
    )


@pytest.mark.parametrize(("nodes", "elements"), [(1, 40_000_000), (5, 40_000_000), (6, 48_000_000), (64, 512_000_000)])
def test_a_bucket_grows_with_the_ranks(nodes: int, elements: int) -> None:
    trained = recipe(nodes)
    setup = build(MODEL, load_cluster(f"h100:{nodes}x8"), trained, dp=8 * nodes, zero=1)
    assert bucket_elements(trained, setup.stages[0]) == elements
    for other in (
        recipe(nodes, overlap=frozenset()),
        recipe(nodes, "megatron-lm"),
        replace(trained, software=replace(trained.software, bucket_bytes=25 << 20)),
    ):
        assert bucket_elements(other, setup.stages[0]) == 0


@pytest.mark.parametrize("zero", [0, 1])
def test_buckets_take_no_less_than_one_piece(zero: int) -> None:
    setup = build(MODEL, load_cluster("h100:16x8"), recipe(16), dp=128, zero=zero)
    whole = with_recipe(setup, software=replace(setup.recipe.software, grown_buckets=False))
    assert evaluated(setup).iteration_time_s > evaluated(whole).iteration_time_s


@pytest.mark.parametrize("software", ["megatron-core", "nemo", "torchtitan", "nanotron", "deepspeed", "torch-ddp"])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("tp", [1, 8])
def test_more_nodes_with_as_much_for_each_rank_are_never_faster(software: str, zero: int, tp: int) -> None:
    """Buckets of one size, that is: where they grow with the ranks that share a step, there are fewer to wait for."""
    features = replace(load_framework(software).software, grown_buckets=zero not in (1, 2))
    times = []
    for nodes in (2, 4, 8, 16, 32, 64, 128, 256):
        cluster = load_cluster(f"h100:{nodes}x8")
        trained = replace(recipe(nodes, software), global_batch=8 * nodes // tp, software=features)
        setup = build(MODEL, cluster, trained, dp=8 * nodes // tp, tp=tp, zero=zero)
        outcome = evaluated(setup)
        # A step that more ranks share is shorter for each.
        times.append(outcome.iteration_time_s - outcome.breakdown.optimizer_s)
    assert times == sorted(times)


def test_chunks_have_buckets_of_their_own() -> None:
    """Two chunks a stage, each below 40 million gradients: twice the latencies."""
    software = replace(Software(name="s"), grown_buckets=True)
    trained = replace(recipe(2), global_batch=64, schedule="interleaved", software=software)
    small = gpt("gpt", hidden=512, layers=8, heads=8, vocab=512, seq_len=512)
    cluster = load_cluster("h100:2x8")
    setup = build(small, cluster, trained, dp=8, pp=2, vpp=2, zero=0)
    whole = with_recipe(setup, software=replace(software, grown_buckets=False))
    assert evaluated(setup).iteration_time_s > evaluated(whole).iteration_time_s
