"""Cells against the enumeration of every assembly, and the rules that hold for any Cell."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import pytest

from estimator.cells.cell import CellEstimate, CellFailure, CellRules, StageEstimate
from estimator.cells.estimate import estimate_cells
from estimator.cells.job import Job
from estimator.cells.stage_options import Machine
from estimator.cells.stages import StageSplit, partition_crius
from estimator.communication.collectives import describe_group, time_collective
from estimator.layers.graph import build_graph
from models_zoo import families
from models_zoo.catalogue import load_model
from models_zoo.layers import Layer
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster
from profiles.errors import InputError
from profiles.vocabulary import LayerTime, Link, LinkTable, Shard
from tests.cell_examples import (
    MODELS,
    cell_of,
    estimated,
    make_job,
    make_test_machine,
    tied_gpt,
    untied_llama,
)
from tests.oracles.cell_oracle import every_assembly, price_stage
from tests.oracles.partition_oracle import compositions

CLUSTERS = (("a100-80gb:2x4", "bf16"), ("a100-80gb:3x6", "bf16"), ("v100-32gb:2x8", "fp16"), ("a10:2x4", "fp32"))


def random_instance(rng: random.Random, **settings: Any) -> tuple[Job, Machine, int, int]:
    """A job, a machine that is often short of memory, and how many devices and stages."""
    model = rng.choice(MODELS)
    cluster, dtype = rng.choice(CLUSTERS)
    batch = rng.choice([16, 24, 36, 60, 64, 96])
    job = make_job(
        model,
        **{
            "global_batch": batch,
            "dtype": dtype,
            "optimizer_name": rng.choice(["adamw", "sgd"]),
            "schedule": rng.choice(["1f1b", "gpipe"]),
            "recompute": rng.choice(["auto", "auto", "none", "full"]),
            "zero": rng.choice([0, 0, 1, 2, 3]),
            "sequence_parallel": rng.random() < 0.3,
            "micro_batches": rng.choice([count for count in (1, 2, 4, 8, 12) if batch % count == 0]),
            **settings,
        },
    )
    machine = make_test_machine(job, cluster)
    if rng.random() < 0.6:
        machine = make_test_machine(job, cluster, memory_bytes=round(10 ** rng.uniform(6, 7.3)))
    devices = rng.randint(1, len(machine.cluster.slots))
    return job, machine, devices, rng.randint(1, min(devices, len(model.layers), 7))


def split_of(cell: CellEstimate) -> list[Any]:
    return [(stage.first, stage.end, stage.slots) for stage in cell.stages]


@pytest.mark.parametrize("formula", ["cellplan", "crius"])
@pytest.mark.parametrize("partition", ["exact", "crius"])
def test_cell_equals_the_best_of_every_assembly(formula: Any, partition: Any) -> None:
    rng = random.Random(f"{formula} {partition}")
    seen: dict[str, int] = dict.fromkeys(("found", "recompute", "dropped", "mixed", "uneven", "tp"), 0)
    for _ in range(90):
        job, machine, devices, stages = random_instance(rng)
        rules = CellRules(formula=formula, partition=partition)
        cell = cell_of(job, stages, machine=machine, devices=devices, rules=rules)
        if isinstance(cell, CellFailure):
            continue
        every = every_assembly(job, machine, split_of(cell), cell.micro_batches, formula)
        best_s = every[0][0]
        assert cell.iteration_time_s == pytest.approx(best_s, rel=1e-12)
        assert cell.assembly in [favours for time_s, favours in every if time_s <= best_s * (1 + 1e-12)]
        assert cell.assemblies == len(every)
        enumerated = estimated(
            cell_of(job, stages, machine=machine, devices=devices, rules=replace(rules, assembly="enumerate"))
        )
        assert enumerated == cell
        check_memory(job, machine, cell)
        sizes = {len(stage.slots) for stage in cell.stages}
        for what, is_so in (
            ("found", True),
            ("recompute", cell.recomputes),
            ("dropped", bool(cell.dropped)),
            ("mixed", len(set(cell.assembly)) > 1),
            ("tp", "tp" in cell.assembly),
            ("uneven", len(sizes) > 1),
        ):
            seen[what] += is_so
    assert seen["found"] > 40
    assert min(seen.values()) > 3, seen


def check_memory(job: Job, machine: Machine, cell: CellEstimate) -> None:
    """The oracle's bytes for each chosen option, and the least recomputation of it that fits."""
    for index, stage in enumerate(cell.stages):
        options = {x.favour: x for x in price_stage(job, machine, split_of(cell), index, cell.micro_batches)}
        chosen = options[stage.favour]
        assert stage.option.memory.peak_bytes == chosen.memory_bytes
        assert stage.option.parallelism.recompute == chosen.recompute


