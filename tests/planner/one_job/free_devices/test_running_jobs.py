"""Jobs that run, from what Slurm prints of them: who holds which hosts, and when they end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.one_job.free_devices.endings import Prediction, ending_by_limit, ending_of, read_predictions
from planner.one_job.free_devices.running_jobs import read_running
from planner.one_job.free_devices.running_records import RunningJob
from profiles.errors import InputError


def number(value: float, *, infinite: bool = False, **more: Any) -> dict[str, Any]:
    """A number as the data parsers of Slurm 23.02 and later have it."""
    return {"set": not infinite, "infinite": infinite, "number": value} | more


def _file(folder: Path, text: object) -> Path:
    path = folder / "running"
    path.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
    return path


LATER = {"job_id": 7, "job_state": ["RUNNING"], "nodes": "gpu[001-003,7]", "start_time": number(1000)}
OLDER = {"job_id": 7, "job_state": "RUNNING", "nodes": "gpu[001-003,7]", "start_time": 1000}


@pytest.mark.parametrize(
    ("job", "limit_s"),
    [
        (LATER | {"end_time": number(4600), "time_limit": number(60)}, 4600),
        (LATER | {"end_time": number(31_537_000), "time_limit": number(0, infinite=True)}, None),
        (LATER | {"end_time": number(4600), "time_limit": number(0) | {"set": False}}, 4600),
        (LATER | {"end_time": number(31_537_000), "time_limit": number(0) | {"set": False}}, None),
        (OLDER | {"end_time": 4600, "time_limit": 60}, 4600),
        (OLDER | {"end_time": 4600, "time_limit": 0xFFFFFFFE}, 4600),
        (OLDER | {"end_time": 4600}, 4600),
        (OLDER | {"end_time": 31_537_000, "time_limit": 0xFFFFFFFF}, None),
        (LATER | {"job_state": ["SUSPENDED"], "end_time": number(4600), "time_limit": number(60)}, None),
        (LATER | {"job_state": ["COMPLETED", "COMPLETING"], "end_time": number(900), "time_limit": number(60)}, 900),
    ],
)
def test_jobs_of_several_versions_of_slurm(tmp_path: Path, job: dict[str, Any], limit_s: float | None) -> None:
    pending = {"job_id": 8, "job_state": ["PENDING"], "nodes": "", "end_time": number(9), "job_resources": None}
    told = read_running(_file(tmp_path, {"jobs": [job, pending], "last_update": number(2000)}))
    hosts = ("gpu001", "gpu002", "gpu003", "gpu7")
    assert told.jobs == (RunningJob(job="7", hosts=hosts, limit_s=limit_s, start_s=1000),)
    assert told.written_s == 2000


def test_nodes_may_stand_among_the_resources(tmp_path: Path) -> None:
    job = {"job_id": 7, "job_state": ["RUNNING"], "job_resources": {"nodes": {"list": "a[1-2]"}}, "end_time": 5}
    (read,) = read_running(_file(tmp_path, {"jobs": [job]})).jobs
    assert read.hosts == ("a1", "a2")


@pytest.mark.parametrize(
    "text",
    [
        'job,hosts,end\n7,"gpu[1-2,4]",4600\n\n8,,\n',
        "JOBID|NODELIST|END_TIME\n7|gpu[1-2,4]|1970-01-01T01:16:40Z\n",
        "end;job;hosts\n4600;7;gpu[1-2,4]\n",
        "job,hosts,end\n7,gpu[1-2,4],4600\n",
    ],
)
def test_a_table_of_jobs(tmp_path: Path, text: str) -> None:
    told = read_running(_file(tmp_path, text))
    assert told.jobs == (RunningJob(job="7", hosts=("gpu1", "gpu2", "gpu4"), limit_s=4600),)
    assert told.written_s is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1"),
        ("job,hosts\n7,a\n", r"running, line 1: found job,hosts, expected `squeue --json`"),
        ("job,hosts,end\n7,a,soon\n", r"line 2: end: found 'soon', expected seconds since 1970"),
        ("job,hosts,end\n7,a\n", r"line 2: found 2 values"),
        ("job,hosts,end\n7,a[3-1],9\n", r"line 2: hosts: found 'a\[3-1\]'"),
        ("job,hosts,end\n7,a,９\n", r"line 2: end: found '９'"),
        ("job,hosts,end\n7,a,0001-01-01T00:00:00\n", r"line 2: end: found '0001"),
        ("job,hosts,end\n7,a,2026-05-01T12:00:00+25:00\n", r"line 2: end: found '2026"),
        ('job,hosts,end\n7,"a\n', r"line 2: found 2 values"),
        ("job,hosts,end\n7," + "x" * 200_000 + ",9\n", r"line 2: found field larger than field limit"),
        ("job,hosts,end\n" + "7,a,9\n" * 100_001, r"running: found 100,001 jobs in a list, expected at most 100,000"),
        ("job,hosts,end\n,a,9\n", r"line 2: job: found '', expected a name of at most 253"),
        ("job,hosts,end\n7\x1b[31m,a,9\n", r"line 2: job: found '7\\x1b\[31m', .* none of them a control"),
        ("job,hosts,end\n" + "7" * 254 + ",a,9\n", r"line 2: job: found '7{60}'"),
        ("job,jobid,hosts,end\n7,8,a,9\n", r"line 1: found job,jobid,hosts,end, expected .* each once"),
        ("job,hosts,end,end\n7,a,9,10\n", r"line 1: found job,hosts,end,end"),
        ("job,hosts,end\n7,a,9\n7,b,10\n", r"running: job 7: found two ends"),
        ({"jobs": [OLDER | {"end_time": 9}, OLDER | {"end_time": 10}]}, "job 7: found two ends"),
        ({"jobs": [{"job_id": True, "job_state": "RUNNING"}]}, r"jobs\[0\]\.job_id: found True"),
        ({"jobs": [{"job_id": -7, "job_state": "RUNNING"}]}, r"jobs\[0\]\.job_id: found -7"),
        ({"jobs": [OLDER | {"end_time": -5}]}, r"jobs\[0\]\.end_time: found -5"),
        ({"jobs": [LATER | {"end_time": number(-5)}]}, r"jobs\[0\]\.end_time"),
        ({"jobs": [LATER | {"end_time": number(5) | {"set": "yes"}}]}, r"jobs\[0\]\.end_time"),
        ({"jobs": [], "last_update": "now"}, "last_update: found 'now'"),
        ({"nodes": []}, "`jobs`, as squeue --json has"),
        ({"jobs": [{"job_id": "x", "job_state": "RUNNING"}]}, r"jobs\[0\]\.job_id"),
        ({"jobs": [{"job_id": 1, "job_state": "RUNNING", "nodes": "a["}]}, r"jobs\[0\]\.nodes: found 'a\['"),
    ],
)
def test_what_is_no_list_of_jobs(tmp_path: Path, text: object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_running(_file(tmp_path, text))


def test_a_prediction_says_how_likely_a_job_has_ended() -> None:
    job = RunningJob(job="7", hosts=("a",), limit_s=20_000, start_s=0)
    told = Prediction(point_s=6000, low_s=2000, high_s=12_000)
    fresh = ending_of(job, told, 0)
    assert fresh is not None
    assert fresh.likely_s == pytest.approx(6000)
    chances = [fresh.chance_by(time_s) for time_s in (-1, 2000, 6000, 12_000, 19_999, 20_000)]
    assert chances[:4] == pytest.approx([0, 0.05, 0.5, 0.95])
    assert 0.95 <= chances[4] < chances[5] == 1.0
    # One that has run for as long as half of them ends when half of the rest have.
    old = ending_of(job, told, 6000)
    assert old is not None
    assert old.chance_by(6000) == 0
    assert old.chance_by(12_000) == pytest.approx(0.9)
    assert 6000 < old.likely_s < 12_000
    assert old.chance_by(old.likely_s) == pytest.approx(0.5)


def test_without_a_word_of_the_end_the_limit_ends_a_job() -> None:
    told = Prediction(point_s=6000, low_s=2000, high_s=12_000)
    job = RunningJob(job="7", hosts=("a",), limit_s=5000, start_s=0)
    assert ending_of(job, None, 100) == ending_by_limit(5000)
    capped = ending_of(job, told, 0)
    assert capped is not None
    assert capped.likely_s == 5000
    assert capped.chance_by(5000) == 1.0
    assert ending_of(RunningJob(job="7", hosts=("a",), limit_s=None, start_s=0), None, 0) is None
    endless = RunningJob(job="7", hosts=("a",), limit_s=None, start_s=0)
    assert ending_of(endless, Prediction(point_s=5, low_s=1, high_s=None), 0) is None
    assert ending_of(job, told, 13_000) == ending_by_limit(13_000)
    endless_prediction = Prediction(point_s=6000, low_s=2000, high_s=None)
    assert ending_of(job, endless_prediction, 0) == ending_by_limit(5000)


def test_a_prediction_without_a_doubt_is_believed() -> None:
    job = RunningJob(job="7", hosts=("a",), limit_s=20_000, start_s=0)
    sure = ending_of(job, Prediction(point_s=6000, low_s=6000, high_s=6000), 0)
    assert sure is not None
    assert not sure.by_limit
    assert sure.likely_s == pytest.approx(6000, abs=0.01)
    assert sure.chance_by(5999) < 0.06
    assert sure.chance_by(6001) >= 0.95


def test_predictions_are_those_of_jct_predict(tmp_path: Path) -> None:
    rows = [{"job_id": 7, "point_s": 6000, "interval_90_s": [600, None]}]
    path = _file(tmp_path, {"jobs": rows})
    assert read_predictions(path) == {"7": Prediction(point_s=6000, low_s=600, high_s=None)}
    with pytest.raises(InputError, match="jct predict --json"):
        read_predictions(_file(tmp_path, {}))
    assert read_predictions(_file(tmp_path, {"jobs": rows * 2})).keys() == {"7"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"point_s": None}, r"jobs\[1\]: found .* expected job_id, point_s"),
        ({"point_s": True}, "seconds from 0 to 1e"),
        ({"point_s": -1}, "seconds from 0 to 1e"),
        ({"point_s": 1e308}, "seconds from 0 to 1e"),
        ({"point_s": "6000"}, "seconds from 0 to 1e"),
        ({"interval_90_s": [None, 5]}, "seconds from 0 to 1e"),
        ({"interval_90_s": [5, True]}, "seconds from 0 to 1e"),
        ({"interval_90_s": [1, 2, 3]}, "seconds from 0 to 1e"),
        ({"interval_90_s": [9, 5]}, r"jobs\[1\]: interval_90_s: found \[9, 5\], expected its low end"),
        ({"job_id": None}, "expected job_id"),
        ({"job_id": {"a": 1}}, "expected job_id"),
        ({"job_id": True}, "expected job_id"),
        ({"job_id": "6", "point_s": 7}, r"jobs\[1\]: job_id: found '6' a second time"),
    ],
)
def test_what_is_no_prediction(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    row = {"job_id": "7", "point_s": 6000, "interval_90_s": [600, 9000]}
    with pytest.raises(InputError, match=said):
        read_predictions(_file(tmp_path, {"jobs": [row | {"job_id": 6}, row | change]}))
