"""Groups of ranks on every axis of a stage: who is in them, the slowest one, and how many share its links."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.communication.collectives import describe_group, time_collective
from estimator.pricing.rank_groups import REFERENCE_BYTES, AxisGroup, GroupAxis, axis_groups, group_ranks
from estimator.pricing.recipe import StageSetup
from profiles.cluster import Cluster, DeviceSlot
from profiles.cluster_file import load_cluster, name_cluster
from profiles.network import Network, equal_pods
from tests.oracles.rank_groups_oracle import brute_force_groups
from tests.seeds import seeds

AXES: tuple[GroupAxis, ...] = get_args(GroupAxis)
DGX = load_cluster("a100-80gb:8x8")


def stage_of(slots: tuple[DeviceSlot, ...], **degrees: Any) -> StageSetup:
    sizes = {"tp": 1, "cp": 1, **degrees}
    dp = len(slots) // (sizes["tp"] * sizes["cp"])
    return StageSetup(chunks=((0, 1),), slots=slots, dp=dp, **sizes)


def kinds(found: AxisGroup) -> tuple[int, int, tuple[str, ...]]:
    return found.group.ranks, found.concurrent, tuple(level.kind for level in found.group.levels)


@given(
    tp=st.sampled_from([1, 2, 4, 8]),
    cp=st.sampled_from([1, 2, 3]),
    dp=st.sampled_from([1, 2, 3, 4, 6]),
    pick=st.randoms(use_true_random=False),
)
def test_ranks_of_a_group_agree_in_all_other_coordinates(tp: int, cp: int, dp: int, pick: random.Random) -> None:
    ranks = tp * cp * dp
    experts = pick.choice([n for n in range(1, ranks + 1) if ranks % n == 0])
    etp = pick.choice([n for n in range(1, experts + 1) if experts % n == 0])
    shard = pick.choice([n for n in range(1, cp * dp + 1) if cp * dp % n == 0])
    slots = load_cluster("a100-80gb:32x8").slots[:ranks]
    stage = stage_of(slots, tp=tp, cp=cp, ep=experts // etp, etp=etp, zero=3, shard=shard)
    for axis in AXES:
        groups = list(group_ranks(stage, axis))
        assert {frozenset(group) for group in groups} == brute_force_groups(stage, axis)
        assert sum(map(len, groups)) == ranks


def test_where_the_groups_of_a_mixed_plan_sit() -> None:
    """4 nodes of 8, tp 4, cp 2, dp 4; ep 8 of 32."""
    stage = stage_of(DGX.slots[:32], tp=4, cp=2, ep=8, zero=1, shard=4)
    assert kinds(axis_groups(DGX, stage, "tp")) == (4, 2, ("island",))
    assert kinds(axis_groups(DGX, stage, "cp")) == (2, 4, ("island",))
    assert kinds(axis_groups(DGX, stage, "dp")) == (8, 4, ("island", "fabric"))
    assert kinds(axis_groups(DGX, stage, "ep")) == (8, 1, ("island",))
    assert kinds(axis_groups(DGX, stage, "etp"))[0] == 1
    assert kinds(axis_groups(DGX, stage, "expert_dp")) == (4, 8, ("fabric",))
    assert kinds(axis_groups(DGX, stage, "shard")) == (4, 4, ("island", "fabric"))
    assert kinds(axis_groups(DGX, stage, "replicate")) == (2, 8, ("fabric",))


def test_the_group_that_straddles_nodes_is_the_slowest() -> None:
    stage = stage_of(DGX.slots[4:28], tp=8)
    found = axis_groups(DGX, stage, "tp")
    assert (found.group.nodes, found.concurrent) == (2, 2)


def test_only_the_stages_own_groups_are_counted() -> None:
    """Two of a node's eight devices are the stage's: two groups share its NICs, not eight."""
    slots = tuple(slot for slot in DGX.slots if slot.index < 2)
    assert axis_groups(DGX, stage_of(slots, tp=2), "dp").concurrent == 2


def with_switches(text: str) -> Cluster:
    """Nodes of 8 with three NICs under two of three PCIe switches; under racks islands of two nodes."""
    pcie = [
        {"devices": [0, 1, 2], "nics": [0, 1]},
        {"devices": [3, 4], "nics": [2]},
        {"devices": [5, 6, 7], "nics": []},
    ]
    node: dict[str, Any] = {
        "count": 6,
        "device": "a100-80gb",
        "devices": 8,
        "nics": {"count": 3, "link": "ib-hdr200"},
        "pcie": pcie,
    }
    if text.endswith("racks"):
        node["island"] = {"link": "nvswitch5", "size": 16}
    return load_cluster(name_cluster({"sites": [{"name": text, "nodes": [node], "fabric": {"link": "ib-hdr200"}}]}))


def slowest_by_brute_force(cluster: Cluster, stage: StageSetup, axis: GroupAxis) -> float:
    times = []
    for ranks in group_ranks(stage, axis):
        group = describe_group(cluster, [stage.slots[rank] for rank in ranks])
        on_node = [
            -(
                -sum((slot.site, slot.node) == place for slot in stage.slots)
                // sum((stage.slots[rank].site, stage.slots[rank].node) == place for rank in ranks)
            )
            for place in {(stage.slots[rank].site, stage.slots[rank].node) for rank in ranks}
        ]
        times.append(time_collective("all_gather", REFERENCE_BYTES, group, concurrent_groups=max(on_node)).seconds)
    return max(times)


@pytest.mark.parametrize(
    "text",
    [
        "a100-80gb:6x8",
        "a100-80gb:3x8+v100-32gb:3x8",
        "gb200:36x4",
        "a100-80gb-pcie:6x8",
        "a40:24x2",
        "tpu-v5p:24x4",
        "a40:3x64",
        "switches",
        "switches under racks",
    ],
)
def test_the_slowest_group_equals_brute_force(text: str) -> None:
    cluster = with_switches(text) if text.startswith("switches") else load_cluster(text)
    rng = random.Random(text)
    for _ in seeds(40):
        ranks = rng.choice([8, 12, 16, 24, 32])
        start = rng.randrange(len(cluster.slots) - ranks + 1)
        slots = cluster.slots[start : start + ranks]
        if rng.random() < 0.3:
            slots = tuple(rng.sample(cluster.slots, ranks))
        tp = rng.choice([n for n in (1, 2, 4, 8) if ranks % n == 0])
        cp = rng.choice([n for n in (1, 2) if ranks // tp % n == 0])
        stage = stage_of(slots, tp=tp, cp=cp, ep=rng.choice([1, 2, 4]), zero=3, shard=rng.choice([None, 1]))
        for axis in AXES:
            found = axis_groups(cluster, stage, axis)
            time = time_collective(
                "all_gather", REFERENCE_BYTES, found.group, concurrent_groups=found.concurrent
            ).seconds
            assert time == pytest.approx(slowest_by_brute_force(cluster, stage, axis), rel=1e-12), axis


@pytest.mark.parametrize(
    ("devices", "nics"), [((0, 1, 2), 2), ((0, 2), 2), ((0, 1), 1), ((3, 4), 1), ((0, 3), 2), (tuple(range(8)), 3)]
)
def test_ranks_send_by_the_nics_under_their_switches(devices: tuple[int, ...], nics: int) -> None:
    """Where it is known what hangs under which PCIe switch: two devices under one NIC have its rate, not two NICs'."""
    cluster = with_switches("switches")
    slots = [slot for slot in cluster.slots if slot.node < 2 and slot.index in devices]
    one = cluster.sites[0].nodes[0].nic_link
    level = describe_group(cluster, slots).levels[-1]
    assert level.bandwidth_bytes_per_s == nics * one.bandwidth_bytes_per_s * one.efficiency
    assert level.shared_bytes_per_s == 3 * one.bandwidth_bytes_per_s * one.efficiency