def test_three_nodes_of_six_in_seven_stages() -> None:
    """All 18 devices in use by 7 stages, each in one of its two ways, equal to the oracle."""
    model = untied_llama(layers=12)
    job = make_job(model, global_batch=144, micro_batches=12)
    machine = make_test_machine(job, "a100-80gb:3x6")
    cell = estimated(cell_of(job, 7, machine=machine))
    assert len(cell.stages) == 7
    assert sum(len(stage.slots) for stage in cell.stages) == cell.devices == 18
    assert {slot for stage in cell.stages for slot in stage.slots} == set(machine.cluster.slots)
    every = every_assembly(job, machine, split_of(cell), 12, "cellplan")
    assert len(every) == cell.assemblies > 1
    assert cell.iteration_time_s == pytest.approx(every[0][0], rel=1e-12)


@pytest.mark.parametrize("formula", ["cellplan", "crius"])
def test_breakdown_sums_to_the_iteration(formula: Any) -> None:
    rng = random.Random(7)
    for _ in range(25):
        job, machine, devices, stages = random_instance(rng)
        cell = cell_of(job, stages, machine=machine, devices=devices, rules=CellRules(formula=formula))
        if isinstance(cell, CellEstimate):
            parts = [getattr(cell.breakdown, name) for name in cell.breakdown.__slots__]
            assert min(parts) >= 0
            assert math.fsum(parts) == pytest.approx(cell.iteration_time_s, rel=1e-12)
            assert cell.breakdown.total_s == pytest.approx(cell.iteration_time_s, rel=1e-12)


def test_a_stage_alone_has_neither_bubble_nor_transfer() -> None:
    cell = estimated(cell_of(make_job(micro_batches=4), 1))
    stage = cell.stages[0]
    assert (cell.breakdown.bubble_s, cell.breakdown.transfer_s, stage.transfer_s) == (0, 0, 0)
    assert cell.breakdown.compute_s == pytest.approx(4 * stage.option.compute_s)
    assert cell.iteration_time_s == pytest.approx(4 * stage.option.time_s + stage.option.step_s)


def test_stages_that_hold_a_tied_table_sum_its_gradients() -> None:
    """Encoder embedding, decoder embedding and projection share one table; with one device a stage nothing else is
    synchronised."""
    model = families.nmt("nmt", hidden=64, layers=4, heads=4, ffn_hidden=128, vocab=500, seq_len=16)
    machine = make_test_machine(make_job(model))
    for stages, held_by in ((1, 1), (2, 2), (5, 3)):
        cell = estimated(cell_of(make_job(model), stages, machine=machine, devices=stages))
        holders = [i for i, stage in enumerate(cell.stages) if {0, 5, 10} & set(range(stage.first, stage.end))]
        assert len(holders) == held_by
        group = describe_group(machine.cluster, [cell.stages[i].slots[0] for i in holders])
        expected = time_collective("all_reduce", 2 * 500 * 64, group).seconds if held_by > 1 else 0.0
        assert [stage.option.gradient_sync_step_s for stage in cell.stages] == [
            pytest.approx(expected) if i in holders else 0.0 for i in range(stages)
        ]
        assert cell.breakdown.gradient_sync_s == pytest.approx(expected)


