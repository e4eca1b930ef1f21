"""What a plan puts on every uplink, against an oracle that walks every byte; as JSON, as text, in the plan file."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from estimator.pricing.rank_groups import group_ranks
from estimator.pricing.recipe import Setup
from planner.cli.network_output import print_network
from planner.one_job.explicit.recording import record_plan
from planner.one_job.pods.traffic import neighbours, stage_bytes
from planner.one_job.pods.uplink_use import network_use
from planner.shared.plan_file import parse_plan, plan_json_schema, plan_to_json
from planner.shared.plan_network import PlanNetwork
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster
from profiles.network import FabricLevel, FabricPart, Network, SpreadTable, equal_pods
from tests.explicit_examples import EXPERTS, LLAMA, RECIPE, build, evaluated
from tests.oracles.uplinks_oracle import Part, Sent, bytes_sent, walk
from tests.seeds import seeds

NODES = load_cluster("a40:8x2")


def with_network(cluster: Cluster, network: Network) -> Cluster:
    return replace(cluster, sites=(replace(cluster.sites[0], network=network),))


def random_tree(rng: random.Random, nodes: int) -> Network:
    leaves = rng.randint(2, 4)
    leaf_of = [*range(leaves), *(rng.randrange(leaves) for _ in range(nodes - leaves))]
    rng.shuffle(leaf_of)
    pod_of = (0, *(1 if number == 1 else rng.randrange(2) for number in range(1, leaves)))
    return Network(
        levels=(
            FabricLevel(name="leaf", parts=_parts(rng, "leaf", leaves), part_of=tuple(leaf_of)),
            FabricLevel(name="pod", parts=_parts(rng, "pod", 2), part_of=pod_of),
        )
    )


def _parts(rng: random.Random, stem: str, count: int) -> tuple[FabricPart, ...]:
    return tuple(
        FabricPart(name=f"{stem}{number}", oversubscription=rng.choice([0.5, 1, 2, 4])) for number in range(count)
    )


def shuffled(setup: Setup, rng: random.Random) -> Setup:
    slots = [slot for stage in setup.stages for slot in stage.slots]
    rng.shuffle(slots)
    dealt = iter(slots)
    stages = (replace(stage, slots=tuple(next(dealt) for _ in stage.slots)) for stage in setup.stages)
    return replace(setup, stages=tuple(stages))


def random_setup(rng: random.Random) -> Setup:
    cluster = with_network(NODES, random_tree(rng, 8))
    degrees: dict[str, Any] = rng.choice(
        [
            {"tp": 2, "pp": 2, "dp": 4},
            {"tp": 1, "pp": 4, "dp": 4, "zero": 1},
            {"tp": 2, "pp": 1, "dp": 8, "zero": 3},
            {"tp": 1, "pp": 2, "dp": 8, "ep": 4},
            {"tp": 2, "pp": 2, "cp": 2, "dp": 2},
        ]
    )
    setup = build(EXPERTS if "ep" in degrees else LLAMA, cluster, RECIPE, **degrees)
    return shuffled(setup, rng) if rng.random() < 0.8 else setup


def walked(setup: Setup) -> dict[str, Sent]:
    """By axis, every byte walked over every uplink."""
    slots = [slot for stage in setup.stages for slot in stage.slots]
    first = [0]
    for stage in setup.stages:
        first.append(first[-1] + len(stage.slots))
    by_axis: dict[str, Sent] = {}
    for part in stage_bytes(setup):
        sent = by_axis.setdefault(part.axis, defaultdict(float))
        if part.axis in ("pp", "tied"):
            for senders, receivers, share in neighbours(setup, part, first):
                for sender, receiver in zip(senders.tolist(), receivers.tolist(), strict=True):
                    walk(setup.cluster, slots[sender], slots[receiver], part.sent_bytes * share, sent)
            continue
        stage = setup.stages[part.stage]
        groups = [[stage.slots[rank] for rank in ranks] for ranks in group_ranks(stage, part.axis)]  # type: ignore[arg-type]
        way, size = ("exchange", len(groups[0])) if part.op == "all_to_all" else ("ring", 0)
        given = part.sent_bytes * size / (size - 1) if size else part.sent_bytes
        for key, times in bytes_sent(setup.cluster, groups, way).items():
            sent[key] += times * given
    return by_axis


def counted(network: PlanNetwork, cluster: Cluster) -> dict[str, dict[tuple[Part, str], float]]:
    """The record in the oracle's words."""
    site = cluster.sites[0]
    depths = {level.name: depth for depth, level in enumerate(site.network.levels)}
    by_axis: dict[str, dict[tuple[Part, str], float]] = defaultdict(dict)
    for use in network.uplinks:
        depth = depths[use.uplink.level]
        names = [part.name for part in site.network.levels[depth].parts]
        part = (site.name, depth, names.index(use.uplink.part))
        for axis in use.axes:
            for way, size in (("up", axis.up_bytes), ("down", axis.down_bytes)):
                if size:
                    by_axis[axis.axis][part, way] = size
    return by_axis


