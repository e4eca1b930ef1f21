"""The bench of queue pairs: its cases are the same again, and its tables say what was played."""

from __future__ import annotations

import pytest

from bench.contention import queue_pairs
from bench.contention.queue_pairs import BENCHES, _case, _chosen, _played, _table
from planner.contention.emitting.queue_pairs import PAIRS


@pytest.mark.parametrize("bench", BENCHES, ids=lambda bench: bench.name)
def test_a_case_is_the_same_again_and_no_host_has_two_jobs(bench: queue_pairs.Bench) -> None:
    _, jobs = _case(bench, 3)
    _, again = _case(bench, 3)
    assert [(job.id, job.seats, job.flops) for job in jobs] == [(job.id, job.seats, job.flops) for job in again]
    assert [job.seats for job in jobs] != [job.seats for job in _case(bench, 4)[1]]
    hosts = [{seat.node for seat in job.seats} for job in jobs]
    assert all(len(own) == bench.each for own in hosts)
    assert len(set().union(*hosts)) == bench.jobs * bench.each


def test_pairs_are_played_under_the_same_draws() -> None:
    shares = _played(BENCHES[0], 1, 2, 0, "collective")
    assert [pair for pair in PAIRS if pair in shares] == list(shares)
    assert {len(own) for own in shares.values()} == {2}
    assert all(0 < share <= 1.001 for own in shares.values() for share in own)


def test_tables_stand_beside_one_queue_pair() -> None:
    shares = {
        (1, False): [0.5, 0.6, 0.5, 0.6, 0.5, 0.6],
        (2, False): [0.7, 0.5, 0.7, 0.5, 0.7, 0.5],
        (4, False): [0.6, 0.6, 0.6, 0.6, 0.6, 0.9],
    }
    rows = list(_table(shares, draws=6))
    assert rows[2].startswith("| 1 | no | 55.0 | 5.5 | 50.0 | 60.0 |  |")
    assert rows[3].endswith("| +5.0 | 16.4 | 50% |")
    (said,) = _chosen(shares, cases=1, draws=6)
    assert "-10.00 points over one queue pair" in said
    assert "40.00 points below the best pair" in said
