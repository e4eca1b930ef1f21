"""A rank's work in a layer against Korthikanti et al. 2022, `estimator.layers.shards`, and Megatron's collectives."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.layers.ends import padded_vocabulary
from estimator.layers.shards import shard_layer
from estimator.layers.split import Split, Work
from estimator.layers.work import layer_work
from models_zoo.catalogue import load_model
from models_zoo.layers import Attention, Embedding, Experts, FeedForward, Head, Layer, TransformerBlock
from profiles.vocabulary import Infeasible, LocalLayer, Operator, Shard
from tests.transformer_variants import BLOCKS, EMBEDDINGS, HEADS, HYBRIDS, SEQ_LEN

HEADS_A, HIDDEN, SEQ, BATCH = 16, 1024, 512, 4
GPT = TransformerBlock(
    hidden=HIDDEN,
    attention=Attention(heads=HEADS_A, kv_heads=HEADS_A, head_dim=HIDDEN // HEADS_A, qkv_bias=True, output_bias=True),
    feed_forward=FeedForward(hidden=4 * HIDDEN, bias=True),
    dropout=True,
)
LLAMA = replace(
    GPT,
    attention=Attention(heads=16, kv_heads=8, head_dim=64, rotary_dim=64),
    feed_forward=FeedForward(hidden=2816, gated=True, activation="silu"),
    norm="rmsnorm",
    dropout=False,
)
MOE = replace(LLAMA, feed_forward=Experts(count=8, top_k=2, expert=FeedForward(hidden=512, gated=True)))
DENSE = [name for name, layer in BLOCKS.items() if isinstance(layer.feed_forward, FeedForward)]


def work(layer: Layer = GPT, **split: Any) -> Work:
    found = layer_work(layer, Split(**{"samples": BATCH, "seq_len": SEQ, **split}))
    assert isinstance(found, Work), found
    return found


def shard(layer: Layer, **options: Any) -> LocalLayer:
    found = shard_layer(layer, Shard(**{"micro_batch_per_rank": BATCH, "seq_len": SEQ, **options}))
    assert isinstance(found, LocalLayer), found
    return found


def saved_per_sbh(**split: Any) -> float:
    """Bytes kept by a block over s b h, without the norms' fp32 statistics (8 bytes a row of either)."""
    options = {"attention": "math", **split}
    rows = Split(samples=BATCH, seq_len=SEQ, **options).local_rows
    statistics = 0 if options.get("recompute") == "full" else 2 * 8 * rows
    return (work(**options).saved_bytes - statistics) / (SEQ * BATCH * HIDDEN)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_saved_bytes_are_korthikantis(tp: int) -> None:
    quadratic = 5 * HEADS_A * SEQ / HIDDEN
    assert saved_per_sbh(tp=tp) == pytest.approx(10 + (24 + quadratic) / tp)  # Equation 2; 1 with tp = 1.
    apart = {"tp": tp, "sequence_parallel": tp > 1}
    assert saved_per_sbh(**apart) == pytest.approx((34 + quadratic) / tp)  # Equation 4.
    assert saved_per_sbh(**apart, recompute="selective") == pytest.approx(34 / tp)  # Table 2.
    assert saved_per_sbh(tp=tp, recompute="selective") == pytest.approx(10 + 24 / tp)
    assert saved_per_sbh(tp=tp, recompute="full") == 2


def test_without_dropout_masks_and_dropped_scores_are_not_kept() -> None:
    dropped, plain = work(attention="math"), work(replace(GPT, dropout=False), attention="math")
    masks = 2 * SEQ * BATCH * HIDDEN
    assert dropped.saved_bytes - plain.saved_bytes == masks + 3 * HEADS_A * SEQ * SEQ * BATCH


