"""What a simulation leaves: tables, the timeline, the picture, and what `cellplan simulate` prints."""

from __future__ import annotations

import csv
import gzip
import json
import math
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from io import StringIO
from itertools import pairwise
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from scipy.stats import t as student

from planner import api
from planner.cli.main import main
from planner.cli.simulate import _stopped
from planner.many_jobs.policies.fcfs import Fcfs
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.plot import draw
from planner.many_jobs.simulation.result import Result, summary_json
from planner.many_jobs.simulation.settings import Settings
from planner.many_jobs.simulation.sweep import make_requests, mean_of, run_one, summarize
from planner.many_jobs.simulation.tables import JOB_COLUMNS, jobs_csv, series_csv
from planner.many_jobs.simulation.timeline import save_timeline, timeline_events
from planner.many_jobs.simulation.totals import SERIES
from planner.shared.options.simulate import ReplayOptions, SweepOptions
from profiles.errors import InputError
from tests.documents import checked
from tests.planner.many_jobs.simulation.simulation_workloads import draw_workload
from tests.scheduling_examples import FakeCells, two_pools

TRACE = """job_id,submit_time_s,duration_s,gpus,model,global_batch,device,deadline_s
one,0,600,1,bert-0.76b,64,a40,700
two,10,600,1,bert-0.76b,64,a40,
three,20,300,2,bert-0.76b,64,a40,100
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return path


@pytest.fixture(scope="module")
def result() -> Result:
    settings = Settings(round_s=300.0, series=True, slices=True, until_s=30_000.0)
    return simulate(draw_workload(Random(3), 60), two_pools(), FakeCells(), Fcfs(), settings=settings)


def test_jobs_csv_says_what_the_summary_sums(result: Result) -> None:
    rows = list(csv.DictReader(StringIO(jobs_csv(result))))
    assert tuple(rows[0]) == JOB_COLUMNS
    summary = result.summary
    ended = [row for row in rows if row["status"] == "finished"]
    assert len(ended) == summary.finished < summary.jobs == len(rows)
    assert math.fsum(float(row["jct_s"]) for row in ended) / len(ended) == summary.jct_mean_s
    assert math.fsum(float(row["waited_s"]) for row in ended) / len(ended) == summary.queue_mean_s
    assert sum(row["deadline_met"] == "true" for row in rows) == summary.deadlines_met
    assert max(float(row["fairness_rho"]) for row in ended) == summary.fairness_max
    assert all("ended at" in row["reason"] or "after the end" in row["reason"] for row in rows if row not in ended)


def test_series_csv_integrates_to_the_summary(result: Result) -> None:
    rows = list(csv.DictReader(StringIO(series_csv(result))))
    assert tuple(rows[0]) == SERIES
    times = [float(row["time_s"]) for row in rows] + [30_000.0]
    spans = [after - before for before, after in pairwise(times)]
    assert min(spans) >= 0
    for column, mean in (("throughput", result.summary.throughput_mean), ("waiting", result.summary.waiting_mean)):
        area = sum(float(row[column]) * span for row, span in zip(rows, spans, strict=True))
        assert area / (times[-1] - times[0]) == pytest.approx(mean)


def test_the_timeline_opens_and_its_rows_do_not_overlap(result: Result, tmp_path: Path) -> None:
    save_timeline(tmp_path / "run.json.gz", result)
    events = json.loads(gzip.decompress((tmp_path / "run.json.gz").read_bytes()))["traceEvents"]
    assert events == list(timeline_events(result))
    rows: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            rows.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in rows.values():
        spans.sort()
        assert all(first[1] <= second[0] + 1e-2 for first, second in pairwise(spans))
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert {"cluster", "a100 node 0"} <= names
    assert {event["name"] for event in events if event["ph"] == "C"} >= {"throughput", "waiting"}


def test_the_picture_is_the_same_again(result: Result) -> None:
    one = draw({"fcfs": result})
    assert one == draw({"fcfs": result})
    assert b"throughput" in one


def test_json_has_the_agreed_keys(result: Result) -> None:
    found = summary_json(result)
    assert set(found) >= {
        *("policy", "jobs", "finished", "jct_mean_s", "jct_p99_s", "queue_mean_s", "makespan_s", "throughput_mean"),
        *("utilization_mean", "restarts_mean", "deadlines_met", "violations", "timing"),
    }
    assert "decision_p99_s" in found["timing"]
    json.dumps(found, allow_nan=False)


def test_command(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: tmp_path / name for name in ("jobs.csv", "series.csv", "run.json", "plot.svg", "cells.json")}
    line = ["simulate", str(trace), "--cluster", "a40:1x2", "--policy", "fcfs", "--cells", str(files["cells.json"])]
    line += ["--jobs-csv", str(files["jobs.csv"]), "--series-csv", str(files["series.csv"])]
    line += ["--timeline", str(files["run.json"]), "--plot", str(files["plot.svg"])]
    assert main([*line, "--json"]) == 0
    found = checked("simulate", json.loads(capsys.readouterr().out))
    assert (found["jobs"], found["finished"], found["violations"]) == (3, 3, 0)
    assert (found["deadlines"], found["deadlines_met"]) == (2, 1)
    assert found["makespan_s"] == pytest.approx(910.0)
    assert all(path.stat().st_size for path in files.values())
    assert main(line) == 0
    assert "3 of 3 finished" in capsys.readouterr().out
    answer = api.simulate(trace, cluster="a40:1x2", cells_file=files["cells.json"])
    assert {name: found[name] for name in asdict(answer.result.summary)} == asdict(answer.result.summary)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--policy", "best"], "--policy: found best"),
        (["--option", "depth=3"], "policy fcfs: --option"),
        (["--option", "crius.depth=3"], "found crius.depth"),
        (["--failures", "0:5"], "--failures: found 0:5"),
        (["--failures", "none.csv"], "none.csv"),
        (["--resume"], "--resume: found no --checkpoint"),
        (["--plot", "x.pdf"], "--plot: found x.pdf"),
        (["--timeline", "x.txt"], "--timeline: found x.txt"),
        (["--jobs-csv", "no/where.csv"], "--jobs-csv: found no/where.csv"),
        (["--workers", "2"], "--workers: found a single run"),
        (["--seeds", "0..1", "--plot", "x.svg"], "--plot: found several runs"),
        (["--policies", "fcfs,sjf", "--policy", "sjf"], "--policies: found --policy too"),
        (["--policies", "fcfs,fcfs"], "--policies: found fcfs,fcfs"),
        (["--seeds", "4..1"], "--seeds"),
        (["--window", "5:1"], "--window"),
        (["--option", "depth"], "--option"),
    ],
)
def test_wrong_words(words: Sequence[str], message: str, trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(trace), "--cluster", "a40:1x2", *words]) == 2
    assert message in capsys.readouterr().err


def test_sweep(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Over two processes as in this one; the figures of a run are those of the run alone."""
    line = ["simulate", str(trace), "--cluster", "a40:1x2", "--policies", "fcfs,sjf", "--seeds", "0..1"]
    line += ["--loads", "1,2", "--json", "--csv", str(tmp_path / "runs.csv")]
    assert main([*line, "--workers", "2"]) == 0
    found = checked("simulate", json.loads(capsys.readouterr().out))
    asked = [(run["load"], run["seed"], run["policy"]) for run in found["runs"]]
    assert asked == [(load, seed, policy) for load in (1.0, 2.0) for seed in (0, 1) for policy in ("fcfs", "sjf")]
    alone = run_one(ReplayOptions(trace, cluster="a40:1x2", load=2.0, seed=1, policy="sjf"))
    for run in (alone, found["runs"][7]):
        del run["timing"]
    assert found["as_logged"] is alone.pop("as_logged") is None
    told = " ".join(found["notes"])
    assert all(note in told for note in alone.pop("notes"))
    assert "(load 2) warning: the log asks for" in told
    assert found["runs"][7] == alone
    rows = list(csv.DictReader(StringIO((tmp_path / "runs.csv").read_text())))
    assert [float(row["jct_mean_s"]) for row in rows] == [run["jct_mean_s"] for run in found["runs"]]
    assert [(one["policy"], one["load"], one["seeds"]) for one in found["means"]] == [
        ("fcfs", 1.0, 2),
        ("sjf", 1.0, 2),
        ("fcfs", 2.0, 2),
        ("sjf", 2.0, 2),
    ]


