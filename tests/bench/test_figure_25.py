"""Figure 25's bench: what it writes for the simulator, and what it says of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.contention.figure_25 import CRUX, LARGEST, NONE, PLAIN, run_some, tables, write_cluster, write_trace
from planner.many_jobs.traces.read import SMALL_TRACE, read_trace
from profiles.cluster_file import load_cluster

pytest.importorskip("scipy")


def row(scheduler: str, network: str, utilization: float, seed: int = 0) -> dict[str, Any]:
    figures = {"utilization": utilization, "held": 0.5, "turns": 0.25, "waiting": 1.0, "cpu_s": 2.0}
    return {"scheduler": scheduler, "network": network, "seed": seed, "jobs": 80, **figures}


def test_the_table_divides_what_it_says_it_does() -> None:
    rows = [row(NONE, PLAIN, 0.1), row(NONE, CRUX, 0.12), row("hived", PLAIN, 0.15), row("hived", CRUX, 0.165)]
    *_, none, hived = tables(rows)
    assert none.startswith(f"| {NONE} | 10.00% | +0.0% |  | 12.00% | +20.0% |  | 100% |")
    assert hived.startswith("| hived | 15.00% | +50.0% | +25% | 16.50% | +10.0% | +11% | 50% |")
    assert list(tables([])) == []
    more = [row(NONE, PLAIN, 0.1, 1), row(NONE, CRUX, 0.11, 1), row("hived", PLAIN, 0.2, 1)]
    *_, none, hived = tables([*rows, *more])
    assert none.startswith(f"| {NONE} | 10.00% | +0.0% (0.0%) |  | 11.50% | +15.0% (7.1%) |")
    assert hived.startswith("| hived | 15.00% | +50.0% | ")


def test_the_jobs_are_the_traces_with_drawn_models(tmp_path: Path) -> None:
    path, last_s = write_trace(SMALL_TRACE, tmp_path / "jobs.csv", 12, 3)
    rows, source = read_trace(path).rows, [each for each in read_trace(SMALL_TRACE).rows if each.gpus <= LARGEST][:12]
    assert [(each.job_id, each.gpus, each.duration_s) for each in rows] == [
        (each.job_id, each.gpus, each.duration_s) for each in source
    ]
    assert last_s == source[-1].submit_time_s
    assert all(each.model and each.global_batch and each.global_batch % each.gpus == 0 for each in rows)
    again, _ = write_trace(SMALL_TRACE, tmp_path / "again.csv", 12, 3)
    assert again.read_bytes() == path.read_bytes()


def test_the_cluster_is_read(tmp_path: Path) -> None:
    cluster = load_cluster(str(write_cluster(tmp_path / "cluster.yaml")))
    (site,) = cluster.sites
    assert len(site.network.levels[0].parts) == 8


def test_a_run_of_few_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four jobs of the small trace in place of lingjun's, under Muri and a policy of the network."""
    import bench.contention.figure_25 as bench

    whole = write_trace
    monkeypatch.setattr(bench, "write_trace", lambda _source, path, jobs, seed: whole(SMALL_TRACE, path, jobs, seed))
    (made,) = run_some(tmp_path, [("muri, same-switch", CRUX)], 4, 0)
    assert 0 < made["utilization"] < 1
    assert 0 < made["held"] <= 1
    assert list(run_some(tmp_path, [], 4, 0)) == []
