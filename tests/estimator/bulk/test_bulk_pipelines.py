"""Plans priced in bulk against `evaluate`, one by one, for models of every kind; and the bounds below them."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import pytest

from estimator.bulk.bounds import least_by_cut_s, least_by_state_s
from estimator.bulk.evaluator import BulkEvaluator
from estimator.bulk.open_ways import OpenSchedule, OpenWay, least_in_turn, least_of_ways_s
from estimator.bulk.pipeline import Pipeline
from estimator.bulk.records import BatchedDegrees, Family, Rule, StateRule
from estimator.pricing.evaluate import evaluate
from estimator.pricing.outcome import Evaluation
from estimator.pricing.pricing import Pricing
from estimator.pricing.recipe import Overlap, Recipe, ScheduleName, Setup
from estimator.pricing.software import load_frameworks
from models_zoo.catalogue import load_model
from planner.one_job.search.spaces.cuts import cuts_of, most_apart
from profiles.cluster import Cluster, SiteLink
from profiles.cluster_file import load_cluster
from profiles.vocabulary import Infeasible
from tests.seeds import seeds

MODELS = (
    "gpt-tiny",
    "llama3-8b",
    "mixtral-8x7b",
    "wide-resnet-tiny",
    "nmt-tiny",
    "bert-mini",
    "moe-mini",
)
RULES: tuple[Rule, ...] = (("none", None), ("selective", None), ("full", 1), ("full", 2), ("full", None))
STATES = (
    StateRule(),
    StateRule(zero=1),
    StateRule(zero=2),
    StateRule(zero=3),
    StateRule(zero=1, offload=frozenset({"optimizer"})),
)


def _evaluator(rng: random.Random, name: str) -> BulkEvaluator:
    model = load_model(name)
    place = rng.choice(["h100:2x8", "a100-80gb:3x6", "a100-80gb:4x4"])
    cluster = load_cluster(place)
    software = rng.choice(list(load_frameworks().values())).software
    if rng.random() < 0.3:
        software = replace(software, wide_first=rng.randint(0, 1), wide_last=rng.randint(0, 2))
    overlaps: tuple[Overlap, ...] = ("dp", "tp", "p2p", "ep")
    recipe = Recipe(
        global_batch=rng.choice([16, 24, 48]),
        seq_len=min(model.seq_len, 1024),
        grad_dtype=rng.choice(["fp32", "bf16"]),
        software=software,
        dtype="fp8" if place.startswith("h100") and rng.random() < 0.5 else "bf16",
        overlap=frozenset(rng.sample(overlaps, rng.randint(0, 4))),
        vocabulary_multiple=rng.choice([1, 128]),
        frozen_layers=(0, 2) if rng.random() < 0.2 else None,
    )
    return BulkEvaluator(
        model=model,
        cluster=cluster,
        recipe=recipe,
        pricing=Pricing(),
        overlap_under=lambda _zero: recipe.overlap,
    )


def _degrees(rng: random.Random, evaluator: BulkEvaluator) -> BatchedDegrees | None:
    tokens = evaluator.recipe.seq_len
    tp = rng.choice([1, 2, 4])
    found = BatchedDegrees(
        tp=tp,
        pp=rng.choice([1, 2, 3, 4]),
        dp=rng.choice([1, 2, 4]),
        cp=rng.choice([1, 1, 2]) if tokens else 1,
        ep=rng.choice([1, 2]),
        etp=rng.choice([1, tp]),
        samples=rng.choice([1, 2]),
        sequence_parallel=tp > 1 and bool(tokens) and rng.random() < 0.5,
    )
    fits = found.stage_devices * found.pp <= len(evaluator.cluster.free_slots)
    divides = evaluator.recipe.global_batch % (found.dp * found.samples) == 0
    return found if fits and divides else None


def _among_busy_workers(evaluator: BulkEvaluator, contention: tuple[tuple[int, float], ...]) -> BulkEvaluator:
    """The same on devices that slow each other on a node."""
    cluster = evaluator.cluster
    sites = tuple(
        replace(
            site,
            nodes=tuple(replace(group, device=replace(group.device, contention=contention)) for group in site.nodes),
        )
        for site in cluster.sites
    )
    return replace(evaluator, cluster=replace(cluster, sites=sites))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", range(3))
def test_bulk_equals_one_by_one(name: str, seed: int) -> None:
    rng = random.Random(f"{name} {seed}")
    _check_some(rng, _evaluator(rng, name))


@pytest.mark.parametrize(
    ("name", "contention"),
    [("llama3-8b", ((8, 1.7),)), ("wide-resnet-tiny", ((2, 1.3), (4, 1.2), (6, 2.0))), ("moe-mini", ((3, 4.0),))],
)
def test_bulk_equals_one_by_one_among_busy_workers(name: str, contention: tuple[tuple[int, float], ...]) -> None:
    rng = random.Random(f"{name} busy")
    _check_some(rng, _among_busy_workers(_evaluator(rng, name), contention))


def _over_sites(evaluator: BulkEvaluator, bandwidth_bytes_per_s: float) -> BulkEvaluator:
    """The same on three sites in a row, a third of the nodes at each, whose ends are joined by way of the middle."""
    names = ("north", "middle", "south")
    site = load_cluster("a100-80gb:1x2").sites[0]
    links = tuple(
        SiteLink(between=ends, bandwidth_bytes_per_s=bandwidth_bytes_per_s, latency_s=1e-3)
        for ends in itertools.pairwise(names)
    )
    sites = tuple(replace(site, name=name) for name in names)
    return replace(evaluator, cluster=Cluster(text="in a row", sites=sites, site_links=links))


@pytest.mark.parametrize("name", ["gpt-tiny", "nmt-tiny", "wide-resnet-tiny"])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved", "zb-h1"])
def test_bulk_equals_one_by_one_over_links_between_sites(name: str, schedule: ScheduleName) -> None:
    rng = random.Random(f"{name} sites")
    evaluator = _evaluator(rng, name)
    recipe = replace(evaluator.recipe, dtype="bf16", global_batch=24, frozen_layers=None)
    evaluator = _over_sites(replace(evaluator, recipe=recipe), 1e7)
    degrees = BatchedDegrees(tp=1, pp=3, dp=2, cp=1, ep=1, etp=1, samples=2, sequence_parallel=False)
    pipeline = evaluator.pipeline(degrees, evaluator.placement(1, evaluator.cluster.free_slots))
    assert isinstance(pipeline, Pipeline)
    vpp = 2 if schedule == "interleaved" else 1
    cuts = cuts_of(evaluator.model, pp=3, vpp=vpp, weights=pipeline.layer_s())
    assert _check(rng, evaluator, pipeline, schedule, list(cuts[:2]))


def _check_some(rng: random.Random, evaluator: BulkEvaluator) -> None:
    checked = 0
    for _ in seeds(40):
        degrees = _degrees(rng, evaluator)
        schedule: ScheduleName = rng.choice(["1f1b", "gpipe", "interleaved", "zb-h1"])
        if degrees is None or (schedule == "interleaved" and degrees.pp == 1):
            continue
        vpp = rng.choice([2, 3]) if schedule == "interleaved" else 1
        pipeline = evaluator.pipeline(degrees, evaluator.placement(1, evaluator.cluster.free_slots))
        if isinstance(pipeline, Infeasible) or (vpp > 1 and pipeline.micro_batches % degrees.pp):
            continue
        cuts = cuts_of(evaluator.model, pp=degrees.pp, vpp=vpp, weights=pipeline.layer_s())
        if not cuts:
            continue
        checked += _check(rng, evaluator, pipeline, schedule, rng.sample(cuts, min(2, len(cuts))))
        if checked > 40:
            break
    assert checked


def _check(
    rng: random.Random, evaluator: BulkEvaluator, pipeline: Pipeline, schedule: ScheduleName, cuts: list[object]
) -> int:
    family = Family(schedule=schedule, cuts=tuple(cuts), recompute=RULES, states=STATES)  # type: ignore[arg-type]
    priced = pipeline.price(family)
    by_state = least_by_state_s(pipeline, family)
    by_cut = least_by_cut_s(pipeline, schedule, family.cuts)
    kinds = tuple(dict.fromkeys(kind for kind, _ in RULES))
    chunks = len(family.cuts[0][0])
    apart = most_apart(evaluator.model, pp=pipeline.degrees.pp, vpp=chunks)
    way = OpenWay(
        degrees=pipeline.degrees,
        kinds=pipeline.kinds,
        overlap_under=evaluator.overlap_under,
        schedules=(OpenSchedule(name=schedule, chunks=chunks, most_apart=apart),),
        states=STATES,
        below_s=math.inf,
    )
    waits = schedule in ("gpipe", "1f1b")
    least = float(least_in_turn(way.once_s, pipeline.degrees.pp, pipeline.micro_batches, waits)) + pipeline.iteration_s
    (in_memory,) = least_of_ways_s([way], kinds)
    fits = priced.lacking_bytes <= 0
    times = priced.total_s
    holders, ranks = pipeline.degrees.ep * pipeline.degrees.etp, pipeline.degrees.tp * pipeline.degrees.cp
    few = replace(pipeline.degrees, pp=1, dp=holders // math.gcd(ranks, holders))
    alone_s = evaluator.compute_alone_s(few, evaluator.cluster.free_slots)
    assert alone_s <= min(sum(kind.shards.whole_s("none")) for kind in pipeline.kinds) * (1 + 1e-9)
    assert (times >= least * (1 - 1e-9)).all()
    assert (times >= in_memory[0] * (1 - 1e-9))[fits].all()
    assert (times.min(axis=(1, 2)) >= by_cut * (1 - 1e-9)).all()
    for cut in range(len(family.cuts)):
        for state in range(len(STATES)):
            if fits[cut, :, state].any():
                assert times[cut, fits[cut, :, state], state].min() >= by_state[cut, state] * (1 - 1e-9)
    places = [(cut, rule, state) for cut in range(len(family.cuts)) for rule in range(5) for state in range(5)]
    for cut, rule, state in rng.sample(places, 8):
        setup = Setup(
            model=evaluator.model,
            cluster=evaluator.cluster,
            recipe=replace(evaluator.recipe, schedule=schedule),
            stages=pipeline.stage_setups(family.cuts[cut], RULES[rule], STATES[state]),
            micro_batch=pipeline.degrees.samples * pipeline.degrees.dp,
        )
        found = evaluate(setup)
        assert isinstance(found, Evaluation), found
        assert times[cut, rule, state] == pytest.approx(found.iteration_time_s, rel=1e-9)
        lacking = max(
            rank.needed_bytes - capacity for rank, capacity in zip(found.memory, found.device_memory_bytes, strict=True)
        )
        assert priced.lacking_bytes[cut, rule, state] == pytest.approx(lacking, abs=2)
    return 8
