"""Seconds of a plan's collectives: which share of a link's record, which table, and what it then says it rests on."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.communication.collectives import describe_group, time_collective
from estimator.pricing.link_times import (
    LinkAccount,
    LinkTimes,
    cluster_in_training,
    copies_of_one,
    deduplicated,
    dispatched_s,
    share_in_training,
)
from estimator.pricing.pricing import Pricing
from estimator.pricing.rank_groups import axis_groups
from estimator.pricing.recipe import StageSetup
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster
from profiles.dispatchers import load_dispatcher
from profiles.hardware import load_link
from profiles.training_parameters import TrainingParameters, load_training_parameters
from profiles.vocabulary import CollectiveOp, Link, LinkTable
from tests.explicit_examples import CLUSTER, GPT, QUIET, build, evaluated

KNOWN = load_training_parameters()
SIZE = 1e8


def table(op: CollectiveOp, link: str, ranks: int, nodes: int = 1, seconds: float = 1e-3) -> LinkTable:
    """Twice the bytes, twice the seconds, from 1 byte to a terabyte."""
    return LinkTable(
        link=link,
        op=op,
        ranks=ranks,
        nodes=nodes,
        points=((1, seconds / SIZE), (10**12, seconds * 10**12 / SIZE)),
        alpha_s=0.0,
        beta_s_per_byte=seconds / SIZE,
        fit_error=0.0,
        source="test",
    )


def stage(first: int = 0, last: int = 16, **degrees: Any) -> StageSetup:
    slots = CLUSTER.slots[first:last]
    ranks = degrees.get("tp", 1) * degrees.get("cp", 1)
    return StageSetup(chunks=((0, 1),), slots=slots, dp=len(slots) // ranks, **degrees)


def links(*tables: LinkTable, cluster: Cluster = CLUSTER, experts: int = 1) -> LinkTimes:
    return LinkTimes(
        pricing=Pricing(parameters=KNOWN, link_tables=tables),
        cluster=cluster,
        experts_a_token=experts,
        account=LinkAccount(),
    )


def account_of(timer: LinkTimes) -> LinkAccount:
    assert timer.account is not None
    return timer.account


def message_s(timer: LinkTimes, sender: StageSetup, receiver: StageSetup, size: float) -> float:
    return timer.messages_s(timer.pairs(sender.slots, receiver.slots), size, senders=len(sender.slots))


def test_collectives_reach_a_share_of_their_links_records() -> None:
    reached = cluster_in_training(CLUSTER, KNOWN)
    for degrees, axis, link in (({"tp": 8}, "tp", "nvswitch3"), ({"tp": 8}, "dp", "ib-hdr200")):
        held = stage(**degrees)
        group = axis_groups(reached, held, axis)  # type: ignore[arg-type]
        expected = time_collective("all_reduce", SIZE, group.group, concurrent_groups=group.concurrent).seconds
        found = links().on_axes_of(held)("all_reduce", SIZE, axis)
        assert found == pytest.approx(expected + KNOWN.of("collective_wait_s"))
        whole = axis_groups(CLUSTER, held, axis)  # type: ignore[arg-type]
        record = time_collective("all_reduce", 1e12, whole.group, concurrent_groups=whole.concurrent).seconds
        found = links().on_axes_of(held)("all_reduce", 1e12, axis)
        assert found == pytest.approx(record / KNOWN.of("collective_share", link), rel=1e-3)


def made(bandwidth_bytes_per_s: float, like: str) -> Link:
    return replace(load_link(like), name="made", bandwidth_bytes_per_s=bandwidth_bytes_per_s)


def test_links_that_runs_tell_of_are_points_of_a_curve() -> None:
    slow, fast = load_link("ib-hdr200"), load_link("ib-ndr400")
    known = TrainingParameters(
        values={"collective_share": 0.8, "collective_share.ib-hdr200": 1.0, "collective_share.ib-ndr400": 0.5}
    )
    assert share_in_training(known, slow) == 1.0
    # Half of the faster one would be less than all of the slower one: what is reached never falls.
    reached = slow.bandwidth_bytes_per_s * slow.efficiency / (fast.bandwidth_bytes_per_s * fast.efficiency)
    assert share_in_training(known, fast) == pytest.approx(max(0.5, reached))
    assert share_in_training(known, made(1e9, "ib-hdr200")) == 1.0
    assert share_in_training(known, made(1e12, "ib-hdr200")) == pytest.approx(max(0.5, reached))
    assert share_in_training(known, load_link("nvswitch3")) == 0.8
    shares = {"collective_share": 0.9, "collective_share.nvswitch3": 0.7, "collective_share.nvswitch4": 1.1}
    generations = TrainingParameters(values=shares)
    assert share_in_training(generations, load_link("nvswitch4-h800")) == 1.1
    assert share_in_training(known, load_link("omni-path100")) == 0.8


@given(
    one=st.floats(1e9, 1e12), other=st.floats(1e9, 1e12), like=st.sampled_from(["ib-edr100", "roce100", "nvswitch3"])
)
def test_the_faster_of_two_links_reaches_no_less(one: float, other: float, like: str) -> None:
    slow, fast = (made(each, like) for each in sorted((one, other)))
    rates = [share_in_training(KNOWN, link) * link.bandwidth_bytes_per_s for link in (slow, fast)]
    assert rates[0] <= rates[1] * (1 + 1e-12)


@pytest.mark.parametrize(("ranks", "experts"), [(2, 2), (8, 2), (4, 8), (8, 5)])
def test_copies_of_one_are_counted(ranks: int, experts: int) -> None:
    """All ways to draw a token's experts, each part as likely as any other."""
    cluster = load_cluster(f"a100-80gb:1x{ranks}")
    group = describe_group(cluster, cluster.slots)
    copies = parts = 0
    for drawn in product(range(ranks), repeat=experts):
        elsewhere = [part for part in drawn if part]
        copies += len(elsewhere)
        parts += len(set(elsewhere))
    assert copies_of_one(group, group.levels[0], experts) == pytest.approx(copies / parts)


