"""When all ways have been seen, how many ports that should take, and hops that fit none or several."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from estimator.network.probing.collecting import collect, expected_ports, likely_ports
from estimator.network.probing.hops import Trace
from profiles.errors import InputError

WAYS: dict[tuple[str, ...], float] = {("leaf0", f"spine{number}", "leaf1"): 0.25 for number in range(4)}
NAMES = {name: name for name in ("leaf0", "leaf1", "spine0", "spine1", "spine2", "spine3")} | {"10.0.0.9": "spine2"}


def trace(port: int, *hops: str) -> Trace:
    return Trace(port=port, hops=tuple((hop,) if hop else () for hop in hops), arrived=True)


def expected_by_subsets(shares: list[float]) -> float:
    """Of von Schelling: over all sets of coupons, with signs."""
    return sum(
        (-1.0) ** (size + 1) / sum(some) for size in range(1, len(shares) + 1) for some in combinations(shares, size)
    )


@pytest.mark.parametrize(
    "shares", [[1.0], [0.5, 0.5], [0.25] * 4, [0.7, 0.2, 0.1], [0.5, 0.25, 0.125, 0.0625, 0.0625], [1 / 12] * 12]
)
def test_ports_in_the_mean(shares: list[float]) -> None:
    assert expected_ports(shares) == pytest.approx(expected_by_subsets(shares), rel=1e-8)


def test_of_many_equal_ways_it_is_the_harmonic_sum() -> None:
    assert expected_ports([1 / 512] * 512) == pytest.approx(512 * sum(1 / n for n in range(1, 513)), rel=1e-6)


@pytest.mark.parametrize("count", [2, 4, 16])
def test_ports_with_a_confidence_hold_in_draws(count: int) -> None:
    rng, runs = random.Random(count), 3000
    ports = likely_ports([1 / count] * count, 0.95)
    missed = sum(len({rng.randrange(count) for _ in range(ports)}) < count for _ in range(runs)) / runs
    assert missed < 0.065
    assert likely_ports([1 / count] * count, 0.999) > ports
    assert likely_ports([1.0], 0.99) == 1


def test_it_stops_when_all_are_seen() -> None:
    drawn = iter([trace(port, "leaf0", f"spine{port % 4}", "leaf1") for port in (4, 8, 5, 6, 9, 7, 10, 11)])
    collected = collect(drawn, WAYS, NAMES)
    assert (collected.asked, collected.stopped, collected.unseen) == (6, "all seen", ())
    assert collected.ports[("leaf0", "spine0", "leaf1")] == (4, 8)
    assert next(drawn).port == 10
    every = collect([trace(port, "leaf0", f"spine{port % 4}") for port in range(9)], WAYS, NAMES, until_all_seen=False)
    assert (every.asked, every.stopped) == (9, "all seen")


def test_it_stops_when_nothing_new_is_to_be_expected() -> None:
    """Three of four ways are seen; the fourth would have been among 17 ports with 99%: 0.75^17 is 0.0075."""
    drawn = (trace(port, "leaf0", f"spine{port % 3}", "leaf1") for port in range(1000))
    collected = collect(drawn, WAYS, NAMES)
    assert (collected.asked, collected.stopped) == (17, "nothing new")
    assert collected.unseen == (("leaf0", "spine3", "leaf1"),)
    few = collect([trace(1, "leaf0", "spine0")], WAYS, NAMES)
    assert (few.stopped, len(few.unseen)) == ("ports ran out", 3)


def test_silent_switches_leave_a_trace_clear_or_not() -> None:
    domain = trace(4, "spine3.dc.example")
    traces = [trace(1, "", "spine1", ""), trace(2, "leaf0", "", "leaf1"), trace(3, "10.0.0.9"), domain]
    collected = collect(traces, WAYS, NAMES)
    assert {way[1]: ports for way, ports in collected.ports.items()} == {"spine1": (1,), "spine2": (3,), "spine3": (4,)}
    assert [each.port for each in collected.unclear] == [2]


@pytest.mark.parametrize(
    ("hops", "found"),
    [
        (("leaf0", "core7", "leaf1"), "core7, none of the cluster's switches"),
        (("leaf1", "spine0", "leaf0"), "leaf1 spine0 leaf0"),
        (("leaf0", "spine0", "spine1"), "leaf0 spine0 spine1"),
    ],
)
def test_hops_of_another_network(hops: tuple[str, ...], found: str) -> None:
    with pytest.raises(InputError) as caught:
        collect([trace(50_000, *hops)], WAYS, NAMES)
    assert caught.value.found == found
    assert "port 50000" in caught.value.where
