"""The lingjun cluster's rule of one host or one switch, and where the trace had the jobs."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.many_jobs.jobs.records import NodeCounts
from planner.many_jobs.placers.records import Request
from planner.many_jobs.placers.same_switch import SameSwitch
from planner.many_jobs.placers.trace import FromTrace
from profiles.errors import InputError
from profiles.network import FabricLevel, FabricPart, Network
from tests.planner.many_jobs.placers.placer_examples import Nodes, request


def level(name: str, part_of: tuple[int, ...]) -> FabricLevel:
    parts = tuple(FabricPart(name=f"{name}{number}") for number in range(max(part_of) + 1))
    return FabricLevel(name=name, parts=parts, part_of=part_of)


TREE = Network(
    levels=(level("leaf", (0, 0, 0, 1, 1, 2, 2, 2, 3, 3)), level("pod", (0, 0, 1, 1))),
    hosts=tuple(f"h{number}" for number in range(10)),
)
"""Four leaves of 3, 2, 3 and 2 nodes in two pods."""


def placed(free: tuple[int, ...], devices: int) -> NodeCounts:
    chosen = SameSwitch().place(Nodes(free), replace(request(devices), network=TREE))
    assert sum(count for _, count in chosen) == devices
    return chosen


def test_one_host_then_one_switch_then_one_pod() -> None:
    free = (8, 2, 4, 8, 3, 8, 8, 8, 8, 4)
    assert placed(free, 3) == ((4, 3),)
    assert placed(free, 11) == ((3, 8), (4, 3))  # Leaf 1 has just 11; leaf 3 has 12, leaf 0 has 14.
    assert placed(free, 12) == ((8, 8), (9, 4))
    assert {node for node, _ in placed(free, 25)} == {0, 1, 2, 3, 4}  # Pod 0 has just 25.
    assert placed(free, 28) == ((5, 8), (6, 8), (7, 8), (9, 4))  # Pod 1: its emptiest leaf, then the rest on one node.
    assert {node for node, _ in placed(free, 40)} >= {5, 6, 7, 8, 9}


@given(st.lists(st.integers(0, 8), min_size=10, max_size=10).filter(any), st.data())
def test_as_few_switches_as_any_choice(free: list[int], data: st.DataObject) -> None:
    """Where a tier has one switch with room the job sits below one; else below as few of the highest as would do."""
    wanted = data.draw(st.integers(1, sum(free)))
    chosen = {node for node, _ in placed(tuple(free), wanted)}
    for row in TREE.part_of_node:
        sums = [sum(count for count, part in zip(free, row, strict=True) if part == number) for number in range(4)]
        least = next(size for size in range(1, 5) if any(sum(some) >= wanted for some in combinations(sums, size)))
        top = row == TREE.part_of_node[-1]
        if least == 1 or top:
            assert len({row[node] for node in chosen}) == least
            return


def test_nodes_of_one_switch_follow_each_other() -> None:
    chosen = placed((8,) * 10, 80)
    leaves = [TREE.part_of_node[0][node] for node, _ in chosen]
    assert sum(one != other for one, other in pairwise(leaves)) == 3


def traced(hosts: tuple[tuple[str, int], ...], devices: int = 12) -> Request:
    asked = replace(request(devices), network=TREE)
    return replace(asked, job=replace(asked.job, devices=12, hosts=hosts))


def test_a_job_sits_where_the_trace_has_it() -> None:
    assert FromTrace().place(Nodes((8,) * 10), traced((("h7", 8), ("h2", 4)))) == ((7, 8), (2, 4))


@pytest.mark.parametrize(
    ("hosts", "devices", "expected"),
    [
        ((("h7", 8), ("elsewhere", 4)), 12, {7: 8, 0: 4}),  # The pool lacks it.
        ((("h7", 8), ("h3", 4)), 12, {7: 8, 3: 1, 9: 3}),  # Of h3 one is free.
        ((("h3", 4), ("h7", 8)), 12, {3: 1, 7: 8, 9: 3}),
        ((), 12, {1: 8, 0: 4}),
        ((("h7", 8), ("h2", 4)), 11, {1: 8, 9: 3}),  # Another number of devices than in the trace.
    ],
)
def test_what_is_not_free_there_is_found_elsewhere(
    hosts: tuple[tuple[str, int], ...], devices: int, expected: dict[int, int]
) -> None:
    free = (4, 8, 8, 1, 8, 8, 8, 8, 8, 3)
    assert dict(FromTrace().place(Nodes(free), traced(hosts, devices))) == expected
    if expected != {7: 8, 2: 4}:
        with pytest.raises(InputError, match="elsewhere"):
            FromTrace(strict=True).place(Nodes(free), traced(hosts, devices))


def test_hosts_need_names() -> None:
    with pytest.raises(InputError, match="--topology"):
        FromTrace().place(Nodes((8,) * 10), replace(traced((("h7", 12),)), network=Network(levels=TREE.levels)))
