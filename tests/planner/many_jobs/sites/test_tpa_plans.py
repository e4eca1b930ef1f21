"""Plans over sites: beside the exact search over several groups, and as plan files that others read."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest

from estimator.pricing.evaluate import evaluate
from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import Recipe
from models_zoo.model import Model
from planner.many_jobs.sites.tpa import Across, on_devices, plan_across
from planner.one_job.explicit.reading import setup_of_plan
from planner.one_job.search.best import find_best
from planner.one_job.search.spaces.constraints import Constraints
from planner.one_job.search.spaces.objectives import slots_of_plan
from planner.one_job.search.spaces.request import SearchRequest, request_on
from planner.shared.plan_file import load_plan, save_plan
from profiles.cluster import Cluster, SiteLink
from profiles.cluster_file import load_cluster
from tests.zoo_families import gpt, llama

SMALL = gpt("g", hidden=512, layers=6, heads=8, vocab=4096, seq_len=512)
WIDE = llama("w", hidden=2048, layers=6, heads=16, kv_heads=16, ffn_hidden=8192, vocab=1024, seq_len=1024)


def sites_of(shapes: Sequence[str], bandwidth_bytes_per_s: float, *, joined: bool = True) -> Cluster:
    """A site of each shape, every two joined."""
    parts = [load_cluster(shape).sites[0] for shape in shapes]
    sites = tuple(replace(site, name=f"s{number}") for number, site in enumerate(parts))
    links = tuple(
        SiteLink(between=(a.name, b.name), bandwidth_bytes_per_s=bandwidth_bytes_per_s, latency_s=1e-3)
        for a, b in itertools.combinations(sites, 2)
    )
    return Cluster(text="+".join(shapes), sites=sites, site_links=links if joined else ())


def request_of(
    model: Model, cluster: Cluster, batch: int = 16, constraints: Constraints | None = None
) -> SearchRequest:
    """A search of all that is free, 1F1B alone."""
    recipe = Recipe(global_batch=batch, seq_len=model.seq_len)
    return request_on(model, cluster, recipe, constraints=constraints or Constraints(schedules=("1f1b",)))


def planned(request: SearchRequest, **words: str) -> Across:
    """There is one."""
    found = plan_across(request, **words)  # type: ignore[arg-type]
    assert found is not None
    return found


@pytest.mark.parametrize("bandwidth", [1.25e8, 1.25e9, 2.5e10])
@pytest.mark.parametrize("shapes", [("a40:1x2", "a40:1x2"), ("a100-80gb:1x2", "a10:1x2"), ("h100:1x1", "h100:1x2")])
def test_plans_are_near_the_exact_search(shapes: tuple[str, ...], bandwidth: float) -> None:
    request = request_of(WIDE, sites_of(shapes, bandwidth))
    best, found = find_best(request), planned(request)
    least = best.winner.evaluation.iteration_time_s
    assert found.best.time_s >= best.lower_bound * (1 - 1e-9)
    assert found.best.time_s <= 1.1 * least


def test_a_plan_is_what_the_estimator_says_and_comes_back_from_its_file(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    cluster = sites_of(("a40:1x2", "a10:1x2", "a40:1x1"), 1.25e9)
    found = planned(request_of(WIDE, cluster), wanted="all-sites")
    assert {device.site for device in found.plan.devices} == {"s0", "s1", "s2"}
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    save_plan(found.plan, path)
    read = load_plan(path)
    setup = setup_of_plan(read, WIDE, cluster, slots_of_plan(read, cluster), where=str(path))
    again = evaluate(setup)
    assert isinstance(again, Evaluation)
    assert again.iteration_time_s == pytest.approx(found.plan.estimate.iteration_time_s, rel=1e-9)


def test_stages_on_slower_devices_have_fewer_layers() -> None:
    found = planned(request_of(WIDE, sites_of(("h100:1x1", "a10:1x1"), 2.5e10), 32), wanted="all-sites")
    layers = {stage.device: sum(b - a for a, b in stage.chunks) for stage in found.plan.stages}
    if len(layers) == 2:
        assert layers["h100"] > layers["a10"]
    else:
        assert found.plan.stages[0].micro_batch_shares is not None


def test_tensor_parallelism_stays_inside_sites() -> None:
    constraints = Constraints(schedules=("1f1b",), least={"tp": 2})
    found = planned(request_of(WIDE, sites_of(("a100-80gb:1x4", "a100-80gb:1x2"), 1.25e9), 16, constraints))
    for stage in found.plan.stages:
        places = [found.plan.devices[rank] for rank in stage.ranks]
        assert stage.tp >= 2
        for first in range(0, len(places), stage.tp):
            assert len({(one.site, one.node) for one in places[first : first + stage.tp]}) == 1


def test_thin_links_leave_sites_idle_unless_all_are_wanted() -> None:
    request = request_of(WIDE, sites_of(("a100-80gb:1x4", "a100-80gb:1x1"), 1e7))
    alone, both = planned(request), planned(request, wanted="all-sites")
    assert {device.site for device in alone.plan.devices} == {"s0"}
    assert {device.site for device in both.plan.devices} == {"s0", "s1"}
    assert alone.best.time_s < both.best.time_s
    assert alone.considered[0].iteration_time_s == alone.best.time_s


def test_unjoined_sites_are_used_one_at_a_time() -> None:
    request = request_of(SMALL, sites_of(("a40:1x2", "a40:1x1"), 1e9, joined=False))
    assert {device.site for device in planned(request).plan.devices} == {"s0"}
    assert plan_across(request, wanted="all-sites") is None


def test_more_bandwidth_between_sites_is_never_slower_and_plans_repeat() -> None:
    times = []
    for bandwidth in (1e8, 1e9, 1e10):
        request = request_of(WIDE, sites_of(("a40:1x2", "a40:1x2", "a40:1x1"), bandwidth))
        found = planned(request)
        assert found.plan == planned(request).plan
        times.append(found.best.time_s)
    assert times == sorted(times, reverse=True)


def test_on_some_devices_alone() -> None:
    cluster = sites_of(("a40:1x2", "a10:1x2"), 1e10)
    request = request_of(SMALL, cluster)
    some = on_devices(request, [slot for slot in cluster.slots if slot.site == "s1"])
    assert [own.device for own in some.spaces] == ["a10"]
    assert {device.site for device in planned(some).plan.devices} == {"s1"}


def test_nothing_where_nothing_fits() -> None:
    huge = gpt("h", hidden=12288, layers=48, heads=96, vocab=50304, seq_len=2048)
    assert plan_across(request_of(huge, sites_of(("a10:1x1", "a10:1x1"), 1e9))) is None


@pytest.mark.parametrize(("model", "batch", "batches"), [(WIDE, 4, 2), (SMALL, 128, 128)])
def test_replicas_sit_where_the_estimator_wants_them(model: Model, batch: int, batches: int) -> None:
    """Two stages of two replicas on two nodes of two: a stage on each node, or a replica on each."""
    cluster = load_cluster("a40:2x2")
    constraints = Constraints(schedules=("1f1b",), fix={"pp": 2, "dp": 2, "tp": 1, "micro_batches": batches})
    found = planned(request_of(model, cluster, batch if batches < batch else 2 * batch, constraints))
    times = []
    for order in ((0, 1, 2, 3), (0, 2, 1, 3)):
        slots = [cluster.slots[place] for place in order]
        stages = tuple(
            replace(stage, slots=tuple(slots[2 * number : 2 * number + 2]))
            for number, stage in enumerate(found.best.setup.stages)
        )
        own = evaluate(replace(found.best.setup, stages=stages))
        assert isinstance(own, Evaluation)
        times.append(own.iteration_time_s)
    assert found.best.time_s == pytest.approx(min(times), rel=1e-9)
    assert max(times) > 1.001 * min(times)
