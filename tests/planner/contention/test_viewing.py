"""Jobs as policies see them: what they put on links is what the network says, and ports lead where they are said to."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
import yaml

from estimator.network.connections import playing_of
from estimator.network.fabric import Fabric, Nccl, Seat, fabric_of
from estimator.network.player.packing import pack
from estimator.network.routes import Flow, route
from estimator.network.steps import Playing
from estimator.network.traffic import Exchange, Span, Traffic
from planner.contention.playing import playing_under
from planner.contention.policies.loads import bytes_by_connection
from planner.contention.viewing import Seen, Sender, contender_of, contenders_of, view_of
from profiles.cluster_file import load_cluster, name_cluster
from profiles.records import replace
from tests.oracles.port_ways_oracle import offered_ways

SITE = """schema: cellplan.cluster/1
sites:
  - name: north
    nodes: [{{count: {nodes}, device: a100-80gb, devices: 8, nics: {{count: 4, link: roce200}}{more}}}]
    fabric: {{link: roce200, topology: {{{topology}}}{routing}}}
"""
CLOS = "kind: clos2, leaves: 4, spines: 4, cables: 1"
ECMP = ", routing: {kind: ecmp, seed: 3}"
PCIE = ", pcie: [{devices: 2, nics: 1, count: 4}]"


def fabric(
    topology: str = CLOS, routing: str = ECMP, *, nodes: int = 16, more: str = "", nccl: Nccl | None = None
) -> Fabric:
    text = SITE.format(nodes=nodes, topology=topology, routing=routing, more=more)
    return fabric_of(load_cluster(name_cluster(yaml.safe_load(text))), nccl=nccl)


def seats(*nodes: int) -> tuple[Seat, ...]:
    return tuple(Seat(node=node, device=device) for node in nodes for device in range(8))


def traffic(ranks: int) -> Traffic:
    """Gradients as a ring and a tree, experts beside them, a boundary of a pipeline both ways."""
    every = tuple(range(ranks))
    half = ranks // 2
    groups = tuple(tuple(range(first, ranks, 8)) for first in range(8))
    there = Exchange(axis="pp", op="send_recv", size_bytes=3e8, groups=((0, half), (1, half + 1)), alone_s=0.1)
    back = Exchange(axis="pp", op="send_recv", size_bytes=3e8, groups=((half, 0), (half + 1, 1)), alone_s=0.1)
    ring = Exchange(axis="dp", op="all_reduce", size_bytes=2e9, groups=groups, alone_s=0.3, latency_s=0.01)
    tree = Exchange(axis="dp", op="all_reduce", size_bytes=1e9, groups=groups, alone_s=0.2, algorithm="tree")
    experts = Exchange(axis="ep", op="all_to_all", size_bytes=1e9, groups=(every,), alone_s=0.25, times=2)
    spans = (
        Span(compute_s=0.1, exchanges=(replace(there, beside=(back,)),), begins_s=0.1, times=3),
        Span(compute_s=0.2, exchanges=(experts, ring), begins_s=0.05),
        Span(compute_s=0.1, exchanges=(tree,), begins_s=0.1),
    )
    return Traffic(devices=ranks, spans=spans, flops=1e15)


def assert_same(one: Playing, other: Playing) -> None:
    """The same jobs, but for the last digits of what they put on links."""
    for mine, theirs in zip((pack(one),), (pack(other),), strict=True):
        assert mine.links.tolist() == theirs.links.tolist()
        np.testing.assert_allclose(mine.iteration_bytes, theirs.iteration_bytes, rtol=1e-9)
        np.testing.assert_allclose(mine.entry_amount, theirs.entry_amount, rtol=1e-9)
        for name in ("step_compute_s", "transfer_latency_s", "transfer_times", "mover_seconds", "entry_link"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))


FABRICS = {
    "ecmp": {},
    "spray": {"routing": ", routing: {kind: spray}"},
    "infiniband": {"routing": ", routing: {kind: infiniband}"},
    "rails": {"topology": "kind: rail, nodes_per_pod: 8, spines: 4"},
    "two sides": {"topology": "kind: double-sided, leaves: 4, spines: 2, nodes_per_pair: 8"},
    "three tiers": {"topology": "kind: clos3, pods: 2, leaves: 2, aggregations: 2, cores: 4"},
    "lanes": {"more": PCIE},
    "queue pairs": {"nccl": Nccl(queue_pairs=3)},
    "cut up": {"nccl": Nccl(queue_pairs=2, split_data=True)},
    "cables": {"topology": "kind: clos2, leaves: 4, spines: 2, cables: 4"},
    "torus": {"topology": "kind: torus, dimensions: [4, 4]", "routing": ""},
}


@pytest.mark.parametrize("model", ["collective", "flow"])
@pytest.mark.parametrize("name", FABRICS)
def test_on_its_present_paths_a_job_is_what_the_network_says(name: str, model: str) -> None:
    network = fabric(**FABRICS[name])  # type: ignore[arg-type]
    its, where = traffic(32), seats(0, 5, 10, 14)
    seen = contender_of("a", its, where, network, flops=1e15, alone_s=1.0, seed=5, model=model)  # type: ignore[arg-type]
    assert_same(
        playing_under(seen.contender, seen.contender.now),
        playing_of(its, where, network, seed=5, model=model),  # type: ignore[arg-type]
    )
    free = name not in ("spray", "infiniband", "torus")
    assert bool(seen.queue_pairs) is free
    assert all(len(paths) == 1 for paths in seen.contender.paths[len(seen.queue_pairs) :])


@pytest.mark.parametrize("name", ["ecmp", "rails", "two sides", "three tiers"])
def test_ports_lead_where_they_are_said_to(name: str) -> None:
    network = fabric(**FABRICS[name])  # type: ignore[arg-type]
    seen = contender_of("a", traffic(32), seats(0, 5, 10, 14), network, flops=1e15, seed=1)
    every = list(zip(seen.queue_pairs, seen.contender.paths, seen.contender.now, strict=False))
    for pair, paths, now in every[:: len(every) // 12]:
        assert pair.port in pair.ways[now or 0].ports
        for way, path in zip(pair.ways, paths, strict=True):
            assert [link for link, _ in path] == sorted(way.way)
            for port in way.ports[:2]:
                flow = Flow(
                    source=pair.source.node,
                    destination=pair.destination.node,
                    source_nic=pair.source.nic,
                    destination_nic=pair.destination.nic,
                    port=port,
                )
                assert [link for link, _ in route(network.links, network.routing, flow)] == sorted(way.way)
            ends = network.links.ends
            assert all(ends[a, 1] == ends[b, 0] for a, b in zip(way.way, way.way[1:], strict=False))


def test_every_spine_is_offered_between_leaves_and_none_under_one() -> None:
    network = fabric()
    beside = contender_of("a", traffic(16), seats(0, 1), network, flops=1e15)
    assert (len(beside.queue_pairs), beside.fixed > 0) == (0, True)
    apart = contender_of("a", traffic(16), seats(0, 4), network, flops=1e15)
    assert {len(pair.ways) for pair in apart.queue_pairs} == {4}
    by_axis: defaultdict[str, float] = defaultdict(float)
    for axis, sent in zip(apart.contender.axes, bytes_by_connection(apart.contender), strict=True):
        by_axis[axis] += sent
    assert by_axis["pp"] == pytest.approx(3 * 4 * 3e8)
    assert set(by_axis) == {"dp", "ep", "pp"}


def test_ways_that_are_told_come_alone_beside_the_present_one() -> None:
    told = (
        ", routing: {kind: ecmp, paths: [{from: node0, to: node4, nics: [0, 0], ports: '50000-50003',"
        " through: [leaf0, spine2, leaf1]}, {from: node0, to: node4, nics: [0, 0], ports: '50004',"
        " through: [leaf0, spine3, leaf1]}]}"
    )
    network = fabric(routing=told)
    seen = contender_of("a", traffic(16), seats(0, 4), network, flops=1e15)
    (pair, *_) = [p for p in seen.queue_pairs if (p.source.nic, p.destination.nic, p.source.node) == (0, 0, 0)]
    known = [way for way in pair.ways if way.known]
    assert [way.ports for way in known] == [(50000, 50001, 50002, 50003), (50004,)]
    assert len(pair.ways) <= 3
    other = next(p for p in seen.queue_pairs if p.source.nic == 1)
    assert (len(other.ways), any(way.known for way in other.ways)) == (4, False)


@pytest.mark.parametrize(("name", "most"), [("ecmp", 16), ("two sides", 2), ("three tiers", 16), ("cables", 3)])
def test_ways_and_ports_are_those_that_trying_each_port_by_itself_finds(name: str, most: int) -> None:
    network = fabric(**FABRICS[name])  # type: ignore[arg-type]
    seen = contender_of("a", traffic(32), seats(0, 5, 10, 14), network, flops=1e15, seed=1, most_paths=most)
    for pair in seen.queue_pairs[:: len(seen.queue_pairs) // 4]:
        offered = offered_ways(network, pair, most)
        others = [way for number, way in enumerate(pair.ways) if number != pair.offer.place]
        assert {way.way: way.ports for way in others}.items() <= offered.items()
        assert [way.way for way in pair.ways] == sorted({*offered, pair.offer.own.way})
        assert pair.offer.own.ports[0] == pair.port or pair.port in pair.offer.own.ports


@pytest.mark.parametrize("name", FABRICS)
def test_many_jobs_at_once_are_seen_as_each_by_itself(name: str) -> None:
    network = fabric(**FABRICS[name])  # type: ignore[arg-type]
    senders = [
        Sender(id=f"job{number}", traffic=traffic(8 * len(nodes)), seats=seats(*nodes), flops=1e15, seed=number)
        for number, nodes in enumerate([(0, 5, 10, 14), (1, 4), (2, 3), (9, 6, 12)])
    ]
    together = contenders_of(senders, network)
    for sender, seen in zip(senders, together, strict=True):
        (alone,) = contenders_of([sender], network)
        assert (seen.contender, seen.fixed, seen.left) == (alone.contender, alone.fixed, alone.left)
        assert [pair.ways for pair in seen.queue_pairs] == [pair.ways for pair in alone.queue_pairs]


def test_of_too_many_queue_pairs_those_of_most_bytes_get_a_choice() -> None:
    network = fabric()
    its, where = traffic(32), seats(0, 5, 10, 14)
    every = contender_of("a", its, where, network, flops=1e15)
    few = contender_of("a", its, where, network, flops=1e15, most_connections=16)
    assert (len(few.queue_pairs), few.left) == (16, len(every.queue_pairs) - 16)
    assert few.contender.alone_s >= every.contender.alone_s
    sizes = sorted(bytes_by_connection(every.contender)[: len(every.queue_pairs)])
    assert min(bytes_by_connection(few.contender)[:16]) >= sizes[-16] * (1 - 1e-9)


def test_levels_by_axis_reach_the_transfers_of_the_axis() -> None:
    seen: Seen = contender_of("a", traffic(16), seats(0, 4), fabric(), flops=1e15)
    playing = playing_under(seen.contender, seen.contender.now, level=3, axis_levels=(("pp", 0),), offset_s=0.5)
    assert (playing.level, playing.starts_s) == (3, 0.5)
    assert [transfer.level for step in playing.steps for transfer in step.transfers] == [0, None, None, None]
    assert view_of([seen], fabric(), 8).levels == 8
