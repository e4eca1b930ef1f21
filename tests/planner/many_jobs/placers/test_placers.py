"""The rules of placement: what each says it does, Titan's beside exact solutions, and all of them on drawn nodes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.many_jobs.jobs.records import NodeCounts
from planner.many_jobs.placers.catalogue import PLACERS, make_placer
from planner.many_jobs.placers.model_skew import largest_share
from planner.many_jobs.placers.records import Later
from planner.many_jobs.placers.titan import divisions
from planner.many_jobs.sites.buddy import near_devices
from planner.many_jobs.sites.domains import domain_of_nodes
from profiles.errors import InputError
from profiles.network import PLAIN, FabricLevel, FabricPart, Network
from tests.oracles.nimp_oracle import least_nodes, objectives, ways
from tests.planner.many_jobs.placers.placer_examples import Nodes, request
from tests.seeds import seeds

Option = str | int | float | bool


def placed(
    name: str, free: tuple[int, ...], devices: int, size: int = 8, model: str = "bert-1.3b", **options: Option
) -> NodeCounts:
    chosen = make_placer(name, **options).place(Nodes(free), request(devices, size=size, model=model))
    assert not isinstance(chosen, Later)
    return chosen


nodes_and_wanted = (
    st.lists(st.integers(0, 8), min_size=1, max_size=24)
    .filter(any)
    .flatmap(lambda free: st.tuples(st.just(tuple(free)), st.integers(1, sum(free))))
)


@pytest.mark.parametrize("name", sorted(PLACERS))
@given(nodes_and_wanted)
def test_every_rule_gives_what_is_free_and_all_of_it(name: str, drawn: tuple[tuple[int, ...], int]) -> None:
    free, wanted = drawn
    chosen = placed(name, free, wanted)
    assert sum(count for _, count in chosen) == wanted
    assert len({node for node, _ in chosen}) == len(chosen)
    assert all(1 <= count <= free[node] for node, count in chosen)
    assert chosen == placed(name, free, wanted)


@pytest.mark.parametrize("name", ["best-fit", "gandiva", "elasticflow", "fragmentation-gradient", "near-ends"])
@given(nodes_and_wanted)
def test_who_consolidates_takes_one_node_where_one_holds_the_job(name: str, drawn: tuple[tuple[int, ...], int]) -> None:
    free, wanted = drawn
    if max(free) >= wanted:
        assert len(placed(name, free, wanted)) == 1


FREE = (8, 3, 5, 8, 1, 2)


@pytest.mark.parametrize(
    ("name", "devices", "expected"),
    [
        ("best-fit", 2, ((5, 2),)),
        ("best-fit", 4, ((2, 4),)),
        ("best-fit", 11, ((0, 8), (1, 3))),
        ("elasticflow", 2, ((0, 2),)),
        ("elasticflow", 18, ((0, 8), (3, 8), (5, 2))),
        ("hived", 4, ((4, 1), (5, 2), (1, 1))),
        ("hived", 12, ((4, 1), (5, 2), (1, 3), (2, 5), (0, 1))),
        ("hived-cells", 6, ((2, 4), (5, 2))),
        ("hived-cells", 8, ((0, 8),)),
        ("first-fit", 2, ((0, 2),)),
        ("first-fit", 10, ((0, 8), (1, 2))),
        ("kube-spread", 3, ((0, 2), (3, 1))),
        ("kube-pack", 4, ((4, 1), (5, 2), (1, 1))),
        ("gandiva", 1, ((4, 1),)),
        ("gandiva", 4, ((0, 4),)),
        ("gandiva", 16, ((0, 8), (3, 8))),
        ("titan", 2, ((5, 2),)),
        ("titan", 8, ((2, 5), (1, 3))),
        # 8, 5 and 2 would leave no more idle, and send more.
        ("titan", 15, ((0, 8), (2, 4), (1, 3))),
    ],
)
def test_what_each_rule_takes(name: str, devices: int, expected: NodeCounts) -> None:
    assert placed(name, FREE, devices) == expected


def test_slurm_takes_the_smallest_run_of_nodes_that_holds_the_job() -> None:
    assert placed("slurm", (8, 0, 3, 4, 0, 8, 8), 7) == ((2, 3), (3, 4))
    assert placed("slurm", (8, 0, 3, 5, 0, 8, 8), 12) == ((5, 8), (6, 4))
    # No run holds it: as few nodes as do.
    assert placed("slurm", (8, 0, 3, 5, 0, 8, 8), 24) == ((0, 8), (5, 8), (6, 8))


def test_titans_example_is_placed_as_its_figure_shows() -> None:
    """Section II-B: machines with 4, 3, 2 and 1 free of 4."""
    free = (4, 3, 2, 1)
    assert placed("elasticflow", free, 4, size=4) == ((0, 4),)
    assert placed("hived", free, 4, size=4, fragments="best-fit") == ((1, 3), (3, 1))
    assert placed("titan", free, 4, size=4) == ((2, 2), (1, 2))


def test_a_machine_more_than_is_needed_by_the_smallest_fragments() -> None:
    assert placed("hived", (4, 3, 2, 1), 4, size=4) == ((3, 1), (2, 2), (1, 1))


@pytest.mark.parametrize("seed", seeds(300, least=60))
def test_titan_meets_both_objectives_and_no_way_that_does_sends_less(seed: int) -> None:
    draw = Random(seed)
    size = draw.choice((2, 3, 4))
    free = tuple(draw.randint(0, size) for _ in range(draw.randint(1, 5)))
    if not any(free):
        return
    wanted = draw.randint(1, min(8, sum(free)))
    chosen = dict(placed("titan", free, wanted, size=size))
    found = objectives(free, size, [chosen.get(node, 0) for node in range(len(free))])
    assert found[:2] == least_nodes(free, size, wanted)
    assert found == min(objectives(free, size, counts) for counts in ways(free, wanted))


@pytest.mark.parametrize("seed", seeds(100, least=25))
def test_both_objectives_are_solved_by_sorting(seed: int) -> None:
    """What Theorem 1 calls hard: knapsacks whose items all weigh one, on up to 40 nodes of 8, beside HiGHS."""
    draw = Random(seed)
    free = tuple(draw.randint(0, 8) for _ in range(draw.randint(1, 40)))
    wanted = draw.randint(1, max(1, sum(free)))
    if wanted > sum(free):
        return
    chosen = placed("titan", free, wanted)
    opened = sum(free[node] == 8 for node, _ in chosen)
    beside = sum(count for count in free if count < 8)
    assert opened == -(-max(0, wanted - beside) // 8)
    assert (opened, len(chosen)) == least_nodes(free, 8, wanted)


@given(st.integers(1, 12), st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_divisions_are_all_there_are(wanted: int, limits: list[int]) -> None:
    limits.sort(reverse=True)
    expected = {tuple(sorted(counts, reverse=True)) for counts in ways(limits, wanted) if all(counts)}
    found = list(divisions(wanted, limits))
    assert len(found) == len(set(found))
    assert set(found) == expected


def test_ends_near_each_other_decide_between_equal_nodes_alone() -> None:
    nodes = Nodes((3, 4, 3, 8), {0: 100.0, 1: 10.0, 2: 1000.0})
    rule = make_placer("near-ends")
    assert rule.place(nodes, request(3, end_s=900.0)) == ((2, 3),)
    assert rule.place(nodes, request(3, end_s=200.0)) == ((0, 3),)
    assert rule.place(nodes, request(3)) == ((0, 3),)
    assert rule.place(nodes, request(4, end_s=1000.0)) == ((1, 4),)


def test_tiresias_consolidates_models_with_a_tensor_that_outweighs_the_rest() -> None:
    share = largest_share("gpt-mini")
    assert share is not None
    assert share == pytest.approx(8192 * 512 / 23175168, rel=0.01)
    assert largest_share("as logged") is None
    free = (8, 3, 1)
    apart, together = ((2, 1), (1, 1)), ((1, 2),)
    assert placed("tiresias", free, 2, model="gpt-mini", skew=share + 0.01) == apart
    assert placed("tiresias", free, 2, model="gpt-mini", skew=share - 0.01) == together
    assert placed("tiresias", free, 2, model="as logged") == together


def test_the_gradient_keeps_whole_what_larger_tasks_need() -> None:
    # With every second task of four devices, taking one of five leaves four that are no fragments.
    assert placed("fragmentation-gradient", (4, 5), 1, sizes="1:0.5,4:0.5") == ((1, 1),)
    # With tasks of one alone nothing is ever a fragment: the fullest.
    assert placed("fragmentation-gradient", (4, 5), 1, sizes="1:1") == ((0, 1),)


def test_random_draws_by_its_seed() -> None:
    drawn = {placed("random", (8,) * 16, 4, seed=seed) for seed in range(8)}
    assert len(drawn) > 1


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("tytan", {}, "one of arnold, best-fit"),
        ("mine:Rule", {}, "named on the command line"),
        ("titan", {"algorithm": "star"}, "ring, tree or halving-doubling"),
        ("titan", {"depth": 3}, "no such option"),
        ("titan", {"share": -0.1}, "a share of 0 or more"),
        ("titan", {"share": 0.1, "reading": "hosts"}, "links or pairs"),
        ("titan", {"reading": "pairs"}, "reading=pairs without a share"),
        ("elasticflow", {"idle_first": 3}, "true or false"),
        ("arnold", {"alpha": 2.0}, "a share from 0 to 1"),
        ("arnold", {"columns": 0}, "1 or more"),
        ("ours", {"wait": 3}, "true or false"),
        ("hived", {"fragments": "all"}, "smallest or best-fit"),
        ("fragmentation-gradient", {"sizes": "one:1"}, "such as 1:0.7,8:0.3"),
    ],
)
def test_what_no_rule_is_or_takes(name: str, options: dict[str, Option], said: str) -> None:
    with pytest.raises(InputError, match=said):
        make_placer(name, **options)


def pods_of(*sizes: int) -> Network:
    """A network of pods of so many nodes, whose uplinks hold something back."""
    parts = tuple(FabricPart(name=f"pod{number}", oversubscription=2.0) for number in range(len(sizes)))
    part_of = tuple(number for number, size in enumerate(sizes) for _ in range(size))
    return Network(levels=(FabricLevel(name="pod", parts=parts, part_of=part_of),))


@pytest.mark.parametrize("seed", seeds(200, least=40))
def test_buddy_is_the_sites_allocator_on_devices(seed: int) -> None:
    draw = Random(seed)
    size, nodes = draw.choice((1, 2, 4, 6, 8)), draw.randint(1, 9)
    free = [draw.randint(0, size) for _ in range(nodes)]
    network = draw.choice((PLAIN, pods_of(*([nodes] if nodes < 2 else [nodes // 2, nodes - nodes // 2]))))
    wanted = draw.randint(1, max(1, sum(free)))
    if wanted > sum(free):
        return
    asked = replace(request(wanted, size=size), network=network)
    domain, order = domain_of_nodes(network, nodes, size)
    devices = [place * size + index for place, node in enumerate(order) for index in range(size - free[node], size)]
    expected = Counter(order[device // size] for device in near_devices(domain, devices, wanted) or ())
    assert dict(make_placer("buddy").place(Nodes(free), asked)) == expected  # type: ignore[arg-type]


def test_arnold_takes_the_pods_of_least_spread_and_best_fit_else() -> None:
    nodes, network = Nodes((8, 8, 8, 5, 8, 8, 8, 8)), pods_of(4, 4)
    rule = make_placer("arnold")

    def placed_in(devices: int) -> NodeCounts:
        chosen = rule.place(nodes, replace(request(devices), network=network))
        assert not isinstance(chosen, Later)
        return chosen

    assert placed_in(32) == ((4, 8), (5, 8), (6, 8), (7, 8))
    # Of pods that are equal to the spread the larger one.
    assert {node for node, _ in placed_in(24)} == {4, 5, 6}
    # Best-fit: a rest, one node, no pods.
    assert placed_in(28) == placed("best-fit", nodes.free, 28)
    assert placed_in(8) == ((0, 8),)
    assert placed("arnold", nodes.free, 32) == placed("best-fit", nodes.free, 32)


@pytest.mark.parametrize("seed", seeds(100, least=25))
def test_no_nodes_have_less_spread_than_arnolds(seed: int) -> None:
    """Of one column the spread is that of its rows over pods: as few pods as hold it."""
    draw = Random(seed)
    sizes = [draw.randint(1, 4) for _ in range(draw.randint(2, 4))]
    free = [draw.choice((8, 8, 3)) for _ in range(sum(sizes))]
    idle = [node for node, count in enumerate(free) if count == 8]
    if len(idle) < 2:
        return
    wanted, network = draw.randint(2, len(idle)), pods_of(*sizes)
    pod_of = network.part_of_node[0]
    chosen = make_placer("arnold").place(Nodes(free), replace(request(8 * wanted), network=network))
    assert isinstance(chosen, tuple)
    assert all(free[node] == count == 8 for node, count in chosen)
    fewest = min(len({pod_of[node] for node in some}) for some in combinations(idle, wanted))
    assert len({pod_of[node] for node, _ in chosen}) == fewest