def test_deduplicated_dispatch_crosses_nodes_once() -> None:
    """Eight experts on two nodes: four copies would cross, one does but for 1/256 of the tokens."""
    each, once = (links(experts=count).on_axes_of(stage(0, 16, ep=16)) for count in (1, 8))
    size, wait_s = 1e9, KNOWN.of("collective_wait_s")
    assert once("all_reduce", size, "shard") == each("all_reduce", size, "shard")
    assert once("all_to_all", size, "tp") == each("all_to_all", size, "tp")
    ratio = (each("all_to_all", size, "ep") - wait_s) / (once("all_to_all", size, "ep") - wait_s)
    # Links inside the node save less: 1.2.
    assert 3 < ratio < 4 / (1 - 1 / 256)


def dispatched(name: str, cluster: Cluster, ranks: int, size: float) -> float:
    timer = LinkTimes(
        pricing=Pricing(parameters=KNOWN), cluster=cluster, experts_a_token=8, dispatcher=load_dispatcher(name)
    )
    held = StageSetup(chunks=((0, 1),), slots=cluster.slots[:ranks], dp=ranks, ep=ranks)
    return timer.on_axes_of(held)("all_to_all", size, "ep") - KNOWN.of("collective_wait_s")


def test_the_exchange_of_experts_has_a_share_of_its_own_where_one_is_known() -> None:
    shares = {"collective_share": 0.8, "collective_share.ib-ndr400": 0.5}
    plain, apart = (TrainingParameters(values=shares | more) for more in ({}, {"exchange_share.ib-ndr400": 0.9}))
    ndr, nvlink = load_link("ib-ndr400"), load_link("nvswitch4")
    assert share_in_training(plain, ndr, exchanging=True) == share_in_training(plain, ndr) == 0.5
    assert share_in_training(apart, ndr, exchanging=True) == pytest.approx(0.9)
    assert share_in_training(apart, ndr) == 0.5
    assert share_in_training(apart, nvlink, exchanging=True) == 0.8


def test_in_one_island_a_dispatchers_kernels_reach_in_training_what_they_do_alone() -> None:
    hybrid = load_dispatcher("hybrid")
    for name, ranks in (("b200:1x8", 8), ("gb200:18x4", 32)):
        cluster = load_cluster(name)
        alone = deduplicated(describe_group(cluster, cluster.slots[:ranks]), 8)
        assert dispatched("hybrid", cluster, ranks, 1e9) == pytest.approx(dispatched_s(hybrid, 1e9, alone, 1, 8))


