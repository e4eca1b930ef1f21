"""What one stage costs in one way: sums by hand, who is asked for times, what is dropped and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from estimator.cells.job import Job, RecomputeRule
from estimator.cells.stage_options import Machine, Parallelism, StageOption, StagePlace, best_recompute, estimate_option
from estimator.communication.collectives import describe_group, time_collective
from estimator.layer_times import LayerCosts, ShardCost
from estimator.layers.shards import shard_layer
from estimator.memory import Schedule
from models_zoo.catalogue import load_model
from models_zoo.layers import Head, Layer, TransformerBlock
from models_zoo.model import Model
from profiles.cluster import DeviceSlot
from profiles.training_parameters import load_training_parameters
from profiles.vocabulary import CollectiveOp, Infeasible, LayerTime, LinkTable, LocalLayer, Shard
from tests.cell_examples import make_job, make_test_machine, tied_gpt, untied_llama


def place_of(
    job: Job, machine: Machine, *, first: int = 0, end: int | None = None, devices: int = 4, **changes: Any
) -> StagePlace:
    """The whole model, or layers [first, end) of it, as the only stage, with micro-batches of 16 samples."""
    layers = job.model.layers[first:end]
    settings: dict[str, Any] = {"index": 0, "stages": 1, "micro_batch": 16, "micro_batches": job.global_batch // 16}
    slots = machine.cluster.slots[:devices]
    return StagePlace(first=first, layers=layers, slots=slots, **(settings | changes))


def option_of(job: Job, machine: Machine, place: StagePlace, **parallelism: Any) -> StageOption:
    option = estimate_option(job, machine, place, Parallelism(**parallelism))
    assert isinstance(option, StageOption), option.reason
    return option


def refusal_of(job: Job, machine: Machine, place: StagePlace, **parallelism: Any) -> Infeasible:
    option = estimate_option(job, machine, place, Parallelism(**parallelism))
    assert isinstance(option, Infeasible)
    return option


def local_of(layer: Layer, **shard: Any) -> LocalLayer:
    local = shard_layer(layer, Shard(**shard))
    assert isinstance(local, LocalLayer)
    return local


def seconds(
    machine: Machine, op: CollectiveOp, size: float, slots: tuple[DeviceSlot, ...], concurrent: int = 1
) -> float:
    group = describe_group(machine.cluster, slots)
    return time_collective(op, size, group, concurrent_groups=concurrent).seconds


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_data_parallel_stage_by_hand(zero: Any) -> None:
    """Six blocks of a Llama on 4 replicas of 4 samples each: what is sent when under each ZeRO stage."""
    job = make_job(untied_llama(), zero=zero)
    machine = make_test_machine(job)
    place = place_of(job, machine, first=1, end=7)
    option = option_of(job, machine, place, dp=4, tp=1)
    shard = Shard(micro_batch_per_rank=4, seq_len=64)
    block = machine.costs.cost(job.model.layers[1], shard)
    assert isinstance(block, ShardCost)
    parameters = 6 * block.local.parameters
    reduce_s = seconds(machine, "all_reduce", 2 * parameters, place.slots)
    scatter_s = seconds(machine, "reduce_scatter", 2 * parameters, place.slots)
    gather_s = seconds(machine, "all_gather", 2 * parameters, place.slots)
    per_micro_batch = {0: 0.0, 1: 0.0, 2: scatter_s, 3: scatter_s + 2 * gather_s}[zero]
    per_step = {0: reduce_s, 1: scatter_s + gather_s, 2: gather_s, 3: 0.0}[zero]
    assert option.blocking_s == pytest.approx(per_micro_batch, rel=1e-12)
    assert option.gradient_sync_step_s == pytest.approx(per_step, rel=1e-12)
    assert option.compute_s == pytest.approx(6 * (block.time.forward_s + block.time.backward_s), rel=1e-12)
    assert option.optimizer_step_s == pytest.approx(6 * block.time.optimizer_s / (4 if zero else 1), rel=1e-12)
    assert option.memory.activation_bytes == 6 * block.local.saved_bytes
    assert option.time_s == option.compute_s + option.blocking_s
    assert option.step_s == option.gradient_sync_step_s + option.optimizer_step_s


def test_tensor_parallel_stage_by_hand() -> None:
    """Megatron's four all-reduces a block, and those of forward once more where it is recomputed."""
    job = make_job(untied_llama())
    machine = make_test_machine(job)
    place = place_of(job, machine, first=1, end=7)
    each = seconds(machine, "all_reduce", 16 * 64 * 96 * 2, place.slots)
    assert option_of(job, machine, place, dp=1, tp=4).blocking_s == pytest.approx(6 * 4 * each, rel=1e-12)
    recomputed = option_of(job, machine, place, dp=1, tp=4, recompute="full")
    assert recomputed.blocking_s == pytest.approx(6 * 6 * each, rel=1e-12)
    assert recomputed.gradient_sync_step_s == 0


