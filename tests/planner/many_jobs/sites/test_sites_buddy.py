"""The domains of a site, and the buddy allocator on them."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.clusters.buddy_allocator import Allocation, BuddyAllocator
from bench.clusters.whole_blocks import WholeBlocks, uniform_domain
from planner.many_jobs.sites.block_tree import Tree
from planner.many_jobs.sites.buddy import near_devices
from planner.many_jobs.sites.domains import LEVELS, Domain, domain_of_site
from profiles.cluster import Site
from profiles.hardware import load_device, load_link
from profiles.network import FabricLevel, FabricPart, Network, equal_pods
from profiles.reference_nodes import default_nodes
from tests.oracles.sites_oracle import least_level, shared_level
from tests.seeds import examples


@st.composite
def domains(draw: st.DrawFn, level: int = len(LEVELS) - 1, most: int = 12) -> Domain:
    """Sites of up to 12 devices, of any shape."""
    if level <= 1 or draw(st.booleans()):
        return Domain(level=LEVELS[level], devices=draw(st.integers(1, most)))
    parts: list[Domain] = []
    left = most
    for _ in range(draw(st.integers(1, 4))):
        if left:
            parts.append(draw(domains(level=draw(st.integers(1, level - 1)), most=left)))
            left -= parts[-1].size
    return Domain(level=LEVELS[level], parts=tuple(parts))


def check_blocks(buddy: BuddyAllocator, held: dict[int, Allocation]) -> None:
    """No device twice, none lost, and all buddies that are both free are one block."""
    taken = [device for one in held.values() for device in one.devices]
    free = [device for block in buddy.free_blocks() for device in block]
    assert sorted(taken + free) == list(range(buddy.tree.devices))
    tree, count = buddy.tree, buddy.blocks.count
    for block in range(len(tree.size)):
        devices = range(tree.first[block], tree.first[block] + tree.size[block])
        assert count[block] == len(set(devices) & set(free))
    whole = {block for block in range(len(tree.size)) if count[block] == tree.size[block]}
    heads = {block for block in whole if tree.above[block] not in whole}
    assert {frozenset(buddy.devices((block,))) for block in heads} == set(map(frozenset, buddy.free_blocks()))
    for shape in range(tree.shapes):
        assert buddy.blocks.head(shape) == min((b for b in heads if tree.shape[b] == shape), default=None)


@settings(deadline=None, max_examples=examples(120))
@given(domains(), st.sampled_from((BuddyAllocator, WholeBlocks)), st.lists(st.integers(-8, 13), max_size=24))
def test_requests_and_returns(domain: Domain, maker: type[BuddyAllocator], steps: list[int]) -> None:
    buddy = maker(domain)
    held: dict[int, Allocation] = {}
    for step in steps:
        if step < 1:
            if held:
                buddy.free(held.pop(sorted(held)[step % len(held)]))
            continue
        free = {device for block in buddy.free_blocks() for device in block}
        blocks = buddy.free_blocks()
        found = buddy.allocate(step)
        if maker is BuddyAllocator:
            assert (found is None) == (step > len(free))
            assert near_devices(domain, free, step) == (None if found is None else found.devices)
        else:
            assert (found is None) == (max(map(len, blocks), default=0) < step)
        if found is None:
            continue
        held[found.id] = found
        assert LEVELS.index(found.level) == shared_level(buddy.tree, found.devices)
        if maker is BuddyAllocator:
            assert len(found.devices) == step
            assert LEVELS.index(found.level) == least_level(buddy.tree, free, step)
            check_parts(buddy, found, free, step)
        else:
            assert len(found.blocks) == 1
            assert len(found.devices) >= step
            left, right = found.blocks[0] + 1, buddy.tree.right[found.blocks[0]]
            assert not right or max(buddy.tree.size[left], buddy.tree.size[right]) < step
        check_blocks(buddy, held)
    for one in held.values():
        buddy.free(one)
    check_blocks(buddy, {})
    assert buddy.free_blocks() == (tuple(range(domain.size)),)


def check_parts(buddy: BuddyAllocator, found: Allocation, free: set[int], wanted: int) -> None:
    """Of its domain's parts as few as would do."""
    tree = buddy.tree
    near = tree.domains[LEVELS.index(found.level)]
    domain = next((block for block in near if {*found.devices} <= {*buddy.devices((block,))}), None)
    if domain is None or not tree.parts[domain]:
        return
    counts = sorted((len(free & {*buddy.devices((part,))}) for part in tree.parts[domain]), reverse=True)
    least = next(n for n in range(len(counts) + 1) if sum(counts[:n]) >= wanted)
    used = [part for part in tree.parts[domain] if {*buddy.devices((part,))} & {*found.devices}]
    assert len(used) == least