def test_an_exchange_may_leave_a_node_by_its_nics_though_a_rack_joins_nodes() -> None:
    rack, nodes = load_cluster("gb200:16x4"), load_cluster("b200:2x8")
    assert dispatched("networked", rack, 64, 1e9) > 5 * dispatched("all_to_all", rack, 64, 1e9)
    assert dispatched("networked", rack, 4, 1e9) == dispatched("all_to_all", rack, 4, 1e9)
    assert dispatched("networked", nodes, 16, 1e9) == dispatched("all_to_all", nodes, 16, 1e9)


def test_a_dispatchers_kernel_bounds_the_exchange_in_a_node_and_links_do_over_nodes() -> None:
    cluster, size, kernel = load_cluster("b200:2x8"), 1e9, load_dispatcher("deduplicated")
    copies = 8 * (1 - (7 / 8) ** 8) / 8
    copying_s = size * copies / (kernel.multiprocessors * kernel.bytes_per_s)
    assert dispatched("deduplicated", cluster, 8, size) == pytest.approx(kernel.startup_s + copying_s)
    # One that takes few multiprocessors goes at the links' pace, which is that of a copy a rank.
    hybrid = dispatched("hybrid", cluster, 8, size)
    assert load_dispatcher("hybrid").startup_s < hybrid < kernel.startup_s + copying_s
    assert dispatched("deduplicated", cluster, 16, size) - kernel.startup_s == pytest.approx(
        dispatched("hybrid", cluster, 16, size) - load_dispatcher("hybrid").startup_s
    )
    # In a rack nobody runs a dispatcher that cannot use it.
    rack = load_cluster("gb200:16x4")
    startups = load_dispatcher("deduplicated").startup_s - load_dispatcher("hybrid").startup_s
    assert dispatched("deduplicated", rack, 64, size) == pytest.approx(dispatched("hybrid", rack, 64, size) + startups)
    assert dispatched("deduplicated", cluster, 8, 0.0) == -KNOWN.of("collective_wait_s")


@given(
    name=st.sampled_from(["all_to_all", "deduplicated", "hybrid"]),
    size=st.floats(1, 1e9),
    more=st.floats(1, 10),
    nodes=st.sampled_from([1, 2, 4]),
)
def test_more_tokens_or_nodes_never_take_less_to_exchange(name: str, size: float, more: float, nodes: int) -> None:
    cluster = load_cluster("h100:8x8")
    seconds = dispatched(name, cluster, 8 * nodes, size)
    assert dispatched(name, cluster, 8 * nodes, size * more) >= seconds * (1 - 1e-12)
    assert dispatched(name, cluster, 16 * nodes, size) >= seconds * (1 - 1e-12)


def test_a_table_of_exchanges_is_read_at_the_bytes_that_are_sent() -> None:
    known = table("all_to_all", "ib-hdr200", 16, nodes=2)
    held = stage(0, 16, ep=16)
    timed = links(known, experts=8).on_axes_of(held)
    assert timed("all_to_all", SIZE, "ep") == pytest.approx(1e-3 * (1 - 1 / 256) / 4)
    # A table of another operation changes nothing.
    other = table("send_recv", "ib-hdr200", 2, nodes=2)
    plain, beside = (links(*tables, experts=8).on_axes_of(held) for tables in ((), (other,)))
    assert plain("all_to_all", SIZE, "ep") == beside("all_to_all", SIZE, "ep")


def test_messages_reach_a_share_of_their_own() -> None:
    pair = describe_group(CLUSTER, (CLUSTER.slots[0], CLUSTER.slots[1]))
    record = time_collective("send_recv", SIZE, pair).seconds
    found = message_s(links(), stage(0, 1), stage(1, 2), SIZE)
    assert found == pytest.approx(record / KNOWN.of("send_share", "nvswitch3"))


