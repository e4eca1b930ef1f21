"""What a DP group's spread weighs: by the estimator, by a database."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.one_job.site_pods.affinity import (
    SHIPPED,
    Affinity,
    Job,
    estimated_affinity,
    nearest_affinity,
    read_database,
)
from planner.one_job.site_pods.placing import PodWishes, affinity_of, database
from profiles.errors import InputError
from tests.planner.one_job.site_pods.pod_examples import job_of, plan, price

DENSE = Job(device="h800", r1=0.9924, r2=129.8)


@pytest.mark.parametrize(
    ("j_dp", "j_pp", "alpha"),
    [(0.01, 0.03, 0.25), (-0.01, 0.02, 0.0), (0.02, -1.0, 1.0), (0.0, 0.0, 0.5), (-1, -1, 0.5)],
)
def test_gains_below_zero_count_as_zero(j_dp: float, j_pp: float, alpha: float) -> None:
    assert Affinity(j_dp=j_dp, j_pp=j_pp, source="").alpha == pytest.approx(alpha)


def test_shipped_rows_are_the_papers() -> None:
    rows = read_database(SHIPPED)
    assert nearest_affinity(rows, DENSE, where="shipped").alpha == 0
    moe = Job(device="h800", r1=0.9951, r2=204.0)
    assert nearest_affinity(rows, moe, where="shipped").alpha == pytest.approx(0.3, abs=0.005)
    assert {row.device for row in rows} == {"h800", "l20"}
    assert all("Arnold" in row.source for row in rows)


def test_the_printed_distance_sees_r2_alone() -> None:
    """Of a row with r1 four times as large and r2 equal, and one with r1 equal and r2 off by a tenth."""
    far, near = "far", "near"
    rows = read_database_of(f"h800,4.0,60,0.01,0,{far}\nh800,1.0,66,0,0.01,{near}\n")
    job = Job(device="h800", r1=1.0, r2=60.0)
    assert nearest_affinity(rows, job, where="x", distance="printed").source == "x: far"
    assert nearest_affinity(rows, job, where="x").source == "x: near"


def test_a_device_that_the_database_lacks(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("device,r1,r2,j_dp,j_pp\nl20,1,60,0.01,0\n", encoding="utf-8")
    job = job_of(plan(6, tp=2, pp=2, dp=2), (2, 2, 2), over=(4.0, 4.0, 4.0))
    with pytest.raises(InputError, match="a100-80gb"):
        affinity_of(job, price, PodWishes(affinity=path))
    instead = affinity_of(job, price, PodWishes(affinity=path, or_estimate=True))
    assert instead == estimated_affinity(job, price)
    assert affinity_of(job, price, PodWishes(alpha=0.7)).alpha == 0.7


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("device,r1\n", "header"),
        ("device,r1,r2,j_dp,j_pp\nh800,0,60,0,0\n", "r1"),
        ("# note\ndevice,r1,r2,j_dp,j_pp\nh800,1,60,x,0\n", "line 3"),
        ("device,r1,r2,j_dp,j_pp\nh800,1,60,0\n", "4 values"),
        ("device,r1,r2,j_dp,j_pp\nh800,1,60,nan,0\n", "j_dp"),
        ("device,r1,r2,j_dp,j_pp\nh800,1,６０,0,0\n", "line 2: r2: found '６０'"),
        ("device,r1,r2,j_dp,j_pp,j_pp\nh800,1,60,0,0,0\n", "header"),
        ("device,r1,r2,j_dp,j_pp\n" + "x" * 200_000 + ",1,60,0,0\n", "line 2: found field larger"),
    ],
)
def test_wrong_databases(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as error:
        read_database(path)
    assert said in str(error.value)
    assert str(path) in str(error.value)


def test_a_database_may_begin_without_rows_and_says_nothing_then(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("device,r1,r2,j_dp,j_pp\n\n# none yet,,,,\n", encoding="utf-8")
    assert read_database(path) == ()
    with pytest.raises(InputError, match="found no row"):
        database(path)


def test_the_estimator_says_which_way_gains() -> None:
    """Of pods of two nodes in order, where the default order has stages in pods, PP groups gain nothing less than they
    lose, and DP-aligned is what the default is."""
    job = job_of(plan(6, tp=2, pp=2, dp=2), (2, 2, 2), over=(8.0, 8.0, 8.0))
    affinity = estimated_affinity(job, price)
    assert isinstance(affinity, Affinity)
    assert affinity.j_dp == pytest.approx(0.0, abs=1e-12)
    assert affinity.j_pp <= 0


def read_database_of(rows: str) -> tuple:  # type: ignore[type-arg]
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        path.write_text(f"device,r1,r2,j_dp,j_pp,source\n{rows}", encoding="utf-8")
        return read_database(path)
