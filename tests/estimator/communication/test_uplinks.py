"""What passes the uplinks above the nodes, against an oracle that walks every byte; and what must hold of it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from estimator.communication.collectives import time_collective, time_stage_transfer
from estimator.communication.groups import describe_group
from estimator.communication.levels import Uplinks
from estimator.communication.uplinks import WAYS, above_pairs
from estimator.frontends.load import load_file_model
from estimator.pricing.company import Company
from estimator.pricing.evaluate import evaluate
from estimator.pricing.link_times import LinkTimes
from estimator.pricing.pricing import Pricing
from estimator.pricing.rank_groups import axis_groups
from estimator.pricing.recipe import Recipe, Setup, StageSetup
from profiles.cluster import Cluster, DeviceSlot
from profiles.cluster_file import load_cluster
from profiles.network import FabricLevel, FabricPart, Network, SpreadTable, equal_pods
from profiles.vocabulary import CollectiveOp, LinkTable
from tests.oracles.uplinks_oracle import bytes_sent, seconds_of, slowest_s, walk
from tests.seeds import seeds


def with_network(cluster: Cluster, network: Network) -> Cluster:
    return replace(cluster, sites=(replace(cluster.sites[0], network=network),))


def random_tree(rng: random.Random, nodes: int) -> Network:
    levels: list[FabricLevel] = []
    below = nodes
    for depth in range(rng.randint(1, 3)):
        count = rng.randint(1, max(1, below // 2))
        part_of = [*range(count), *(rng.randrange(count) for _ in range(below - count))]
        rng.shuffle(part_of)
        parts = [
            FabricPart(name=f"{depth}.{number}", oversubscription=rng.choice([0.5, 1, 2, 3.5, 8]))
            for number in range(count)
        ]
        levels.append(FabricLevel(name=f"l{depth}", parts=tuple(parts), part_of=tuple(part_of)))
        below = count
    return Network(levels=tuple(levels))


def random_cluster(rng: random.Random) -> Cluster:
    text = rng.choice(["a100-80gb:{}x2", "a40:{}x4", "h100:3x2+h100:{}x4"])
    cluster = load_cluster(text.format(rng.randint(3, 9)))
    return with_network(cluster, random_tree(rng, sum(group.count for group in cluster.sites[0].nodes)))


def random_stages(rng: random.Random, cluster: Cluster) -> tuple[StageSetup, ...]:
    slots = list(cluster.slots)
    if rng.random() < 0.7:
        rng.shuffle(slots)
    pp, tp = rng.randint(1, 3), rng.choice([1, 1, 2])
    ranks = len(slots) // pp // tp * tp
    return tuple(
        StageSetup(chunks=((0, 1),), slots=tuple(slots[number * ranks : (number + 1) * ranks]), tp=tp, dp=ranks // tp)
        for number in range(pp)
    )


def members_of(stage: StageSetup) -> list[tuple[DeviceSlot, ...]]:
    return [stage.slots[first :: stage.tp] for first in range(stage.tp)]


def test_uplinks_equal_the_walk_of_every_byte() -> None:
    counted = 0
    for seed in seeds(300, share=8):
        rng = random.Random(seed)
        cluster = random_cluster(rng)
        if not cluster.sites[0].network.is_shared:
            continue
        stages = random_stages(rng, cluster)
        every = [group for stage in stages for group in members_of(stage)]
        if len(every[0]) == 1:
            continue
        sent = {way: bytes_sent(cluster, every, way) for way in WAYS}
        company, layout = Company([stage.slots for stage in stages]), (stages[0].tp, stages[0].dp)
        for stage in stages:
            above = company.above(cluster, stage.slots, layout, [layout] * len(stages)).uplinks
            used = [bytes_sent(cluster, [group], "exchange") for group in members_of(stage)]
            wanted = {way: max(slowest_s(cluster, sent[way], links) for links in used) for way in WAYS}
            found = {way: getattr(above or Uplinks(), way) for way in WAYS}
            assert found == pytest.approx(wanted, rel=1e-12)
            counted += above is not None
            slowest = axis_groups(cluster, stage, "dp", beside=stages, company=company)
            assert slowest.group.levels[-1].above == (above if slowest.group.nodes > 1 else None)
    assert counted > 20


def test_messages_equal_the_walk_of_every_byte() -> None:
    for seed in seeds(200):
        rng = random.Random(seed)
        cluster = random_cluster(rng)
        if not cluster.sites[0].network.is_shared:
            continue
        slots = rng.sample(cluster.slots, len(cluster.slots))
        first, second = slots[: len(slots) // 2], slots[len(slots) // 2 : len(slots) // 2 * 2]
        sent = bytes_sent(cluster, [], "ring")
        for pair in zip(first, second, strict=True):
            walk(cluster, *pair, 1.0, sent)
        wanted = max((size * seconds_of(cluster, link[0]) for link, size in sent.items()), default=0.0)
        above = above_pairs(cluster, first, second, None).uplinks
        assert (above or Uplinks()).message == pytest.approx(wanted, rel=1e-12)


def test_messages_between_uneven_stages_equal_the_walk_of_every_byte() -> None:
    """One device and one NIC a node: a stage's activation is through when the fullest rank, NIC or uplink is."""
    size, held_back = 1e12, 0
    for seed in seeds(200):
        rng = random.Random(seed)
        nodes = rng.randint(3, 9)
        plain = load_cluster(f"a100-80gb:{nodes}x1")
        cluster = with_network(plain, random_tree(rng, nodes))
        slots = rng.sample(cluster.slots, nodes)
        senders = rng.randint(1, nodes - 1)
        first, second = slots[:senders], slots[senders : senders + rng.randint(1, nodes - senders)]
        byte_s = time_collective("send_recv", size, describe_group(plain, slots[:2])).seconds / size
        sent, busy_s = bytes_sent(cluster, [], "ring"), dict.fromkeys(slots, 0.0)
        for i, sender in enumerate(first):
            for j, receiver in enumerate(second):
                ends = min((i + 1) / len(first), (j + 1) / len(second)), max(i / len(first), j / len(second))
                share = max(0.0, ends[0] - ends[1])
                alone = bytes_sent(cluster, [], "ring")
                walk(cluster, sender, receiver, share, alone)
                lone_s = max(share * byte_s, slowest_s(cluster, alone, alone))
                busy_s[sender], busy_s[receiver] = busy_s[sender] + lone_s, busy_s[receiver] + lone_s
                for link, amount in alone.items():
                    sent[link] += amount
        wanted_s = size * max(*busy_s.values(), slowest_s(cluster, sent, sent))
        told = time_stage_transfer(cluster, first, second, size, to_tp=1)
        assert told.send_s == pytest.approx(wanted_s, rel=1e-5)
        held_back += told.send_s > 1.01 * time_stage_transfer(plain, first, second, size, to_tp=1).send_s
    assert held_back


