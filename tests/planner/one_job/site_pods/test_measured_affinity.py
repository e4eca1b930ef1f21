"""Rows of affinity that runs on the emulated testbed add to a database."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.testbed.pods import affinity_row, case_of, first_names
from planner.one_job.site_pods.affinity import Job, nearest_affinity, read_database
from planner.one_job.site_pods.affinity_rows import add_rows


def test_what_a_run_measured_is_found_again(tmp_path: Path) -> None:
    job = Job(device="emulated", r1=0.98, r2=40.0)
    path = tmp_path / "rows.csv"
    for default_s in (2.0, 1.0):
        row = affinity_row("pp2 dp4", job, {"in order": default_s, "DP-aligned": 0.9, "PP-aligned": 0.97})
        add_rows(path, [row])
    # The second run replaces the first one's row.
    (read,) = read_database(path)
    assert read.j_dp == pytest.approx(0.1)
    assert read.j_pp == pytest.approx(0.03)
    affinity = nearest_affinity([read], job, where=str(path))
    assert affinity.alpha == pytest.approx(10 / 13)
    assert "measured" in affinity.source


def test_a_placement_that_two_ways_have_runs_once_under_the_first_ones_name() -> None:
    one, other = (((0,), (1,)),), (((1,), (0,)),)
    assert first_names([("ours", one), ("PP-aligned", other), ("in order", one)]) == {one: "ours", other: "PP-aligned"}
    assert case_of("pp2 dp4").stages[0].dp == 4
