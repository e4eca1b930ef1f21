"""Crux's observations as a bench counts them: jobs at once, jobs that share a link, the pair under two leaves."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from bench.network.__main__ import main
from bench.network.lingjun import CLUSTER
from bench.network.observations import at_once, at_risk_of
from bench.network.pair import PAPER_ALONE_S, play_pairs
from bench.network.sitting import NAME, Stay, read_jobs, sit
from estimator.network.fabric import Seat, fabric_of
from profiles.cluster_file import load_cluster

TRACE = """job_id,submit_time_s,duration_s,gpus
a,0,100,16
b,50,100,24
c,100,60,8
d,150,60,4096
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / NAME).write_bytes(gzip.compress(TRACE.encode()))
    return tmp_path


def test_jobs_and_gpus_at_once(data: Path) -> None:
    """a and b run together, then b and c; what ends as another begins is not there with it."""
    assert at_once(read_jobs(data, 2048)) == (2, 40)


def stay(job: str, nodes: tuple[int, ...], start_s: float, end_s: float, devices: range = range(8)) -> Stay:
    seats = tuple(Seat(node=node, device=device) for node in nodes for device in devices)
    return Stay(job=job, gpus=len(seats), start_s=start_s, end_s=end_s, seats=seats)


def test_who_shares_a_link_at_some_time() -> None:
    """a and b meet on the NICs of node 0 while both are there; c, on the same later, and d, on one node, meet nobody; e
    and f have all ways up from leaf 1 between them, of which some are the same."""
    fabric = fabric_of(load_cluster(str(CLUSTER)))
    stays = [
        stay("a", (0, 9), 0.0, 10.0, range(4)),
        stay("b", (0, 17), 5.0, 10.0, range(2, 6)),
        stay("c", (0, 9), 10.0, 20.0),
        stay("d", (3,), 0.0, 20.0),
    ]
    shared, inside = at_risk_of(stays, fabric, 0)
    assert shared == {0, 1}
    assert inside <= shared
    crowd = [stay(str(number), (number, 16 + number), 0.0, 1.0) for number in range(8)]
    assert len(at_risk_of(crowd, fabric, 0)[0]) > 1


def test_jobs_sit_by_the_rule_for_as_long_as_they_ran(data: Path) -> None:
    cluster = load_cluster(str(CLUSTER))
    stays = sit(read_jobs(data, 2048), cluster, "same-switch")
    assert [(each.job, each.start_s, each.end_s, each.nodes) for each in stays] == [
        ("a", 0.0, 100.0, 2),
        ("b", 50.0, 150.0, 3),
        ("c", 100.0, 160.0, 1),
    ]
    assert all(len({seat.node // 8 for seat in each.seats}) == 1 for each in stays)


def test_a_pair_that_meets_is_slower_and_one_that_does_not_is_not() -> None:
    pair = play_pairs(25, 12)
    assert pair.alone_s == PAPER_ALONE_S
    assert pair.communication == pytest.approx(4 * play_pairs(100, 1).communication)
    met = pair.gpt_longer > 0.02
    assert 0 < met.sum() < 12
    assert (abs(pair.gpt_longer[~met]) < 0.02).all()
    assert pair.gpt_longer.max() < pair.communication * 2


def test_the_commands_print_tables(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["lingjun", "--data", str(data), "--collectives", "2"])
    said = capsys.readouterr().out
    rows = [line.split("|") for line in said.splitlines() if line.startswith("| every") or line.startswith("| steady")]
    assert "3 jobs" in said
    assert len(rows) == 5
    shares = [float(row[5].strip(" %")) for row in rows]
    assert max(shares) - min(shares) < 0.5
    main(["observations", "--data", str(data), "--hashes", "2", "--seeds", "1"])
    said = capsys.readouterr().out
    assert "| 5: GPUs at once | more than 1,000 | 4,104 |" in said
    assert "| random |" in said
