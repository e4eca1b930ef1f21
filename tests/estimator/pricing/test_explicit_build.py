"""Setups from degrees: layers over chunks, ranks over devices, and what cannot be divided."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.pricing.build import stage_chunks, uniform_setup
from estimator.pricing.pipeline_layout import blocks_by_chunk
from estimator.pricing.recipe import Recipe, Setup
from models_zoo.catalogue import load_model
from models_zoo.layers import ConvUnit, Head, Prediction, TransformerBlock
from models_zoo.model import Model
from profiles.cluster_file import load_cluster
from profiles.vocabulary import Infeasible
from tests.seeds import examples
from tests.zoo_families import gpt

CLUSTER = load_cluster("a100-80gb:4x8")
RECIPE = Recipe(global_batch=64, seq_len=1024)


def _gpt(layers: int) -> Model:
    return gpt("g", hidden=256, layers=layers, heads=8, vocab=1000, seq_len=1024)


def _setup(model: Model | None = None, recipe: Recipe = RECIPE, **degrees: Any) -> Setup:
    setup = uniform_setup(model or _gpt(8), CLUSTER, recipe, **degrees)
    assert isinstance(setup, Setup), setup
    return setup


def _infeasible(model: Model | None = None, recipe: Recipe = RECIPE, **degrees: Any) -> Infeasible:
    setup = uniform_setup(model or _gpt(8), CLUSTER, recipe, **degrees)
    assert isinstance(setup, Infeasible)
    return setup


@given(layers=st.integers(1, 40), pp=st.integers(1, 8), vpp=st.integers(1, 4))
@settings(max_examples=examples(200), deadline=None)
def test_every_layer_is_in_one_chunk_and_chunks_are_even(layers: int, pp: int, vpp: int) -> None:
    chunks = stage_chunks(_gpt(layers), pp=pp, vpp=vpp)
    if layers + 2 < pp * vpp:
        assert isinstance(chunks, Infeasible)
        assert chunks.lacking == "divisibility"
        return
    assert not isinstance(chunks, Infeasible)
    assert [len(stage) for stage in chunks] == [vpp] * pp
    ordered = [chunks[number % pp][number // pp] for number in range(pp * vpp)]
    assert ordered[0][0] == 0
    assert ordered[-1][1] == layers + 2
    assert all(left[1] == right[0] for left, right in pairwise(ordered))
    blocks = [end - first for first, end in ordered]
    blocks[0] -= 1
    blocks[-1] -= 1
    assert max(blocks) - min(blocks) <= 1
    if pp * vpp > 2:
        assert max(blocks[0], blocks[-1]) <= min(blocks[1:-1])


def test_the_last_stage_is_spared_before_the_first() -> None:
    assert stage_chunks(_gpt(3), pp=2) == (((0, 3),), ((3, 5),))
    chunks = stage_chunks(_gpt(126), pp=16, vpp=8)
    assert not isinstance(chunks, Infeasible)
    assert (chunks[0][0], chunks[-1][-1]) == ((0, 1), (127, 128))


def test_a_head_that_predicts_further_tokens_stands_for_blocks() -> None:
    model = _gpt(61)
    head = model.layers[-1]
    assert isinstance(head, Head)
    block = model.layers[1]
    assert isinstance(block, TransformerBlock)
    predicting = replace(head, prediction=Prediction(count=1, blocks=(block,)))
    model = replace(model, layers=(*model.layers[:-1], predicting))
    for pp, each, last in ((16, 4, 1), (8, 8, 5), (4, 16, 13)):
        chunks = stage_chunks(model, pp=pp)
        assert not isinstance(chunks, Infeasible)
        sizes = [end - first for ((first, end),) in chunks]
        assert sizes == [each + 1, *[each] * (pp - 2), last + 1]


@pytest.mark.parametrize(
    ("layout", "blocks"),
    [
        ("Ett|tt|tt|ttL", (2, 2, 2, 2)),
        ("Et*4|(t*4|)*14tmL", (4,) * 15 + (1,)),
        ("E|(tt|)*3tt|L", (0, 2, 2, 2, 2, 0)),
    ],
)
def test_a_layout_in_megatrons_words_says_the_blocks_of_each_chunk(layout: str, blocks: tuple[int, ...]) -> None:
    assert blocks_by_chunk(layout) == blocks
    setup = uniform_setup(_gpt(sum(blocks)), load_cluster("a100-80gb:16x8"), RECIPE, pp=len(blocks), blocks=blocks)
    assert isinstance(setup, Setup)
    held = [stage.layers for stage in setup.stages]
    assert held == [count + (number in (0, len(blocks) - 1)) for number, count in enumerate(blocks)]


def test_blocks_that_are_not_the_models_or_of_other_chunks_are_refused() -> None:
    assert _infeasible(pp=2, blocks=(4, 3)).reason == "7 blocks in 2 chunks, the model has 8 for pp * vpp = 2"
    assert _infeasible(pp=2, blocks=(4, 2, 2)).lacking == "divisibility"
    with pytest.raises(ValueError, match="layout 'Ett,tL'"):
        blocks_by_chunk("Ett,tL")


def test_a_model_without_embedding_and_head_is_divided_evenly() -> None:
    chunks = stage_chunks(load_model("resnet-50"), pp=3)
    assert chunks == (((0, 6),), ((6, 12),), ((12, 18),))


def _rank_of(tp: int, cp: int, dp: int, pp: int, *, place: tuple[int, int, int, int]) -> int:
    """Megatron's order written out: tp runs fastest, then cp, then dp, then pp."""
    ranks = [(p, d, c, t) for p in range(pp) for d in range(dp) for c in range(cp) for t in range(tp)]
    t, c, d, p = place
    return ranks.index((p, d, c, t))


