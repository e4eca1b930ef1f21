"""The nearest plan that a tool can run, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.exports.facts import differences
from bench.exports.plans import make_plan
from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import Setup
from planner import api
from planner.one_job.explicit.evaluation import evaluate_with_store
from planner.one_job.exporting import nearest
from planner.one_job.exporting.nearest import find_nearest
from planner.one_job.tools.base.export_records import ExportContext
from planner.one_job.tools.base.tool import Rule
from planner.one_job.tools.base.writing import write_plan
from planner.one_job.tools.catalogue import TOOLS
from planner.shared.plan import Plan
from planner.shared.plan_file import load_plan, save_plan
from profiles.errors import NothingFits
from profiles.store import ProfileStore
from profiles.vocabulary import Infeasible
from tests.planner.one_job.exporting.export_reading import READERS


def plan_file(name: str, folder: Path) -> Path:
    file = folder / "plan.json"
    save_plan(make_plan(name), file)
    return file


EVEN = replace(
    TOOLS["megatron"],
    name="even",
    degrees=(Rule(key="stages[].tp", allows=lambda s: s.tp % 2 == 0, found="{s.tp}", expected="an even tp"),),
)
"""A tool that runs stages of even tp alone."""

NOTHING = replace(
    EVEN,
    degrees=(),
    whole=(Rule(key="stages[].dp", allows=lambda s: s.tp < 0, found="{s.dp}", expected="no plan at all"),),
)


def test_one_thing_is_changed_where_that_is_enough() -> None:
    plan = make_plan("llama zb-h1")
    found = find_nearest(plan, tool=TOOLS["megatron"], context=ExportContext())
    assert found.nearest is not None
    assert found.nearest.changes == ("schedule 1f1b (the plan: zb-h1)",)
    assert found.nearest.plan.estimate.iteration_time_s > found.refused_time_s
    assert found.refused_time_s == pytest.approx(plan.estimate.iteration_time_s)


def test_the_nearest_is_accepted_fits_and_trains_the_same() -> None:
    plan = make_plan("llama tp8 pp2")
    for name in ("deepspeed", "accelerate", "maxtext"):
        found = find_nearest(plan, tool=TOOLS[name], context=ExportContext()).nearest
        assert found is not None, name
        assert write_plan(found.plan, TOOLS[name], ExportContext()) == found.export
        assert found.plan.batch.global_batch == plan.batch.global_batch
        assert len(found.plan.devices) == len(plan.devices)
        assert found.plan.model == plan.model
        assert found.changes


@pytest.mark.parametrize("tool", READERS)
@pytest.mark.parametrize("name", ["llama dualpipe", "mixtral ep4", "llama offload", "llama uneven chunks"])
def test_files_of_the_nearest_say_what_it_says(name: str, tool: str) -> None:
    found = find_nearest(make_plan(name), tool=TOOLS[tool], context=ExportContext()).nearest
    if found is not None:
        assert differences(tool, READERS[tool](found.export), found.plan) == []
    dense = {"torchtitan", "torchtitan-toml", "llm-foundry", "nanotron"}
    none = dense if name == "mixtral ep4" else set()
    large = {"deepspeed", "accelerate", "llm-foundry", "nanotron"} if name == "llama uneven chunks" else set()
    assert (found is None) == (tool in none | large), "no such model there, or no memory"


def test_no_plan_is_found_for_another_model() -> None:
    """No change of the plan makes a bert of a decoder."""
    found = find_nearest(make_plan("bert"), tool=TOOLS["megatron"], context=ExportContext())
    assert found.nearest is None


def test_uneven_stages_are_made_alike() -> None:
    """tp 2 in both stages, where the plan has it in one."""
    plan = uneven_plan()
    found = find_nearest(plan, tool=EVEN, context=ExportContext()).nearest
    assert found is not None
    assert {stage.tp for stage in found.plan.stages} == {2}
    assert any(change.startswith("tp 2 (the plan: 1 | 2)") for change in found.changes)


def uneven_plan() -> Plan:
    """gpt-tiny in two stages: dp 2, then tp 2."""
    plan = make_plan("gpt tp2 pp2")
    first, second = plan.stages
    sharding = replace(first.sharding, shard=1, replicate=4)
    return replace(plan, stages=(replace(first, tp=1, dp=4, sharding=sharding), second), batch=batch_of(plan))


def batch_of(plan: Plan):  # type: ignore[no-untyped-def]
    return replace(plan.batch, micro_batch=4, micro_batches=plan.batch.global_batch // 4)


def test_the_search_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    monkeypatch.setattr(nearest, "MOST_LOOKS", 20)
    price = evaluate_with_store

    def count(setup: Setup, *, store: ProfileStore | None) -> Evaluation | Infeasible:
        looks.append(setup)
        return price(setup, store=store)

    monkeypatch.setattr(nearest, "evaluate_with_store", count)
    assert find_nearest(make_plan("llama zero 1"), tool=NOTHING, context=ExportContext()).nearest is None
    assert 0 < len(looks) <= 21, "the plan itself is priced too"


def test_the_refusal_names_key_nearest_and_both_times(tmp_path: Path) -> None:
    file = plan_file("llama zb-h1", tmp_path)
    with pytest.raises(NothingFits) as caught:
        api.export(file, to="megatron")
    said = str(caught.value)
    assert said.startswith("megatron cannot express schedule: found zb-h1; it runs 1f1b or interleaved;")
    assert "the nearest plan that it runs (--nearest exports it): schedule 1f1b (the plan: zb-h1)" in said
    result = caught.value.result
    assert isinstance(result, dict)
    assert result["refused"]["key"] == "schedule"
    assert result["nearest"]["iteration_time_s"] > result["refused"]["iteration_time_s"] > 0
    assert result["nearest"]["plan"]["schedule"] == "1f1b"


def test_nearest_exports_it_and_says_so(tmp_path: Path) -> None:
    result = api.export(plan_file("llama zb-h1", tmp_path), to="megatron", nearest=True)
    assert [one["name"] for one in result["files"]] == ["megatron.sh"]
    assert "these files are of the nearest plan that it runs: schedule 1f1b" in result["notes"][0]


def test_a_plan_that_cannot_be_read_again_is_refused_all_the_same(tmp_path: Path) -> None:
    """Its model's file is gone: no nearest, and its own time."""
    config = tmp_path / "config.json"
    config.write_text((Path("bench") / "exports" / "windowed.json").read_text(encoding="utf-8"), encoding="utf-8")
    plan = load_plan(plan_file("llama dualpipe", tmp_path))
    gone = replace(plan, cluster="h100:1x1")
    found = find_nearest(gone, tool=TOOLS["accelerate"], context=ExportContext())
    assert found.nearest is None
    assert found.refused_time_s == plan.estimate.iteration_time_s
