"""Acme's two files: rows of our own under the columns that its README documents."""

from __future__ import annotations

import gzip
from datetime import datetime
from pathlib import Path

import pytest

from planner.many_jobs.traces.read import read_trace
from profiles.errors import InputError

SEREN = (
    "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time\n"
    "20,uA,1,8,128,Other,FAILED,2023-03-01 00:10:00+08:00,2023-03-01 00:10:30+08:00,2023-03-01 00:12:30+08:00,"
    "120,30,960.0\n"
    "21,uA,4,32,512,Pretrain,COMPLETED,2023-03-01 00:05:00+08:00,2023-03-01 00:05:00+08:00,2023-03-01 01:05:00+08:00,"
    "3600,0,115200.0\n"
    "22,uB,1,0,16,Other,COMPLETED,2023-03-01 00:06:00+08:00,2023-03-01 00:06:00+08:00,2023-03-01 00:07:00+08:00,"
    "60,0,0.0\n"
    "23,uB,1,1,16,Debug,CANCELLED,2023-03-01 00:07:00+08:00,,2023-03-01 00:08:00+08:00,0,60,0.0\n"
    "24,uB,1,2,16,Debug,TIMEOUT,2023-03-01 00:07:00+08:00,2023-03-01 00:07:00+08:00,2023-03-01 00:07:00+08:00,0,0,0.0\n"
)

KALOS = (
    "job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,start_time,end_time,"
    "fail_time,stop_time,duration,queue,gpu_time\n"
    "dlcA,uC,8,64,960,1000,100.0,Other,FAILED,2023-05-17 11:00:00+00:00,2023-05-17 11:00:10+00:00,"
    "2023-05-17 11:00:18+00:00,2023-05-17 11:00:18+00:00,,18,10.0,1152.0\n"
)


def written(folder: Path, text: str, name: str = "trace.csv") -> Path:
    """A file that holds the text."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_seren(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, SEREN))
    assert trace.format == "acme"
    assert trace.zero == datetime(2023, 2, 28, 16, 5)  # UTC
    large, failed = trace.rows
    assert (large.job_id, large.submit_time_s, large.duration_s, large.gpus, large.nodes) == ("21", 0.0, 3600.0, 32, 4)
    assert (large.status, large.job_type_or_name, large.cpus, large.mem_gb) == ("completed", "Pretrain", 512.0, None)
    assert (failed.submit_time_s, failed.duration_s, failed.queue_s, failed.user) == (300.0, 120.0, 30.0, "uA")
    assert trace.skipped == ((4, "asked for no GPU"), (5, "never ran"), (6, "never ran"))
    assert trace.ignored_columns == ("duration", "queue", "gpu_time")


def test_kalos_runs_from_its_start_and_has_memory(tmp_path: Path) -> None:
    """Its `duration` is since the submission."""
    (job,) = read_trace(written(tmp_path, KALOS), format="acme").rows
    assert (job.job_id, job.duration_s, job.queue_s, job.mem_gb) == ("dlcA", 8.0, 10.0, 8000.0)


def test_times_of_different_zones_are_brought_together(tmp_path: Path) -> None:
    other = SEREN.splitlines()[1].replace("20,uA", "30,uA").replace("2023-03-01 00:", "2023-02-28 16:")
    rows = read_trace(written(tmp_path, SEREN + other.replace("+08:00", "+00:00") + "\n")).rows
    assert [row.submit_time_s for row in rows if row.job_id in ("20", "30")] == [300.0, 300.0]


def test_packed(tmp_path: Path) -> None:
    path = tmp_path / "trace_seren.csv.gz"
    path.write_bytes(gzip.compress(SEREN.encode()))
    assert read_trace(path).rows == read_trace(written(tmp_path, SEREN)).rows


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "00:12:30+08:00",
            "00:10:00+08:00",
            r"line 2: end_time: found '2023-03-01 00:10:00\+08:00', expected",
        ),
        ("00:10:30+08:00", "00:09:00+08:00", r"line 2: start_time: .*expected a time after submit_time"),
        ("2023-03-01 00:10:00+08:00", "yesterday", r"line 2: submit_time: found 'yesterday', expected a date"),
        ("uA,1,8", "uA,1,many", r"line 2: gpu_num: found 'many', expected a number"),
        ("uA,1,8", "uA,1.5,8", r"line 2: node_num: found '1.5', expected a whole number"),
        ("\n20,", "\n21,", r"line 3: job_id: found '21' again"),
        ("\n20,", "\n,", r"line 2: job_id: found nothing"),
    ],
)
def test_a_wrong_cell_is_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = written(tmp_path, SEREN.replace(old, new, 1))
    with pytest.raises(InputError, match=said):
        read_trace(path)
    lenient = read_trace(path, lenient=True)
    assert (len(lenient.rows), lenient.reasons["malformed"]) == (1, 1)


def test_a_file_that_was_cut_is_named(tmp_path: Path) -> None:
    """In the middle of a row, of a packed file, and after the header."""
    cut = SEREN[: SEREN.index("COMPLETED") + 4]
    with pytest.raises(InputError, match=r"line 3: .*7 cells, expected 13"):
        read_trace(written(tmp_path, cut))
    packed = tmp_path / "cut.csv.gz"
    packed.write_bytes(gzip.compress(SEREN.encode())[:-30])
    with pytest.raises(InputError, match=r"cut\.csv\.gz"):
        read_trace(packed)
    with pytest.raises(InputError, match="no job in it"):
        read_trace(written(tmp_path, SEREN.partition("\n")[0] + "\n"))


def test_a_header_without_a_column_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, SEREN.replace("gpu_num", "gpus", 1))
    with pytest.raises(InputError, match="no column 'gpu_num'"):
        read_trace(path, format="acme")


def test_helios_is_still_told_from_it(tmp_path: Path) -> None:
    text = (
        "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
        "7,uA,vcX,8,32,2,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:42:01,2020-06-09 19:42:01,3600,60\n"
    )
    assert read_trace(written(tmp_path, text)).format == "helios"
