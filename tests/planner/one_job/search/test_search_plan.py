"""`plan` from outside: constraints, objectives, several searches, and what is said where nothing is possible."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from planner import api
from planner.cli import main as cli
from planner.one_job.search.spaces.constraints import read_numbers
from profiles.errors import InputError, NothingFits

MODEL, CLUSTER = "gpt2-1.3b", "a100-80gb:1x4"
PRICED = """\
schema: cellplan.cluster/1
sites:
  - name: here
    nodes:
      - {count: 1, device: a100-80gb, devices: 4, price_per_device_hour: 2.0}
"""


def _plan(**options: Any) -> Any:
    return api.plan(
        options.pop("model", MODEL), cluster=options.pop("cluster", CLUSTER), global_batch=16, **options
    ).plan


def test_constraints_hold_and_cost_time() -> None:
    free = _plan()
    fixed = _plan(fix=("pp=2", "tp=2"))
    assert {(len(fixed.stages), stage.tp) for stage in fixed.stages} == {(2, 2)}
    assert fixed.estimate.iteration_time_s >= free.estimate.iteration_time_s
    assert free.provenance.optimality_proved
    limited = _plan(max=("dp=1",), min=("tp=2",))
    assert all(stage.dp == 1 and stage.tp >= 2 for stage in limited.stages)
    assert all(stage.sharding.zero == 3 for stage in _plan(zero=3, fix=("dp=4",)).stages)
    assert all(stage.recompute.kind == "full" for stage in _plan(recompute="full").stages)
    assert _plan(micro_batch=2).batch.micro_batch == 2 * _plan(micro_batch=2).stages[0].dp


@pytest.mark.parametrize("tool", ["megatron", "torchtitan", "deepspeed"])
def test_a_tool_gets_what_it_can_run(tool: str) -> None:
    plan = _plan(model="llama2-7b", cluster="h100:1x8", tool=tool, fix=("pp=2",))
    zero = {stage.sharding.zero for stage in plan.stages}
    assert zero <= {"megatron": {0, 1}, "torchtitan": {0, 1, 3}, "deepspeed": {0, 1}}[tool]
    if tool == "deepspeed":
        assert plan.schedule == "1f1b"


@pytest.mark.parametrize("zero", [2, 3])
def test_a_habit_gives_way_to_the_zero_that_is_asked_for(zero: int) -> None:
    """Megatron FSDP runs, without the fused accumulation that Megatron-LM usually has."""
    plan = _plan(model="llama2-7b", cluster="h100:1x8", tool="megatron", zero=zero, min=("dp=2",))
    assert {stage.sharding.zero for stage in plan.stages} == {zero}
    assert plan.recipe is not None
    assert not plan.recipe.software.fused_accumulation
    assert any("passes of their own" in sentence for sentence in plan.assumptions)


def test_a_state_that_the_tool_does_not_hold_is_refused_with_its_reason() -> None:
    stated = ("fused_accumulation=true",)
    with pytest.raises(NothingFits, match="found 2; it runs Megatron FSDP without fused accumulation"):
        _plan(model="llama2-7b", cluster="h100:1x8", tool="megatron", zero=2, feature=stated)


def test_a_model_that_the_tool_cannot_be_told_is_refused_at_once() -> None:
    with pytest.raises(NothingFits, match="torchtitan cannot express model: found gpt2"):
        _plan(tool="torchtitan")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fix": ("tp",)}, "--fix"),
        ({"max": ("heads=3",)}, "--max"),
        ({"min": ("tp=0",)}, "at least 1"),
        ({"fix": ("tp=4",), "max": ("tp=2",)}, "--fix"),
        ({"schedule": ("dualpipe",)}, "--schedule"),
        ({"devices": 5}, "--devices"),
        ({"micro_batches": "best", "search": "exact"}, "--search cells"),
        ({"search": "cells", "fix": ("tp=2",)}, "Cells"),
        ({"zero": 1, "fix": ("zero=2",)}, "--zero"),
        ({"objective": "cost"}, "price_per_device_hour"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        _plan(**options)


def test_nothing_possible_says_what_removed_the_ways() -> None:
    with pytest.raises(NothingFits, match="your constraints on tp"):
        _plan(fix=("tp=3",), model="gpt-tiny")
    with pytest.raises(NothingFits, match=r"lacks .* GiB"):
        _plan(model="llama3-70b", cluster="v100-32gb:1x1", dtype="fp16")
    with pytest.raises(NothingFits, match="no bf16 rate"):
        _plan(cluster="v100-32gb:1x4", dtype="bf16")


def test_money_takes_the_devices_into_account(tmp_path: Path) -> None:
    file = tmp_path / "priced.yaml"
    file.write_text(PRICED, encoding="utf-8")
    fast = _plan(cluster=str(file))
    cheap = _plan(cluster=str(file), objective="cost")
    assert len(cheap.devices) * cheap.estimate.iteration_time_s <= len(fast.devices) * fast.estimate.iteration_time_s
    assert cheap.estimate.iteration_time_s >= fast.estimate.iteration_time_s


def test_a_front_falls_in_both_directions() -> None:
    found = api.front(MODEL, cluster=CLUSTER, against="devices", global_batch=16)
    times = [choice.iteration_time_s for choice in found]
    assert times == sorted(times)  # type: ignore[type-var]
    devices = [choice.devices for choice in found]
    assert devices == sorted(devices, reverse=True)
    assert len(set(devices)) == len(devices)
    memory = api.front(MODEL, cluster=CLUSTER, against="memory", global_batch=16)
    needed = [choice.needed_bytes for choice in memory]
    assert needed == sorted(needed, reverse=True)  # type: ignore[type-var]
    assert len(memory) > 1


def test_the_smallest_cluster_meets_the_time_and_one_device_less_does_not() -> None:
    whole = _plan().estimate.iteration_time_s
    found = api.smallest(MODEL, cluster=CLUSTER, meet_s=1.5 * whole, global_batch=16)
    assert found.plan is not None
    assert found.plan.estimate.iteration_time_s <= 1.5 * whole
    if found.devices > 1:
        fewer = _plan(devices=found.devices - 1)
        assert fewer.estimate.iteration_time_s > 1.5 * whole
    with pytest.raises(NothingFits, match="no plan is as fast"):
        api.smallest(MODEL, cluster=CLUSTER, meet_s=whole / 1e3, global_batch=16)


def test_clusters_side_by_side() -> None:
    found = api.side_by_side(
        MODEL, cluster=CLUSTER, beside=("h100:1x4", "v100-32gb:1x4"), global_batch=16, dtype="bf16"
    )
    first, second, third = found
    assert (first.iteration_time_s or math.inf) > (second.iteration_time_s or math.inf)
    assert third.plan is None
    assert "bf16" in (third.reason or "")


@pytest.mark.parametrize("question", [["--front", "devices"], ["--meet", "100"], ["--beside", "h100:1x4"]])
def test_questions_on_the_command_line(question: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "gpt-tiny", "--cluster", CLUSTER, "--global-batch", "8", *question]
    assert cli.main([*words, "--json"]) == 0
    choices = json.loads(capsys.readouterr().out)["choices"]
    assert choices
    assert all(choice["iteration_time_s"] > 0 and choice["proved"] for choice in choices)
    assert cli.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert cli.main([*words, "--explain"]) == 2


def test_numbers_are_read() -> None:
    assert read_numbers("--max", ("tp=8", "micro-batch=2")) == {"tp": 8, "micro_batch": 2}
    with pytest.raises(InputError, match="each name once"):
        read_numbers("--max", ("tp=8", "tp=4"))


@pytest.mark.parametrize("cluster", ["a100-80gb:3x6", "a100-80gb:1x1", "h100:1x7"])
def test_odd_clusters_have_plans(cluster: str) -> None:
    plan = _plan(cluster=cluster)
    assert plan.provenance.optimality_proved
    assert plan.estimate.iteration_time_s > 0


def test_the_same_request_gives_the_same_plan() -> None:
    assert _plan() == _plan()


@pytest.mark.parametrize("name", ["tp", "pp", "vpp", "micro-batch"])
def test_a_constraint_that_nothing_meets_is_named(name: str) -> None:
    with pytest.raises(NothingFits, match=rf"your constraints on {name} \("):
        api.plan("gpt-tiny", cluster="a100-80gb:1x4", global_batch=16, fix=(f"{name.replace('-', '_')}=1000003",))
