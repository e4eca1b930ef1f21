"""The testbed of machines: what ranks send, who sits where, what is said of it; and a job that runs."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from bench.testbed.cases import CLUSTERS
from bench.testbed.machines.cases import cases, pairs
from bench.testbed.machines.estimates import Line, Links, of_group_s, paired, walked_s, with_links
from bench.testbed.machines.moves import Move, core_of, moves
from bench.testbed.machines.report import PairRow, Row, print_pairs, print_paper, print_rows, verdicts
from bench.testbed.machines.running import Run, link_rounds, measure_links, run_rounds
from bench.testbed.machines.seats import HELD, MODELS, SIZE, WORKERS, Occupied, occupied, place, seat, seat_numbers
from bench.testbed.network import emulated_network
from estimator.communication.phases import bytes_between, collective_phases
from planner.many_jobs.placers.catalogue import PLACERS
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster

LINKS = Links(nic=Line(alpha_s=0.0, s_per_byte=1e-6), inside=Line(alpha_s=0.0, s_per_byte=1e-9))


def cluster() -> Cluster:
    return load_cluster(str(CLUSTERS / "eight-machines.yaml"))


@pytest.mark.parametrize("ranks", range(1, 18))
def test_every_rank_has_the_sum(ranks: int) -> None:
    """Run by hand: what one sends the other receives in the same turn, at the same place of the vector."""
    elements = 2 * core_of(ranks)
    vectors = np.arange(ranks * elements, dtype=float).reshape(ranks, elements)
    expected = vectors.sum(axis=0)
    waiting = [list(moves(rank, ranks, elements)) for rank in range(ranks)]
    sent: Counter[tuple[int, int]] = Counter()
    while any(waiting):
        pairs_ready = [
            (rank, waiting[rank][0].peer)
            for rank in range(ranks)
            if waiting[rank] and waiting[waiting[rank][0].peer] and waiting[waiting[rank][0].peer][0].peer == rank
        ]
        assert pairs_ready, "everybody waits"
        before, turn = vectors.copy(), {rank: waiting[rank].pop(0) for rank, _ in pairs_ready}
        for rank, peer in pairs_ready:
            _receive(vectors, before, rank, turn[rank], turn[peer])
            if (span := turn[rank].sends) is not None:
                sent[rank, peer] += span[1] - span[0]
    assert (vectors == expected).all()
    phases = collective_phases("halving-doubling", "all_reduce", ranks, elements)
    assert sent == {pair: size for pair, size in bytes_between(phases).items() if size}


def _receive(vectors: np.ndarray, before: np.ndarray, rank: int, own: Move, other: Move) -> None:
    assert own.receives == other.sends
    if own.receives is not None:
        here = slice(*own.receives)
        vectors[rank, here] = before[own.peer, here] + (before[rank, here] if own.adds else 0)


def test_a_vector_that_cannot_be_halved_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 8"):
        list(moves(0, 12, 20))


@pytest.mark.parametrize("seed", range(5))
def test_none_to_three_of_each_node_are_held(seed: int) -> None:
    nodes = occupied(seed)
    assert sorted(nodes.held) == sorted(HELD)
    assert nodes == occupied(seed)
    for rule in PLACERS:
        for workers in WORKERS:
            counts = place(rule, nodes, "vgg-16", workers)
            assert sum(count for _, count in counts) == workers
            assert all(0 < count <= nodes.free[node] for node, count in counts)


def test_seats_are_numbered_node_by_node() -> None:
    assert seat_numbers((1, 0, 1), (2, 3)) == (2, 0, 3)
    assert seat_numbers((1, 1), (2, 3), taken=(2,)) == (3, 4)
    with pytest.raises(ValueError, match="node 0 has 2"):
        seat_numbers((0, 0, 0), (2, 3))


def test_every_rule_has_its_job_and_same_jobs_are_one() -> None:
    found = cases(occupied(0), sorted(PLACERS), MODELS, WORKERS)
    assert len({(case.job.model, case.way, case.job.nodes) for case in found}) == len(found)
    for way in ("halving-doubling", "ring"):
        asked = Counter(
            (case.job.model, len(case.job.nodes), rule) for case in found if case.way == way for rule in case.rules
        )
        assert set(asked.values()) == {1}
        assert len(asked) == len(MODELS) * len(WORKERS) * len(PLACERS)
    for pair in pairs(occupied(0), MODELS):
        assert len(set(pair.jobs[0].nodes) & set(pair.jobs[1].nodes)) == 1


def test_the_phases_by_hand() -> None:
    """Two and two of halving-doubling: partners of the large phases together, a quarter twice over the NIC by both."""
    job = seat(((0, 2), (1, 2)), "vgg-16", "halving-doubling")
    inside_s = 2 * 0.5e-9
    assert walked_s(LINKS, job, 1) == pytest.approx(inside_s + 2 * 2 * 0.25e-6)
    apart = seat(((0, 2), (1, 2)), "vgg-16", "halving-doubling", by="nodes")
    assert walked_s(LINKS, apart, 1) == pytest.approx(2 * 0.25e-9 + 2 * 2 * 0.5e-6)
    assert walked_s(LINKS, apart, 1, {1: 2.0}) == pytest.approx(2 * 0.25e-9 + 2 * 2 * 2 * 0.5e-6)


@pytest.mark.parametrize("algorithm", ["halving-doubling", "ring"])
@pytest.mark.parametrize("counts", [((0, 4),), ((0, 2), (1, 2)), ((2, 1), (3, 1), (4, 1), (5, 1)), ((2, 4), (7, 4))])
def test_both_estimates_agree_on_even_nodes(algorithm, counts) -> None:  # type: ignore[no-untyped-def]
    job = seat(counts, "vgg-16", algorithm)
    group_s = of_group_s(with_links(cluster(), LINKS), job, 10**6)
    assert group_s == pytest.approx(walked_s(LINKS, job, 10**6), rel=2e-3)


def test_two_jobs_that_only_send_have_half_of_the_nic() -> None:
    jobs = (
        seat(((0, 1), (1, 1)), "vgg-16", "halving-doubling"),
        seat(((1, 1), (2, 1)), "vgg-16", "halving-doubling"),
    )
    sending = paired(LINKS, jobs, (10**6, 10**6), (0.0, 0.0))
    assert [(one.even_s, one.by_load_s) for one in sending] == [pytest.approx((2.0, 2.0))] * 2
    beside = paired(LINKS, jobs, (10**6, 10**6), (9.0, 9.0))[0]
    assert (beside.by_load_s, beside.even_s) == pytest.approx((10.1, 11.0))


def test_a_round_runs_and_sums(capsys: pytest.CaptureFixture[str]) -> None:
    """Five workers on two nodes, with a fold, beside two that share a node's NIC: at least as long as they sleep."""
    nodes = Occupied(held=(1, 1, *(SIZE,) * 6))
    alone = Run(nodes=(0, 1, 0, 1, 0), algorithm="halving-doubling", elements=4096, compute_s=0.02, steps=2)
    ring = Run(nodes=(0, 1), algorithm="ring", elements=4096, compute_s=0.01, steps=3, together=False)
    with emulated_network(cluster(), scale=0.01) as network:
        probes = link_rounds(nodes.free)
        found = run_rounds(network, nodes.free, [*probes, [alone], [ring, ring]], limit_s=120)
    links = measure_links(found[: len(probes)])
    assert links.nic.s_per_byte > 0
    assert [len(one.jobs) for one in found[len(probes) :]] == [1, 2]
    assert [len(job.spans_s) for one in found[len(probes) :] for job in one.jobs] == [2, 3, 3]
    assert found[-2].jobs[0].least_s >= 0.02
    assert min(job.least_s for job in found[-1].jobs) >= 0.01
    case = cases(occupied(0), ["titan"], ("vgg-16",), (4,))[0]
    rows = [Row(case=case, measured_s=2.0, walked_s=1.9, of_group_s=2.5, compute_s=1.0, cpu_share=0.1)]
    beside = [PairRow(name="a, first", alone_s=1.0, measured_s=2.0, range_s=(1.5, 2.5), even_s=2.2, by_load_s=1.9)]
    print_rows(rows)
    print_pairs(beside)
    print_paper(rows, occupied(0))
    shown = capsys.readouterr().out
    assert "| vgg-16 | 4 | halving-doubling | 2 + 2 | 2000.0 ms | 1900.0 | -5.0% | 2500.0 | +25.0% |" in shown
    assert "| a, first | 1000.0 ms | 2000.0 | 1500.0, 2500.0 | 2200.0 | +10.0% | 1900.0 | -5.0% |" in shown
    assert "phases walked: error 5.0% in the mean, 5.0% at worst of 1" in "\n".join(verdicts(rows, beside))