@pytest.mark.parametrize("kernels", ["fused", "eager"])
@pytest.mark.parametrize("attention", ["flash", "math"])
@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("name", DENSE)
def test_matrix_flops_are_the_shards(name: str, tp: int, attention: Any, kernels: Any) -> None:
    layer, sizes = BLOCKS[name], {"tp": tp, "dtype": "fp32", "attention": attention}
    mine = work(layer, samples=3, seq_len=SEQ_LEN, kernels=kernels, **sizes)
    theirs = shard(layer, micro_batch_per_rank=3, seq_len=SEQ_LEN, **sizes)
    assert flops(mine.operators) == flops(theirs.operators)
    back = [sum(op.backward_flops for op in one.operators) for one in (mine, theirs)]
    assert back[0] == back[1]


def flops(operators: tuple[Operator, ...]) -> dict[str, int]:
    """Forward FLOPs of dense products and of attention."""
    found: Counter[str] = Counter()
    for op in operators:
        found["attention" if op.kind in ("attention", "batched_gemm") else "dense"] += op.forward_flops
    return dict(found)


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("name", BLOCKS)
def test_parameters_of_blocks_are_the_shards(name: str, tp: int) -> None:
    layer = BLOCKS[name]
    # `estimator.layers.shards` splits experts over tp; here they are split over ep.
    ep = tp if isinstance(layer.feed_forward, Experts) else 1
    mine = work(layer, samples=3, seq_len=SEQ_LEN, tp=tp, ep=ep)
    assert mine.parameters + mine.expert_parameters == shard(layer, seq_len=SEQ_LEN, tp=tp).parameters
    assert (mine.expert_parameters > 0) == isinstance(layer.feed_forward, Experts)
    assert (mine.trainable_parameters, mine.trainable_expert_parameters) == (mine.parameters, mine.expert_parameters)


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("name", [*EMBEDDINGS, *HEADS])
def test_parameters_and_flops_of_the_ends_are_the_shards(name: str, tp: int) -> None:
    for layer in (kind[name] for kind in (EMBEDDINGS, HEADS) if name in kind):
        mine = work(layer, samples=3, seq_len=SEQ_LEN, tp=tp)
        theirs = shard(layer, micro_batch_per_rank=3, seq_len=SEQ_LEN, tp=tp)
        assert mine.parameters == theirs.parameters
        assert flops(mine.operators).get("dense") == flops(theirs.operators).get("dense")
        assert (mine.input_bytes, mine.output_bytes) == (theirs.input_bytes, theirs.output_bytes)


@given(vocab=st.integers(1, 100_000), multiple=st.sampled_from([1, 64, 128]), tp=st.sampled_from([1, 2, 4, 8]))
def test_the_vocabulary_is_padded_to_whole_parts(vocab: int, multiple: int, tp: int) -> None:
    split = Split(samples=1, seq_len=8, tp=tp, vocabulary_multiple=multiple)
    padded = padded_vocabulary(vocab, split)
    assert padded % (multiple * tp) == 0
    assert vocab <= padded < vocab + multiple * tp
    head = work(Head(hidden=64, vocab=vocab, norm=None), samples=1, seq_len=8, tp=tp, vocabulary_multiple=multiple)
    table = work(Embedding(vocab=vocab, hidden=64), samples=1, seq_len=8, tp=tp, vocabulary_multiple=multiple)
    assert head.parameters == table.parameters == padded // tp * 64


def talk(found: Work, phase: str) -> Counter[tuple[str, int]]:
    return Counter((one.op, one.bytes) for one in found.collectives if one.phase == phase and one.axis == "tp")


WHOLE = 2 * BATCH * SEQ * HIDDEN
"""Bytes of the hidden activation of a micro-batch."""


@pytest.mark.parametrize("layer", [GPT, LLAMA])
def test_a_block_has_two_all_reduces_each_way(layer: TransformerBlock) -> None:
    found = work(layer, tp=4)
    assert talk(found, "forward") == talk(found, "backward") == {("all_reduce", WHOLE): 2}
    assert not work(layer).collectives


