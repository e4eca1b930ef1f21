"""Ways of connections: against all that there are, by hash, spray, destination and dimension, and where links fail."""

from __future__ import annotations

import random
from itertools import pairwise, product

import numpy as np
import pytest

from estimator.network.links import Links, links_of_cluster
from estimator.network.routes import Flow, Flows, NoWayError, Routing, load_links, route, turns_taken
from estimator.network.turns import NO_LINK, loads_on, turns_at, way_rows
from profiles.cluster_file import load_cluster, name_cluster
from profiles.routing import HASH_NAMES, HashName, KnownPath
from tests.network_examples import cluster_of, random_links
from tests.oracles.ways_oracle import all_ways, sprayed
from tests.seeds import seeds

CLOS3 = {"kind": "clos3", "pods": 2, "leaves": 2, "aggregations": 2, "cores": 4, "cables": 2}


def pairs(links: Links) -> list[tuple[int, int]]:
    """NICs of different nodes."""
    of = links.node_of_nic
    return [(one, two) for one, two in product(range(links.nics), repeat=2) if of[one] != of[two]]


def flow_between(links: Links, source: int, destination: int, port: int = 50_000) -> Flow:
    nodes = [int(links.node_of_nic[nic]) for nic in (source, destination)]
    nics = [nic - int(links.nic_begins[node]) for nic, node in zip((source, destination), nodes, strict=True)]
    return Flow(source=nodes[0], source_nic=nics[0], destination=nodes[1], destination_nic=nics[1], port=port)


@pytest.mark.parametrize("seed", seeds(200))
def test_a_hash_takes_one_of_the_shortest_ways_and_spray_shares_them_out(seed: int) -> None:
    links = random_links(seed, down=0.1)
    rng = random.Random(seed)
    for source, destination in rng.sample(pairs(links), min(6, len(pairs(links)))):
        ways = all_ways(links, source, destination)
        flow = flow_between(links, source, destination, port=rng.randint(49152, 65535))
        routing = Routing(kind="ecmp", hash=rng.choice(HASH_NAMES), seed=seed)
        if not ways:
            for kind in (routing, Routing(kind="spray")):
                with pytest.raises(NoWayError, match="no way from NIC"):
                    route(links, kind, flow)
            continue
        taken = route(links, routing, flow)
        assert tuple(link for link, _ in taken) in {tuple(sorted(way)) for way in ways}
        assert {share for _, share in taken} == {1.0}
        assert dict(route(links, Routing(kind="spray"), flow)) == pytest.approx(
            {link: float(share) for link, share in sprayed(ways).items()}
        )


@pytest.mark.parametrize("seed", seeds(60))
def test_links_in_the_order_of_turns_lead_on_and_load_what_connections_load(seed: int) -> None:
    links = random_links(seed)
    rng = random.Random(seed)
    routing = Routing(kind=rng.choice(("ecmp", "infiniband")), seed=seed)
    up_down = routing.kind == "infiniband"
    joined = [pair for pair in rng.choices(pairs(links), k=12) if all_ways(links, *pair, up_down=up_down)]
    some = rng.choices(joined or pytest.skip("no two NICs are joined"), k=12)
    sources, destinations = np.array(some).T
    ports = np.array([rng.randint(49152, 65535) for _ in some])
    flows = Flows(sources=sources, destinations=destinations, ports=ports)
    turns = turns_taken(links, routing, flows)
    for flow, row in enumerate(way_rows(turns, len(some)).tolist()):
        way = [link for link in row if link != NO_LINK]
        assert all(links.ends[link, 1] == links.ends[after, 0] for link, after in pairwise(way))
        own = flow_between(links, *some[flow], port=int(flows.ports[flow]))
        assert sorted(way) == [link for link, _ in route(links, routing, own)]
    places = np.array(sorted(rng.sample(range(len(some)), 5)))
    amounts, owners = np.array([rng.random() for _ in some]), np.array([rng.randrange(3) for _ in some])
    for kept, its in ((places, turns_at(turns, places, len(some))), (np.arange(len(some)), turns)):
        ours = loads_on(its, links.count, amounts=amounts[kept], owners=owners[kept])
        theirs = load_links(links, routing, flows.at(kept), amounts=amounts[kept], owners=owners[kept])
        for name in ("owners", "links", "amounts"):
            assert getattr(ours, name).tolist() == getattr(theirs, name).tolist()


@pytest.mark.parametrize("seed", seeds(200))
def test_infiniband_goes_up_then_down_and_asks_for_the_destination_alone(seed: int) -> None:
    links = random_links(seed, down=0.1)
    onward: dict[tuple[int, int, bool], int] = {}
    for source, destination in pairs(links):
        ways = all_ways(links, source, destination, up_down=True)
        flow = flow_between(links, source, destination)
        if not ways:
            with pytest.raises(NoWayError):
                route(links, Routing(kind="infiniband"), flow)
            continue
        taken = {link for link, _ in route(links, Routing(kind="infiniband"), flow)}
        (way,) = [way for way in ways if set(way) == taken]
        falling = False
        for link, after in pairwise(way):
            at = int(links.ends[link, 1])
            if links.ends[link, 0] >= links.nodes:
                before = int(links.ends[link, 0])
                falling |= (links.tier_of[at], at) < (links.tier_of[before], before)
            assert onward.setdefault((at, destination, falling), after) == after