def test_every_uplink_carries_what_a_walk_of_every_byte_puts_on_it() -> None:
    crossing = 0
    for seed in seeds(60, share=4):
        rng = random.Random(seed)
        setup = random_setup(rng)
        network = network_use(setup, 2.0)
        assert network is not None
        ours = counted(network, setup.cluster)
        for axis, sent in walked(setup).items():
            used = {key: size for key, size in sent.items() if size}
            assert ours.get(axis, {}) == pytest.approx(used, rel=1e-9), (seed, axis)
            crossing += bool(used)
        for use in network.uplinks:
            assert use.up_bytes == pytest.approx(sum(axis.up_bytes for axis in use.axes))
            assert use.down_bytes == pytest.approx(sum(axis.down_bytes for axis in use.axes))
            assert use.bytes_per_s == max(use.up_bytes, use.down_bytes) / 2.0
    assert crossing > 10


def test_spread_and_what_binds_are_those_of_the_groups_and_the_thinnest_uplink() -> None:
    bound = 0
    for seed in seeds(40, share=4):
        rng = random.Random(seed)
        setup = random_setup(rng)
        network = network_use(setup, 1.0)
        assert network is not None
        tree, group = setup.cluster.sites[0].network, setup.cluster.sites[0].nodes[0]
        nic = min(group.nic_link.bandwidth_bytes_per_s, setup.cluster.sites[0].fabric_link.bandwidth_bytes_per_s)
        sent = walked(setup)
        for axis in network.axes:
            if axis.axis not in ("pp", "tied"):
                paths = [
                    [[tree.path(stage.slots[rank].node) for rank in ranks] for ranks in group_ranks(stage, axis.axis)]  # type: ignore[arg-type]
                    for stage in setup.stages
                ]
                for depth, met in enumerate(axis.parts_met):
                    assert met == max(
                        len({path[depth] for path in members}) for groups in paths for members in groups
                    ), (seed, axis.axis)
            seconds = [0.0]
            for (part, _), size in sent[axis.axis].items():
                level = tree.levels[part[1]]
                below = sum(tree.path(node)[part[1]] == part[2] for node in range(8)) * group.nics * nic
                seconds.append(size * level.parts[part[2]].oversubscription / (below * group.nic_link.efficiency))
            assert axis.uplink_s == pytest.approx(max(seconds)), (seed, axis.axis)
            assert (axis.binds is not None) == (axis.uplink_s > axis.nic_s * (1 + 1e-9))
            bound += axis.binds is not None
    assert bound > 5


def test_a_job_in_one_part_passes_no_uplink_and_one_without_a_tree_says_nothing() -> None:
    pods = with_network(load_cluster("a40:8x2"), equal_pods(8, pods=2, oversubscription=4))
    setup = build(LLAMA, pods, RECIPE, tp=2, pp=1, dp=4)
    network = network_use(setup, 1.0)
    assert network is not None
    assert network.uplinks == ()
    assert {axis.parts_met for axis in network.axes} == {(1,)}
    assert all(axis.binds is None and axis.uplink_s == 0 for axis in network.axes)
    assert network_use(build(LLAMA, NODES, RECIPE, tp=2, pp=1, dp=4), 1.0) is None


def test_uplinks_as_wide_as_the_nics_below_do_not_bind() -> None:
    pods = with_network(NODES, equal_pods(8, pods=2))
    wide = replace(pods.sites[0].network, levels=(replace(pods.sites[0].network.levels[0], spread=_TABLE),))
    setup = build(LLAMA, with_network(NODES, wide), RECIPE, tp=2, pp=2, dp=4)
    network = network_use(setup, 1.0)
    assert network is not None
    by_axis = {axis.axis: axis for axis in network.axes}
    assert [axis.binds for axis in network.axes] == [None] * len(network.axes)
    assert by_axis["pp"].parts_met == (2,)
    assert by_axis["pp"].reach == 0.5
    assert by_axis["dp"].reach == 1.0


_TABLE = SpreadTable(collective=(1.0, 0.9), message=(1.0, 0.5), source="a test")


def test_people_read_the_spread_of_every_axis_and_the_uplink_that_binds(capsys: pytest.CaptureFixture[str]) -> None:
    pods = with_network(NODES, equal_pods(8, pods=2, oversubscription=8))
    network = network_use(build(LLAMA, pods, RECIPE, tp=2, pp=1, dp=8), 1.0)
    assert network is not None
    print_network(network)
    printed = capsys.readouterr().out
    assert printed.splitlines()[0] == "Above the nodes: parts met, seconds an iteration"
    assert "uplinks of pod pod0" in printed
    assert "fullest uplinks: pod pod0 of" in printed


def test_the_plan_file_keeps_it_and_its_schema_describes_it() -> None:
    setup = build(LLAMA, with_network(NODES, equal_pods(8, pods=2, oversubscription=8)), RECIPE, tp=2, pp=2, dp=4)
    plan = record_plan(setup, evaluated(setup), reference="llama", assumptions=())
    assert plan.network is not None
    text = plan_to_json(plan)
    value = json.loads(text)
    assert parse_plan(text, "plan.json") == plan
    jsonschema.validate(value, json.loads(plan_json_schema()))
    assert [axis["axis"] for axis in value["network"]["axes"]] == ["tp", "dp", "pp"]
    rate = max(value["network"]["uplinks"][0][f"{way}_bytes"] for way in ("up", "down"))
    assert value["network"]["uplinks"][0]["bytes_per_s"] == rate / plan.estimate.iteration_time_s
    del value["network"]
    assert parse_plan(json.dumps(value), "old.json") == replace(plan, network=None)