def test_both_axes_at_once() -> None:
    """Two replicas of two shards: neighbours are shards of one replica, every second rank holds the same shard."""
    job = make_job(untied_llama())
    machine = make_test_machine(job)
    place = place_of(job, machine, first=1, end=7)
    option = option_of(job, machine, place, dp=2, tp=2)
    block = local_of(job.model.layers[1], tp=2, micro_batch_per_rank=8, seq_len=64)
    a, b, c, _ = place.slots
    assert option.blocking_s == pytest.approx(
        24 * seconds(machine, "all_reduce", 8 * 64 * 96 * 2, (a, b), 2), rel=1e-12
    )
    summed_s = seconds(machine, "all_reduce", 2 * 6 * block.parameters, (a, c), 2)
    assert option.gradient_sync_step_s == pytest.approx(summed_s, rel=1e-12)


def test_replicated_heads_are_summed_among_their_holders() -> None:
    """Four key-value heads on twelve ranks: each is held by three neighbours, on one node although the stage is not."""
    job = make_job(untied_llama())
    machine = make_test_machine(job, "a100-80gb:2x6")
    place = place_of(job, machine, first=1, end=7, devices=12)
    sums = [c for c in local_of(job.model.layers[1], tp=12, seq_len=64).collectives if c.phase == "step"]
    assert [c.ranks for c in sums] == [3]
    option = option_of(job, machine, place, dp=1, tp=12)
    expected = 6 * seconds(machine, "all_reduce", sums[0].bytes, place.slots[:3], 4)
    assert option.gradient_sync_step_s == pytest.approx(expected, rel=1e-12)


# The tied table


