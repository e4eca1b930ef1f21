"""Memory of an explicit plan: optimizer state, sharding, the fullest moment, and published runs where there are any."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.pricing.build import uniform_setup
from estimator.pricing.memory import rank_memory
from estimator.pricing.memory_features import GENERIC, MemoryFeatures
from estimator.pricing.optimizers import OPTIMIZERS
from estimator.pricing.outcome import RankMemory
from estimator.pricing.recipe import Recipe, Setup
from estimator.pricing.software import load_framework
from estimator.pricing.stage_work import stage_chunks
from models_zoo.catalogue import load_model
from profiles.cluster_file import load_cluster
from profiles.vocabulary import DType, Infeasible
from tests.zoo_families import llama, mixtral

DATA = Path(__file__).resolve().parents[3] / "../shared/data"
MODEL = llama("l", hidden=512, layers=8, heads=8, kv_heads=4, ffn_hidden=1024, vocab=4096, seq_len=256)
EXPERTS = mixtral(
    "m",
    hidden=512,
    layers=4,
    heads=8,
    kv_heads=4,
    ffn_hidden=1024,
    experts=8,
    top_k=2,
    vocab=4096,
    seq_len=256,
)
MEGATRON_CORE = load_framework("megatron-core").software
RECIPE = Recipe(global_batch=32, seq_len=256)


def build(recipe: Recipe = RECIPE, model: object = MODEL, **degrees: object) -> Setup:
    found = uniform_setup(model, load_cluster("a100-80gb:4x8"), recipe, **degrees)  # type: ignore[arg-type]
    assert isinstance(found, Setup), found
    return found


def memory(setup: Setup, stage: int = 0, *, features: MemoryFeatures = GENERIC, flying: float = 1.0) -> RankMemory:
    chunks = stage_chunks(setup, stage)
    assert not isinstance(chunks, Infeasible), chunks
    return rank_memory(setup, stage, chunks, (flying,) * len(chunks), features=features)


def parameters(setup: Setup) -> int:
    chunks = stage_chunks(setup, 0)
    assert not isinstance(chunks, Infeasible)
    return sum((work.parameters + work.expert_parameters) * count for one in chunks for work, count in one.works)


@pytest.mark.parametrize(
    ("name", "dtype", "masters", "bytes_"),
    [
        ("adamw", "bf16", True, 12),
        ("adamw", "bf16", False, 4),
        ("adamw", "fp32", True, 8),
        ("sgd", "bf16", True, 8),
        ("adam8bit", "bf16", True, 6.03125),
        ("adam8bit", "bf16", False, 2.03125),
        ("muon", "bf16", True, 8),
        ("adafactor", "bf16", True, 4),
    ],
)
def test_state_bytes_per_parameter(name: str, dtype: str, masters: bool, bytes_: float) -> None:
    assert OPTIMIZERS[name].state_bytes(dtype, masters=masters) == bytes_  # type: ignore[index, arg-type]


def test_step_traffic_of_adamw_counts_each_read_and_write() -> None:
    # fp32 gradient read; master, m and v read and written; bf16 weight written.
    assert OPTIMIZERS["adamw"].step_bytes("bf16", "fp32") == 4 + 3 * 8 + 2
    # On bf16 weights: gradient, weight and two states of 2 bytes.
    assert OPTIMIZERS["adamw"].step_bytes("bf16", "bf16", masters=False) == 2 + 3 * 4
    assert OPTIMIZERS["adafactor"].step_bytes("bf16", "bf16") > 2 + 8 + 2


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4)])
def test_newton_schulz_flops_equal_its_products(shape: tuple[int, int]) -> None:
    n, k = min(shape), max(shape)
    x, products = np.ones((n, k)), []

    def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        products.append(2 * a.shape[0] * a.shape[1] * b.shape[1])
        return np.asarray(a @ b * 1e-3)

    for _ in range(5):
        square = product(x, x.T)
        x = x + product(square + product(square, square), x)
    assert OPTIMIZERS["muon"].step_flops(*shape) == sum(products)


def test_state_of_one_rank_alone_is_eighteen_bytes_a_parameter() -> None:
    setup = build(dp=1)
    found = memory(setup)
    assert found.weight_bytes == 2 * parameters(setup)
    assert found.gradient_bytes == 4 * parameters(setup)
    assert found.optimizer_bytes == 12 * parameters(setup)


def test_zero_shards_one_part_after_another() -> None:
    whole = memory(build(dp=8))
    for zero, parts in ((1, ("optimizer",)), (2, ("optimizer", "gradient")), (3, ("optimizer", "gradient", "weight"))):
        found = memory(build(dp=8, zero=zero))
        for part in ("optimizer", "gradient", "weight"):
            share = 8 if part in parts else 1
            have, had = (getattr(one, f"{part}_bytes") for one in (found, whole))
            assert have == pytest.approx(had / share, abs=1)


def test_hybrid_shards_hold_what_a_smaller_group_would() -> None:
    assert memory(build(dp=8, zero=3, shard=4)).weight_bytes == memory(build(dp=4, zero=3)).weight_bytes


def test_experts_are_sharded_over_the_ranks_that_hold_the_same_ones() -> None:
    alone = memory(build(model=EXPERTS, dp=8, ep=8, zero=1))
    chunks = stage_chunks(build(model=EXPERTS, dp=8, ep=8, zero=1), 0)
    assert not isinstance(chunks, Infeasible)
    dense = sum(work.parameters * count for one in chunks for work, count in one.works)
    experts = sum(work.expert_parameters * count for one in chunks for work, count in one.works)
    # dp = 8, but each expert is on one rank: its state is not shared.
    assert alone.optimizer_bytes == pytest.approx(12 * (dense / 8 + experts), abs=2)
    shared = memory(build(model=EXPERTS, dp=8, ep=4, zero=1))
    assert shared.optimizer_bytes == pytest.approx(12 * (dense / 8 + 2 * experts / 2), abs=2)


@given(first=st.integers(1, 8), more=st.integers(0, 8))
def test_more_micro_batches_in_flight_never_take_less(first: int, more: int) -> None:
    setup = build(pp=2, dp=2)
    small, large = memory(setup, flying=first), memory(setup, flying=first + more)
    assert small.activation_bytes <= large.activation_bytes
    assert small.peak_bytes <= large.peak_bytes
    assert small.needed_bytes <= large.needed_bytes


def test_parts_sum_to_the_peak_and_the_need() -> None:
    found = memory(build(dp=4, tp=2, sequence_parallel=True, zero=3), features=MEGATRON_CORE.memory)
    parts = ("weight", "gradient", "optimizer", "activation", "temporary", "communication")
    assert found.peak_bytes == sum(getattr(found, f"{part}_bytes") for part in parts)
    assert found.needed_bytes == found.peak_bytes + found.reserve_bytes
    assert all(getattr(found, f"{part}_bytes") > 0 for part in (*parts, "reserve"))


def test_full_recomputation_takes_less_and_keeps_a_layer_s_activations_as_temporary() -> None:
    model = llama("s", hidden=512, layers=8, heads=8, kv_heads=4, ffn_hidden=1024, vocab=64, seq_len=256)
    none, full = (memory(build(model=model, dp=2, recompute=kind), flying=4) for kind in ("none", "full"))
    assert full.activation_bytes < none.activation_bytes / 3
    assert full.temporary_bytes > none.temporary_bytes
    assert full.peak_bytes < none.peak_bytes


def test_backward_of_a_block_before_the_head_has_freed_what_the_head_kept() -> None:
    # A wide feed-forward before a narrow vocabulary: the fullest moment is in the block.
    wide = llama("w", hidden=64, layers=2, heads=4, kv_heads=4, ffn_hidden=65536, vocab=128, seq_len=256)
    setup = build(model=wide)
    chunks = stage_chunks(setup, 0)
    assert not isinstance(chunks, Infeasible)
    kept = sum(work.saved_bytes * count for work, count in chunks[0].works)
    head = chunks[0].works[-1][0]
    assert memory(setup).activation_bytes == kept - head.saved_bytes


def test_weight_gradient_scratch_is_of_the_weights_shapes() -> None:
    setup = build()
    # No workspace beside it, so that the difference is the scratch alone.
    none, cached = (
        memory(setup, features=replace(GENERIC, weight_gradient_scratch=kind)).temporary_bytes
        for kind in ("none", "cached")
    )
    shapes = [(1024, 512), (512, 512), (2048, 512), (512, 1024)]
    blocks = 2 * sum(n * k for n, k in shapes)
    table = 2 * 4096 * 512
    assert blocks <= cached - none <= blocks + table


def test_adapters_alone_have_gradients_and_state() -> None:
    full, adapted = memory(build()), memory(build(replace(RECIPE, lora_rank=8)))
    assert adapted.gradient_bytes < full.gradient_bytes / 10
    assert adapted.optimizer_bytes == 3 * adapted.gradient_bytes
    assert adapted.weight_bytes > full.weight_bytes


def in_blocks(setup: Setup, *, trainable: bool = False) -> int:
    chunks = stage_chunks(setup, 0)
    assert not isinstance(chunks, Infeasible)
    name = "trainable_parameters" if trainable else "parameters"
    return sum(getattr(work, name) * count for one in chunks for work, count in one.works if not work.is_end)


@pytest.mark.parametrize(
    ("dtype", "alone", "bytes_"),
    [("fp8", False, 4.0), ("fp8", True, 2.0), ("mxfp8", True, 2 * 33 / 32), ("nvfp4", True, 2 + 2 * 9 / 16)],
)
def test_matrices_are_held_by_rows_and_by_columns_in_the_narrow_type(dtype: DType, alone: bool, bytes_: float) -> None:
    software = replace(RECIPE.software, keeps_narrow=True, narrow_parameters=alone)
    plain, narrow = build(), build(replace(RECIPE, dtype=dtype, software=software))
    gained = memory(narrow).weight_bytes - memory(plain).weight_bytes
    # Embedding and head stay in 16 bits.
    assert gained == pytest.approx((bytes_ - 2) * in_blocks(plain), abs=2)
    cast_anew = replace(software, keeps_narrow=False)
    assert memory(build(replace(RECIPE, dtype=dtype, software=cast_anew))).weight_bytes == memory(plain).weight_bytes


def test_blocks_that_stay_wide_hold_no_narrow_matrices() -> None:
    software = replace(RECIPE.software, keeps_narrow=True)
    plain, narrow = build(), build(replace(RECIPE, dtype="fp8", software=software))
    blocks = len(MODEL.layers) - 2
    for first, last in ((1, 0), (0, 3), (1, 3), (blocks, blocks)):
        some = build(replace(RECIPE, dtype="fp8", software=replace(software, wide_first=first, wide_last=last)))
        stay = min(blocks, first + last) / blocks
        gained, whole = (memory(each).weight_bytes - memory(plain).weight_bytes for each in (some, narrow))
        assert gained == pytest.approx((1 - stay) * whole, rel=1e-6, abs=2)


@pytest.mark.parametrize(("dtype", "bytes_"), [("fp8", 1.0), ("mxfp8", 2 * 33 / 32), ("nvfp4", 2 * 9 / 16)])
def test_frozen_matrices_are_held_in_the_narrow_type_alone(dtype: DType, bytes_: float) -> None:
    software = replace(RECIPE.software, keeps_narrow=True, narrow_parameters=True)
    plain = build(replace(RECIPE, lora_rank=8))
    narrow = build(replace(RECIPE, lora_rank=8, dtype=dtype, software=software))
    frozen = in_blocks(plain) - in_blocks(plain, trainable=True)
    saved = memory(plain).weight_bytes - memory(narrow).weight_bytes
    assert saved == pytest.approx((2 - bytes_) * frozen, abs=2)


def test_moments_of_sixteen_bits_are_half_as_large_beside_masters() -> None:
    setup = build(replace(RECIPE, software=replace(RECIPE.software, moments="bf16")))
    assert memory(setup).optimizer_bytes == (4 + 2 + 2) * parameters(setup)
    assert OPTIMIZERS["adamw"].step_bytes("bf16", "bf16", narrow_moments=True) == 2 + 2 * 4 + 2 * 4 + 2


def test_gradients_of_one_layer_alone_are_held_where_the_step_is_in_backward() -> None:
    setup = build()
    chunks = stage_chunks(setup, 0)
    assert not isinstance(chunks, Infeasible)
    largest = max(work.trainable_parameters for work, _ in chunks[0].works if not work.is_end)
    lean = memory(setup, features=replace(GENERIC, step_in_backward=True, paged_states=True))
    assert (lean.gradient_bytes, lean.optimizer_bytes) == (4 * largest, 0)


def test_activations_on_the_host_leave_two_blocks_and_the_ends_on_the_device() -> None:
    setup = build(offload=frozenset({"activations"}))
    chunks = stage_chunks(setup, 0)
    assert not isinstance(chunks, Infeasible)
    blocks = [work.saved_bytes for work, _ in chunks[0].works if not work.is_end]
    ends = sum(work.saved_bytes for work, _ in chunks[0].works if work.is_end)
    most = memory(setup, flying=4).activation_bytes
    assert 2 * max(blocks) <= most <= 2 * max(blocks) + ends


def test_weights_gathered_one_by_one_take_the_room_of_two_matrices_and_a_gradient() -> None:
    setup = build(dp=8, zero=3)
    layer, matrix = (
        memory(setup, features=replace(GENERIC, gathers_matrices=alone)).communication_bytes for alone in (False, True)
    )
    # Gate and up are one matrix here.
    assert matrix == 3 * 2 * 512 * 2 * 1024
    assert layer > 2 * matrix


def test_gathered_inputs_that_are_kept_are_those_of_the_other_ranks() -> None:
    setup = build(tp=2, sequence_parallel=True)
    anew, kept = (
        memory(setup, features=replace(GENERIC, keeps_gathered=each), flying=2).activation_bytes
        for each in (False, True)
    )
    chunks = stage_chunks(setup, 0)
    assert not isinstance(chunks, Infeasible)
    blocks = [(work, count) for work, count in chunks[0].works if not work.is_end]
    # Two products of a block gather their input; each rank has half of it itself.
    assert kept - anew == pytest.approx(sum(2 * 2 * work.input_bytes * count for work, count in blocks), rel=0.01)
    alone = build()
    assert memory(alone, features=replace(GENERIC, keeps_gathered=True)) == memory(alone)


def test_narrow_parameters_are_gathered_in_their_own_type() -> None:
    software = replace(RECIPE.software, keeps_narrow=True, narrow_parameters=True)
    wide, narrow = (
        build(replace(RECIPE, dtype="fp8", software=each), dp=8, zero=3) for each in (RECIPE.software, software)
    )
    chunks = stage_chunks(wide, 0)
    assert not isinstance(chunks, Infeasible)
    largest = max(work.parameters for work, _ in chunks[0].works if not work.is_end)
    assert memory(wide).communication_bytes - memory(narrow).communication_bytes == 2 * largest


def test_offloaded_parts_leave_the_device() -> None:
    here = memory(build(), flying=4)
    assert memory(build(offload=frozenset({"optimizer"}))).optimizer_bytes == 0
    assert memory(build(offload=frozenset({"activations"})), flying=4).activation_bytes < here.activation_bytes


def test_of_some_layers_offloaded_the_others_stay() -> None:
    def kept(share: float) -> int:
        recipe = replace(RECIPE, software=replace(RECIPE.software, offloaded_share=share))
        return memory(build(recipe, offload=frozenset({"activations"})), flying=4).activation_bytes

    here, half, none = memory(build(), flying=4).activation_bytes, kept(0.5), kept(1.0)
    assert kept(0.0) == here
    assert none < half < here
    assert half == pytest.approx((here + none) / 2, rel=0.05)


def test_loose_blocks_are_given_back_when_the_device_is_full() -> None:
    loose = replace(GENERIC, fragmentation=1e4, activation_fragmentation=0.0)
    found = memory(build(), features=loose)
    capacity = load_cluster("a100-80gb:4x8").sites[0].nodes[0].device.memory_bytes
    assert found.needed_bytes > capacity
    modest = memory(build(), features=replace(loose, fragmentation=2e3))
    assert modest.needed_bytes == capacity


def test_declared_features_alone_change_the_memory() -> None:
    recipe = replace(RECIPE, software=replace(RECIPE.software, memory=MEGATRON_CORE.memory))
    chunks = stage_chunks(build(recipe), 0)
    assert not isinstance(chunks, Infeasible)
    named = rank_memory(build(recipe), 0, chunks, (1.0,))
    assert named == memory(build(recipe), features=MEGATRON_CORE.memory)
    assert named.temporary_bytes > memory(build(recipe)).temporary_bytes
    renamed = replace(RECIPE, software=replace(RECIPE.software, name="megatron-core"))
    assert rank_memory(build(renamed), 0, chunks, (1.0,)) == memory(build())


def test_chunks_and_micro_batches_in_flight_must_be_as_many() -> None:
    setup = build()
    chunks = stage_chunks(setup, 0)
    assert not isinstance(chunks, Infeasible)
    with pytest.raises(ValueError, match="expected as many"):
        rank_memory(setup, 0, chunks, (1.0, 1.0))


def test_convolutions_have_no_runaway_gradients() -> None:
    setup = build(Recipe(global_batch=8, seq_len=0), load_model("wide-resnet-2b"), micro_batch_per_rank=8)
    found = memory(setup)
    assert found.temporary_bytes < found.activation_bytes + 2**27


@pytest.mark.skipif(not (DATA / "train_runs.csv").is_file(), reason="no published runs beside this checkout")
@pytest.mark.parametrize(("source", "limit"), [("SMXB", 0.01), ("BSA", 0.05)])
def test_published_peaks(source: str, limit: float) -> None:
    from bench.accuracy.adapters.published import read_published
    from bench.accuracy.memory import Compared, compare

    rows = [run.explicit for run in read_published(DATA / "train_runs.csv")]
    rows = [row for row in rows if row.source == source and row.peak_mem_gb]
    found = [one for one in map(compare, rows) if isinstance(one, Compared)]
    assert len(found) == len(rows)
    assert sum(abs(one.error) for one in found) / len(found) <= limit