# By name


def test_the_papers_partition_and_formula_by_name() -> None:
    job = make_job(untied_llama(), micro_batches=8)
    machine = make_test_machine(job)
    cell = estimated(cell_of(job, 4, machine=machine, rules=CellRules(partition="crius", formula="crius")))
    graph = build_graph(job.model, shard=Shard(seq_len=job.seq_len), degrees=())
    flops = [node.forward_flops + node.backward_flops for node in graph.nodes]
    split = partition_crius(flops, [node.cut_bytes for node in graph.nodes[:-1]], 8, 4)
    assert isinstance(split, StageSplit)
    assert tuple((stage.first, stage.end) for stage in cell.stages) == split.bounds
    assert tuple(len(stage.slots) for stage in cell.stages) == split.devices
    with_transfers = [stage.option.time_s + stage.transfer_s for stage in cell.stages]
    slowest = max(cell.stages, key=lambda stage: (stage.option.time_s + stage.transfer_s, stage.option.time_s))
    expected = sum(with_transfers) + 7 * slowest.option.time_s + max(stage.option.step_s for stage in cell.stages)
    assert cell.iteration_time_s == pytest.approx(expected, rel=1e-12)


def test_rule_crius_takes_four_micro_batches_a_stage_or_fails() -> None:
    for stages in (1, 2, 4):
        cell = estimated(cell_of(make_job(micro_batches="crius"), stages))
        assert cell.micro_batches == 4 * stages
    job = make_job(recompute="none", micro_batches="crius")
    tight = tight_machine(job)
    assert isinstance(cell_of(job, 2, machine=tight, devices=2), CellFailure)
    fit = estimated(cell_of(replace(job, micro_batches="fit"), 2, machine=tight, devices=2))
    assert fit.micro_batches == 16


def tight_machine(job: Job) -> Machine:
    """A machine on which 8 micro-batches in two stages of one device do not fit without recomputation, but 16 do."""
    plain = replace(job, recompute="none")
    peaks = [
        estimated(cell_of(replace(plain, micro_batches=count), 2, devices=2)).peak_memory_bytes for count in (8, 16)
    ]
    return make_test_machine(job, memory_bytes=round(sum(peaks) / 2 / 0.92))


def test_rule_fit_goes_on_until_nothing_is_recomputed_and_takes_the_fastest() -> None:
    job = make_job(micro_batches="fit", recompute="auto")
    machine = tight_machine(job)
    by_count = {
        count: estimated(cell_of(replace(job, micro_batches=count), 2, machine=machine, devices=2))
        for count in (8, 16, 32, 64)
    }
    assert [cell.recomputes for cell in by_count.values()] == [True, False, False, False]
    fit = estimated(cell_of(job, 2, machine=machine, devices=2))
    tried = (by_count[8], by_count[16])
    fastest = min(tried, key=lambda cell: cell.iteration_time_s)
    assert fit == replace(fastest, assemblies=sum(cell.assemblies for cell in tried))
    roomy = estimated(cell_of(job, 2, devices=2))
    assert (roomy.micro_batches, roomy.recomputes) == (8, False)


def test_best_is_the_fastest_of_its_candidates_and_never_slower_than_fit() -> None:
    rng = random.Random(11)
    compared = 0
    for _ in range(60):
        job, machine, devices, stages = random_instance(rng, micro_batches="best")

        def time_of(rule: Any) -> float:
            cell = cell_of(replace(job, micro_batches=rule), stages, machine=machine, devices=devices)  # noqa: B023
            return cell.iteration_time_s if isinstance(cell, CellEstimate) else math.inf

        candidates = job.micro_batch_counts(devices=devices, stages=stages)
        best = time_of("best")
        assert best == min(time_of(count) for count in candidates)
        assert best <= time_of("fit")
        compared += best < math.inf
    assert compared > 20