def test_a_table_in_one_stage_is_held_and_stepped_once() -> None:
    job = make_job(tied_gpt())
    head = job.model.layers[-1]
    assert isinstance(head, Head)
    apart = make_job(replace(job.model, layers=(*job.model.layers[:-1], replace(head, tied=False))))
    machine, other = make_test_machine(job), make_test_machine(apart)
    for tp in (1, 4):
        one = option_of(job, machine, place_of(job, machine), dp=4 // tp, tp=tp)
        two = option_of(apart, other, place_of(apart, other), dp=4 // tp, tp=tp)
        table = 512 * 64 // tp
        assert two.memory.weight_bytes - one.memory.weight_bytes == 2 * table
        assert two.memory.optimizer_bytes - one.memory.optimizer_bytes == 12 * table
        share = 0.85 * load_training_parameters().of("memory_share", "fused")
        step_s = 28 * table / (machine.device.memory_bandwidth_bytes_per_s * share)
        assert two.optimizer_step_s - one.optimizer_step_s == pytest.approx(step_s, rel=1e-9)


def test_a_table_in_two_stages_is_summed_between_them() -> None:
    """Pairs of one rank of the first and one of the last stage, here on two nodes, all at once."""
    job = make_job(tied_gpt())
    machine = make_test_machine(job)
    slots = machine.cluster.slots
    place = place_of(job, machine, end=3, stages=2)
    pipeline = ((0, slots[:4]), (3, slots[4:]))
    for tp in (1, 4):
        alone = option_of(job, machine, place, dp=4 // tp, tp=tp)
        shared = option_of(job, machine, replace(place, pipeline=pipeline), dp=4 // tp, tp=tp)
        expected = seconds(machine, "all_reduce", 2 * 512 * 64 // tp, (slots[0], slots[4]), 4)
        assert shared.gradient_sync_step_s - alone.gradient_sync_step_s == pytest.approx(expected, rel=1e-9)
        assert replace(
            shared, gradient_sync_step_s=0.0, communication_provenance=None, communication_basis=()
        ) == replace(alone, gradient_sync_step_s=0.0, communication_provenance=None, communication_basis=())


def test_ranks_of_stages_of_different_size_are_paired_in_proportion() -> None:
    """Two nodes of four; six devices hold the first stage, so one of its pairs is inside a node and faster."""
    job = make_job(tied_gpt())
    machine = make_test_machine(job)
    slots = machine.cluster.slots
    place = place_of(job, machine, first=4, devices=2, index=1, stages=2)
    place = replace(place, slots=slots[6:], pipeline=((0, slots[:6]), (4, slots[6:])))
    alone = option_of(job, machine, replace(place, pipeline=()), dp=2, tp=1)
    shared = option_of(job, machine, place, dp=2, tp=1)
    pairs = [(slots[0], slots[6]), (slots[3], slots[7])]
    expected = max(seconds(machine, "all_reduce", 2 * 512 * 64, pair, 2) for pair in pairs)
    assert shared.gradient_sync_step_s - alone.gradient_sync_step_s == pytest.approx(expected, rel=1e-9)


# Where times come from


def measured(*blocks: Layer, spread: float = 0.0) -> Any:
    """A lookup that knows only `blocks`, without recomputation."""

    def look_up(layer: Layer, shard: Shard) -> LayerTime | None:
        if layer not in blocks or shard.recompute != "none":
            return None
        return LayerTime(
            forward_s=0.5,
            backward_s=1.5,
            optimizer_s=0.25,
            provenance="measured",
            saved_bytes=12345,
            peak_memory_bytes=99,
            relative_low=spread,
            relative_high=2 * spread,
            profile_id=f"{type(layer).__name__}-{shard.tp}-{shard.micro_batch_per_rank}",
        )

    return look_up


def measured_option(model: Model, *layers: Layer, **parallelism: Any) -> StageOption:
    job = make_job(model)
    machine = make_test_machine(job, lookup=measured(*layers, spread=0.1))
    return option_of(job, machine, place_of(job, machine), dp=4, tp=1, **parallelism)


def test_measured_times_win_and_are_named() -> None:
    model = untied_llama()
    option = measured_option(model, *model.layers)
    assert (option.compute_s, option.optimizer_step_s) == (8 * 2.0, 8 * 0.25)
    assert option.compute_provenance == "measured"
    assert option.profile_ids == ("Embedding-1-4", "Head-1-4", "TransformerBlock-1-4")
    assert option.memory.activation_bytes == 8 * 12345
    assert option.spread_s == pytest.approx((8 * 0.1 * 2.0, 8 * 0.2 * 2.0))
    assert option.communication_provenance == "modelled"


def test_a_stage_of_measured_and_modelled_layers_is_mixed() -> None:
    model = untied_llama()
    option = measured_option(model, model.layers[1])
    assert option.compute_provenance == "mixed"
    assert option.profile_ids == ("TransformerBlock-1-4",)
    nothing = measured_option(model)
    assert (nothing.compute_provenance, nothing.profile_ids, nothing.spread_s) == ("modelled", (), (0.0, 0.0))


def test_recomputation_is_derived_from_a_plain_measurement_and_says_so() -> None:
    model = untied_llama()
    option = measured_option(model, *model.layers, recompute="full")
    assert option.compute_s == 8 * 2.5
    assert option.compute_provenance == "mixed"
    assert len(option.profile_ids) == 3
    inputs = 8 * 256 + 7 * 256 * 96 * 2  # int64 tokens; activations of 4 samples of 64 tokens
    assert option.memory.activation_bytes == inputs


def test_a_measured_recomputation_stays_measured() -> None:
    block = untied_llama().layers[1]
    job = make_job(untied_llama())
    time = LayerTime(forward_s=1.0, backward_s=3.0, optimizer_s=0.0, provenance="measured")
    machine = make_test_machine(job, lookup=lambda _layer, shard: time if shard.recompute == "full" else None)
    cost = machine.costs.cost(block, Shard(seq_len=64, recompute="full"))
    assert isinstance(cost, ShardCost)
    assert cost.time == time
    assert cost.saved_bytes == cost.local.input_bytes
    plain = machine.costs.cost(block, Shard(seq_len=64))
    assert isinstance(plain, ShardCost)
    assert plain.time.provenance == "modelled"
    assert plain.saved_bytes == plain.local.saved_bytes


def test_measured_links_are_named() -> None:
    job = make_job(untied_llama())
    table = LinkTable(
        link="nvswitch3",
        op="all_reduce",
        ranks=4,
        nodes=1,
        points=((1024, 0.25), (1 << 30, 0.25)),
        alpha_s=0.25,
        beta_s_per_byte=0.0,
        fit_error=0.0,
        source="made up",
    )
    machine = make_test_machine(job, link_tables=(table,))
    assert machine.cluster.sites[0].nodes[0].island_link.name == table.link
    option = option_of(job, machine, place_of(job, machine), dp=4, tp=1)
    assert option.gradient_sync_step_s == pytest.approx(0.25)
    assert option.communication_provenance == "measured"
    assert option.communication_basis == ("table: all_reduce over nvswitch3, 4 ranks, made up",)
    alone = option_of(job, machine, place_of(job, machine, devices=1), dp=1, tp=1)
    assert (alone.communication_provenance, alone.communication_basis) == (None, ())


def test_each_shard_is_looked_up_once() -> None:
    asked: list[Shard] = []

    def look_up(_layer: Layer, shard: Shard) -> None:
        asked.append(shard)

    job = make_job(untied_llama())
    machine = make_test_machine(job)
    costs = LayerCosts(device=machine.device, optimizer_name="adamw", lookup=look_up)
    shard = Shard(seq_len=64)
    for _ in range(3):
        for layer in job.model.layers:
            costs.cost(layer, shard)
    assert asked == [shard] * 3  # embedding, block, head


# What cannot be had


def test_refusals_say_why() -> None:
    job = make_job(untied_llama())
    machine = make_test_machine(job)
    place = place_of(job, machine, devices=8)
    dp = refusal_of(job, machine, replace(place, micro_batch=12), dp=8, tp=1)
    assert dp == Infeasible(reason="dp=8 does not divide the micro-batch of 12 samples", lacking="divisibility")
    tp = refusal_of(job, machine, place, dp=1, tp=8)
    assert tp == Infeasible(reason="attention: tp=8 does not divide 12 heads", lacking="divisibility")


def test_what_does_not_fit_says_what_it_lacks() -> None:
    model = load_model("llama2-7b")
    job = make_job(model, recompute="none")
    machine = make_test_machine(job, "a100-40gb:1x8")
    place = place_of(job, machine, devices=8, micro_batch=8)
    refusal = refusal_of(job, machine, place, dp=8, tp=1)
    assert refusal.lacking == "memory"
    assert refusal.lacking_bytes is not None
    roomier = make_test_machine(
        job, "a100-40gb:1x8", memory_bytes=machine.device.memory_bytes + round(refusal.lacking_bytes * 1.1)
    )
    assert isinstance(estimate_option(job, roomier, place, Parallelism(dp=8, tp=1)), StageOption)
    weights = 16 * 6738415616
    assert refusal.lacking_bytes > weights - machine.device.memory_bytes
    assert refusal.reason.startswith("dp=8 tp=1 recompute=none: needs 120.7 GiB and 3.159 GiB reserve, the device has")


def test_auto_recomputes_only_where_it_must() -> None:
    job = make_job(untied_llama())
    plain, full = (
        option_of(job, machine, place_of(job, machine), dp=4, tp=1, recompute=rule)
        for machine in [make_test_machine(job)]
        for rule in ("none", "full")
    )
    assert full.memory.peak_bytes < plain.memory.peak_bytes
    cases: tuple[tuple[int, RecomputeRule, str | None], ...] = (
        (80 * 2**30, "auto", "none"),
        (round(plain.memory.peak_bytes / 0.91), "auto", "none"),
        (round(plain.memory.peak_bytes / 0.93), "auto", "full"),
        (round(full.memory.peak_bytes / 0.91), "auto", "full"),
        (round(full.memory.peak_bytes / 0.93), "auto", None),
        (round(plain.memory.peak_bytes / 0.93), "none", None),
        (80 * 2**30, "full", "full"),
    )
    for memory, rule, expected in cases:
        some = replace(job, recompute=rule)
        machine = make_test_machine(some, memory_bytes=memory)
        option = best_recompute(some, machine, place_of(some, machine), dp=4, tp=1)
        found = option.parallelism.recompute if isinstance(option, StageOption) else None
        assert found == expected, (memory, rule)


def test_gpipe_and_early_stages_hold_more() -> None:
    job = make_job(untied_llama(), global_batch=128)
    machine = make_test_machine(job)
    block = next(layer for layer in job.model.layers if isinstance(layer, TransformerBlock))
    saved = 2 * local_of(block, micro_batch_per_rank=4, seq_len=64).saved_bytes
    cases: tuple[tuple[Schedule, int, int], ...] = (("1f1b", 0, 3), ("1f1b", 2, 1), ("gpipe", 0, 8), ("gpipe", 2, 8))
    for schedule, index, in_flight in cases:
        some = replace(job, schedule=schedule)
        place = place_of(some, machine, first=2, end=4, index=index, stages=3)
        assert option_of(some, machine, place, dp=4, tp=1).memory.activation_bytes == in_flight * saved
