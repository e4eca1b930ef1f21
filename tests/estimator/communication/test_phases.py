"""Who sends what to whom: bytes beside the closed forms, what everybody has at the end, and Titan's example."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.communication.phases import (
    ALGORITHMS,
    Algorithm,
    Phase,
    PhasedOp,
    bytes_across,
    bytes_between,
    collective_phases,
    exchanged_across,
)
from estimator.communication.rank_order import best_order, node_order, partners_together
from estimator.communication.tables import bus_factor
from profiles.vocabulary import CollectiveOp
from tests.oracles.rank_order_oracle import least_across

FORMS: list[tuple[Algorithm, PhasedOp]] = [(name, op) for name, ops in ALGORITHMS.items() for op in ops]
FACTORS: dict[PhasedOp, CollectiveOp] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "broadcast": "all_gather",
    "all_to_all": "all_to_all",
}
SIZE = 1e6


def sent_by(phases: tuple[Phase, ...]) -> defaultdict[int, float]:
    sent: defaultdict[int, float] = defaultdict(float)
    for (sender, _), size in bytes_between(phases).items():
        sent[sender] += size
    return sent


@pytest.mark.parametrize(("algorithm", "op"), FORMS)
def test_all_forms_send_what_the_closed_forms_count(algorithm: Algorithm, op: PhasedOp) -> None:
    for ranks in range(1, 65):
        phases = collective_phases(algorithm, op, ranks, SIZE)
        total = sum(bytes_between(phases).values())
        assert total == pytest.approx(ranks * bus_factor(FACTORS[op], ranks) * SIZE), ranks


def test_each_rank_of_a_ring_an_exchange_and_a_power_of_two_sends_its_share() -> None:
    for ranks in range(2, 65):
        for algorithm, op in FORMS:
            even = algorithm in ("ring", "exchange") or (algorithm == "halving-doubling" and ranks & (ranks - 1) == 0)
            if even and op != "broadcast":
                share = bus_factor(FACTORS[op], ranks) * SIZE
                sent = sent_by(collective_phases(algorithm, op, ranks, SIZE))
                assert sorted(sent) == list(range(ranks))
                assert list(sent.values()) == pytest.approx([share] * ranks)


def test_the_busiest_rank_of_two_trees_sends_all_bytes_up_and_down() -> None:
    for ranks in range(2, 65):
        sent = sent_by(collective_phases("tree", "all_reduce", ranks, SIZE))
        assert max(sent.values()) == pytest.approx(min(2, ranks / 2) * SIZE, rel=0.3)
        assert max(sent.values()) <= 2 * SIZE + 1
        # Both trees reach everybody: without the root of each, every rank has one above it in each.
        assert len(sent) == ranks


@pytest.mark.parametrize("ranks", [*range(1, 20), 32, 33, 47, 64])
def test_everybody_has_everything_at_the_end_of_halving_and_doubling(ranks: int) -> None:
    """Ranks pass on all that they know: whom each has heard of, after an all_gather and an all_reduce."""
    for op in ("all_gather", "all_reduce"):
        heard = {rank: {rank} for rank in range(ranks)}
        for phase in collective_phases("halving-doubling", op, ranks):
            before = {rank: set(known) for rank, known in heard.items()}
            for sender, receiver, _ in phase.flows:
                heard[receiver] |= before[sender]
        assert all(known == set(range(ranks)) for known in heard.values())


@pytest.mark.parametrize("ranks", [*range(2, 20), 64])
@pytest.mark.parametrize("algorithm", ["ring", "halving-doubling"])
def test_a_broadcast_reaches_everybody_once(algorithm: Algorithm, ranks: int) -> None:
    reached = {0}
    given_to: defaultdict[int, float] = defaultdict(float)
    for phase in collective_phases(algorithm, "broadcast", ranks, SIZE):
        for sender, receiver, size in phase.flows:
            assert sender in reached
            reached.add(receiver)
            given_to[receiver] += size
    assert reached == set(range(ranks))
    assert dict(given_to) == dict.fromkeys(range(1, ranks), SIZE)


def test_a_reduce_scatter_is_an_all_gather_backwards() -> None:
    for ranks in (4, 6, 13):
        gathered = bytes_between(collective_phases("halving-doubling", "all_gather", ranks, SIZE))
        scattered = bytes_between(collective_phases("halving-doubling", "reduce_scatter", ranks, SIZE))
        assert scattered == pytest.approx({(b, a): size for (a, b), size in gathered.items()})


def test_what_has_no_form_is_refused() -> None:
    with pytest.raises(ValueError, match="tree of broadcast over 4 ranks"):
        collective_phases("tree", "broadcast", 4)
    with pytest.raises(ValueError, match="over 0 ranks"):
        collective_phases("ring", "all_reduce", 0)
    with pytest.raises(ValueError, match="1 or more of each"):
        best_order("ring", (2, 0))


def test_titans_example() -> None:
    """Section II-B: workers 1 to 4, of which 1-3 and 2-4 exchange most; K for the parameters."""
    phases = collective_phases("halving-doubling", "all_reduce", 4)
    assert [phase.flows[0][2] for phase in phases] == [1 / 2, 1 / 4, 1 / 4, 1 / 2]
    assert {frozenset(flow[:2]) for flow in phases[0].flows} == {frozenset({0, 2}), frozenset({1, 3})}
    whole, hived, titan = (0, 0, 0, 0), (0, 0, 0, 1), (0, 1, 0, 1)
    assert [exchanged_across(phases, seats) for seats in (whole, hived, titan)] == [0, 3 / 2, 1]
    # Each of the two sends as much as the other: both ways together it is twice that.
    assert [bytes_across(phases, seats) for seats in (whole, hived, titan)] == [0, 3, 2]
    assert best_order("halving-doubling", (2, 2)) == titan
    free, workers = (4, 3, 2, 1), 4
    in_use = {"elasticflow": (4, 0, 0, 0), "hived": (0, 3, 0, 1), "titan": (0, 2, 2, 0)}
    held = {
        name: sum(left < 4 or taken > 0 for left, taken in zip(free, by, strict=True)) for name, by in in_use.items()
    }
    assert all(sum(taken) == workers for taken in in_use.values())
    assert held == {"elasticflow": 4, "hived": 3, "titan": 3}


counts_of = st.lists(st.integers(1, 5), min_size=1, max_size=4).filter(lambda counts: sum(counts) <= 9)


@given(counts_of, st.sampled_from([form for form in FORMS if form[1] != "broadcast"]))
def test_no_order_of_the_ranks_sends_less(counts: list[int], form: tuple[Algorithm, PhasedOp]) -> None:
    algorithm, op = form
    phases = collective_phases(algorithm, op, sum(counts))
    seats = best_order(algorithm, counts, op)
    assert [seats.count(node) for node in range(len(counts))] == counts
    assert bytes_across(phases, seats) == pytest.approx(least_across(phases, counts))


@given(st.lists(st.integers(1, 12), min_size=2, max_size=20), st.sampled_from(["ring", "tree", "halving-doubling"]))
def test_beyond_sixteen_ranks_it_is_never_worse_than_the_order_of_the_nodes(
    counts: list[int], algorithm: Algorithm
) -> None:
    counts = [*counts, 16]
    phases = collective_phases(algorithm, "all_reduce", sum(counts))
    seats = best_order(algorithm, counts)
    assert [seats.count(node) for node in range(len(counts))] == counts
    assert bytes_across(phases, seats) <= bytes_across(phases, node_order(counts)) * (1 + 1e-12)


@pytest.mark.parametrize("ranks", [1, 2, 3, 12, 64, 100])
def test_partners_together_is_an_order_of_all_ranks(ranks: int) -> None:
    assert sorted(partners_together(ranks)) == list(range(ranks))