@pytest.mark.parametrize(("tp", "cp", "dp", "pp"), [(2, 2, 2, 4), (4, 1, 2, 2), (1, 2, 8, 2), (8, 1, 1, 4)])
def test_ranks_take_the_devices_in_megatrons_order(tp: int, cp: int, dp: int, pp: int) -> None:
    setup = _setup(tp=tp, cp=cp, dp=dp, pp=pp)
    for p, stage in enumerate(setup.stages):
        for d in range(dp):
            for c in range(cp):
                for t in range(tp):
                    rank = _rank_of(tp, cp, dp, pp, place=(t, c, d, p))
                    assert stage.slots[(d * cp + c) * tp + t] == CLUSTER.slots[rank]
    places = Counter(slot for stage in setup.stages for slot in stage.slots)
    assert max(places.values()) == 1


def test_the_settings_are_every_stages() -> None:
    setup = _setup(
        tp=2, dp=4, pp=2, micro_batch_per_rank=2, zero=1, shard=2, recompute="full", sequence_parallel=True, etp=1
    )
    assert setup.micro_batch == 8
    assert setup.micro_batches == 8
    assert {(s.tp, s.dp, s.zero, s.sharded_over, s.recompute, s.sequence_parallel) for s in setup.stages} == {
        (2, 4, 1, 2, "full", True)
    }


def test_dualpipe_holds_its_own_chunk_and_the_mirror_one() -> None:
    recipe = replace(RECIPE, schedule="dualpipe")
    setup = _setup(recipe=recipe, pp=4)
    assert setup.stages[0].chunks == ((0, 3), (7, 10))
    assert setup.stages[3].chunks == ((7, 10), (0, 3))
    assert _infeasible(recipe=recipe, pp=1).lacking == "divisibility"


@pytest.mark.parametrize(
    ("degrees", "lacking", "words"),
    [
        ({"dp": 64}, "devices", "64 devices, and there are 32"),
        ({"tp": 3}, "divisibility", "attention: tp=3 neither divides nor is a multiple of 8 key-value heads"),
        ({"pp": 16}, "divisibility", "8 blocks"),
        ({"dp": 3}, "divisibility", "64 is no multiple"),
        ({"dp": 4, "micro_batch_per_rank": 32}, "divisibility", "64 is no multiple"),
        ({"pp": 2, "vpp": 2}, "support", "schedule 1f1b"),
        ({"cp": 3}, "divisibility", "1024 tokens"),
        ({"dp": 4, "zero": 1, "shard": 3}, "divisibility", "sharding over 3"),
    ],
)
def test_what_does_not_divide_is_told(degrees: dict[str, Any], lacking: str, words: str) -> None:
    refused = _infeasible(**degrees)
    assert refused.lacking == lacking
    assert words in refused.reason


def test_interleaving_needs_whole_rounds_of_micro_batches() -> None:
    recipe = replace(RECIPE, schedule="interleaved", global_batch=6)
    assert "multiples of pp = 4" in _infeasible(recipe=recipe, pp=4, vpp=2).reason
    assert len(_setup(recipe=replace(recipe, global_batch=8), pp=4, vpp=2).stages[0].chunks) == 2


def test_experts_are_divided_over_their_own_ranks() -> None:
    model = load_model("mixtral-8x7b")
    setup = _setup(model, tp=2, dp=4, ep=4, etp=2)
    assert (setup.stages[0].ep, setup.stages[0].etp) == (4, 2)
    assert (
        "ep=3 does not divide 8 experts"
        in _infeasible(model, dp=3, ep=3, recipe=replace(RECIPE, global_batch=3)).reason
    )
    assert "of dp * cp * tp = 2 ranks" in _infeasible(model, dp=2, ep=4).reason


def test_convolutions_are_split_by_channels_that_divide() -> None:
    model = load_model("resnet-50")
    assert any(isinstance(layer, ConvUnit) for layer in model.layers)
    setup = uniform_setup(model, CLUSTER, replace(RECIPE, seq_len=0), tp=2)
    assert isinstance(setup, Setup)
    assert {stage.tp for stage in setup.stages} == {2}
    assert _infeasible(model, replace(RECIPE, seq_len=0), tp=3).lacking == "divisibility"


def test_a_degree_below_one_is_misuse() -> None:
    with pytest.raises(ValueError, match="tp, pp, dp"):
        uniform_setup(_gpt(8), CLUSTER, RECIPE, tp=0)
    with pytest.raises(ValueError, match="micro_batch_per_rank"):
        uniform_setup(_gpt(8), CLUSTER, RECIPE, micro_batch_per_rank=0)
