"""Fair paces: by hand, against linear programmes, and what must hold of any."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.network.rates import Ways, fair_paces, make_ways
from tests.oracles.fair_oracle import Way, lexicographic_paces
from tests.seeds import seeds


def paces(ways: Sequence[Way], rates: list[float], **given: Sequence[float]) -> list[float]:
    arrays = {name: np.array(values) for name, values in given.items()}
    found = fair_paces(make_ways(ways, len(rates)), np.array(rates), **arrays)
    return [float(pace) for pace in found]


def test_equal_users_of_one_link() -> None:
    assert paces([[(0, 1.0)]] * 4, [10.0]) == [2.5] * 4


def test_the_parking_lot() -> None:
    """One user over all links, one on each: half each; a thinner link gives its own user what is left elsewhere."""
    ways: list[Way] = [[(0, 1.0), (1, 1.0), (2, 1.0)], [(0, 1.0)], [(1, 1.0)], [(2, 1.0)]]
    assert paces(ways, [10.0, 10.0, 10.0]) == [5.0] * 4
    assert paces(ways, [10.0, 4.0, 10.0]) == [2.0, 8.0, 2.0, 8.0]


def test_levels_go_first_and_leave_the_rest() -> None:
    ways: list[Way] = [[(0, 1.0)], [(0, 1.0), (1, 1.0)], [(1, 1.0)]]
    assert paces(ways, [10.0, 4.0], levels=[1, 0, 1]) == [6.0, 4.0, 0.0]


def test_weights_and_own_limits() -> None:
    assert paces([[(0, 1.0)]] * 3, [12.0], weights=[1.0, 2.0, 3.0]) == pytest.approx([2.0, 4.0, 6.0])
    assert paces([[(0, 1.0)]] * 3, [12.0], most=[1.0, np.inf, np.inf]) == pytest.approx([1.0, 5.5, 5.5])


def test_a_collective_moves_in_step() -> None:
    """Three flows of one collective on a link count thrice; where it is held elsewhere, others get what it leaves."""
    assert paces([[(0, 1.0), (0, 1.0), (0, 1.0)], [(0, 1.0)]], [12.0]) == pytest.approx([3.0, 3.0])
    assert paces([[(0, 3.0), (1, 1.0)], [(0, 1.0)]], [12.0, 1.0]) == pytest.approx([1.0, 9.0])


def test_nobody_on_a_link_that_is_down_and_nothing_that_holds() -> None:
    assert paces([[(0, 1.0)], [(1, 1.0)], []], [0.0, 5.0]) == [0.0, 5.0, np.inf]
    assert paces([], [1.0]) == []


@pytest.mark.parametrize("way", [[(2, 1.0)], [(-1, 1.0)], [(0, 0.0)]])
def test_ways_that_cannot_be(way: Way) -> None:
    with pytest.raises(ValueError, match="links from"):
        make_ways([way], 2)


@pytest.mark.parametrize("seed", seeds(500))
def test_the_lexicographic_optimum(seed: int) -> None:
    rng = random.Random(seed)
    links, users = rng.randint(1, 7), rng.randint(1, 9)
    rates = [rng.choice([0.0, 1.0, 2.5, 10.0, rng.uniform(0.5, 20)]) for _ in range(links)]
    ways = [
        [(link, rng.choice([1.0, 1.0, 2.0, 0.5])) for link in rng.sample(range(links), rng.randint(1, links))]
        for _ in range(users)
    ]
    most = [rng.choice([1e3, 1e3, rng.uniform(0.1, 5)]) for _ in range(users)]
    weights = [rng.choice([1.0, 1.0, 2.0, 0.3]) for _ in range(users)]
    levels = [rng.randrange(rng.choice([1, 3])) for _ in range(users)]
    expected = lexicographic_paces(ways, rates, most, weights, levels)
    found = paces(ways, rates, most=most, weights=weights, levels=levels)
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)


@st.composite
def networks(draw: st.DrawFn) -> tuple[Ways, np.ndarray]:
    links = draw(st.integers(1, 30))
    ways = draw(
        st.lists(
            st.lists(st.tuples(st.integers(0, links - 1), st.floats(1e-3, 1e3)), min_size=1, max_size=6), max_size=30
        )
    )
    rates = draw(st.lists(st.just(0.0) | st.floats(1e-3, 1e12), min_size=links, max_size=links))
    return make_ways(ways, links), np.array(rates)


@given(networks())
def test_no_link_is_overfull_and_everybody_is_held_by_a_full_one(case: tuple[Ways, np.ndarray]) -> None:
    ways, rates = case
    found = fair_paces(ways, rates)
    used = np.bincount(ways.links, ways.amounts * found[ways.users], minlength=ways.link_count)
    assert (used <= rates * (1 + 1e-9)).all()
    for user in range(ways.user_count):
        held = [
            link
            for link in ways.links[ways.users == user]
            if used[link] >= rates[link] * (1 - 1e-9)
            and found[ways.users[ways.links == link]].max() <= found[user] * (1 + 1e-9)
        ]
        assert held


@given(networks(), st.randoms(use_true_random=False))
def test_who_is_called_what_changes_nothing(case: tuple[Ways, np.ndarray], rng: random.Random) -> None:
    ways, rates = case
    users, links = list(range(ways.user_count)), list(range(ways.link_count))
    rng.shuffle(users)
    rng.shuffle(links)
    renamed = Ways(
        user_count=ways.user_count,
        link_count=ways.link_count,
        users=np.array(users, dtype=np.int64)[ways.users],
        links=np.array(links, dtype=np.int64)[ways.links],
        amounts=ways.amounts,
    )
    rates_renamed = np.empty_like(rates)
    rates_renamed[links] = rates
    found = fair_paces(renamed, rates_renamed)[users] if users else np.array([])
    assert found == pytest.approx(fair_paces(ways, rates), rel=1e-9)
