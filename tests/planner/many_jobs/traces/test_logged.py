"""What a trace says of itself: beside a count second by second; and models from a table beside it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from planner.cli import main as cli
from planner.many_jobs.traces.job_models import with_job_models
from planner.many_jobs.traces.logged import as_logged, overfilling
from planner.many_jobs.traces.records import Trace, TraceRow
from profiles.errors import InputError
from tests.seeds import seeds


def trace_of(*rows: tuple[float, float, float | None, int]) -> Trace:
    """(submission, queueing, duration, devices) of each job; a duration of None: it does not say how long it queued."""
    made = tuple(
        TraceRow(
            line=number,
            job_id=f"job{number}",
            submit_time_s=submitted,
            duration_s=5.0 if duration is None else duration,
            gpus=devices,
            queue_s=None if duration is None else queued,
            user=f"user{number % 2}",
        )
        for number, (submitted, queued, duration, devices) in enumerate(rows)
    )
    return Trace(source="log.csv", format="sacct", rows=made)


@pytest.mark.parametrize("seed", seeds(40))
def test_what_was_busy_at_once_is_that_of_a_clock(seed: int) -> None:
    rng = random.Random(seed)
    rows = [(rng.randint(0, 30), rng.randint(0, 9), rng.randint(1, 20), rng.randint(1, 8)) for _ in range(12)]
    logged = as_logged(trace_of(*rows))
    assert logged is not None
    busy = [
        sum(
            devices
            for submitted, queued, ran, devices in rows
            if submitted + queued <= second < submitted + queued + ran
        )
        for second in range(70)
    ]
    assert logged.most_devices == max(busy)
    assert logged.makespan_s == max(sum(row[:3]) for row in rows) - min(row[0] for row in rows)
    assert logged.jct_mean_s == pytest.approx(sum(row[1] + row[2] for row in rows) / 12)
    warned = overfilling(trace_of(*rows), max(busy) - 1)
    assert any(f"{max(busy)} devices busy at once, the cluster has {max(busy) - 1}" in text for text in warned)
    assert not any("at once" in text for text in overfilling(trace_of(*rows), max(busy)))


def test_a_log_that_asks_for_more_than_there_is_is_warned_of() -> None:
    (said,) = overfilling(trace_of((0, 0, None, 4), (0, 0, 3600.0, 4)), 4)
    assert "times what the cluster has" in said
    assert overfilling(trace_of((0, 0, 3600.0, 4)), 4) == ()
    assert overfilling(Trace(source="", format="sacct", rows=()), 4) == ()
    assert as_logged(trace_of((0, 0, None, 4))) is None


def test_models_come_from_a_table_beside_the_trace(tmp_path: Path) -> None:
    trace, table = trace_of((0, 0, 1.0, 1), (1, 0, 1.0, 1), (2, 0, 1.0, 1)), tmp_path / "models.csv"
    table.write_text("user,model,global_batch\nuser0,gpt2-1.3b,64\n", encoding="utf-8")
    rows = with_job_models(trace, table).rows
    assert [(row.model, row.global_batch) for row in rows] == [("gpt2-1.3b", 64), ("", None), ("gpt2-1.3b", 64)]
    table.write_text("job_id,model\njob1,bert-1.3b\n\n", encoding="utf-8")
    assert [row.model for row in with_job_models(trace, table).rows] == ["", "bert-1.3b", ""]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "nothing"),
        ("job_id,user,model\n", "job_id, user, model"),
        ("job_id\n", "job_id"),
        ("job_id,model\njob9,bert-1.3b\n", "job9"),
        ("job_id,model\njob1,bert-1.3b\njob1,bert-1.3b\n", "a second time"),
        ("job_id,model\njob1,\n", "an empty cell"),
        ("job_id,model\njob1\n", "1 cells"),
        ("job_id,model,global_batch\njob1,bert-1.3b,0\n", "'0'"),
        ('job_id,model\n"job1,bert', "no CSV"),
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path: Path, text: str, found: str) -> None:
    table = tmp_path / "models.csv"
    table.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=found):
        with_job_models(trace_of((0, 0, 1.0, 1), (1, 0, 1.0, 1)), table)


def test_jobs_without_a_model_may_keep_their_durations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On their own devices and no others, whatever the policy; of several sites none run so."""
    log = tmp_path / "log.csv"
    log.write_text("job_id,submit_time_s,duration_s,gpus,queue_s\na,0,7200,8,0\nb,100,3600,3,0\n", encoding="utf-8")
    words = ["simulate", str(log), "--cluster", "a100-80gb:1x8", "--no-model", "keep-durations", "--json"]
    for policy in ("fcfs", "crius"):
        assert cli.main([*words, "--policy", policy]) == 0
        value = json.loads(capsys.readouterr().out)
        assert value["jct_mean_s"] == pytest.approx((7200 + 7200 - 100 + 3600) / 2)
        assert value["as_logged"]["jct_mean_s"] == 5400
        assert any("11 devices busy at once, the cluster has 8" in note for note in value["notes"])
    assert cli.main([*words, "--policies", "fcfs,sjf"]) == 0
    swept = json.loads(capsys.readouterr().out)
    assert swept["as_logged"]["jct_mean_s"] == 5400
    assert any("run as long as logged" in note for note in swept["notes"])
    assert cli.main([*words[:-1], "--policies", "fcfs,sjf"]) == 0
    assert "as logged" in capsys.readouterr().out
