"""What came of a simulation of `bench.clusters.figures` is kept, and taken when it is asked for again."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.clusters import figures_run
from bench.clusters.figures_run import Task, run_or_recall


def test_a_simulation_runs_once_and_is_recalled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Task] = []

    def run(task: Task) -> dict[str, Any]:
        asked.append(task)
        return {"label": task.label, "jct_s": [1.5, math.nan]}

    monkeypatch.setattr(figures_run, "run_task", run)
    task = Task(
        label="ours",
        policy="spiderflow",
        options=(("trim", False),),
        place="eight",
        source="new",
        jobs=3,
        load=0.5,
        seed=0,
        data="data",
    )
    kept = tmp_path / "runs"
    for _ in range(2):
        found = run_or_recall(kept, task)
        assert found["label"] == "ours"
        assert found["jct_s"][0] == 1.5
        assert math.isnan(found["jct_s"][1])
    assert asked == [task]
    run_or_recall(kept, replace(task, seed=1))
    run_or_recall(None, task)
    assert len(asked) == 3
