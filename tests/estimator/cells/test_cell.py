"""Cells against the enumeration of every assembly, and the rules that hold for any Cell."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import pytest

from estimator.cells import stage_pricing
from estimator.cells.cell import CellEstimate, CellFailure, CellRules, choose_cell
from estimator.cells.estimate import estimate_cells
from estimator.cells.job import Job
from estimator.cells.stage_pricing import Hardware, StagePricing
from estimator.cells.stages import StageSplit, partition_crius
from estimator.layers.graph import build_graph
from estimator.pricing.evaluate import evaluate
from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import StageSetup
from models_zoo.catalogue import load_model
from models_zoo.layers import Layer
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster
from profiles.errors import InputError
from profiles.vocabulary import LayerTime, Link, LinkTable, Shard
from tests.cell_examples import MODELS, cell_of, estimated, make_hardware, make_job, tied_gpt, untied_llama
from tests.oracles.cell_oracle import (
    least_of_every_assembly,
    price_stages,
    seconds_of,
    seconds_of_setup,
    setup_with,
    split_of,
)
from tests.oracles.partition_oracle import compositions
from tests.seeds import all_seeds, seeds

CLUSTERS = (("a100-80gb:2x4", "bf16"), ("a100-80gb:3x6", "bf16"), ("v100-32gb:2x8", "fp16"), ("a10:2x4", "fp32"))


def tight_hardware(job: Job, cluster: str, devices: int, stages: int, short: float) -> Hardware:
    """`cluster` with so much memory that by `short` of what a rank plainly holds is lacking, beside what it always
    does."""
    plain = replace(job, recompute=("none", None), zero=(min(job.zero),))
    cell = cell_of(plain, stages, hardware=make_hardware(cluster, memory_bytes=1 << 40), devices=devices)
    if isinstance(cell, CellFailure):
        return make_hardware(cluster)
    # Without any room nothing is loose in the allocator.
    tightest = evaluate(replace(cell.setup, cluster=make_hardware(cluster, memory_bytes=1).cluster))
    assert isinstance(tightest, Evaluation)
    fullest = max(tightest.memory, key=lambda rank: rank.needed_bytes)
    own = fullest.peak_bytes - cell.setup.recipe.software.memory.workspace_bytes
    return make_hardware(cluster, memory_bytes=fullest.needed_bytes - round(short * own))


def random_instance(rng: random.Random, **settings: Any) -> tuple[Job, Hardware, int, int]:
    """A job, hardware that is often short of memory, and how many devices and stages."""
    model = rng.choice(MODELS)
    cluster, dtype = rng.choice(CLUSTERS)
    batch = rng.choice([16, 24, 36, 60, 64, 96])
    job = make_job(
        model,
        **{
            "global_batch": batch,
            "dtype": dtype,
            "optimizer": rng.choice(["adamw", "sgd"]),
            "schedule": rng.choice(["1f1b", "gpipe", "zb-h1"]),
            "recompute": rng.choice(["auto", "auto", ("none", None), ("full", None), ("full", 1)]),
            "zero": rng.choice([(0,), (1,), (3,), (0, 1, 2, 3), (0, 1, 2, 3)]),
            "micro_batches": rng.choice([count for count in (1, 2, 4, 8, 12) if batch % count == 0]),
            **settings,
        },
    )
    places = len(load_cluster(cluster).slots)
    devices = rng.randint(1, places)
    stages = rng.randint(1, min(devices, len(model.layers), 5))
    short = rng.choice([-1.0, rng.uniform(0, 1)])
    return job, tight_hardware(job, cluster, devices, stages, short), devices, stages


@pytest.mark.parametrize("formula", ["cellplan", "crius"])
@pytest.mark.parametrize("partition", ["exact", "crius"])
def test_cell_equals_the_best_of_every_assembly(formula: Any, partition: Any) -> None:
    rng = random.Random(f"{formula} {partition}")
    seen: dict[str, int] = dict.fromkeys(("found", "recompute", "dropped", "mixed", "uneven", "tp", "sharded"), 0)
    for _ in seeds(80, share=2):
        job, hardware, devices, stages = random_instance(rng)
        rules = CellRules(formula=formula, partition=partition)
        cell = cell_of(job, stages, hardware=hardware, devices=devices, rules=rules)
        if isinstance(cell, CellFailure):
            continue
        pricing = StagePricing(job, hardware)
        least_s = least_of_every_assembly(pricing, split_of(cell.setup), cell.setup.micro_batch, formula)
        assert seconds_of_setup(pricing, cell.setup, formula) == pytest.approx(least_s, rel=1e-12)
        enumerated = cell_of(
            job, stages, hardware=hardware, devices=devices, rules=replace(rules, assembly="enumerate")
        )
        assert enumerated == cell
        for favour, stage in zip(cell.assembly, cell.setup.stages, strict=True):
            assert (stage.tp if favour == "dp" else stage.dp) == 1
        for what, is_so in (
            ("found", True),
            ("recompute", cell.recomputes),
            ("dropped", bool(cell.dropped)),
            ("mixed", len(set(cell.assembly)) > 1),
            ("tp", "tp" in cell.assembly),
            ("uneven", len({len(stage.slots) for stage in cell.setup.stages}) > 1),
            ("sharded", any(stage.zero > 1 for stage in cell.setup.stages)),
        ):
            seen[what] += is_so
    assert seen["found"] > (25 if all_seeds() else 12)
    assert min(seen.values()) > (1 if all_seeds() else 0), seen


def test_a_cell_is_priced_as_its_setup_is() -> None:
    rng = random.Random(7)
    for _ in seeds(25):
        job, hardware, devices, stages = random_instance(rng)
        cell = cell_of(job, stages, hardware=hardware, devices=devices)
        if isinstance(cell, CellEstimate):
            assert cell.evaluation == evaluate(cell.setup)
            assert cell.evaluation.out_of_memory is None
            low, high = cell.evaluation.interval_90_s
            assert low < cell.iteration_time_s < high
            assert cell.evaluation.breakdown.total_s == pytest.approx(cell.iteration_time_s, rel=1e-12)


def test_stages_in_arrays_take_what_each_takes_by_itself() -> None:
    """On one type of device and among others; a scheduler is told the seconds of the evaluation."""
    rng, seen = random.Random(11), 0
    for _ in seeds(40):
        job, hardware, devices, stages = random_instance(rng)
        if rng.random() < 0.5:
            others = load_cluster("h100:1x8").sites[0].nodes
            (site,) = hardware.cluster.sites
            cluster = replace(hardware.cluster, sites=(replace(site, nodes=(*others, *site.nodes)),))
            hardware = replace(hardware, cluster=cluster)
        pricing = StagePricing(job, hardware)
        slots = [slot for slot in hardware.cluster.slots if slot.device == hardware.device.name][:devices]
        chosen = choose_cell(pricing, slots, stages, CellRules())
        if isinstance(chosen, CellFailure):
            continue
        seen += 1
        setup, evaluation = pricing.evaluate([option.setup for option in chosen.options], chosen.micro_batch)
        assert chosen.iteration_time_s == pytest.approx(evaluation.iteration_time_s, rel=1e-12)
        for index, option in enumerate(chosen.options):
            alone = setup_with(pricing, split_of(setup), index, option.setup, chosen.micro_batch)
            assert (option.time_s, option.tail_s) == pytest.approx(seconds_of(alone, index), rel=1e-12)
    assert seen > (20 if all_seeds() else 4)


def test_three_nodes_of_six_in_seven_stages() -> None:
    """All 18 devices in use by 7 stages."""
    model = untied_llama(layers=12)
    job = make_job(model, global_batch=144, micro_batches=12, zero=(0,))
    hardware = make_hardware("a100-80gb:3x6")
    cell = estimated(cell_of(job, 7, hardware=hardware))
    assert len(cell.setup.stages) == 7
    assert cell.setup.devices == 18
    assert {slot for stage in cell.setup.stages for slot in stage.slots} == set(hardware.cluster.slots)
    pricing = StagePricing(job, hardware)
    least_s = least_of_every_assembly(pricing, split_of(cell.setup), 12, "cellplan")
    assert seconds_of_setup(pricing, cell.setup, "cellplan") == pytest.approx(least_s, rel=1e-12)


def test_cells_are_the_same_however_many_runs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, seen = random.Random(7), 0
    for _ in range(12):
        job, hardware, devices, stages = random_instance(rng)
        monkeypatch.setattr(stage_pricing, "MOST_RUNS", 64)
        kept = cell_of(job, stages, hardware=hardware, devices=devices)
        monkeypatch.setattr(stage_pricing, "MOST_RUNS", 1)
        assert cell_of(job, stages, hardware=hardware, devices=devices) == kept
        seen += not isinstance(kept, CellFailure)
    assert seen > 4


def test_a_stage_alone_has_neither_bubble_nor_transfer() -> None:
    cell = estimated(cell_of(make_job(micro_batches=4), 1))
    assert (cell.evaluation.breakdown.bubble_s, cell.evaluation.breakdown.pp_s) == (0, 0)


# By name


def test_the_papers_partition_by_name() -> None:
    job = make_job(untied_llama(), micro_batches=8)
    cell = estimated(cell_of(job, 4, rules=CellRules(partition="crius", formula="crius")))
    graph = build_graph(job.model, shard=Shard(seq_len=job.recipe.seq_len), degrees=())
    flops = [node.forward_flops + node.backward_flops for node in graph.nodes]
    split = partition_crius(flops, [node.cut_bytes for node in graph.nodes[:-1]], 8, 4)
    assert isinstance(split, StageSplit)
    assert tuple(stage.chunks[0] for stage in cell.setup.stages) == split.bounds
    assert tuple(len(stage.slots) for stage in cell.setup.stages) == split.devices


def test_rule_crius_takes_four_micro_batches_a_stage_or_fails() -> None:
    for stages in (1, 2, 4):
        cell = estimated(cell_of(make_job(micro_batches="crius"), stages))
        assert cell.setup.micro_batches == 4 * stages
    job = make_job(recompute=("none", None), zero=(0,), micro_batches="crius")
    tight = between_eight_and_sixteen(job)
    assert isinstance(cell_of(job, 2, hardware=tight, devices=2), CellFailure)
    fit = estimated(cell_of(replace(job, micro_batches="fit"), 2, hardware=tight, devices=2))
    assert fit.setup.micro_batches == 16


def between_eight_and_sixteen(job: Job) -> Hardware:
    """Hardware on which 8 micro-batches in two stages of one device do not fit without recomputation, but 16 do."""
    plain = replace(job, recompute=("none", None), zero=(0,))

    def least_bytes(count: int) -> int:
        low, high = 0, 1 << 36
        while high - low > 1:
            middle = (low + high) // 2
            hardware = make_hardware(memory_bytes=middle)
            cell = cell_of(replace(plain, micro_batches=count), 2, hardware=hardware, devices=2)
            low, high = (low, middle) if isinstance(cell, CellEstimate) else (middle, high)
        return high

    return make_hardware(memory_bytes=(least_bytes(8) + least_bytes(16)) // 2)


def test_rule_fit_goes_on_until_nothing_is_recomputed_and_takes_the_fastest() -> None:
    job = make_job(micro_batches="fit", recompute="auto", zero=(0,))
    hardware = between_eight_and_sixteen(job)
    by_count = {
        count: estimated(cell_of(replace(job, micro_batches=count), 2, hardware=hardware, devices=2))
        for count in (8, 16, 32, 64)
    }
    assert [cell.recomputes for cell in by_count.values()] == [True, False, False, False]
    fit = estimated(cell_of(job, 2, hardware=hardware, devices=2))
    tried = (by_count[8], by_count[16])
    fastest = min(tried, key=lambda cell: cell.iteration_time_s)
    assert fit == replace(fastest, assemblies=sum(cell.assemblies for cell in tried))
    roomy = estimated(cell_of(job, 2, devices=2))
    assert (roomy.setup.micro_batches, roomy.recomputes) == (8, False)


def test_best_is_the_fastest_of_its_candidates_and_never_slower_than_fit() -> None:
    rng = random.Random(11)
    compared = 0
    for _ in seeds(60):
        job, hardware, devices, stages = random_instance(rng, micro_batches="best")

        def time_of(rule: Any) -> float:
            cell = cell_of(replace(job, micro_batches=rule), stages, hardware=hardware, devices=devices)  # noqa: B023
            return cell.iteration_time_s if isinstance(cell, CellEstimate) else math.inf

        candidates = job.micro_batch_counts(devices=devices, stages=stages)
        best = time_of("best")
        assert best == min(time_of(count) for count in candidates)
        assert best <= time_of("fit")
        compared += best < math.inf
    assert compared > (20 if all_seeds() else 4)


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
    """Links, arithmetic and memory traffic under the default formula, by which assemblies are chosen. More memory where
    stages do not depend on it: the exact partition balances FLOPs, which more memory may do better, and that is not
    always faster."""
    rng = random.Random(what)
    faster = 0
    for _ in seeds(40, share=2):
        job, plain, devices, stages = random_instance(rng, micro_batches=4, global_batch=48)
        cluster, device, factor = plain.cluster, plain.device, rng.uniform(1, 4)
        if what == "bandwidth":
            # Faster links have more channels, whose buffers take memory.
            plain = make_hardware(cluster, memory_bytes=1 << 40)
            cluster, device = scale_links(plain.cluster, bandwidth=factor), plain.device
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
        better = make_hardware(
            cluster,
            memory_bytes=device.memory_bytes,
            memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s,
            peak_flops_per_s=device.peak_flops_per_s,
        )
        rules = CellRules(partition="crius" if what == "memory" else rng.choice(["exact", "crius"]))
        times = []
        for hardware in (plain, better):
            cell = cell_of(job, stages, hardware=hardware, devices=devices, rules=rules)
            pricing = StagePricing(job, hardware)
            is_had = isinstance(cell, CellEstimate)
            times.append(seconds_of_setup(pricing, cell.setup, "cellplan") if is_had else math.inf)  # type: ignore[union-attr]
        assert times[1] <= times[0] * (1 + 1e-12)
        faster += times[1] < times[0]
    assert faster >= 3


# What does not fit


def test_a_choice_that_does_not_fit_is_dropped_and_said_so() -> None:
    """Replicas of a 7B model do not fit, its shards do: tensor parallelism is what is left."""
    job = make_job(load_model("llama2-7b"), micro_batches=8, recompute=("none", None), zero=(0,))
    cell = estimated(cell_of(job, 1, hardware=make_hardware("a100-80gb:1x8")))
    assert cell.assembly == ("tp",)
    assert cell.assemblies == 1
    (line,) = cell.dropped
    assert line.startswith("stage 0: dp-only dropped, dp=8 tp=1 zero=0 recompute=none: needs ")
    assert line.endswith(" reserve, the device has 79.25 GiB")


def test_a_dp_that_does_not_divide_the_micro_batch_is_dropped() -> None:
    job = make_job(global_batch=24, micro_batches=12)
    cell = estimated(cell_of(job, 1, devices=4))
    assert cell.assembly == ("tp",)
    assert cell.dropped == ("stage 0: dp-only dropped, dp=4 does not divide the micro-batch of 2 samples",)


def test_nothing_fits_and_the_nearest_miss_says_what_it_lacks() -> None:
    """GPT-3 on one node, in one stage. With that much more memory it fits; with a little less it does not."""
    job = make_job(load_model("gpt3-175b"), global_batch=64)
    hardware = make_hardware("a100-80gb:1x8")
    for stages in (1, 2, 8):
        cell = cell_of(job, stages, hardware=hardware)
        assert isinstance(cell, CellFailure)
        assert (cell.device, cell.devices, cell.stages) == ("a100-80gb", 8, stages)
        assert cell.failure.lacking == "memory"
        assert cell.failure.lacking_bytes is not None
        weights = 18 * 175e9 / 8
        assert weights - hardware.device.memory_bytes < cell.failure.lacking_bytes < 2 * weights
        assert cell.failure.reason.startswith("stage ")
        assert cell.dropped
        needed = hardware.device.memory_bytes + cell.failure.lacking_bytes
        roomy, short = (make_hardware("a100-80gb:1x8", memory_bytes=size) for size in (needed, needed * 9 // 10))
        assert isinstance(cell_of(job, stages, hardware=roomy), CellEstimate)
        assert isinstance(cell_of(job, stages, hardware=short), CellFailure)


def test_the_failure_is_that_of_the_stage_that_lacks_most() -> None:
    job = make_job(tied_gpt(layers=8), micro_batches=8, recompute=("none", None))
    cell = cell_of(job, 4, hardware=make_hardware(memory_bytes=100_000), devices=4)
    assert isinstance(cell, CellFailure)
    lines = [line for line in cell.dropped if "needs" in line]
    assert len(lines) == 4
    needs = [float(line.split("needs ")[1].split(" GiB")[0]) for line in lines]
    reserves = [float(line.split(" and ")[1].split(" GiB")[0]) for line in lines]
    sums = [need + reserve for need, reserve in zip(needs, reserves, strict=True)]
    assert cell.failure.lacking_bytes == pytest.approx(max(sums) * 2**30 - 100_000, rel=1e-3)
    assert cell.failure.reason.startswith(f"stage {sums.index(max(sums))} ")


def test_a_device_without_the_dtype_says_so() -> None:
    job = make_job()
    for stages in (1, 3):
        cell = cell_of(job, stages, hardware=make_hardware("v100-32gb:1x8"))
        assert isinstance(cell, CellFailure)
        assert cell.failure.lacking == "support"
        assert cell.failure.reason.endswith("v100-32gb has no bf16 rate (it has fp32, fp16)")


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
    for _ in seeds(40):
        model = rng.choice(MODELS[:3])
        job = make_job(
            model,
            schedule=rng.choice(["1f1b", "gpipe"]),
            recompute=rng.choice([("none", None), "auto"]),
            micro_batches=8,
        )
        devices = rng.choice([2, 4, 8])
        stages = rng.randint(2, min(devices, 3))
        hardware = tight_hardware(job, "a100-80gb:2x4", devices, stages, rng.uniform(0.5, 1.1))
        if isinstance(cell_of(job, stages, hardware=hardware, devices=devices), CellFailure):
            failures += 1
            assert not any_split_fits(job, hardware, devices, stages)
    assert failures > (10 if all_seeds() else 1)


def any_split_fits(job: Job, hardware: Hardware, devices: int, stages: int) -> bool:
    assert isinstance(job.micro_batches, int)
    layers = len(job.model.layers)
    pricing, size = StagePricing(job, hardware), job.global_batch // job.micro_batches
    for marks in combinations(range(1, layers), stages - 1):
        bounds = list(pairwise((0, *marks, layers)))
        for shares in compositions(devices, stages):
            if not {1, 2, 4, 8}.issuperset(shares):
                continue
            ends = [sum(shares[: i + 1]) for i in range(stages)]
            slots = [hardware.cluster.slots[end - n : end] for end, n in zip(ends, shares, strict=True)]
            split = [(first, end, some) for (first, end), some in zip(bounds, slots, strict=True)]
            if all(price_stages(pricing, split, i, size) for i in range(stages)):
                return True
    return False


# Where stages stand, and where figures come from


def nodes_of(stage: StageSetup) -> set[int]:
    return {slot.node for slot in stage.slots}


def test_no_stage_straddles_nodes_that_it_need_not() -> None:
    job = make_job(load_model("llama3-8b"), global_batch=512, micro_batches=64)
    cell = estimated(cell_of(job, 4, hardware=make_hardware("a100-80gb:2x8")))
    assert sorted(len(stage.slots) for stage in cell.setup.stages) in ([2, 2, 4, 8], [4, 4, 4, 4])
    assert [len(nodes_of(stage)) for stage in cell.setup.stages] == [1, 1, 1, 1]


def look_up_plain(layer: Layer, shard: Shard) -> LayerTime | None:
    if shard.tp > 1 or shard.recompute != "none":
        return None
    return LayerTime(
        forward_s=1.0, backward_s=2.0, optimizer_s=0.1, provenance="measured", profile_id=type(layer).__name__
    )


def test_measured_times_win_and_are_named() -> None:
    job = make_job(untied_llama(), micro_batches=8)
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
    hardware = make_hardware(lookup=look_up_plain, link_tables=(link,))
    evaluation = estimated(cell_of(job, 2, hardware=hardware, devices=2)).evaluation
    assert (evaluation.compute_provenance, evaluation.communication_provenance) == ("measured", "measured")
    assert evaluation.link_table_ids == (link.id,)
    assert evaluation.profile_ids == ("Embedding", "Head", "TransformerBlock")
    assert evaluation.stage_compute_s == pytest.approx((12.0, 12.0), rel=1e-12)

    def but_the_head(layer: Layer, shard: Shard) -> LayerTime | None:
        return None if layer == job.model.layers[-1] else look_up_plain(layer, shard)

    mixed = estimated(cell_of(job, 2, hardware=make_hardware(lookup=but_the_head), devices=2))
    assert mixed.evaluation.compute_provenance == "mixed"
    modelled = estimated(cell_of(job, 2, devices=2))
    assert modelled.evaluation.compute_provenance == "modelled"


def test_of_shared_and_whole_tokens_the_measured_ones_are_taken() -> None:
    def whole_alone(_layer: Layer, shard: Shard) -> LayerTime | None:
        if shard.sequence_parallel:
            return None
        return LayerTime(forward_s=1e-6, backward_s=2e-6, optimizer_s=0.0, provenance="measured", profile_id="p")

    job = make_job(untied_llama(), micro_batches=64)
    plain, measured = (
        estimated(cell_of(job, 1, devices=2, hardware=hardware))
        for hardware in (make_hardware(), make_hardware(lookup=whole_alone))
    )
    assert [cell.setup.stages[0].tp for cell in (plain, measured)] == [2, 2]
    assert plain.setup.stages[0].sequence_parallel
    assert not measured.setup.stages[0].sequence_parallel
    assert measured.evaluation.compute_provenance == "measured"


def test_nothing_to_send_has_no_provenance() -> None:
    alone = estimated(cell_of(make_job(), 1, devices=1))
    assert alone.evaluation.communication_provenance is None
    two = estimated(cell_of(make_job(untied_llama()), 2, devices=2))
    assert two.evaluation.communication_provenance == "modelled"


# All Cells


def test_one_cell_for_each_type_and_stage_count() -> None:
    job = make_job(micro_batches="best")
    cells = estimate_cells(job, load_cluster("a100-80gb:1x4+a10:1x2"))
    counts = [
        (cell.device, cell.setup.devices, len(cell.setup.stages)) for cell in cells if isinstance(cell, CellEstimate)
    ]
    assert counts == [("a100-80gb", 4, 1), ("a100-80gb", 4, 2), ("a100-80gb", 4, 4), ("a10", 2, 1), ("a10", 2, 2)]
    four = estimate_cells(job, load_cluster("a100-80gb:1x4+a10:1x2"), devices=3, stages=(3,))
    assert [(cell.device, estimated(cell).setup.devices) for cell in four] == [("a100-80gb", 3)]
    crius = estimate_cells(job, load_cluster("a100-80gb:3x6"), rules=CellRules(partition="crius"))
    assert [cell.stages if isinstance(cell, CellFailure) else len(cell.setup.stages) for cell in crius] == [1, 2, 4]


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
        cell_of(make_job(micro_batches=8, zero=(0,)), 2, devices=4, rules=rules)


@pytest.mark.parametrize("words", [{"partition": "foo"}, {"formula": "foo"}, {"assembly": "foo"}])
def test_unknown_rules_are_refused(words: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"--{next(iter(words))}: found foo"):
        CellRules(**words)