@pytest.mark.parametrize("shift", [1, 3, 7, 8, 15])
def test_shifts_over_a_fat_tree_meet_nowhere_by_destination(shift: int) -> None:
    """D-mod-k: all nodes send to the one so many places on, and no link carries two of them."""
    links = links_of_cluster(
        cluster_of({"kind": "fat-tree", "k": 4}, nodes={"nics": {"count": 1, "link": "ib-ndr400"}})
    )
    every = np.arange(16)
    flows = Flows(sources=every, destinations=(every + shift) % 16, ports=np.full(16, 50_000))
    loads = load_links(links, Routing(kind="infiniband"), flows, amounts=np.ones(16), owners=np.zeros(16, np.int64))
    assert loads.amounts.max() == 1.0
    hashed = (
        load_links(links, Routing(kind="ecmp", seed=seed), flows, amounts=np.ones(16), owners=np.zeros(16, np.int64))
        for seed in range(10)
    )
    # Neighbours send one flow out of each leaf and each pod alone.
    assert any(loads.amounts.max() > 1.0 for loads in hashed) == (1 < shift < 15)


@pytest.mark.parametrize("name", ["jenkins", "toeplitz"])
def test_over_many_seeds_a_hash_spreads_as_spray_does(name: HashName) -> None:
    links = links_of_cluster(cluster_of(CLOS3))
    fabric_seeds, ports = 20, np.arange(50_000, 50_200)
    first, last = (np.full(len(ports), links.nic_begins[node]) for node in (0, 15))
    flows = Flows(sources=first, destinations=last, ports=ports)
    count, mean = fabric_seeds * len(ports), np.zeros(links.count)
    for seed in range(fabric_seeds):
        routing = Routing(kind="ecmp", hash=name, seed=seed)
        loads = load_links(links, routing, flows, amounts=np.full(len(ports), 1 / count), owners=np.zeros_like(ports))
        mean[loads.links] += loads.amounts
    for link, share in route(links, Routing(kind="spray"), Flow(source=0, destination=15)):
        assert mean[link] == pytest.approx(share, abs=4.5 * (share * (1 - share) / count) ** 0.5 + 1e-9)


def test_equal_spines_and_nodes_may_change_places() -> None:
    """The same fabric with its switches and nodes in another order: every link has the load of the one of its name."""

    def loads(order: list[int]) -> dict[str, float]:
        spines = [f"spine{number}" for number in order]
        cables = [{"between": [f"n{leaf}{node}", f"leaf{leaf}"], "count": 8} for leaf in range(2) for node in order[:4]]
        cables += [{"between": [f"leaf{leaf}", spine], "count": 3} for leaf in range(2) for spine in spines]
        names = [f"n{leaf}{node}" for node in order[:4] for leaf in range(2)]
        topology = {
            "kind": "wired",
            "switches": [{"name": name} for name in ("leaf1", "leaf0", *spines)],
            "cables": cables,
        }
        links = links_of_cluster(cluster_of(topology, count=8, nodes={"names": names}))
        first = {name: int(links.nic_begins[number]) for number, name in enumerate(links.names[:8])}
        talk = [(f"n0{node}", f"n1{node}") for node in range(4)] + [("n00", "n01"), ("n02", "n11")]
        flows = Flows(
            sources=np.array([first[one] for one, _ in talk]),
            destinations=np.array([first[two] for _, two in talk]),
            ports=np.arange(50_000, 50_000 + len(talk)),
        )
        owners = np.zeros(len(talk), np.int64)
        result = load_links(links, Routing(kind="spray"), flows, amounts=np.arange(1.0, 7.0), owners=owners)
        return {
            links.name(link): load for link, load in zip(result.links.tolist(), result.amounts.tolist(), strict=True)
        }

    assert loads([0, 1, 2, 3]) == pytest.approx(loads([2, 0, 3, 1]))


@pytest.mark.parametrize("dimensions", [[4, 4], [2, 8], [3, 5], [2, 2, 4], [4, 1, 4]])
def test_a_torus_is_walked_dimension_by_dimension(dimensions: list[int]) -> None:
    links = links_of_cluster(cluster_of({"kind": "torus", "dimensions": dimensions}, count=int(np.prod(dimensions))))
    for source, destination in product(range(links.nodes), repeat=2):
        if source == destination:
            continue
        taken = [link for link, _ in route(links, Routing(), Flow(source=source, destination=destination))]
        ends = [np.unravel_index(node, dimensions) for node in (source, destination)]
        apart = [abs(int(a) - int(b)) for a, b in zip(*ends, strict=True)]
        assert len(taken) == sum(min(far, size - far) for far, size in zip(apart, dimensions, strict=True))
        at, axes = source, []
        for _ in taken:
            (link,) = [link for link in taken if links.ends[link, 0] == at]
            here, there = (np.unravel_index(int(end), dimensions) for end in links.ends[link])
            axes.append(next(axis for axis, (a, b) in enumerate(zip(here, there, strict=True)) if a != b))
            at = int(links.ends[link, 1])
        assert at == destination
        assert axes == sorted(axes)


