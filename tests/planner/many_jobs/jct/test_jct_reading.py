"""Reading a trace for completion times: columns, and errors that name the line."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from planner.many_jobs.jct.reading import load_jobs
from planner.many_jobs.traces.read import SMALL_TRACE
from profiles.errors import InputError
from tests.planner.many_jobs.jct.jct_examples import random_jobs, write_trace

HEAD = "job_id,submit_time_s,duration_s,gpus"


def test_rows_are_sorted_by_submission_and_columns_that_say_nothing_left_out(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        HEAD + ",cpus,mem_gb,user,vc_or_department,status,queue_s\n"
        "a,20,5,1,4,,u,v,Pass,\n"
        "b,10,,2,,,w,v,Killed,7\n"
        "c,20,0.5,8,8,,u,v,CANCELLED by 3,\n"
    )
    jobs = load_jobs(path)
    assert jobs.ids == ("b", "a", "c")
    assert jobs.order.tolist() == [1, 0, 2]
    assert np.isnan(jobs.duration_s[0])
    assert jobs.finish_s.tolist() == [np.inf, 25.0, 20.5]
    assert jobs.queue_s.tolist() == [7.0, 0.0, 0.0]
    assert jobs.killed.tolist() == [True, False, True]
    assert set(jobs.numbers) == {"cpus"}
    assert set(jobs.words) == {"user"}


def test_the_product_of_iterations_and_their_time(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEAD + ",iterations,iteration_time_s\na,0,5,1,10,0.5\nb,1,5,1,,0.5\n")
    assert load_jobs(path).numbers["product_s"].tolist() == pytest.approx([5.0, np.nan], nan_ok=True)


def test_gzip_and_several_files_make_one_trace(tmp_path: Path) -> None:
    jobs = random_jobs(80, seed=2, killed=0.0)
    path = write_trace(tmp_path / "trace.csv", jobs)
    lines = path.read_text().splitlines(keepends=True)
    first, second = tmp_path / "first.csv.gz", tmp_path / "second.csv"
    first.write_bytes(gzip.compress("".join(lines[:50]).encode()))
    second.write_text("".join([lines[0], *lines[50:]]))
    whole, joined = load_jobs(path), load_jobs(first, second)
    np.testing.assert_array_equal(whole.finish_s, jobs.finish_s)
    np.testing.assert_array_equal(whole.finish_s, joined.finish_s)
    np.testing.assert_array_equal(whole.words["user"], joined.words["user"])


def test_another_form_is_read_by_the_trace_readers(tmp_path: Path) -> None:
    path = tmp_path / "helios.csv"
    path.write_text(
        "job_id,user,vc,jobname,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
        "1,u1,vc1,n1,8,64,1,COMPLETED,2020-04-01 00:00:00,2020-04-01 00:00:10,2020-04-01 00:10:10,600,10\n"
        "2,u2,vc1,n2,1,8,1,CANCELLED,2020-04-01 00:01:00,2020-04-01 00:01:00,2020-04-01 00:02:00,60,0\n"
    )
    jobs = load_jobs(path)
    assert jobs.gpus.tolist() == [8.0, 1.0]
    assert jobs.killed.tolist() == [False, True]
    assert jobs.duration_s.tolist() == [600.0, 60.0]
    assert jobs.queue_s[0] == 10.0
    assert set(jobs.words) == {"user", "name"}


def test_the_small_trace_of_the_project_is_read() -> None:
    assert len(load_jobs(SMALL_TRACE)) == 60


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + "\na,0,5,1\nb,1,x,1\n", "line 3: duration_s: found 'x', expected a finite number of at least 0"),
        (HEAD + "\na,0,5,1\n\nb,1,-3,1\n", "line 4: duration_s: found '-3'"),
        (HEAD + "\na,0,inf,1\n", "line 2: duration_s: found 'inf'"),
        (HEAD + "\na,0,nan,1\n", "line 2: duration_s: found 'nan'"),
        (HEAD + "\na,,5,1\n", "line 2: submit_time_s: found ''"),
        (HEAD + "\na,0,5,\n", "line 2: gpus: found ''"),
        (HEAD + "\na,0,5,1,9\n", "line 2: found 5 cells, expected 4"),
        ("job_id,submit_time_s,duration_s\na,0,5\n", "gpus: found no such column"),
        ("job_id,gpus,gpus,submit_time_s\na,0,5,1\n", "line 1: found column 'gpus' twice"),
        (HEAD + "\n", "found no rows"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        load_jobs(path)


def test_a_quoted_field_of_two_lines_counts_as_both(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text('job_id,submit_time_s,duration_s,gpus,user\na,0,5,1,"x\ny"\nb,1,z,1,u\n')
    with pytest.raises(InputError, match="line 4: duration_s"):
        load_jobs(path)


def test_no_file_and_a_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.csv"):
        load_jobs(tmp_path / "none.csv")
    damaged = tmp_path / "damaged.csv.gz"
    damaged.write_bytes(gzip.compress(HEAD.encode())[:-9])
    with pytest.raises(InputError, match="damaged"):
        load_jobs(damaged)


def test_what_sacct_prints_is_read(tmp_path: Path) -> None:
    path = tmp_path / "sacct.txt"
    path.write_text(
        "JobID|State|Submit|Start|End|ElapsedRaw|NNodes|AllocCPUS|ReqTRES|AllocTRES\n"
        "1|COMPLETED|2026-03-02T08:00:00|2026-03-02T08:01:00|2026-03-02T08:11:00|600|1|8|gres/gpu=1|gres/gpu=1\n"
    )
    jobs = load_jobs(path)
    assert (jobs.ids, jobs.duration_s.tolist(), jobs.queue_s.tolist()) == (("1",), [600.0], [60.0])
