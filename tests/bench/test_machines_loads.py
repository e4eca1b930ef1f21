"""The bench of loads: how arrivals are stretched, what an iteration takes where, and what a few jobs come to."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from bench.machines.__main__ import main
from bench.machines.load_tables import Point, beside, lines_of, mean_and_half, reached, run_all
from bench.machines.loads import (
    DRAWN,
    NIC_BYTES_PER_S,
    Found,
    SharedNics,
    all_reduce_s,
    compute_s,
    draw_jobs,
    iteration_s,
    racks_and_pods,
    run,
    stretch_of,
    whole,
)
from bench.machines.profit import measure_profit
from planner.many_jobs.jobs.records import Grant, Job, Workload
from planner.many_jobs.traces.records import TraceRow


def row(line: int, at_s: float, duration_s: float, gpus: int) -> TraceRow:
    return TraceRow(line=line, job_id=f"j{line}", submit_time_s=at_s, duration_s=duration_s, gpus=gpus)


ROWS = [row(n, 50.0 * n, 400.0 + 37 * (n % 7), 1 + n * 5 % 12) for n in range(40)]


def found(**changed: float) -> Found:
    usual = {"jct_s": 7200.0, "large_wait_s": 0.0, "machine_hours": 10.0, "cross_node_bytes": 1e15}
    return Found(**{**usual, "scattered": 0.0, "utilization": 0.5, "cpu_s": 1.0, **changed})


def test_arrivals_want_the_load() -> None:
    """One job of 8 for 100 s, then nothing until the last: a quarter of two machines if that comes 200 s later."""
    assert stretch_of([(0.0, 100.0, 8), (1.0, 5.0, 1)], 2, 0.25) == pytest.approx(200.0)
    with pytest.raises(ValueError, match=r"never want 0\.9 of 2"):
        stretch_of([(0.0, 100.0, 8), (1.0, 5.0, 1)], 2, 0.9)


@pytest.mark.parametrize("load", [0.3, 0.6])
@pytest.mark.parametrize("sizes", ["traced", *DRAWN])
def test_jobs_are_drawn_by_the_seed(load: float, sizes) -> None:  # type: ignore[no-untyped-def]
    jobs = draw_jobs(ROWS, nodes=4, load=load, sizes=sizes, head=30, seed=1)
    assert jobs == draw_jobs(ROWS, nodes=4, load=load, sizes=sizes, head=30, seed=1)
    assert len(jobs) == 30
    assert sizes == "traced" or {job.devices for job in jobs} <= set(DRAWN[sizes])
    last_s = jobs[-1].submit_s
    held = sum(job.devices * min(job.duration_s or 0, last_s - job.submit_s) for job in jobs)
    assert held / (32 * last_s) == pytest.approx(load, rel=1e-6)
    first = jobs[0]
    assert first.iterations * iteration_s(first.workload.model, whole(first.devices)) == pytest.approx(first.duration_s)


def test_a_ring_leaves_every_machine_once() -> None:
    """On two machines an all-reduce takes what its busiest NIC needs, however the devices are divided; on one, far
    less."""
    even, uneven, together = (all_reduce_s("vgg-16", counts) for counts in ((4, 4), (7, 1), (8,)))
    assert uneven == pytest.approx(even, rel=0.02)
    assert together < even / 3
    assert even >= 2 * 7 / 8 * 2 * 138_357_544 / NIC_BYTES_PER_S


def test_what_others_send_is_in_the_way() -> None:
    sharing, grant = SharedNics(), Grant(parts=(("pool", 4),))
    job = Job(
        id="a",
        submit_s=0.0,
        pool="pool",
        devices=4,
        workload=Workload(model="vgg-16", global_batch=128),
        iterations=1.0,
        duration_s=1.0,
    )
    assert sharing.uses(job, grant, {"pool": ((3, 0b1111),)}) == {}
    placement = {"pool": ((3, 0b11), (5, 0b11))}
    uses = sharing.uses(job, grant, placement)
    assert uses.keys() == {"NIC 3", "NIC 5"}
    alone_s = sharing.iteration_s(job, grant, placement, uses)
    assert alone_s == pytest.approx(iteration_s("vgg-16", (2, 2)))
    doubled = {name: 2 * amount for name, amount in uses.items()}
    sent_s = all_reduce_s("vgg-16", (2, 2))
    assert sharing.iteration_s(job, grant, placement, doubled) == pytest.approx(
        compute_s("vgg-16") + sent_s * (1 + sent_s / alone_s), rel=1e-3
    )


def test_racks_and_pods_are_of_eight() -> None:
    rack, pod = racks_and_pods(512).levels
    assert (len(rack.parts), len(pod.parts)) == (64, 8)
    assert (rack.part_of[8], pod.part_of[8]) == (1, 1)
    racks_and_pods(20).check(20)


def test_whole_machines_keep_the_traced_time() -> None:
    alone = draw_jobs(
        [row(1, 0.0, 100.0, 16), row(2, 1000.0, 50.0, 4)], nodes=2, load=0.1, sizes="traced", head=None, seed=0
    )
    best = run(alone, "best-fit", 2)
    assert best.jct_s == pytest.approx(75.0)
    assert best.machine_hours == pytest.approx((2 * 100 + 50) / 3600)
    spread = run(alone, "kube-spread", 2)
    assert spread.jct_s > best.jct_s
    assert spread.cross_node_bytes > best.cross_node_bytes > 0


def test_runs_are_kept_and_not_made_again(tmp_path: Path) -> None:
    kept, words = tmp_path / "kept.jsonl", {"nodes": 4, "loads": [0.5], "sizes": ["traced"], "head": 20, "trace": "t"}
    ((point, first),) = run_all(ROWS, ["best-fit", "ours"], seeds=[0, 1], kept=kept, **words)  # type: ignore[arg-type]
    lines = kept.read_text(encoding="utf-8")
    assert point == Point(sizes="traced", load=0.5)
    assert len(lines.splitlines()) == 4
    ((_, again),) = run_all(ROWS, ["best-fit", "ours"], seeds=[0, 1], kept=kept, **words)  # type: ignore[arg-type]
    assert again == first
    assert kept.read_text(encoding="utf-8") == lines


def test_what_is_asked_of_ours() -> None:
    point = Point(sizes="traced", load=0.9)
    best = [found(), found()]
    assert reached(point, {"best-fit": best}) is None
    assert reached(point, {"best-fit": best, "ours": best}) == "ours, traced at 0.9: reached"
    worse = [found(machine_hours=11.0, jct_s=7300.0)] * 2
    assert reached(point, {"best-fit": best, "ours": worse}) == (
        "ours, traced at 0.9: machine hours +10.0% ± 0.0%; JCT +1.4% ± 0.0% beside best-fit"
    )
    uncertain = [found(machine_hours=9.0), found(machine_hours=12.0)]
    assert reached(point, {"best-fit": best, "ours": uncertain}) == "ours, traced at 0.9: reached"
    assert beside({"best-fit": best, "ours": uncertain}, "ours", "machine_hours").startswith("+5.0% ± 190")
    assert mean_and_half([1.0, 2.0, 3.0]) == pytest.approx((2.0, 4.30 / 3**0.5))
    (first, second) = lines_of(point, {"best-fit": best, "ours": worse})
    assert first.startswith("| traced | 0.9 | best-fit | 2.00 ± 0.00 |")
    assert "| ours |" in second


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header = "job_id,submit_time_s,duration_s,gpus\n"
    lines = "".join(f"{one.job_id},{one.submit_time_s},{one.duration_s},{one.gpus}\n" for one in ROWS)
    (tmp_path / "philly.csv.gz").write_bytes(gzip.compress((header + lines).encode()))
    asked = ["loads", "--nodes", "4", "--loads", "0.5", "--sizes", "traced", "--seeds", "2", "--rules", "best-fit,ours"]
    main([*asked, "--data", str(tmp_path)])
    shown = capsys.readouterr().out
    assert "all jobs of philly.csv.gz on 4 nodes of 8, 2 seeds" in shown
    assert "- ours, traced at 0.5:" in shown


def test_profit_at_each_arrival() -> None:
    """One job of 8 alone, then a second of 4 beside it: 8 device-hours an hour of one machine, 12 of two."""
    rows = [row(1, 0.0, 7200.0, 8), row(2, 3600.0, 3600.0, 4)]
    jobs = draw_jobs(rows, nodes=2, load=None, sizes="traced", head=None, seed=0)
    assert [job.submit_s for job in jobs] == [0.0, 3600.0]
    found = measure_profit(jobs, "best-fit", 2)
    assert found.job_by_job == pytest.approx((8 + 12 / 2) / 2)
    # The mean price is 10 device-hours, the mean time an hour and a half.
    assert found.as_printed == pytest.approx((8 + 2 * 10 / (2 * 1.5)) / 2)


def test_the_command_of_profit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header = "job_id,submit_time_s,duration_s,gpus\n"
    lines = "".join(f"{one.job_id},{one.submit_time_s},{one.duration_s},{one.gpus}\n" for one in ROWS)
    (tmp_path / "philly.csv.gz").write_bytes(gzip.compress((header + lines).encode()))
    main(["profit", "--nodes", "8", "--rules", "best-fit,ours@600", "--data", str(tmp_path)])
    shown = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [cells[0] for cells in shown[1:]] == ["| titan", "| best-fit", "| ours@600"]
    assert shown[1][5] == "+0.0%, +0.0%"


def test_ends_that_rules_know_or_not() -> None:
    jobs = draw_jobs(ROWS, nodes=4, load=0.6, sizes="uniform", head=None, seed=1)
    told, untold = run(jobs, "best-fit", 4), run(jobs, "best-fit", 4, ends="none")
    assert untold == replace(told, cpu_s=untold.cpu_s)
    assert run(jobs, "ours@300", 4, ends="predicted").moves > 0
