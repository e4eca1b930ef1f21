"""Small searches for the tests: random spaces, and every plan of a space by plain loops."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from estimator.bulk.evaluator import BulkEvaluator
from estimator.bulk.records import BatchedDegrees, Rule, StateRule
from estimator.pricing.evaluate import evaluate
from estimator.pricing.outcome import Evaluation
from estimator.pricing.pricing import Pricing
from estimator.pricing.recipe import Overlap, Recipe, ScheduleName, Setup, StageSetup
from estimator.pricing.software import load_frameworks
from models_zoo.model import Model
from planner.one_job.search.spaces.constraints import Constraints
from planner.one_job.search.spaces.cuts import Cut, cuts_of
from planner.one_job.search.spaces.space import Space, recompute_rules, schedules_of, state_rules
from profiles.cluster import Cluster, DeviceSlot
from profiles.cluster_file import load_cluster
from tests.zoo_families import gpt, llama, mixtral

MODELS = (
    gpt("g", hidden=256, layers=3, heads=4, vocab=30000, seq_len=256),
    llama("l", hidden=512, layers=4, heads=8, kv_heads=2, ffn_hidden=1024, vocab=4096, seq_len=512),
    mixtral(
        "m", hidden=256, layers=2, heads=4, kv_heads=2, ffn_hidden=512, experts=4, top_k=2, vocab=4096, seq_len=256
    ),
)
CLUSTERS = ("a100-80gb:1x4", "h100:2x2", "v100-32gb:1x3", "a100-80gb:1x1", "h100:1x3", "a100-80gb:3x1")


def evaluator_of(model: Model, cluster: Cluster, recipe: Recipe) -> BulkEvaluator:
    """Nothing measured; gradients overlap as the recipe says."""
    return BulkEvaluator(
        model=model,
        cluster=cluster,
        recipe=recipe,
        pricing=Pricing(),
        overlap_under=lambda _zero: recipe.overlap,
    )


def with_memory(cluster: Cluster, memory_bytes: int) -> Cluster:
    """The same devices with so much memory."""
    site = cluster.sites[0]
    nodes = tuple(replace(group, device=replace(group.device, memory_bytes=memory_bytes)) for group in site.nodes)
    return replace(cluster, sites=(replace(site, nodes=nodes),))


def random_search(rng: random.Random) -> tuple[Space, BulkEvaluator]:
    """A space of at most some hundred plans; in two of three there is too little memory for many of them."""
    model = rng.choice(MODELS)
    cluster = load_cluster(rng.choice(CLUSTERS))
    if rng.random() < 0.67:
        cluster = with_memory(cluster, round(rng.uniform(1.4, 3.0) * 2**30))
    framework = rng.choice(list(load_frameworks().values()))
    dtype: Literal["fp16", "bf16"] = "fp16" if "v100" in cluster.text else "bf16"
    overlaps: tuple[Overlap, ...] = ("dp", "tp", "p2p")
    recipe = Recipe(
        global_batch=rng.choice([2, 4, 6]),
        seq_len=model.seq_len,
        dtype=dtype,
        grad_dtype="fp32" if rng.random() < 0.5 else dtype,
        software=framework.software,
        overlap=frozenset(rng.sample(overlaps, rng.randint(0, 3))),
    )
    schedules: tuple[tuple[ScheduleName, ...], ...] = (
        ("1f1b",),
        ("1f1b", "interleaved"),
        ("gpipe", "1f1b"),
        ("zb-h1", "1f1b"),
        ("interleaved",),
    )
    constraints = Constraints(
        schedules=rng.choice(schedules),
        zero=rng.choice([(0,), (0, 1), (1, 3), (2,), (0, 3)]),
        offload=rng.random() < 0.3,
        recompute=rng.choice([("none",), ("none", "selective"), ("none", "full"), ("selective", "full")]),
        most=rng.choice([{}, {"tp": 2}, {"micro_batch": 2}, {"pp": 2}]),
        fix=rng.choice([{}, {}, {"micro_batch": 1}]),
    )
    group = cluster.sites[0].nodes[0]
    space = Space(
        model=model,
        slots=cluster.free_slots,
        island=group.island_size,
        node=group.devices,
        global_batch=recipe.global_batch,
        seq_len=recipe.seq_len,
        dtype=recipe.dtype,
        constraints=constraints,
    )
    return space, evaluator_of(model, cluster, recipe)


def plain_degrees(space: Space) -> Iterator[BatchedDegrees]:
    """Every way to share the devices, by loops over all numbers."""
    limits, devices, batch = space.constraints, len(space.slots), space.global_batch
    moe = "experts" in type(space.model.layers[1].feed_forward).__name__.lower()  # type: ignore[union-attr]
    experts = space.model.layers[1].feed_forward.count if moe else 1  # type: ignore[union-attr]
    for tp, pp, dp, samples, ep in itertools.product(
        range(1, space.island + 1),
        range(1, len(space.model.layers) + 1),
        range(1, batch + 1),
        range(1, batch + 1),
        range(1, experts + 1),
    ):
        if tp * pp * dp > devices or batch % (dp * samples) or experts % ep:
            continue
        block = space.model.layers[1]
        attention = block.self_attention  # type: ignore[union-attr]
        if attention.heads % tp or (attention.kv_heads % tp and tp % attention.kv_heads):
            continue
        for etp in {1, tp} if moe else {1}:
            if (tp * dp) % (ep * etp):
                continue
            numbers = {"tp": tp, "pp": pp, "dp": dp, "ep": ep, "etp": etp, "micro_batch": samples}
            numbers |= {"micro_batches": batch // (dp * samples), "devices": tp * pp * dp}
            if all(limits.permits(name, value) for name, value in numbers.items()):  # type: ignore[arg-type]
                shares = tp > 1 and space.seq_len % tp == 0
                yield BatchedDegrees(tp=tp, pp=pp, dp=dp, ep=ep, etp=etp, samples=samples, sequence_parallel=shares)


def every_plan(
    space: Space, evaluator: BulkEvaluator
) -> Iterator[tuple[BatchedDegrees, ScheduleName, Cut, Rule, StateRule, Setup, Evaluation]]:
    """Every plan of the space, evaluated by itself."""
    pricing = Pricing()
    for degrees in plain_degrees(space):
        for schedule, vpp in schedules_of(space, degrees):
            for aligned in (1, degrees.tp) if space.node % degrees.tp else (1,):
                placement = evaluator.placement(aligned, space.slots)
                if len(placement.slots) < degrees.stage_devices * degrees.pp:
                    continue
                pipeline = evaluator.pipeline(degrees, placement)
                weights = pipeline.layer_s()  # type: ignore[union-attr]
                for cut in cuts_of(space.model, pp=degrees.pp, vpp=vpp, weights=weights):
                    blocks = max(sum(evaluator.layers.recomputable(*part) for part in stage) for stage in cut)
                    for rule in recompute_rules(space, blocks, vpp=vpp):
                        for state in state_rules(space, degrees):
                            setup = setup_on(space, evaluator, degrees, schedule, cut, rule, state, placement.slots)
                            found = evaluate(setup, pricing)
                            assert isinstance(found, Evaluation), found
                            yield degrees, schedule, cut, rule, state, setup, found


def setup_on(
    space: Space,
    evaluator: BulkEvaluator,
    degrees: BatchedDegrees,
    schedule: ScheduleName,
    cut: Cut,
    rule: Rule,
    state: StateRule,
    slots: tuple[DeviceSlot, ...],
) -> Setup:
    """The plan as a setup, without the search's own code."""
    size = degrees.stage_devices
    stages = tuple(
        StageSetup(
            chunks=ranges,
            slots=tuple(slots[number * size : (number + 1) * size]),
            tp=degrees.tp,
            cp=degrees.cp,
            dp=degrees.dp,
            ep=degrees.ep,
            etp=degrees.etp,
            sequence_parallel=degrees.sequence_parallel,
            zero=state.zero,
            shard=state.shard,
            offload=state.offload,
            recompute=rule[0],
            recompute_layers=rule[1],
        )
        for number, ranges in enumerate(cut)
    )
    return Setup(
        model=space.model,
        cluster=evaluator.cluster,
        recipe=replace(evaluator.recipe, schedule=schedule),
        stages=stages,
        micro_batch=degrees.samples * degrees.dp,
    )
