"""The bench of partly used machines: what it counts, on a trace that can be counted by hand."""

from __future__ import annotations

import gzip
from pathlib import Path
from random import Random

import pytest

from bench.machines.__main__ import main
from bench.machines.replay import MODELS, read_jobs, replay, vectors
from bench.machines.speed import NIC_BYTES_PER_S, Drawn, draw_budget, time_rule
from profiles.errors import InputError

COLUMNS = "job_id submit_time_s duration_s gpus nodes cpus mem_gb user vc_or_department job_type_or_name status queue_s"
HEADER = COLUMNS.replace(" ", ",") + "\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "philly.csv"
    path.write_text(HEADER + "a,0,100,6,,,,,,,,\nb,10,50,6,,,,,,,,\nc,20,40,4,,,,,,,,\n", encoding="utf-8")
    return path


def test_two_rules_by_hand(trace: Path) -> None:
    jobs = read_jobs(trace, 0)
    assert [job.devices for job in jobs] == [6, 6, 4]
    assert {job.workload.model for job in jobs} <= set(MODELS)
    best, titan = replay(jobs, "best-fit"), replay(jobs, "titan")
    # Six and six on nodes of their own, and four on a third; or four on what the two leave, two and two.
    assert best.nodes == pytest.approx((100 + 50 + 40) / 100)
    assert titan.nodes == pytest.approx((100 + 50) / 100)
    assert best.traffic == best.scattered == 0
    assert titan.scattered == pytest.approx(1 / 3)
    assert titan.traffic == pytest.approx(40 * 1.0 / 100)
    assert titan.traffic_in_node_order == pytest.approx(40 * 2.0 / 100)


def test_traffic_of_titans_example() -> None:
    assert vectors((3, 1))[0] == pytest.approx(3 / 2)
    assert list(vectors((2, 2))) == pytest.approx([1.0, 2.0])


def test_the_command_prints_a_row_for_each_rule(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace.rename(trace.with_name("philly.csv.gz"))
    path = trace.with_name("philly.csv.gz")
    path.write_bytes(gzip.compress(path.read_bytes()))
    main(["traces", "--data", str(path.parent), "--rules", "best-fit,titan"])
    printed = capsys.readouterr().out
    assert "| titan | 1.5 |" in printed
    assert "174, 11.7, 1.65" in printed


def test_a_rule_with_a_share_is_told_what_the_network_has_left() -> None:
    free = Drawn(Random(0), 70, 8)
    budget = draw_budget(Random(0), free)
    assert budget.gradient_bytes == pytest.approx(2 * 138e6, rel=0.01)
    for count, left in zip(free.free, budget.available.nics_bytes_per_s, strict=True):
        assert NIC_BYTES_PER_S * count / 8 <= left <= NIC_BYTES_PER_S
    ((racks, uplinks),) = budget.available.uplinks
    assert (max(racks) + 1, len(racks)) == (len(uplinks), 70)
    assert all(took_s > 0 for took_s in time_rule("titan share=0.1 reading=pairs", 70, placements=5))
    with pytest.raises(InputError, match="shares"):
        time_rule("titan shares=0.1", 70, placements=1)


def test_moves_by_hand(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The job of 2, beside one of 6 that ends, goes on beside that of 4, a minute later."""
    rows = "a,0,1000,6,,,,,,,,\nb,5,4000,2,,,,,,,,\nc,10,4000,4,,,,,,,,\n"
    trace.write_text(HEADER + rows, encoding="utf-8")
    jobs = read_jobs(trace, 0)
    still, moved = replay(jobs, "ours"), replay(jobs, "ours", defragment_s=500.0)
    assert still.nodes == pytest.approx((10 + 2 * 3995 + 5) / 4010)
    assert moved.nodes == pytest.approx((10 + 2 * 990 + 3065) / 4065)
    assert (still.moves, moved.moves) == (0, 1)
    assert moved.moves_device_hours == pytest.approx(2 * 60 / 3600)
    trace.with_name("philly.csv.gz").write_bytes(gzip.compress(trace.read_bytes()))
    asked = ["traces", "--data", str(trace.parent), "--ends", "none", "--rules"]
    main([*asked, "gandiva@500"])
    assert "| gandiva@500 |" in capsys.readouterr().out
    with pytest.raises(InputError, match="expected gandiva, ours"):
        main([*asked, "titan@500"])