def table_of(op: CollectiveOp, link: str, ranks: int) -> LinkTable:
    line = (2e-5, 1e-10)
    points = tuple((size, line[0] + line[1] * size) for size in (10**6, 10**9))
    return LinkTable(
        link=link,
        op=op,
        ranks=ranks,
        nodes=ranks,
        points=points,
        alpha_s=line[0],
        beta_s_per_byte=line[1],
        fit_error=0.0,
        source="inside a pod",
    )


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "all_to_all", "send_recv"])
def test_a_table_is_of_one_part_and_uplinks_count_on_top(op: CollectiveOp) -> None:
    plain = load_cluster("a100-80gb:8x1")
    thin, wide = (with_network(plain, equal_pods(8, pods=2, oversubscription=over)) for over in (8.0, 1.0))
    table = table_of(op, plain.sites[0].nodes[0].nic_link.name, 2)
    size, near, far = 1e9, (0, 1), (0, 4)

    def seconds(cluster: Cluster, nodes: tuple[int, int], *, as_placed: bool = False) -> float:
        group = describe_group(cluster, [cluster.slots[node] for node in nodes])
        return time_collective(op, size, group, tables=(table,), as_placed=as_placed).seconds

    measured_s = table.points[-1][1]
    assert seconds(thin, near) == seconds(wide, far) == seconds(plain, far) == measured_s
    # A pod's uplinks are half a NIC wide.
    assert seconds(thin, far) == pytest.approx(2e-5 + 2 * 1e-10 * size)
    assert seconds(thin, far, as_placed=True) == measured_s


