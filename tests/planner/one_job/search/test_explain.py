"""Why a plan is the best: figures that add up, signs that are right, amounts that are exact."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest

from estimator.pricing.outcome import TimeBreakdown
from estimator.pricing.pricing import Pricing
from planner.one_job.planning.explaining import Lack, describe_lack, explain_request
from planner.one_job.search.best import Best, find_best
from planner.one_job.search.explain import describe_explanation
from planner.one_job.search.explanation import Explanation
from planner.one_job.search.links_used import links_used
from planner.one_job.search.sensitivity import (
    CLOSE_BYTES,
    lacking_bytes,
    least_memory,
    spare_bytes,
    variants,
    with_links,
)
from planner.one_job.search.spaces.constraints import Constraints
from planner.one_job.search.spaces.request import SearchRequest, read_search
from planner.one_job.search.varied import (
    ALL,
    FEWEST_FAMILIES,
    lifted,
    neighbours,
    search_again,
    with_batch,
    with_cluster,
    with_constraints,
    with_device,
    with_memory,
    with_node,
)
from planner.shared.options.search import SearchOptions
from profiles.cluster import map_groups
from profiles.errors import NothingFits
from profiles.vocabulary import LinkTable

GIB = 2**30


def request_of(model: str = "gpt2-350m", cluster: str = "a100-80gb:2x2", **options: Any) -> SearchRequest:
    given = SearchOptions(model, cluster=cluster, **{"global_batch": 16, **options})
    return read_search(given, store=None, objective=given.objective, limit=given.limit)


@cache
def tight() -> SearchRequest:
    """A request whose devices lack memory for what would be fastest."""
    request = request_of(seq_len=512, max=("micro_batch=1", "micro_batches=4"), no_offload=True)
    spare = min(spare_bytes(find_best(request).winner))
    return with_memory(request, "a100-80gb", -spare - 3 * GIB // 2)


@cache
def explained() -> tuple[SearchRequest, Best, Explanation]:
    request = request_of(schedule=("1f1b",), max=("pp=2",))
    return request, find_best(request), explain_request(request)


def values(request: SearchRequest) -> float:
    return find_best(request).winner.found.value


def test_what_a_runner_up_loses_is_the_sum_of_its_parts() -> None:
    _, best, explanation = explained()
    assert len(explanation.runners_up) >= 4
    took = best.winner.evaluation.iteration_time_s
    for one in explanation.runners_up:
        assert math.fsum(seconds for _, seconds in one.parts) == pytest.approx(one.slower_s, abs=1e-12)
        assert one.iteration_time_s - took == pytest.approx(one.slower_s)
        assert one.iteration_time_s == pytest.approx(took * (1 + one.loss))
        assert [name for name, _ in one.parts] == [part.name for part in fields(TimeBreakdown)]


def test_runners_up_are_the_best_of_what_they_are_named_for() -> None:
    _, best, explanation = explained()
    losses = [one.loss for one in explanation.runners_up]
    assert losses == sorted(losses)
    assert losses[0] >= 0
    found = {name: one for one in explanation.runners_up for name in one.without}
    own = best.winner.found
    assert f"pp above {own.degrees.pp}" in found
    bounds: tuple[tuple[str, dict[str, Any]], ...] = (
        (f"pp above {own.degrees.pp}", {"min": (f"pp={own.degrees.pp + 1}",)}),
        (f"tp above {own.degrees.tp}", {"min": (f"tp={own.degrees.tp + 1}",)}),
        (f"ZeRO above {own.state.zero}", {"min": (f"zero={own.state.zero + 1}",)}),
    )
    for name, options in bounds:
        direct = values(request_of(schedule=("1f1b",), max=("pp=2",), **options))
        assert found[name].iteration_time_s == pytest.approx(direct)
        assert found[name].proved
    assert len({one.plan for one in explanation.runners_up}) == len(explanation.runners_up)


def test_a_runner_up_leaves_the_choice_that_it_is_named_for() -> None:
    request, best, _ = explained()
    own = best.winner.found
    for variant in neighbours(request, own):
        again = search_again(variant.request, best, None)
        if again is None:
            continue
        other = again.winner.found
        name, _, value = variant.name.rpartition(" ")
        if "above" in name or "below" in name:
            word, direction = name.rsplit(" ", 1)
            number = {
                "tp": other.degrees.tp,
                "pp": other.degrees.pp,
                "cp": other.degrees.cp,
                "micro-batch": other.degrees.samples,
                "chunks a stage": len(other.cut[0]),
                "ZeRO": other.state.zero,
            }[word]
            assert number > int(value) if direction == "above" else number < int(value)
        elif variant.name == "recomputation":
            assert other.rule[0] != "none"
        else:
            assert variant.name in ("no recomputation", "optimizer on the devices")


def test_more_of_anything_is_never_worse_and_the_table_is_sorted() -> None:
    _, _, explanation = explained()
    kinds = [one.kind for one in explanation.sensitivities]
    assert {"link", "flops", "memory_bandwidth", "memory", "least_memory", "nodes", "batch"} <= set(kinds)
    for one in explanation.sensitivities:
        assert one.proved
        assert one.change <= 1e-9 or one.kind == "batch", one.name
        assert one.bound == pytest.approx(one.change, abs=1e-9)
    changes = [one.change for one in explanation.sensitivities]
    assert changes == sorted(changes)
    assert all(one.change <= 1e-9 for one in explanation.constraints)


def test_what_is_priced_once_for_all_searches_is_priced_as_for_each_alone() -> None:
    request, best, _ = explained()
    for _, variant in variants(request, best):
        (part,) = variant.request.spaces
        assert part.pricing is request.spaces[0].pricing
        alone = replace(part, evaluator=replace(part.evaluator, pricing=Pricing()))
        expected = find_best(replace(variant.request, spaces=(alone,)))
        again = find_best(variant.request)
        assert again.winner.found.value == expected.winner.found.value, variant.name
        assert again.winner.evaluation == expected.winner.evaluation, variant.name
        assert again.counts == expected.counts, variant.name


def test_a_slow_network_binds() -> None:
    request = request_of(cluster="a100-80gb:2x1", fix=("dp=2",), overlap=())
    slow = map_groups(
        request.cluster,
        lambda group: replace(group, nic_link=replace(group.nic_link, bandwidth_bytes_per_s=2e8)),
    )
    explanation = explain_request(with_cluster(request, slow))
    binding = explanation.binding
    assert binding.resource is not None
    assert binding.resource.endswith("between nodes")
    assert binding.communication[0].axis == "dp"
    best = explanation.sensitivities[0]
    gains = {one.kind: one.change for one in explanation.sensitivities}
    assert gains["link"] < gains["flops"]
    assert best.change < -0.03
    assert "binds" in explanation.summary[1]


def test_the_least_memory_that_changes_the_plan_is_found() -> None:
    request = tight()
    best = find_best(request)
    roomier = find_best(with_memory(request, "a100-80gb", 8 * GIB))
    assert roomier.winner.found.value < best.winner.found.value
    found = least_memory(request, best, roomier)
    assert found is not None
    assert found.kind == "least_memory"
    assert found.change < 0
    amount = float(found.name.split()[0]) * GIB
    enough = values(with_memory(request, "a100-80gb", int(amount + GIB / 10)))
    too_little = values(with_memory(request, "a100-80gb", int(max(0, amount - CLOSE_BYTES - GIB / 10))))
    assert enough < best.winner.found.value
    assert too_little == best.winner.found.value
    assert lacking_bytes(request.cluster, best.winner) == 0


def test_where_no_memory_helps_that_is_said_of_however_much() -> None:
    request, best, _ = explained()
    found = least_memory(request, best)
    assert found is not None
    assert (found.name, found.change) == ("however much more memory", 0.0)


@pytest.mark.parametrize("more_gib", [0.5, 1.0, 2.0, 8.0])
def test_more_memory_is_that_of_larger_devices(more_gib: float) -> None:
    request, more = with_memory(request_of(), "a100-80gb", -77 * GIB), round(more_gib * GIB)
    larger = with_device(request, "a100-80gb", lambda base: replace(base, memory_bytes=base.memory_bytes + more))
    best, expected = find_best(with_memory(request, "a100-80gb", more)), find_best(larger)
    assert best.winner.found.value == expected.winner.found.value
    assert best.winner.evaluation.memory == expected.winner.evaluation.memory
    assert best.winner.evaluation.device_memory_bytes == expected.winner.evaluation.device_memory_bytes


def test_spare_memory_is_what_can_be_taken_away() -> None:
    request = request_of(fix=("tp=1", "pp=2", "micro_batch=2"), recompute="none", zero=0, no_offload=True)
    winner = find_best(request).winner
    spare = min(spare_bytes(winner))
    device = winner.space.device
    assert lacking_bytes(with_memory(request, device, -spare).cluster, winner) == 0
    assert lacking_bytes(with_memory(request, device, -spare - 2**20).cluster, winner) > 0


def test_only_the_links_at_that_place_get_faster() -> None:
    request = request_of(fix=("tp=2", "pp=2"))
    uses = {use.place: use for use in links_used(find_best(request).winner.setup)}
    assert set(uses) == {"island", "fabric"}
    assert "tp" in uses["island"].axes
    assert "pp" in uses["fabric"].axes
    before = request.cluster.sites[0]
    for place, use in uses.items():
        after = with_links(request, use).cluster.sites[0]
        assert (after.nodes[0].island_link != before.nodes[0].island_link) == (place == "island")
        assert (after.nodes[0].nic_link != before.nodes[0].nic_link) == (place == "fabric")
        assert (after.fabric_link != before.fabric_link) == (place == "fabric")
        assert after.nodes[0].host_link == before.nodes[0].host_link


def test_measured_tables_of_a_faster_link_keep_their_latency() -> None:
    request = request_of(fix=("tp=2",))
    (use, *_) = links_used(find_best(request).winner.setup)
    points = ((1024, 2e-5), (1 << 20, 1.2e-4), (1 << 24, 1.7e-3))
    table = LinkTable(
        link=use.link,
        op="all_reduce",
        ranks=2,
        nodes=1,
        points=points,
        alpha_s=2e-5,
        beta_s_per_byte=1e-10,
        fit_error=0.0,
        source="test",
    )
    other = replace(table, link="another")
    own = request.spaces[0]
    own = replace(own, evaluator=replace(own.evaluator, pricing=Pricing(link_tables=(table, other))))
    changed = with_links(replace(request, spaces=(own,)), use).spaces[0]
    quicker, same = changed.pricing.link_tables
    assert same == other
    assert changed.evaluator.links.pricing is changed.pricing
    for (size, before), (_, after) in zip(points, quicker.points, strict=True):
        assert before / 1.1 <= after < before
        assert before - after == pytest.approx(min(1e-10 * size * (1 - 1 / 1.1), before * (1 - 1 / 1.1)))


def test_a_node_more_is_one_of_the_same_and_may_be_used() -> None:
    request = request_of(cluster="a100-80gb:3x2", devices=6)
    grown = with_node(request, request.spaces[0])
    assert len(grown.cluster.slots) == len(request.cluster.slots) + 2
    assert len(grown.spaces[0].space.slots) == 8
    assert grown.spaces[0].space.constraints.most == {"devices": 8}
    assert values(grown) < values(request)


def test_twice_the_batch_is_compared_by_the_sample() -> None:
    request, best, explanation = explained()
    (found,) = (one for one in explanation.sensitivities if one.kind == "batch")
    assert found.change == pytest.approx(values(with_batch(request, 32)) / best.winner.found.value / 2 - 1)
    assert not any(phrase.startswith(("global batch", "micro-batches ")) for phrase in found.differences)


def test_each_constraint_is_lifted_alone_and_then_all() -> None:
    request = request_of(
        fix=("pp=2",),
        max=("tp=2",),
        min=("dp=1",),
        schedule=("1f1b",),
        zero=1,
        micro_batch=2,
        recompute="full:3",
        no_offload=True,
        tool="megatron",
        devices=4,
    )
    variants = {variant.name: variant.request.spaces[0].space.constraints for variant in lifted(request)}
    assert list(variants) == [
        "--fix pp=2",
        "--micro-batch 2",
        "--zero 1",
        "--min dp=1",
        "--max tp=2",
        "--devices 4",
        "--schedule 1f1b",
        "--recompute full:3",
        "--no-offload",
        "--tool megatron",
        ALL,
    ]
    limits = request.spaces[0].space.constraints
    assert variants["--zero 1"] == replace(limits, fix={"pp": 2, "micro_batch": 2})
    assert variants["--max tp=2"].most == {"devices": 4}
    assert variants["--tool megatron"] == replace(limits, tool=None)
    assert replace(variants[ALL], schedules=Constraints().schedules) == Constraints()
    assert lifted(request_of()) == ()


def test_what_constraints_cost_is_what_lifting_them_saves() -> None:
    request = request_of(zero=3, max=("micro_batch=1",))
    explanation = explain_request(request)
    costs = {one.name: one.change for one in explanation.constraints}
    own = find_best(request).winner.found.value
    assert costs["--zero 3"] == pytest.approx(values(request_of(max=("micro_batch=1",))) / own - 1)
    assert costs["--max micro-batch=1"] == pytest.approx(values(request_of(zero=3)) / own - 1)
    assert costs[ALL] == pytest.approx(values(request_of()) / own - 1)
    assert "--max micro-batch=1 costs" in " ".join(explanation.summary)


def test_without_a_plan_it_says_what_would_make_one_possible() -> None:
    with pytest.raises(NothingFits, match="no plan is possible") as caught:
        explain_request(request_of(fix=("tp=3",), max=("pp=4",)))
    lack = caught.value.result
    assert isinstance(lack, Lack)
    assert [one.name for one in lack.reliefs] == ["without --fix tp=3", f"without {ALL}"]
    json.dumps(describe_lack(lack), allow_nan=False)


def test_a_search_made_again_is_bounded_and_says_so() -> None:
    request, best, _ = explained()
    again = search_again(replace(request, limit=0), best, None)
    assert again is None or not again.proved
    seen: list[int | None] = []

    def watch(changed: SearchRequest, **_: object) -> Best:
        seen.append(changed.limit)
        return best

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("planner.one_job.search.varied.find_best", watch)
        search_again(request, best, None)
        search_again(replace(request, limit=7), best, None)
    assert seen == [max(FEWEST_FAMILIES, 3 * best.counts.families), 7]


def test_the_explanation_is_sentences_and_plain_json() -> None:
    _, best, explanation = explained()
    assert 3 <= len(explanation.summary) <= 6
    assert all(sentence.endswith(".") for sentence in explanation.summary)
    value = json.loads(json.dumps(describe_explanation(explanation), allow_nan=False))
    assert list(value) == [
        "objective",
        "summary",
        "certificate",
        "binding",
        "runners_up",
        "sensitivities",
        "constraints",
        "assumption_effects",
    ]
    certificate = value["certificate"]
    assert certificate["considered"] - sum(certificate["removed"].values()) == certificate["ways"]
    assert certificate["proved"]
    assert certificate["gap"] == 0
    assert certificate["plans"] == best.counts.plans
    binding = explanation.binding
    parts = binding.compute_s + binding.recompute_s + binding.bubble_s + binding.optimizer_s + binding.offload_s
    parts += math.fsum(one.seconds for one in binding.communication)
    assert parts == pytest.approx(best.winner.evaluation.iteration_time_s)


def test_the_same_request_is_explained_in_the_same_words() -> None:
    request, _, explanation = explained()
    assert describe_explanation(explain_request(request)) == describe_explanation(explanation)


def test_progress_counts_every_search_once() -> None:
    told: list[tuple[int, int, str]] = []
    request = request_of("gpt-tiny", fix=("pp=1",))
    explain_request(request, progress=lambda done, total, _, what: told.append((done, total, what)))
    done = [number for number, _, _ in told]
    assert done == sorted(done)
    assert set(done) == set(range(done[-1] + 1))
    assert told[-1][0] == told[-1][1] - 1
    assert told[0][2] == "the best plan"


def test_a_cheaper_objective_is_explained_in_its_own_unit() -> None:
    request = request_of(objective="energy")
    explanation = explain_request(request)
    assert explanation.objective == "energy"
    assert "kWh" in explanation.summary[0]
    first = explanation.runners_up[0]
    assert first.loss >= 0
    assert with_constraints(request, lambda limits: limits).objective == "energy"