def test_pods_are_told_apart() -> None:
    cluster = load_cluster("a100-80gb:8x8")
    site = replace(cluster.sites[0], network=equal_pods(8, pods=2, oversubscription=4.0))
    pods = replace(cluster, sites=(site,))
    inside = axis_groups(pods, stage_of(pods.slots[32:64], tp=8), "dp").group.levels[-1]
    across = axis_groups(pods, stage_of(pods.slots[16:48], tp=8), "dp").group.levels[-1]
    assert inside == axis_groups(cluster, stage_of(pods.slots[32:64], tp=8), "dp").group.levels[-1]
    # Eight rings leave either pod once each, through uplinks as wide as the NICs of one node.
    assert across.above is not None
    assert across.above.ring == pytest.approx(1 / inside.bandwidth_bytes_per_s)


def test_hops_of_every_level_count() -> None:
    """Leaves of two nodes, pods of four: a run of nodes is as its slots in no order."""
    cluster = load_cluster("a100-80gb:8x8")
    leaf = replace(equal_pods(8, pods=4).levels[0], name="leaf", hop_latency_s=1e-6)
    pod = replace(equal_pods(4, pods=2).levels[0], hop_latency_s=1e-5)
    tree = replace(cluster, sites=(replace(cluster.sites[0], network=Network(levels=(leaf, pod))),))
    for first, last, hops_s in ((0, 2, 0.0), (1, 3, 2e-6), (0, 4, 2e-6), (2, 6, 2.2e-5), (0, 8, 2.2e-5)):
        slots = tree.slots[8 * first : 8 * last]
        runs, plain = (axis_groups(c, stage_of(slots, tp=8), "dp").group.levels[-1] for c in (tree, cluster))
        assert runs.latency_s == pytest.approx(plain.latency_s + hops_s, rel=1e-12)
        assert runs == describe_group(tree, slots[::8]).levels[-1]


def test_misuse_of_axes() -> None:
    stage = stage_of(DGX.slots[:8], tp=4, ep=3)
    with pytest.raises(ValueError, match=r"ep=3 \* etp=1 does not divide the stage's 8 ranks"):
        axis_groups(DGX, stage, "ep")
    with pytest.raises(ValueError, match="found 'pp', expected one of tp, cp"):
        axis_groups(DGX, stage, "pp")  # type: ignore[arg-type]