def test_a_broken_link_of_a_torus_is_gone_round() -> None:
    links = links_of_cluster(cluster_of({"kind": "torus", "dimensions": [5, 3]}, count=15))
    (broken,) = links.between(0, 3)
    around = route(links.without([broken]), Routing(), Flow(source=0, destination=3))
    assert len(around) == 4
    cut = links.without([broken, links.between(6, 9)[0]])
    with pytest.raises(NoWayError, match="is down"):
        route(cut, Routing(), Flow(source=0, destination=3))


def test_what_is_left_is_chosen_from_anew() -> None:
    links = links_of_cluster(cluster_of(CLOS3))
    flows = [Flow(source=0, destination=15, port=port) for port in range(50_000, 50_064)]
    routing = Routing(kind="ecmp", seed=3)
    before = [dict(route(links, routing, flow)) for flow in flows]
    (broken,) = [link for link in before[0] if links.names[links.ends[link, 1]].startswith("core")]
    after = [dict(route(links.without([broken]), routing, flow)) for flow in flows]
    assert any(broken in way for way in before)
    assert not any(broken in way for way in after)


def test_the_link_that_lacks_is_named() -> None:
    links = links_of_cluster(cluster_of({"kind": "clos2", "leaves": 2, "spines": 1}))
    flow = Flow(source=0, destination=15)
    cut = links.without(links.between(links.names.index("spine0"), links.names.index("leaf1")))
    with pytest.raises(NoWayError, match=r"NIC 0 of node0 to NIC 0 of node15: spine0 -> leaf1 is down"):
        route(cut, Routing(kind="ecmp"), flow)
    port = int(links.ports[links.port_begins[0]])
    with pytest.raises(NoWayError, match=r"node0 -> leaf0 \(1\) is down"):
        route(links.without([port]), Routing(kind="spray"), flow)
    rails = links_of_cluster(cluster_of({"kind": "rail", "nodes_per_pod": 16}))
    with pytest.raises(NoWayError, match="nothing joins leaf0 and leaf3"):
        route(rails, Routing(kind="ecmp"), Flow(source=0, destination=1, destination_nic=3))


def test_a_known_way_comes_before_the_hash_until_a_cable_of_it_fails() -> None:
    links = links_of_cluster(cluster_of({"kind": "clos2", "leaves": 2, "spines": 4, "cables": 2}))
    known = KnownPath(
        source="node0", destination="node9", ports=((50_000, 50_015),), through=("leaf0", "spine2", "leaf1")
    )
    routing = Routing(kind="ecmp", paths=(known,))
    spine = links.names.index("spine2")
    for port in range(50_000, 50_032):
        taken = route(links, routing, Flow(source=0, destination=9, port=port))
        hashed = route(links, Routing(kind="ecmp"), Flow(source=0, destination=9, port=port))
        assert len(taken) == 4
        if port <= 50_015:
            assert spine in links.ends[[link for link, _ in taken]]
        else:
            assert taken == hashed
    broken = links.without(links.between(spine, links.names.index("leaf1")))
    for port in range(50_000, 50_016):
        taken = route(broken, routing, Flow(source=0, destination=9, port=port))
        assert spine not in links.ends[[link for link, _ in taken]]


def test_sites_are_joined_by_links_of_the_same_network() -> None:

    site = {
        "nodes": [{"count": 4, "device": "h100"}],
        "fabric": {"link": "ib-ndr400", "pods": 2, "oversubscription": 2},
    }
    between = [{"between": ["north", "south"], "bandwidth_bytes_per_s": 1e9, "latency_s": 0.005}]
    sites = [{"name": name, **site} for name in ("north", "south")]
    links = links_of_cluster(load_cluster(name_cluster({"sites": sites, "links_between_sites": between})))
    way = [links.name(link) for link, _ in route(links, Routing(kind="ecmp"), Flow(source=1, destination=6))]
    assert "gateway of north -> gateway of south" in way
    assert len(way) == 7
    assert links.bytes_per_s.min() == 1e9


def test_nics_and_nodes_that_there_are_not() -> None:
    links = links_of_cluster(cluster_of())
    with pytest.raises(ValueError, match="NIC 8 of node 0"):
        route(links, Routing(), Flow(source=0, source_nic=8, destination=1))
    with pytest.raises(ValueError, match="inside a node"):
        route(links, Routing(), Flow(source=1, destination=1, destination_nic=1))