@pytest.mark.parametrize("seed", range(8))
def test_larger_sites_in_the_same_way(seed: int) -> None:
    rng = Random(seed)
    domain = uniform_domain(rng.randint(5, 20), rng.choice((4, 6, 8)), island=2, nodes_per_rack=rng.choice((0, 4)))
    for maker in (BuddyAllocator, WholeBlocks):
        buddy, held = maker(domain), dict[int, Allocation]()
        for number in range(600):
            wanted = rng.choice((1, 1, 2, 2, 3, 4, 5, 8, 12, 16))
            free = {device for block in buddy.free_blocks() for device in block}
            found = buddy.allocate(wanted)
            if maker is BuddyAllocator and number % 20 == 0:
                assert near_devices(domain, free, wanted) == (None if found is None else found.devices)
            if found is not None:
                held[found.id] = found
            while held and (found is None or buddy.free_devices < domain.size // 8):
                found = held.pop(rng.choice(sorted(held)))
                buddy.free(found)
            if number % 100 == 0:
                check_blocks(buddy, held)
        for one in held.values():
            buddy.free(one)
        check_blocks(buddy, {})


def test_the_two_slips_of_the_listing() -> None:
    three = WholeBlocks(Domain(level="node", devices=4)).allocate(3)
    assert three is not None
    assert three.devices == (0, 1, 2, 3)
    buddy = WholeBlocks(Domain(level="node", devices=8))
    two = buddy.allocate(2)
    assert two is not None
    assert two.devices == (0, 1)
    assert buddy.free_blocks() == ((2, 3), (4, 5, 6, 7))


def test_three_is_two_and_one() -> None:
    buddy = BuddyAllocator(uniform_domain(2, 4))
    three = buddy.allocate(3)
    assert three is not None
    assert (three.devices, [buddy.tree.size[block] for block in three.blocks]) == ((0, 1, 2), [2, 1])
    assert three.level == "island"
    one, four = buddy.allocate(1), buddy.allocate(4)
    assert one is not None
    assert four is not None
    assert (one.devices, four.devices, buddy.free_devices) == ((3,), (4, 5, 6, 7), 0)


def test_near_fragments_before_a_whole_node() -> None:
    """Two devices that are left of a node, in both halves, serve a request of 2, and the free node stays whole."""
    buddy = BuddyAllocator(uniform_domain(2, 4))
    first = [buddy.allocate(1) for _ in range(4)]
    assert all(first)
    buddy.free(first[0])  # type: ignore[arg-type]
    buddy.free(first[2])  # type: ignore[arg-type]
    two = buddy.allocate(2)
    assert two is not None
    assert two.devices == (0, 2)
    assert buddy.free_blocks() == ((4, 5, 6, 7),)


def test_a_level_is_kept_before_a_block_is_whole() -> None:
    """Nodes of one device beside a node of 4: 2 devices come from the one node, though a free block of 2 is there."""
    lone = Domain(level="node", devices=1)
    buddy = BuddyAllocator(Domain(level="site", parts=(lone, lone, Domain(level="node", devices=4))))
    two = buddy.allocate(2)
    assert two is not None
    assert (two.devices, two.level) == ((2, 3), "node")


def test_wrong_requests() -> None:
    buddy = BuddyAllocator(Domain(level="node", devices=4))
    found = buddy.allocate(4)
    assert found is not None
    assert buddy.allocate(1) is None
    buddy.free(found)
    with pytest.raises(ValueError, match="not held"):
        buddy.free(found)
    with pytest.raises(ValueError, match="at least 1"):
        buddy.allocate(0)
    with pytest.raises(ValueError, match="lower levels"):
        Domain(level="node", parts=(Domain(level="rack", devices=2),))
    with pytest.raises(ValueError, match="devices or parts"):
        Domain(level="node")


def test_domains_of_a_site() -> None:
    device, link = load_device("a100-80gb"), load_link("ib-hdr200")
    nodes = default_nodes(device, count=5, devices=8)
    other = default_nodes(load_device("v100-32gb"), count=2, devices=4)
    site = Site(
        name="north", nodes=(other, nodes), fabric_link=link, network=equal_pods(other.count + nodes.count, pods=2)
    )
    domain, slots = domain_of_site(site, device.name)
    assert [part.level for part in domain.parts] == ["pod", "pod"]
    assert [part.size for part in domain.parts] == [16, 24]
    assert (len(slots), slots[0].node, slots[8].node, slots[8].index) == (40, 2, 3, 0)
    tree = Tree(domain)
    assert [len(blocks) for blocks in tree.domains] == [0, 5, 0, 0, 2, 1]
    with pytest.raises(ValueError, match="a40"):
        domain_of_site(site, "a40")


def test_islands_in_nodes_and_over_nodes() -> None:
    device, link = load_device("a100-80gb"), load_link("ib-hdr200")
    pairs = default_nodes(device, count=2, devices=8)
    pairs = type(pairs)(**{name: getattr(pairs, name) for name in pairs.__slots__} | {"island_size": 2})
    site = Site(name="north", nodes=(pairs,), fabric_link=link)
    tree = Tree(domain_of_site(site, device.name)[0])
    assert {LEVELS[level]: len(blocks) for level, blocks in enumerate(tree.domains) if blocks} == {
        "island": 8,
        "node": 2,
        "site": 1,
    }
    racks = type(pairs)(**{name: getattr(pairs, name) for name in pairs.__slots__} | {"island_size": 16, "count": 5})
    tree = Tree(domain_of_site(Site(name="north", nodes=(racks,), fabric_link=link), device.name)[0])
    assert {LEVELS[level]: len(blocks) for level, blocks in enumerate(tree.domains) if blocks} == {
        "island": 5,
        "rack": 2,
        "site": 1,
    }


def two_levels(pods: int, leaves: int, nodes: int) -> Network:
    """So many pods of leaves of nodes; leaves are dealt round robin, so that no level's parts follow each other."""
    count = pods * leaves
    leaf = FabricLevel(
        name="leaf",
        parts=tuple(FabricPart(name=f"l{number}") for number in range(count)),
        part_of=tuple(node % count for node in range(count * nodes)),
    )
    pod = FabricLevel(
        name="pod",
        parts=tuple(FabricPart(name=f"p{number}") for number in range(pods)),
        part_of=tuple(number % pods for number in range(count)),
    )
    return Network(levels=(leaf, pod))


def test_all_levels_of_the_networks_tree_are_domains() -> None:
    device, link = load_device("a100-80gb"), load_link("ib-hdr200")
    site = Site(
        name="north",
        nodes=(default_nodes(device, count=12, devices=2),),
        fabric_link=link,
        network=two_levels(2, 3, 2),
    )
    domain, slots = domain_of_site(site, device.name)
    assert [part.level for part in domain.parts] == ["pod2", "pod2"]
    assert [[leaf.level for leaf in pod.parts] for pod in domain.parts] == [["pod"] * 3] * 2
    assert [slot.node for slot in slots[::2]] == [0, 6, 2, 8, 4, 10, 1, 7, 3, 9, 5, 11]
    tree = Tree(domain)
    assert {tree.levels[level]: len(blocks) for level, blocks in enumerate(tree.domains) if blocks} == {
        "island": 12,
        "pod": 6,
        "pod2": 2,
        "site": 1,
    }


def test_a_request_stays_in_the_lowest_part_of_the_tree_that_holds_it() -> None:
    device, link = load_device("a100-80gb"), load_link("ib-hdr200")
    network = two_levels(2, 3, 2)
    site = Site(name="n", nodes=(default_nodes(device, count=12, devices=2),), fabric_link=link, network=network)
    domain, slots = domain_of_site(site, device.name)
    for seed in range(40):
        rng = Random(seed)
        free = [number for number in range(24) if rng.random() < 0.6]
        wanted = rng.randint(2, 10)
        given = near_devices(domain, free, wanted)
        if given is None:
            assert len(free) < wanted
            continue
        paths = {number: (slots[number].node, *network.path(slots[number].node)) for number in free}
        for depth in range(3):
            inside = Counter(path[depth] for path in paths.values())
            if max(inside.values()) >= wanted:
                assert len({paths[number][depth] for number in given}) == 1, (seed, depth)
                break