@pytest.mark.parametrize("layer", [GPT, LLAMA])
def test_sequence_parallelism_gathers_and_scatters_and_gathers_inputs_again(layer: TransformerBlock) -> None:
    found = work(layer, tp=4, sequence_parallel=True)
    assert talk(found, "forward") == {("all_gather", WHOLE): 2, ("reduce_scatter", WHOLE): 2}
    # Two gather gradients, two gather the products' inputs once more (Korthikanti et al. 2022, section 4.2.2).
    assert talk(found, "backward") == {("all_gather", WHOLE): 4, ("reduce_scatter", WHOLE): 2}


@pytest.mark.parametrize("layer", [*BLOCKS.values(), *EMBEDDINGS.values(), *HEADS.values(), *HYBRIDS.values()])
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("tp", [2, 4, 8])
def test_partial_gradients_are_the_shards(layer: Layer, tp: int, *, sequence_parallel: bool) -> None:
    """Fused weights are copied as the zoo's single ones: key-value heads, groups, routers, norms. The zoo's shared
    expert is weighed before its parts are added, Megatron's after."""
    if isinstance(layer, TransformerBlock) and isinstance(layer.feed_forward, Experts) and not sequence_parallel:
        layer = replace(layer, feed_forward=replace(layer.feed_forward, shared_gate=False))
    local = shard_layer(layer, Shard(tp=tp, seq_len=SEQ_LEN, sequence_parallel=sequence_parallel))
    if isinstance(local, Infeasible):
        return
    sums = tuple((one.ranks, one.bytes // 2) for one in local.collectives if one.phase == "step")
    split = Split(samples=1, seq_len=SEQ_LEN, tp=tp, sequence_parallel=sequence_parallel, ep=1, etp=tp)
    for kernels in ("fused", "eager"):
        held = layer_work(layer, replace(split, kernels=kernels))
        assert isinstance(held, Work), held
        assert held.partial_gradients == sums
        assert all(one.phase != "step" for one in held.collectives)
        frozen = layer_work(layer, replace(split, kernels=kernels, frozen=True))
        assert isinstance(frozen, Work)
        assert frozen.partial_gradients == ()


def test_full_recomputation_runs_everything_forward_again() -> None:
    found = work(tp=2, recompute="full")
    assert found.again == found.operators
    assert Counter(found.again_collectives) == Counter(one for one in found.collectives if one.phase == "forward")
    assert found.saved_bytes == WHOLE == found.input_bytes
    selective = work(tp=2, recompute="selective", attention="math")
    assert {op.name for op in selective.again} == {
        "attention.scores",
        "attention.softmax",
        "attention.dropout",
        "attention.values",
    }
    assert not selective.again_collectives
    assert not work(tp=2).again


@pytest.mark.parametrize("layer", [Embedding(vocab=512, hidden=64), Head(hidden=64, vocab=512)])
def test_an_embedding_and_a_head_are_never_run_again(layer: Layer) -> None:
    assert not work(layer, recompute="full").again
    assert work(layer, recompute="full").saved_bytes == work(layer).saved_bytes


PRODUCTS = ("gemm", "grouped_gemm")


@pytest.mark.parametrize(
    "layer",
    [
        GPT,
        LLAMA,
        MOE,
        BLOCKS["mla"],
        HEADS["bert"],
    ],
)
def test_frozen_weights_have_no_gradient_products(layer: Layer) -> None:
    frozen = work(layer, frozen=True)
    assert frozen.trainable_parameters == frozen.trainable_expert_parameters == 0
    assert frozen.parameters == work(layer).parameters
    products = [op for op in frozen.operators if op.kind in PRODUCTS]
    assert [op.backward_flops for op in products] == [op.forward_flops for op in products]


def test_nothing_before_the_first_layer_that_learns_runs_backward() -> None:
    found = work(frozen=True, passes_gradient=False)
    assert sum(op.backward_flops + op.backward_bytes for op in found.operators) == 0
    assert not [one for one in found.collectives if one.phase == "backward"]


@pytest.mark.parametrize("layer", [GPT, LLAMA])
def test_an_adapter_is_two_thin_products_beside_each_frozen_weight(layer: TransformerBlock) -> None:
    rank = 8
    found, plain = work(layer, lora_rank=rank, frozen=True), work(layer)
    weights = [op for op in plain.operators if op.kind == "gemm"]
    thin = sum(rank * (op.shape[1] + op.shape[2]) for op in weights)
    assert found.trainable_parameters == thin
    assert found.parameters == plain.parameters + thin
    backward = sum(op.backward_flops for op in found.operators if op.kind == "gemm")
    rows = BATCH * SEQ
    assert backward == sum(op.forward_flops for op in weights) + 2 * 2 * rows * thin


def test_an_adapters_input_is_gathered_again_under_sequence_parallelism() -> None:
    options: dict[str, Any] = {"tp": 4, "sequence_parallel": True, "lora_rank": 8, "frozen": True}
    assert talk(work(LLAMA, **options), "backward")["all_gather", WHOLE] == 4


@pytest.mark.parametrize(
    ("layer", "split"),
    [
        (GPT, {"tp": 3}),
        (replace(GPT, feed_forward=FeedForward(hidden=1000)), {"tp": 16}),
        (LLAMA, {"cp": 2, "seq_len": 6}),
        (LLAMA, {"tp": 8, "sequence_parallel": True, "seq_len": 12}),
        (MOE, {"ep": 3}),
        (MOE, {"etp": 3}),
        (load_model("resnet-50").layers[0], {"cp": 2, "seq_len": 0}),
        (replace(LLAMA, attention=Attention(heads=12, kv_heads=3, head_dim=64)), {"tp": 4}),
        (replace(GPT, cross_attention=Attention(heads=6, kv_heads=6, head_dim=64)), {"tp": 4}),
        (
            replace(MOE, feed_forward=Experts(count=8, top_k=2, expert=FeedForward(hidden=512), shared_hidden=6)),
            {"tp": 4},
        ),
    ],
)
def test_degrees_that_do_not_divide_are_infeasible(layer: Layer, split: dict[str, Any]) -> None:
    found = layer_work(layer, Split(**{"samples": BATCH, "seq_len": SEQ, **split}))
    assert isinstance(found, Infeasible)
    assert found.lacking in ("divisibility", "support")


def scores(found: Work) -> int:
    """Pairs of a query and a key that the fused kernel sees, over all heads, without a mask inside it."""
    (op,) = (op for op in found.operators if op.kind == "attention")
    batch, heads, _, queries, keys, _, _, causal = op.shape
    return batch * heads * queries * keys // (2 if causal else 1)


@pytest.mark.parametrize("cp", [2, 4, 8])
def test_context_parallel_ranks_share_the_causal_work(cp: int) -> None:
    total = cp * scores(work(LLAMA, cp=cp))
    whole = scores(work(LLAMA))
    # Each rank computes the diagonal square of its own tokens in full, of which half is masked.
    diagonal = BATCH * 16 * SEQ * (SEQ // cp) // 2
    assert total == whole + diagonal
    both_ways = replace(LLAMA, attention=replace(LLAMA.self_attention, causal=False))
    assert cp * scores(work(both_ways, cp=cp)) == scores(work(both_ways))


def test_a_context_parallel_rank_has_its_part_of_everything_else() -> None:
    whole, part = work(LLAMA), work(LLAMA, cp=4)
    for what in ("forward_flops", "forward_bytes"):
        mine, all_ = (sum(getattr(op, what) for op in one.operators if op.kind != "attention") for one in (part, whole))
        weights = 0 if what == "forward_flops" else 2 * whole.parameters
        assert mine - weights == pytest.approx((all_ - weights) / 4, rel=0.01)
    assert part.parameters == whole.parameters
    assert part.input_bytes == whole.input_bytes // 4
    # Keys and values of the others: gathered forward, again and their gradients scattered backward.
    gathered = 2 * BATCH * SEQ * 8 * (64 + 64)
    assert [(one.op, one.phase, one.bytes) for one in part.collectives] == [
        ("all_gather", "forward", gathered),
        ("all_gather", "backward", gathered),
        ("reduce_scatter", "backward", gathered),
    ]


@given(window=st.integers(1, 8192))
def test_a_window_never_has_more_work_than_causal_attention(window: int) -> None:
    sizes: dict[str, Any] = {"samples": 1, "seq_len": 4096}
    causal = scores(work(LLAMA, **sizes))
    found = scores(work(replace(LLAMA, attention=replace(LLAMA.self_attention, window=window)), **sizes))
    assert found <= causal
    assert found >= min(causal, 16 * 4096 * window)
    if window < 1024:
        assert found == 16 * 4096 * (window + 128)


def test_products_are_computed_on_fewer_tokens_where_few_are_predicted() -> None:
    head = Head(hidden=64, vocab=512, norm=None)
    found = work(replace(head, predicted=SEQ // 4))
    assert flops(found.operators)["dense"] == flops(work(head).operators)["dense"] // 4
    assert found.input_bytes == work(head).input_bytes


def test_a_fused_cross_entropy_keeps_no_fp32_logits() -> None:
    head = Head(hidden=64, vocab=512, norm=None)
    logits = BATCH * SEQ * 512
    plain, fused = work(head), work(head, fused_cross_entropy=True)
    assert plain.saved_bytes - fused.saved_bytes == 2 * logits
    assert (plain.temporary_bytes, fused.temporary_bytes) == (8 * logits, 0)


@pytest.mark.parametrize("name", [name for name, layer in BLOCKS.items() if layer.self_attention.latent is None])
def test_fused_kernels_are_fewer_and_move_no_more(name: str) -> None:
    eager, fused = (work(BLOCKS[name], seq_len=SEQ_LEN, kernels=kernels) for kernels in ("eager", "fused"))
    for way in ("forward", "backward"):
        moved, kernels = (
            [sum(getattr(op, f"{way}_{what}") for op in one.operators) for one in (eager, fused)]
            for what in ("bytes", "kernels")
        )
        assert moved[1] <= moved[0]
        assert kernels[1] <= kernels[0]


def test_layers_that_are_no_transformers_are_the_shards() -> None:
    layer = load_model("resnet-50").layers[1]
    mine, theirs = work(layer, seq_len=0), shard(layer, seq_len=0)
    assert mine.operators == theirs.operators
    assert (mine.parameters, mine.saved_bytes) == (theirs.parameters, theirs.saved_bytes)
    full = work(layer, seq_len=0, recompute="full")
    assert full.again == mine.operators
    assert full.saved_bytes == mine.input_bytes


def test_a_parallel_block_adds_its_branches_before_one_sum() -> None:
    found = work(replace(GPT, parallel=True, shared_norm=True), tp=4)
    assert talk(found, "forward") == talk(found, "backward") == {("all_reduce", WHOLE): 1}


def test_recomputation_of_what_is_needed_stops_before_the_last_product_of_a_dense_block() -> None:
    full, needed = (work(tp=2, recompute="full", recomputes_needed=each) for each in (False, True))
    assert full.operators[len(needed.again)].name.endswith(".down")
    assert full.again[: len(needed.again)] == needed.again
    assert needed.runs_again
    assert full.runs_again
    assert len(needed.again_collectives) == len(full.again_collectives) - 1
    assert not work(recompute="selective").runs_again
    assert not work().runs_again


def test_a_softmax_of_separate_kernels_moves_more_than_a_fused_one() -> None:
    fused, apart = (work(attention="math", fused_softmax=each) for each in (True, False))
    softmax = [next(op for op in each.operators if op.name == "attention.softmax") for each in (fused, apart)]
    assert softmax[1].forward_bytes > softmax[0].forward_bytes
    assert (softmax[0].forward_kernels, softmax[1].forward_kernels) == (1, 3)


def test_a_gate_of_two_kernels_keeps_its_result_too() -> None:
    fused, apart = (work(LLAMA, fused_gate=each) for each in (True, False))
    gates = [next(op for op in each.operators if op.name.endswith("activation")) for each in (fused, apart)]
    assert gates[1].saved_bytes == pytest.approx(1.5 * gates[0].saved_bytes)
    assert (gates[0].forward_kernels, gates[1].forward_kernels) == (1, 2)