def test_one_rank_and_no_bytes_take_no_time_and_rest_on_nothing() -> None:
    timer = links(table("all_reduce", "nvswitch3", 8))
    on_axis = timer.on_axes_of(stage(tp=8))
    assert on_axis("all_reduce", 0, "tp") == 0
    assert on_axis("all_reduce", SIZE, "cp") == 0
    assert account_of(timer).provenance() is None
    assert account_of(timer).table_ids() == ()


def test_a_table_is_taken_as_it_stands_and_named() -> None:
    known = table("all_reduce", "nvswitch3", 8, seconds=0.125)
    timer = links(known)
    held = stage(tp=8)
    assert timer.on_axes_of(held)("all_reduce", SIZE, "tp") == pytest.approx(0.125)
    assert account_of(timer).provenance() == "measured"
    assert account_of(timer).table_ids() == (known.id,)
    assert account_of(timer).measured(axis_groups(CLUSTER, held, "tp").group)
    timer.on_axes_of(held)("all_reduce", SIZE, "dp")
    assert account_of(timer).provenance() == "mixed"
    assert not account_of(timer).measured(axis_groups(CLUSTER, held, "dp").group)


def test_a_group_is_measured_only_if_all_of_its_collectives_are() -> None:
    timer = links(table("all_to_all", "nvswitch3", 8))
    held = stage(tp=8)
    group = axis_groups(CLUSTER, held, "tp").group
    assert not account_of(timer).measured(group)
    on_axis = timer.on_axes_of(held)
    on_axis("all_to_all", SIZE, "tp")
    assert account_of(timer).measured(group)
    on_axis("all_reduce", SIZE, "tp")
    assert not account_of(timer).measured(group)


@given(
    size=st.floats(1, 1e10),
    op=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]),
    axis=st.sampled_from(["tp", "cp", "dp", "shard", "ep"]),
)
def test_more_bytes_never_take_less(size: float, op: Any, axis: str) -> None:
    on_axis = links().on_axes_of(stage(0, 32, tp=4, cp=2, ep=8, zero=3))
    assert 0 < on_axis(op, size, axis) <= on_axis(op, 2 * size, axis)


def test_messages_of_a_stage_share_a_nodes_nics() -> None:
    """Eight ranks send at once over eight NICs; with two NICs each has a quarter of one."""
    thin = load_cluster("a100-80gb:4x8")
    nodes = replace(thin.sites[0].nodes[0], nics=2)
    thin = replace(thin, sites=(replace(thin.sites[0], nodes=(nodes,)),))
    wide_s = message_s(links(), stage(0, 8), stage(8, 16), 1e9)
    thin_s = message_s(links(cluster=thin), stage(0, 8), stage(8, 16), 1e9)
    assert thin_s == pytest.approx(4 * wide_s, rel=0.01)
    alone_s = message_s(links(cluster=thin), stage(0, 1), stage(8, 9), 1e9)
    assert alone_s == pytest.approx(wide_s, rel=0.01)


def test_pair_sums_are_all_reduces_of_two() -> None:
    pair = describe_group(cluster_in_training(CLUSTER, KNOWN), (CLUSTER.slots[0], CLUSTER.slots[8]))
    expected = time_collective("all_reduce", SIZE, pair, concurrent_groups=8).seconds
    found = links().pair_sum_s(stage(0, 8), stage(8, 16), SIZE)
    assert found == pytest.approx(expected + KNOWN.of("collective_wait_s"))


def test_an_evaluation_names_its_tables_and_where_its_communication_comes_from() -> None:
    setup = build(GPT, recipe=QUIET, tp=8)
    plain = evaluated(setup)
    assert (plain.communication_provenance, plain.link_table_ids) == ("modelled", ())
    known = table("all_reduce", "nvswitch3", 8, seconds=0.1)
    measured = evaluated(setup, link_tables=[known])
    assert (measured.communication_provenance, measured.link_table_ids) == ("measured", (known.id,))
    assert measured.breakdown.tp_s > plain.breakdown.tp_s
    mixed = evaluated(build(recipe=QUIET, tp=8, dp=4), link_tables=[known])
    assert mixed.communication_provenance == "mixed"
    unused = evaluated(setup, link_tables=[table("all_reduce", "ib-hdr200", 2, nodes=2)])
    assert unused == plain
    assert evaluated(build(recipe=QUIET)).communication_provenance is None