# More of anything


def scale_links(cluster: Cluster, *, bandwidth: float = 1, latency: float = 1) -> Cluster:
    def scaled(link: Link) -> Link:
        return replace(
            link,
            bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * bandwidth,
            latency_s=link.latency_s * latency,
        )

    def site(index: int) -> Any:
        old = cluster.sites[index]
        nodes = tuple(
            replace(
                group,
                island_link=scaled(group.island_link),
                host_link=scaled(group.host_link),
                nic_link=scaled(group.nic_link),
            )
            for group in old.nodes
        )
        return replace(old, nodes=nodes, fabric_link=scaled(old.fabric_link))

    return replace(cluster, sites=tuple(site(index) for index in range(len(cluster.sites))))


@pytest.mark.parametrize("what", ["bandwidth", "latency", "memory bandwidth", "peak", "memory"])
def test_better_hardware_is_never_slower(what: str) -> None:
    """Links, arithmetic and memory traffic under any rule. More memory where stages do not depend on it: the exact
    partition balances FLOPs, which more memory may do better, and that is not always faster."""
    rng = random.Random(what)
    faster = 0
    for _ in range(50):
        job, machine, devices, stages = random_instance(rng, micro_batches=rng.choice(["best", 4]), global_batch=48)
        cluster, device, factor = machine.cluster, machine.device, rng.uniform(1, 4)
        if what == "bandwidth":
            cluster = scale_links(cluster, bandwidth=factor)
        elif what == "latency":
            cluster = scale_links(cluster, latency=1 / factor)
        elif what == "memory bandwidth":
            device = replace(device, memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s * factor)
        elif what == "peak":
            device = replace(
                device, peak_flops_per_s=tuple((name, rate * factor) for name, rate in device.peak_flops_per_s)
            )
        else:
            device = replace(device, memory_bytes=round(device.memory_bytes * factor))
        better = make_test_machine(
            job,
            cluster,
            memory_bytes=device.memory_bytes,
            memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s,
            peak_flops_per_s=device.peak_flops_per_s,
        )
        rules = CellRules(partition="crius" if what == "memory" else rng.choice(["exact", "crius"]))
        times = [
            cell.iteration_time_s if isinstance(cell, CellEstimate) else math.inf
            for cell in (cell_of(job, stages, machine=some, devices=devices, rules=rules) for some in (machine, better))
        ]
        assert times[1] <= times[0] * (1 + 1e-12)
        faster += times[1] < times[0]
    assert faster >= 3


# What does not fit


def test_a_choice_that_does_not_fit_is_dropped_and_said_so() -> None:
    """Replicas of a 7B model do not fit, its shards do: tensor parallelism is what is left."""
    job = make_job(load_model("llama2-7b"), micro_batches=8, recompute="none")
    cell = estimated(cell_of(job, 1, machine=make_test_machine(job, "a100-80gb:1x8")))
    assert cell.assembly == ("tp",)
    assert cell.assemblies == 1
    assert cell.dropped == (
        "stage 0: dp-only dropped, dp=8 tp=1 recompute=none: needs 120.7 GiB and 6.34 GiB reserve,"
        " the device has 79.25 GiB",
    )


def test_a_dp_that_does_not_divide_the_micro_batch_is_dropped() -> None:
    job = make_job(global_batch=24, micro_batches=12)
    cell = estimated(cell_of(job, 1, devices=4))
    assert cell.assembly == ("tp",)
    assert cell.dropped == ("stage 0: dp-only dropped, dp=4 does not divide the micro-batch of 2 samples",)


