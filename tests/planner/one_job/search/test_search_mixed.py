"""The search over several groups of devices: equal to looking at every plan, never worse than one group alone."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from estimator.pricing.recipe import Recipe, ScheduleName
from models_zoo.model import Model
from planner.one_job.search.mixed.search import search_mixed
from planner.one_job.search.spaces.constraints import Constraints, Number
from planner.one_job.search.spaces.request import SearchRequest, request_on
from planner.one_job.tools.catalogue import TOOLS
from planner.shared.options.common import Tool
from profiles.cluster import Cluster, NodeGroup, Site, SiteLink
from profiles.cluster_file import load_cluster
from profiles.network import equal_pods
from tests.oracles.mixed_oracle import best_of_all
from tests.seeds import seeds
from tests.zoo_families import gpt, llama, mixtral

MODELS = (
    gpt("g", hidden=256, layers=3, heads=4, vocab=30000, seq_len=256),
    llama("l", hidden=512, layers=4, heads=8, kv_heads=2, ffn_hidden=1024, vocab=4096, seq_len=512),
    llama("w", hidden=1024, layers=6, heads=8, kv_heads=8, ffn_hidden=4096, vocab=1024, seq_len=1024),
    mixtral(
        "m", hidden=256, layers=2, heads=4, kv_heads=2, ffn_hidden=512, experts=4, top_k=2, vocab=4096, seq_len=256
    ),
)
TYPES = ("a40", "a10", "a100-80gb", "h100", "l40s")


def request_of(
    model: Model, cluster: Cluster, *, constraints: Constraints | None = None, recipe: Recipe | None = None, **more: Any
) -> SearchRequest:
    """A search of all that is free."""
    recipe = recipe or Recipe(global_batch=8, seq_len=model.seq_len)
    found = request_on(model, cluster, recipe, constraints=constraints or Constraints(schedules=("1f1b",)))
    return replace(found, **more)


def changed(cluster: Cluster, rng: random.Random) -> Cluster:
    """With other memory on each type of device, and thinner links."""

    def nodes(group: NodeGroup) -> NodeGroup:
        memory = round(rng.choice([0.9, 1.3, 1.8, 3.0, 8.0, 8.0]) * 2**30)
        nic = replace(group.nic_link, bandwidth_bytes_per_s=group.nic_link.bandwidth_bytes_per_s / rng.choice([1, 20]))
        device, price = replace(group.device, memory_bytes=memory), rng.choice([1.0, 2.5, 4.0])
        return replace(group, device=device, nic_link=nic, price_per_device_hour=price)

    def site(own: Site) -> Site:
        groups = tuple(map(nodes, own.nodes))
        network = equal_pods(sum(group.count for group in groups), oversubscription=rng.choice([1.0, 4.0]))
        return replace(own, nodes=groups, network=network)

    return replace(cluster, sites=tuple(map(site, cluster.sites)))


def two_sites(first: Cluster, second: Cluster, bandwidth_bytes_per_s: float) -> Cluster:
    """The two as sites of one cluster."""
    link = SiteLink(between=("north", "south"), bandwidth_bytes_per_s=bandwidth_bytes_per_s, latency_s=1e-3)
    sites = replace(first.sites[0], name="north"), replace(second.sites[0], name="south")
    return Cluster(text="two sites", sites=sites, site_links=(link,))


def most_of_one_type(cluster: Cluster) -> int:
    """Devices of the most numerous type at one site."""
    return max(Counter((slot.device, slot.site) for slot in cluster.free_slots).values())


def random_request(rng: random.Random) -> SearchRequest:
    """A search of some hundred plans."""
    model = rng.choice(MODELS)
    one, other = rng.sample(TYPES, 2)
    shapes = [f"{name}:{rng.choice(['1x1', '1x2', '2x1', '1x3', '2x2', '3x1'])}" for name in (one, other)]
    if rng.random() < 0.3:
        shapes[1] = shapes[1].replace(other, rng.choice([one, other]))
        same = shapes[0].split(":")[0] == shapes[1].split(":")[0]
        clusters = [changed(load_cluster(shape), rng) for shape in shapes]
        if same:
            clusters = [load_cluster(shape) for shape in shapes]
        cluster = two_sites(clusters[0], clusters[1], rng.choice([1e8, 1e10]))
    else:
        cluster = changed(load_cluster("+".join(shapes)), rng)
    schedules: tuple[tuple[ScheduleName, ...], ...] = (("1f1b",), ("1f1b",), ("gpipe",), ("1f1b", "gpipe"))
    several: dict[Number, int] = {"devices": most_of_one_type(cluster) + 1}
    least: list[dict[Number, int]] = [{}, {"pp": 2}, {"dp": 2}, several, several, several]
    constraints = Constraints(
        schedules=rng.choice(schedules),
        zero=rng.choice([(0,), (0, 1), (1,), (0, 3), (3,)]),
        recompute=rng.choice([("none",), ("none", "selective"), ("none", "full"), ("full",)]),
        most=rng.choice([{}, {"tp": 1}, {"pp": 3}, {"tp": 2, "pp": 4}]),
        least=rng.choice(least),
        fix=rng.choice([{}, {"micro_batches": 2}, {"micro_batches": 1}]),
    )
    recipe = Recipe(
        global_batch=rng.choice([2, 4, 6, 8, 12, 30]),
        seq_len=model.seq_len,
        grad_dtype=rng.choice(["fp32", "bf16"]),
        overlap=frozenset(rng.sample(["dp", "tp"], rng.randint(0, 2))),
    )
    if rng.random() < 0.2:
        tool: Tool = rng.choice(["megatron", "torchtitan", "torchtitan-toml", "accelerate", "jax-mesh"])
        names = tuple(name for name in constraints.schedules if name in TOOLS[tool].schedules) or ("1f1b",)
        constraints = replace(constraints, tool=tool, schedules=names)
    priced = all(group.price_per_device_hour for site in cluster.sites for group in site.nodes)
    objective = rng.choice(["time", "time", "time", "cost"]) if priced else "time"
    return request_of(model, cluster, constraints=constraints, recipe=recipe, objective=objective)


@pytest.mark.parametrize("block", seeds(12, least=4))
def test_equal_to_every_plan(block: int) -> None:
    rng = random.Random(block)
    compared = 0
    while compared < 10:
        request = random_request(rng)
        best = best_of_all(request, 500)
        if best is None:
            continue
        compared += 1
        found = search_mixed(request, math.inf)
        assert found.proved
        assert found.value == pytest.approx(best, rel=1e-9)
        assert found.lower_bound == pytest.approx(best, rel=1e-9)


def test_with_more_orders_of_parties_than_are_looked_at_the_bound_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three sites of two; what the orders left out could bring at best is counted, so nothing is said to be proved."""
    one = load_cluster("a40:1x2").sites[0]
    sites = tuple(replace(one, name=name) for name in "abc")
    links = tuple(SiteLink(between=pair, bandwidth_bytes_per_s=1e9, latency_s=1e-3) for pair in ("ab", "bc", "ac"))  # type: ignore[arg-type]
    request = request_of(MODELS[0], Cluster(text="three", sites=sites, site_links=links))
    whole = search_mixed(request, incumbent=math.inf)
    monkeypatch.setattr("planner.one_job.search.mixed.frames.MOST_SEQUENCES", 1)
    part = search_mixed(request, incumbent=math.inf)
    assert part.lower_bound <= whole.value * (1 + 1e-9)
    assert whole.value <= part.value * (1 + 1e-9)