def test_tables_of_the_very_groups_win_over_those_of_one_part() -> None:
    plain = load_cluster("a100-80gb:8x1")
    thin = with_network(plain, equal_pods(8, pods=2, oversubscription=8.0))
    pair = describe_group(thin, [thin.slots[0], thin.slots[4]])
    nic = plain.sites[0].nodes[0].nic_link.name
    inside, placed = table_of("all_reduce", nic, 2), replace(table_of("all_reduce", nic, 2), source="as placed")
    pricing = Pricing(link_tables=(inside,), placed_tables=(placed,))
    assert pricing.collective_time("all_reduce", 1e9, pair, pair, 1).seconds == placed.points[-1][1]
    message = Pricing(link_tables=(table_of("send_recv", nic, 2),), placed_tables=(placed,))
    assert message.collective_time("send_recv", 1e9, pair, pair, 1).seconds == pytest.approx(2e-5 + 0.2)
    neither = message.but(link_tables=()).collective_time("send_recv", 1e9, pair, pair, 1)
    assert not neither.table_ids


def dp_seconds(cluster: Cluster, stages: tuple[StageSetup, ...]) -> list[float]:
    company = Company([stage.slots for stage in stages])
    found = [axis_groups(cluster, stage, "dp", beside=stages, company=company) for stage in stages]
    return [
        time_collective(op, 1e9, axis.group, concurrent_groups=axis.concurrent).seconds
        for axis in found
        for op in ("all_reduce", "all_gather", "all_to_all")
    ]


def test_more_uplink_is_never_slower_and_names_change_nothing() -> None:
    for seed in seeds(100, share=8):
        rng = random.Random(seed)
        cluster = random_cluster(rng)
        stages = random_stages(rng, cluster)
        if stages[0].dp == 1:
            continue
        network = cluster.sites[0].network
        before = dp_seconds(cluster, stages)
        level = rng.randrange(len(network.levels))
        parts = list(network.levels[level].parts)
        number = rng.randrange(len(parts))
        parts[number] = replace(parts[number], oversubscription=parts[number].oversubscription / rng.choice([1.5, 10]))
        levels = list(network.levels)
        levels[level] = replace(levels[level], parts=tuple(parts))
        after = dp_seconds(with_network(cluster, Network(levels=tuple(levels))), stages)
        assert all(new <= old * (1 + 1e-12) for new, old in zip(after, before, strict=True))
        # Parts in another order, under other names.
        top = network.levels[-1]
        order = rng.sample(range(len(top.parts)), len(top.parts))
        renamed = replace(
            top,
            parts=tuple(replace(top.parts[old], name=f"x{old}") for old in order),
            part_of=tuple(order.index(part) for part in top.part_of),
        )
        same = dp_seconds(with_network(cluster, Network(levels=(*network.levels[:-1], renamed))), stages)
        assert same == pytest.approx(before, rel=1e-12)


def test_a_group_inside_one_part_does_not_see_what_is_above() -> None:
    plain = load_cluster("a100-80gb:8x8")
    thin = with_network(plain, equal_pods(8, pods=2, oversubscription=50.0))
    inside, across = plain.slots[:32:8], plain.slots[16:48:8]
    assert describe_group(thin, inside) == describe_group(plain, inside)
    assert describe_group(thin, across) != describe_group(plain, across)