def test_a_failure_in_a_worker_says_what_it_would_say_alone(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["simulate", str(trace), "--cluster", "h100:1x2"]
    assert main(line) == 2
    alone = capsys.readouterr().err
    assert main([*line, "--seeds", "0..1", "--workers", "2"]) == 2
    assert capsys.readouterr().err == alone


def test_over_ray(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls that Ray gets, by a stand-in; `bench/simulation.py --ray` runs it for real."""
    calls: list[Any] = []

    def remote(function: Any) -> Any:
        def start(request: ReplayOptions) -> Any:
            calls.append(request)
            return function(request)

        return SimpleNamespace(remote=start)

    ray = SimpleNamespace(
        init=lambda **words: calls.append(words),
        remote=remote,
        get=lambda found: found,
        shutdown=lambda: calls.append("shutdown"),
        exceptions=SimpleNamespace(RayError=RuntimeError),
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    found = api.simulate_sweep(trace, cluster="a40:1x2", policies=("fcfs",), seeds=(0, 1), ray="auto")
    assert calls[0]["address"] == "auto"
    assert [request.seed for request in calls[1:-1]] == [0, 1]
    assert calls[-1] == "shutdown"
    assert [run["finished"] for run in found["runs"]] == [3, 3]
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match="no ray in this Python"):
        api.simulate_sweep(trace, cluster="a40:1x2", policies=("fcfs",), ray="auto")


def test_intervals_are_students() -> None:
    for count in (2, 5, 40, 200):
        values = [Random(count).random() + number for number in range(count)]
        found = mean_of(values)
        low, high = student.interval(0.95, count - 1, loc=0, scale=1)
        deviation = math.sqrt(sum((one - sum(values) / count) ** 2 for one in values) / (count - 1))
        assert found["half_width_95"] == pytest.approx((high - low) / 2 * deviation / math.sqrt(count), rel=1e-9)
    assert mean_of([3.0]) == {"mean": 3.0, "half_width_95": None}
    assert mean_of([]) == {"mean": None, "half_width_95": None}


def test_options_of_one_policy_among_several() -> None:
    sweep = SweepOptions(Path("t"), cluster="c", policies=("a", "b"), option={"a.depth": 3, "all": True})
    assert [request.option for request in make_requests(sweep)] == [{"depth": 3, "all": True}, {"all": True}]


def test_absent_figures_do_not_count(result: Result) -> None:
    run = summary_json(result) | {"load": 1.0, "seed": 0}
    found = summarize([run, run | {"seed": 1, "deadlines_met_ratio": None}])[0]
    assert found["deadlines_met_ratio"] == {"mean": run["deadlines_met_ratio"], "half_width_95": None}
    assert found["jct_mean_s"] == {"mean": run["jct_mean_s"], "half_width_95": 0.0}


def test_the_first_interrupt_asks_and_the_second_ends() -> None:
    before = signal.getsignal(signal.SIGINT)
    with _stopped(Path("checkpoint.json")) as stop:
        assert stop is not None
        assert not stop()
        signal.raise_signal(signal.SIGTERM)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    with _stopped(None) as stop:
        assert stop is None
