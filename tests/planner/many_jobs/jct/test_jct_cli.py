"""`cellplan jct` from the command line and from Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner import api
from planner.cli.main import main
from tests.documents import checked
from tests.planner.many_jobs.jct.jct_examples import learnable_jobs, write_trace


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trace(tmp_path_factory.mktemp("jct") / "trace.csv", learnable_jobs(600, seed=3))


@pytest.fixture(scope="module")
def model(trace: Path) -> Path:
    path = trace.with_name("model.txt")
    assert main(["jct", "train", str(trace), "-o", str(path), "--threads", "1"]) == 0
    return path


def run_json(capsys: pytest.CaptureFixture[str], *words: str | Path) -> dict[str, object]:
    capsys.readouterr()
    assert main([*map(str, words), "--json"]) == 0
    found: dict[str, object] = checked(f"{words[0]} {words[1]}", json.loads(capsys.readouterr().out))
    return found


def test_train_says_what_it_rests_on(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = learnable_jobs(600, seed=3)
    until = float(jobs.submit_s[400])
    path = trace.with_name("until.txt")
    found = run_json(capsys, "jct", "train", trace, "-o", path, "--until", str(until), "--threads", "1")
    window = found["training_window"]
    assert isinstance(window, dict)
    assert window["until_s"] == until
    assert window["last_submit_s"] <= until
    assert found["columns"] == ["gpus", "user"]
    header = json.loads(path.read_text().splitlines()[-1].partition(" ")[2])
    assert header["features"] == found["features"]
    assert header["window"] == window


def test_predict_is_the_same_with_the_past_in_a_file_of_its_own(
    trace: Path, model: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = trace.read_text().splitlines(keepends=True)
    past, new = tmp_path / "past.csv", tmp_path / "new.csv"
    past.write_text("".join(lines[:501]))
    blank = [",".join(["", *line.split(",")[1:]]) for line in lines[501:]]
    assert len(blank) == 100
    new.write_text("".join([lines[0], *(line.replace(line.split(",")[2], "", 1) for line in lines[501:502])]))
    begin = lines[501].split(",")[1]
    whole = run_json(capsys, "jct", "predict", model, trace, "--from", begin, "--loss", "absolute")["jobs"]
    apart = run_json(capsys, "jct", "predict", model, new, "--history", past, "--loss", "absolute")["jobs"]
    assert isinstance(whole, list)
    assert isinstance(apart, list)
    assert len(whole) == 100
    assert apart == whole[:1]
    assert set(apart[0]) == {
        "job_id",
        "submit_time_s",
        "interval",
        "point_intervals",
        "point_s",
        "interval_90",
        "interval_90_s",
    }


def test_evaluate_has_the_agreed_keys(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "jct", "evaluate", trace, "--origins", "2", "--tested", "0.3", "--threads", "1")
    assert {"test_jobs", "cap_intervals", "rmse_intervals", "mae_intervals", "within_2x", "coverage_90"} <= set(found)
    assert found["test_jobs"] == 180
    assert found["cap_intervals"] == 24
    beside = api.jct_evaluate(trace, origins=2, tested=0.3, threads=1)
    for timed in (found, beside):
        timed.pop("timing")
    assert json.loads(json.dumps(beside)) == found


def test_tables_for_people(trace: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jct", "predict", str(model), str(trace)]) == 0
    printed = capsys.readouterr().out
    assert "600 jobs, predicted for the squared loss (modelled)" in printed
    assert "570 more" in printed
    words = ["jct", "evaluate", str(trace), "--origins", "1", "--tested", "0.2", "--threads", "1", "--quantiles"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "past-31 median by user-gpus" in printed
    assert "Quantile boosters'" in printed
    assert max(map(len, printed.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate", "TRACE", "--tested", "1.5"], "a share between 0 and 1"),
        (["evaluate", "TRACE", "--origins", "500"], "tested jobs an origin"),
        (["train", "TRACE", "-o", "x.txt", "--cap", "1"], "2 to 2016"),
        (["train", "TRACE", "-o", "x.txt", "--until", "soon"], "seconds on the trace's clock"),
        (["train", "TRACE", "-o", "x.txt", "--until", "5"], "jobs whose duration is known at 5 s"),
        (["predict", "TRACE", "TRACE"], "a model of `cellplan jct train`"),
        (["predict", "MODEL", "TRACE", "--from", "1e12"], "before the last submission"),
        (["predict", "MODEL", "none.csv"], "none.csv"),
    ],
)
def test_wrong_input_leaves_with_2(
    trace: Path,
    model: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"TRACE": str(trace), "MODEL": str(model)}
    assert main(["jct", *(places.get(word, word) for word in words)]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
