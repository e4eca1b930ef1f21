"""Which profile a layer of a plan may use, and how an evaluation names what it used."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from estimator.layers.split import Split
from estimator.pricing.measured import measured_times, profiled_shard
from estimator.pricing.stage_work import stage_chunks
from models_zoo.layers import Embedding, Head, Layer, TransformerBlock
from profiles.vocabulary import Infeasible, LayerTime, Shard
from tests.explicit_examples import EXPERTS, LLAMA, QUIET, build, evaluated

TIMES = {Embedding: (0.001, 0.002), TransformerBlock: (0.25, 0.5), Head: (0.01, 0.02)}


def profiled(layer: Layer, _shard: Shard) -> LayerTime:
    """Everything is measured, in a profile called after the kind of layer."""
    forward_s, backward_s = TIMES[type(layer)]
    return LayerTime(
        forward_s=forward_s,
        backward_s=backward_s,
        optimizer_s=0.0,
        provenance="measured",
        profile_id=type(layer).__name__,
    )


def blocks_alone(layer: Layer, shard: Shard) -> LayerTime | None:
    return profiled(layer, shard) if isinstance(layer, TransformerBlock) else None


def test_a_plain_shard_is_looked_up_with_all_its_settings() -> None:
    split = Split(samples=3, seq_len=64, dtype="fp16", tp=2, sequence_parallel=True, attention="math", recompute="full")
    # Recomputation is no part of it: a profile holds one forward.
    assert profiled_shard(LLAMA.layers[1], split) == Shard(
        tp=2, sequence_parallel=True, micro_batch_per_rank=3, seq_len=64, dtype="fp16", attention="math"
    )


@pytest.mark.parametrize("changes", [{"cp": 2}, {"frozen": True}, {"lora_rank": 8}])
@pytest.mark.parametrize("layer", [LLAMA.layers[1], EXPERTS.layers[1]])
def test_what_no_profile_can_be_of_is_not_looked_up(layer: Layer, changes: dict[str, Any]) -> None:
    assert profiled_shard(layer, Split(**{"samples": 1, "seq_len": 64} | changes)) is None


@pytest.mark.parametrize(
    "changes",
    [{"ep": 2}, {"tp": 4, "ep": 2}, {"tp": 2, "ep": 2, "etp": 2}, {"imbalance": 1.5}, {"capacity_factor": 1.25}],
)
def test_what_no_profile_of_experts_can_be_of_is_not_looked_up(changes: dict[str, Any]) -> None:
    assert profiled_shard(EXPERTS.layers[1], Split(**{"samples": 1, "seq_len": 64} | changes)) is None


def test_experts_that_tp_does_not_divide_have_no_profile_of_tp() -> None:
    chunks = stage_chunks(build(EXPERTS, recipe=QUIET, tp=2), 0)
    assert not isinstance(chunks, Infeasible)
    times = measured_times(chunks[0], profiled)
    assert times[1] is None


def test_layers_without_experts_keep_their_profiles_under_expert_parallelism() -> None:
    chunks = stage_chunks(build(EXPERTS, recipe=QUIET, dp=4, ep=4), 0)
    assert not isinstance(chunks, Infeasible)
    times = measured_times(chunks[0], profiled)
    assert [time is None for time in times] == [False, True, False]


def test_times_are_found_for_each_kind_of_layer() -> None:
    chunks = stage_chunks(build(recipe=QUIET, tp=2), 0)
    assert not isinstance(chunks, Infeasible)
    asked: list[tuple[str, Shard]] = []

    def lookup(layer: Layer, shard: Shard) -> LayerTime | None:
        asked.append((type(layer).__name__, shard))
        return blocks_alone(layer, shard)

    times = measured_times(chunks[0], lookup)
    assert [time and time.profile_id for time in times] == [None, "TransformerBlock", None]
    shard = Shard(tp=2, seq_len=512)
    assert asked == [("Embedding", shard), ("TransformerBlock", shard), ("Head", shard)]


def test_an_iteration_of_profiled_layers_is_their_sum() -> None:
    found = evaluated(build(recipe=QUIET), lookup=profiled)
    micro_batches = 32
    each = sum(map(sum, TIMES.values())) + 7 * sum(TIMES[TransformerBlock])
    busy_s = found.iteration_time_s - found.breakdown.optimizer_s
    assert busy_s == pytest.approx(micro_batches * each)
    assert found.breakdown.launch_s == 0
    assert found.stage_compute_s == pytest.approx((each,))


def test_provenance_and_names_are_those_of_what_was_used() -> None:
    setup = build(recipe=QUIET)
    plain, mixed, all_ = evaluated(setup), evaluated(setup, lookup=blocks_alone), evaluated(setup, lookup=profiled)
    assert (plain.compute_provenance, plain.profile_ids) == ("modelled", ())
    assert (mixed.compute_provenance, mixed.profile_ids) == ("mixed", ("TransformerBlock",))
    assert (all_.compute_provenance, all_.profile_ids) == ("measured", ("Embedding", "Head", "TransformerBlock"))
    assert plain.iteration_time_s < mixed.iteration_time_s < all_.iteration_time_s


def test_a_faster_profile_is_never_slower() -> None:
    def quick(layer: Layer, shard: Shard) -> LayerTime:
        time = profiled(layer, shard)
        return LayerTime(
            forward_s=time.forward_s / 2, backward_s=time.backward_s / 2, optimizer_s=0.0, provenance="measured"
        )

    for degrees in ({"dp": 4}, {"tp": 2, "pp": 4}, {"pp": 2, "dp": 2, "zero": 3, "recompute": "full"}):
        setup = build(LLAMA, recipe=QUIET, **degrees)
        assert evaluated(setup, lookup=quick).iteration_time_s < evaluated(setup, lookup=profiled).iteration_time_s


def test_sharded_weights_hide_behind_measured_times() -> None:
    setup = build(recipe=replace(QUIET, overlap=frozenset({"dp"})), dp=32, zero=3)
    modelled, measured = evaluated(setup), evaluated(setup, lookup=profiled)
    assert measured.breakdown.dp_s < modelled.breakdown.dp_s