def test_an_uplink_is_shared_by_what_crosses_it_alone() -> None:
    """Two pods of four nodes of 8 NICs behind uplinks of half of them: 16 NICs' worth for eight rings with one step
    across each, and for 32 rings of two nodes, one in either pod."""
    plain = load_cluster("a100-80gb:8x8")
    thin = with_network(plain, equal_pods(8, pods=2, oversubscription=2.0))
    whole = StageSetup(chunks=((0, 1),), slots=thin.slots, tp=8, dp=8)
    rings = axis_groups(thin, whole, "dp")
    above = rings.group.levels[-1].above
    nic = rings.group.levels[-1].bandwidth_bytes_per_s
    assert above is not None
    assert (above.ring, above.exchange, above.once) == pytest.approx((8 / (16 * nic), 16 / (16 * nic), 8 / (16 * nic)))
    size = 1e9
    unhindered = axis_groups(plain, whole, "dp")
    fast, held = (
        time_collective("all_gather", size, one.group, concurrent_groups=one.concurrent).seconds
        for one in (unhindered, rings)
    )
    assert held == fast
    half = [slot for node in range(4) for one in (node, node + 4) for slot in thin.slots[8 * one : 8 * one + 8]]
    apart = Company([half[16 * number : 16 * number + 16] for number in range(4)])
    stage = StageSetup(chunks=((0, 1),), slots=tuple(half[:16]), tp=8, dp=2)
    crowded = axis_groups(thin, stage, "dp", company=apart)
    lonely = axis_groups(plain, stage, "dp")
    times = [
        time_collective("all_gather", size, one.group, concurrent_groups=one.concurrent).seconds
        for one in (lonely, crowded)
    ]
    assert times[1] / times[0] == pytest.approx(2.0, rel=0.01)


def test_a_spread_table_is_of_the_parts_that_a_group_meets() -> None:
    plain = load_cluster("a100-80gb:8x8")
    table = SpreadTable(collective=(1.0, 0.9, 0.8), message=(1.0, 0.6, 0.3), source="here")
    pods = replace(equal_pods(8, pods=4).levels[0], spread=table)
    spread = with_network(plain, Network(levels=(pods,)))
    for nodes, share in ((2, 1.0), (4, 0.9), (6, 0.8), (8, 0.8)):
        group = spread.slots[: 8 * nodes : 8]
        whole, part = (describe_group(cluster, group).levels[-1] for cluster in (plain, spread))
        assert part.available(8) == pytest.approx(share * whole.available(8))
    # Four stages of two nodes: each pipeline meets four pods, and no message stays in its pod.
    stages = tuple(
        StageSetup(chunks=((0, 1),), slots=spread.slots[16 * number : 16 * number + 16], tp=8, dp=2)
        for number in range(4)
    )
    links = LinkTimes(pricing=Pricing(), cluster=spread, company=Company([stage.slots for stage in stages]))
    alone = replace(links, company=None)
    assert {pair.levels[-1].message_reach for pair in links.pairs(stages[0].slots, stages[1].slots)} == {0.3}
    assert {pair.levels[-1].message_reach for pair in alone.pairs(stages[0].slots, stages[1].slots)} == {0.6}
    near = links.pairs(spread.slots[:8], spread.slots[8:16])
    assert {pair.levels[-1].message_reach for pair in near} == {1.0}


def _wide(level: FabricLevel) -> FabricLevel:
    return replace(level, parts=tuple(replace(part, oversubscription=1.0) for part in level.parts))


def test_what_holds_nothing_back_changes_no_digit() -> None:
    plain = load_cluster("a100-80gb:6x8")
    model = load_file_model("gpt2-1.3b")
    for tree in (equal_pods(6, pods=3), random_tree(random.Random(5), 6)):
        parts = [
            replace(level, parts=tuple(replace(p, oversubscription=1.0) for p in level.parts)) for level in tree.levels
        ]
        wide = with_network(plain, Network(levels=tuple(parts)))
        slots = random.Random(1).sample(plain.slots, 48)
        for tp, dp in ((8, 3), (2, 12)):
            stages = tuple(
                StageSetup(
                    chunks=((13 * number, 13 * number + 13),), slots=tuple(slots[24 * number :][:24]), tp=tp, dp=dp
                )
                for number in range(2)
            )
            recipe = Recipe(global_batch=24, seq_len=1024)
            setup = Setup(model=model, cluster=plain, recipe=recipe, stages=stages, micro_batch=dp)
            assert evaluate(setup) == evaluate(replace(setup, cluster=wide))