def test_nothing_fits_and_the_nearest_miss_says_what_it_lacks() -> None:
    """GPT-3 on one node. With that much more memory it fits; with a little less it does not."""
    job = make_job(load_model("gpt3-175b"), global_batch=64)
    machine = make_test_machine(job, "a100-80gb:1x8")
    for stages in (1, 2, 8):
        cell = cell_of(job, stages, machine=machine)
        assert isinstance(cell, CellFailure)
        assert (cell.device, cell.devices, cell.stages) == ("a100-80gb", 8, stages)
        assert cell.failure.lacking == "memory"
        assert cell.failure.lacking_bytes is not None
        weights = 16 * 175e9 / 8
        assert weights - machine.device.memory_bytes < cell.failure.lacking_bytes < 2 * weights
        assert cell.failure.reason.startswith("stage ")
        assert cell.dropped
        # The reserve grows with the memory.
        needed = machine.device.memory_bytes + round(cell.failure.lacking_bytes / 0.92)
        assert isinstance(cell_of(job, stages, machine=replace_memory(job, needed + 100)), CellEstimate)
        assert isinstance(cell_of(job, stages, machine=replace_memory(job, needed * 9 // 10)), CellFailure)


def replace_memory(job: Job, memory_bytes: int) -> Machine:
    return make_test_machine(job, "a100-80gb:1x8", memory_bytes=memory_bytes)


def test_the_failure_is_that_of_the_stage_that_lacks_most() -> None:
    job = make_job(tied_gpt(layers=8), micro_batches=8, recompute="none", schedule="1f1b")
    machine = make_test_machine(job, memory_bytes=100_000)
    cell = cell_of(job, 4, machine=machine, devices=4)
    assert isinstance(cell, CellFailure)
    lines = [line for line in cell.dropped if "needs" in line]
    assert len(lines) == 4
    needs = [estimated(cell_of(job, 4, devices=4)).stages[i].option.memory.peak_bytes for i in range(4)]
    assert cell.failure.lacking_bytes == max(needs) + 8000 - 100_000
    assert cell.failure.reason.startswith(f"stage {needs.index(max(needs))} ")


def test_a_device_without_the_dtype_says_so() -> None:
    job = make_job()
    for stages in (1, 3):
        cell = cell_of(job, stages, machine=make_test_machine(job, "v100-32gb:1x8"))
        assert isinstance(cell, CellFailure)
        assert cell.failure.lacking == "support"
        assert cell.failure.reason.endswith("v100-32gb has no bf16 rate in the catalogue (it has fp32, fp16)")


def test_counts_that_cannot_add_up_say_so() -> None:
    """Seven devices for two stages: dp and tp can be 1, 2, 4 or 8 of four heads and batches of 8."""
    cell = cell_of(make_job(micro_batches=8), 2, devices=7)
    assert isinstance(cell, CellFailure)
    assert cell.failure.lacking == "divisibility"
    assert cell.failure.reason == (
        "no 2 of the device counts that dp or tp can have with micro-batches of 8 samples (1, 2, 4) add up to 7"
    )


def test_a_micro_batch_per_rank_that_leaves_no_batch() -> None:
    cell = cell_of(make_job(micro_batch_per_rank=3), 2)
    assert isinstance(cell, CellFailure)
    assert cell.failure.reason == ("3 samples per rank on 4 devices a stage do not divide the global batch of 64")


def test_a_failure_means_that_no_split_fits() -> None:
    """Against every split and share of the devices among counts that layers can be shared by."""
    rng = random.Random(5)
    failures = 0
    for _ in range(60):
        model = rng.choice(MODELS[:3])
        job = make_job(
            model, schedule=rng.choice(["1f1b", "gpipe"]), recompute=rng.choice(["none", "auto"]), micro_batches=8
        )
        machine = make_test_machine(job, memory_bytes=round(10 ** rng.uniform(5.9, 6.6)))
        devices = rng.choice([2, 4, 8])
        stages = rng.randint(2, min(devices, 4))
        if isinstance(cell_of(job, stages, machine=machine, devices=devices), CellFailure):
            failures += 1
            assert not any_split_fits(job, machine, devices, stages)
    assert failures > 20


def any_split_fits(job: Job, machine: Machine, devices: int, stages: int) -> bool:
    assert isinstance(job.micro_batches, int)
    layers = len(job.model.layers)
    for marks in combinations(range(1, layers), stages - 1):
        bounds = list(pairwise((0, *marks, layers)))
        for shares in compositions(devices, stages):
            if not {1, 2, 4, 8}.issuperset(shares):
                continue
            ends = [sum(shares[: i + 1]) for i in range(stages)]
            slots = [machine.cluster.slots[end - n : end] for end, n in zip(ends, shares, strict=True)]
            split = [(first, end, some) for (first, end), some in zip(bounds, slots, strict=True)]
            if all(price_stage(job, machine, split, i, job.micro_batches) for i in range(stages)):
                return True
    return False


# Where stages stand, and where figures come from


def nodes_of(stage: StageEstimate) -> set[int]:
    return {slot.node for slot in stage.slots}


def test_no_stage_straddles_nodes_that_it_need_not() -> None:
    """Stages of 2, 2, 8 and 4 devices on two nodes of eight: in pipeline order the third would lie across both."""
    job = make_job(load_model("llama3-8b"), global_batch=512, micro_batches=64)
    cell = estimated(cell_of(job, 4, machine=make_test_machine(job, "a100-80gb:2x8")))
    assert [len(stage.slots) for stage in cell.stages] == [2, 2, 8, 4]
    assert [len(nodes_of(stage)) for stage in cell.stages] == [1, 1, 1, 1]
    equal = estimated(cell_of(make_job(micro_batches=16), 4))
    assert [stage.slots[0].node for stage in equal.stages if len(stage.slots) == 2] == sorted(
        stage.slots[0].node for stage in equal.stages if len(stage.slots) == 2
    )


def test_an_interval_where_all_is_measured_and_only_there() -> None:
    job = make_job(untied_llama(), micro_batches=8)

    def look_up(layer: Layer, shard: Shard) -> LayerTime | None:
        if shard.tp > 1 or shard.recompute != "none":
            return None
        return LayerTime(
            forward_s=1.0,
            backward_s=2.0,
            optimizer_s=0.1,
            provenance="measured",
            relative_low=0.05,
            relative_high=0.1,
            profile_id=type(layer).__name__,
        )

    machine = make_test_machine(job, lookup=look_up)
    assert estimated(cell_of(job, 2, machine=machine, devices=2)).spread_s is None, "the link is only modelled"
    link = LinkTable(
        link="nvswitch3",
        op="send_recv",
        ranks=2,
        nodes=1,
        points=((1, 1e-5), (1 << 30, 1e-2)),
        alpha_s=1e-5,
        beta_s_per_byte=1e-11,
        fit_error=0.0,
        source="made for this test",
    )
    cell = estimated(cell_of(job, 2, machine=replace(machine, link_tables=(link,)), devices=2))
    assert (cell.compute_provenance, cell.communication_provenance) == ("measured", "measured")
    assert cell.spread_s is not None
    times = [stage.option.compute_s for stage in cell.stages]
    total_s = sum(times) + 7 * max(times)
    assert cell.spread_s == pytest.approx((0.05 * total_s, 0.1 * total_s), rel=1e-9)
    assert cell.link_table_ids == (link.id,)
    assert [stage.option.profile_ids for stage in cell.stages] == [
        ("Embedding", "TransformerBlock"),
        ("Head", "TransformerBlock"),
    ]

    def but_the_head(layer: Layer, shard: Shard) -> LayerTime | None:
        return None if layer == job.model.layers[-1] else look_up(layer, shard)

    mixed = estimated(cell_of(job, 2, machine=make_test_machine(job, lookup=but_the_head), devices=2))
    assert (mixed.compute_provenance, mixed.spread_s) == ("mixed", None)
    modelled = estimated(cell_of(job, 2, devices=2))
    assert (modelled.compute_provenance, modelled.spread_s) == ("modelled", None)


def test_provenance_of_communication() -> None:
    alone = estimated(cell_of(make_job(), 1, devices=1))
    assert (alone.communication_provenance, alone.communication_basis) == (None, ())
    two = estimated(cell_of(make_job(untied_llama()), 2, devices=2))
    assert two.communication_provenance == "modelled"
    assert all(line.startswith("model: ") for line in two.communication_basis)
    table = LinkTable(
        link="nvswitch3",
        op="send_recv",
        ranks=2,
        nodes=1,
        points=((1, 1.0), (1 << 40, 1.0)),
        alpha_s=1.0,
        beta_s_per_byte=0.0,
        fit_error=0.0,
        source="made up",
    )
    job = make_job(untied_llama())
    measured = estimated(cell_of(job, 2, devices=2, machine=make_test_machine(job, link_tables=(table,))))
    assert measured.communication_provenance == "measured"
    assert measured.communication_basis == ("table: send_recv over nvswitch3, 2 ranks, made up",)
    assert measured.stages[1].transfer_s == pytest.approx(2.0)  # there and back


# All Cells


def test_one_cell_for_each_type_and_stage_count() -> None:
    job = make_job(micro_batches="best")
    cells = estimate_cells(job, load_cluster("a100-80gb:1x4+a10:1x2"))
    counts = [(cell.device, cell.devices, len(cell.stages)) for _, cell in cells if isinstance(cell, CellEstimate)]
    assert counts == [("a100-80gb", 4, 1), ("a100-80gb", 4, 2), ("a100-80gb", 4, 4), ("a10", 2, 1), ("a10", 2, 2)]
    four = estimate_cells(job, load_cluster("a100-80gb:1x4+a10:1x2"), devices=3, stages=(3,))
    assert [(machine.device.name, cell.devices) for machine, cell in four] == [("a100-80gb", 3)]
    crius = estimate_cells(job, load_cluster("a100-80gb:3x6"), rules=CellRules(partition="crius"))
    assert [cell.stages if isinstance(cell, CellFailure) else len(cell.stages) for _, cell in crius] == [1, 2, 4]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"devices": 0}, "--devices: found 0, expected from 1 to what is free of a type: 8 of a100-80gb"),
        ({"devices": 9}, "--devices: found 9, expected from 1 to what is free of a type: 8 of a100-80gb"),
        ({"stages": (2, 0)}, r"--stages: found 0, expected from 1 to 6 \(8 devices, 6 layers\)"),
        ({"stages": (7,)}, r"--stages: found 7, expected from 1 to 6 \(8 devices, 6 layers\)"),
        ({"stages": ()}, "--stages: found none, expected from 1 to 6"),
    ],
)
def test_what_cannot_be_asked_for(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        estimate_cells(make_job(), load_cluster("a100-80gb:2x4"), **settings)


def test_a_cluster_without_a_free_device() -> None:
    cluster = load_cluster("a100-80gb:2x4")
    site = cluster.sites[0]
    full = replace(cluster, sites=(replace(site, nodes=(replace(site.nodes[0], free=0),)),))
    with pytest.raises(InputError, match=r"found no free device, expected .* 0 of a100-80gb"):
        estimate_cells(make_job(), full)


def test_enumeration_is_refused_where_it_would_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("estimator.cells.cell.ENUMERABLE", 3)
    rules = CellRules(assembly="enumerate", partition="crius")
    with pytest.raises(
        InputError, match="--assembly: found enumerate with 4 assemblies of 2 stages, expected at most 3"
    ):
        cell_of(make_job(micro_batches=8), 2, devices=4, rules=rules)


@pytest.mark.parametrize("words", [{"partition": "foo"}, {"formula": "foo"}, {"assembly": "foo"}])
def test_unknown_rules_are_refused(words: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"--{next(iter(words))}: found foo"):
        CellRules(**words)
