"""`plan --why`: the best plan with something asked for, part by part beside the best."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from planner import api
from planner.cli.main import main
from planner.one_job.planning.why import read_asked
from planner.one_job.search.spaces.constraints import Constraints
from profiles.errors import InputError

HERE: dict[str, Any] = {"cluster": "a100-80gb:2x2", "global_batch": 32}
WORDS = ["plan", "gpt2-1.3b", "--cluster", "a100-80gb:2x2", "--global-batch", "32"]


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        ("tp=2", {"tp": 2}),
        ("pp=4,zero=0", {"pp": 4, "zero": 0}),
        ("recompute=full", {"recompute": "full"}),
        ("micro-batch=1", {"micro_batch": 1}),
        ("devices=2", {"fix": ("devices=2",)}),
        ("tp=2,sequence-parallel=off", {"tp": 2, "sequence_parallel": False}),
        ("schedule=interleaved", {"schedule": ("interleaved",)}),
    ],
)
def test_it_is_the_best_plan_with_that_fixed(asked: str, options: dict[str, Any]) -> None:
    answer = api.plan("gpt2-1.3b", why=(asked,), **HERE)
    (why,) = answer.why
    other = api.plan("gpt2-1.3b", **options, **HERE).plan
    assert why.comparison is not None
    assert why.proved
    assert why.comparison.other_s == pytest.approx(other.estimate.iteration_time_s, rel=1e-9)
    assert why.comparison.one_s == answer.plan.estimate.iteration_time_s
    parts = math.fsum(pair.more for pair in why.comparison.parts)
    assert parts == pytest.approx(why.comparison.other_s - why.comparison.one_s, abs=1e-9)
    assert why.loss is not None
    assert why.loss >= -1e-12


def test_what_the_plan_has_already_and_what_cannot_be(capsys: pytest.CaptureFixture[str]) -> None:
    best = api.plan("gpt2-1.3b", **HERE).plan
    has = f"tp={best.stages[0].tp},pp={len(best.stages)},zero={best.stages[0].sharding.zero}"
    assert main([*WORDS, "--why", has, "--why", "tp=3", "--why", "tp=4", "--json"]) == 0
    already, never, slower = json.loads(capsys.readouterr().out)["why"]
    assert (already["already"], already["fits"]) == (True, True)
    assert (never["already"], never["fits"]) == (False, False)
    assert "no plan is possible" in never["reason"]
    sizes = [abs(pair["more"]) for pair in slower["parts"]]
    assert sizes == sorted(sizes, reverse=True)
    assert slower["memory"][-1]["name"] == "peak_bytes"
    assert slower["device_memory_bytes"] > 0


def test_people_get_a_line_for_each_part_then_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, "--why", "tp=4", "--why", "tp=3"]) == 0
    shown = capsys.readouterr().out
    lines = shown[shown.index("why not tp=4") :].splitlines()
    assert "proved: no plan with it is better" in " ".join(" ".join(lines).split())
    items = [line for line in lines if line.startswith("  - ")]
    assert any(line.startswith("  - tensor-parallel communication +") for line in items)
    assert items[-1].startswith("  - memory of the fullest device ")
    assert any(line.startswith("why not tp=3: nothing fits with it.") for line in lines)


def test_tp_beyond_an_island_can_be_asked_for() -> None:
    (why,) = api.plan("gpt2-1.3b", why=("tp=4",), **HERE).why
    assert why.comparison is not None
    assert {stage.tp for stage in why.comparison.other.stages} == {4}


def test_what_is_fixed_gives_way_to_what_is_asked() -> None:
    (why,) = api.plan("gpt-tiny", cluster="a100-80gb:1x4", global_batch=16, tp=1, why=("tp=2",)).why
    assert why.comparison is not None
    assert {stage.tp for stage in why.comparison.other.stages} == {2}
    assert read_asked("zero=3").change(Constraints(zero=(1,))).zero == (0, 1, 2, 3)


@pytest.mark.parametrize(
    "text", ["", "tp", "tp=", "tp=0", "tp=1,tp=2", "zero=4", "speed=9", "recompute=auto", "schedule=zb", "offload=on"]
)
def test_what_is_no_question_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"--why: found"):
        read_asked(text)


def test_cells_are_asked_no_why() -> None:
    with pytest.raises(InputError, match="--why: found --search cells"):
        api.plan("gpt-tiny", cluster="a100-80gb:1x4", search="cells", why=("tp=2",))
