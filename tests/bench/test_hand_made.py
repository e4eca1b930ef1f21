"""Plans made by hand against the proved one: the bench on one small case of each family that is quick."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bench.planning.hand_made import SAME, Workload, row_of, try_case
from planner import api

SMALL = Workload(model="gpt-tiny", text="a100-80gb:1x4", global_batch=16)


def test_no_plan_made_by_hand_is_faster(tmp_path: Path) -> None:
    result = try_case(SMALL, 6, random.Random(0), tmp_path)
    assert result.proved
    assert result.proved_s is not None
    assert len(result.times_s) == 6
    assert not result.faster
    assert all(time_s >= result.proved_s * (1 - SAME) for time_s in result.times_s)
    assert row_of("dense", [result]).startswith("| dense | 1 | 0 | 0 | 6 |")


def test_one_that_were_faster_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def faster(*_: object, **__: object) -> dict[str, dict[str, float]]:
        return {"estimate": {"iteration_time_s": 1e-6}}

    monkeypatch.setattr(api, "estimate", faster)
    result = try_case(SMALL, 2, random.Random(0), tmp_path)
    assert len(result.faster) == 2
    assert "1e-06 s, proved" in result.faster[0]
