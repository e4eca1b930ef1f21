"""When each stage works on what: sums, order, ends, and the trace that comes of it; the option that writes them."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from estimator.frontends.load import load_file_model
from estimator.pricing.evaluate import evaluate
from estimator.pricing.outcome import Evaluation
from estimator.schedules.closed_form import time_schedule
from estimator.schedules.simulate import simulate_schedule
from planner import api
from planner.cli import main as cli
from planner.one_job.explicit.evaluation import evaluate_with_store
from planner.one_job.explicit.reading import read_plan
from planner.one_job.running.program import program_of
from planner.one_job.running.traces import estimated_spans, trace_events
from planner.one_job.timeline.events import Timeline, make_timeline
from planner.one_job.timeline.perfetto import write_trace
from planner.one_job.timeline.save import save_timeline, timeline_form
from planner.shared.plan import Plan
from planner.shared.plan_file import save_plan
from profiles.errors import InputError
from profiles.store import ProfileStore
from tests.planner.one_job.running.run_plan_examples import GPT, HandStage, hand_plan, write_config
from tests.planner.one_job.running.running_examples import estimate_of, put_own_rates
from tests.planner.one_job.running.test_running_traces import validate_trace
from tests.planner.one_job.timeline.timeline_examples import PLANS, made_up, plan_named

NEAR = {"interleaved": 0.05, "dualpipe": 0.05}
"""What the closed forms of these schedules may be off."""


def evaluation_of(plan: Plan) -> Evaluation:
    found = evaluate(read_plan(plan, where="plan", store=None).setups[0])
    assert isinstance(found, Evaluation)
    return found


# What is in a timeline


@pytest.mark.parametrize("name", PLANS)
def test_tasks_of_a_stage_never_overlap_and_sum_to_its_work(name: str) -> None:
    plan = plan_named(name)
    timeline, pipeline = make_timeline(plan), evaluation_of(plan).pipeline
    assert pipeline is not None
    passes = plan.batch.micro_batches / (2 if plan.schedule == "dualpipe" else 1)
    assert [stage.number for stage in timeline.stages] == list(range(len(plan.stages)))
    for stage, times in zip(timeline.stages, pipeline.stages, strict=True):
        assert stage.busy_s == pytest.approx(passes * times.busy_s)
        assert all(first.end_s <= second.start_s for first, second in pairwise(stage.tasks))
        assert all(0 <= task.start_s <= task.end_s <= timeline.pipeline_s for task in stage.tasks)


@pytest.mark.parametrize("name", PLANS)
def test_every_micro_batch_passes_every_chunk_of_every_stage(name: str) -> None:
    plan = plan_named(name)
    kinds = {"forward", "backward"} | ({"weight"} if plan.schedule in ("zb-h1", "dualpipe") else set())
    batches = plan.batch.micro_batches
    expected = {
        (kind, chunk, k) for kind in kinds for chunk in range(len(plan.stages[0].chunks)) for k in range(batches)
    }
    if plan.schedule == "dualpipe":
        expected = {(kind, chunk, k) for kind, chunk, k in expected if (k >= batches / 2) == chunk}
    for stage in make_timeline(plan).stages:
        counted = Counter((task.kind, task.chunk, task.micro_batch) for task in stage.tasks)
        assert counted == dict.fromkeys(expected, 1)


@pytest.mark.parametrize("name", PLANS)
def test_it_ends_with_the_simulated_schedule_and_what_follows(name: str) -> None:
    plan = plan_named(name)
    timeline, evaluation = make_timeline(plan), evaluation_of(plan)
    pipeline = evaluation.pipeline
    assert pipeline is not None
    timed = (plan.schedule, pipeline.stages, pipeline.transfers, plan.batch.micro_batches)
    assert timeline.pipeline_s == simulate_schedule(*timed).total_s
    assert timeline.end_s == pytest.approx(
        timeline.pipeline_s + pipeline.sync_s + pipeline.optimizer_s + timeline.offload_s, rel=1e-12
    )
    assert (timeline.offload_s > 0) == (name == "offloaded")
    assert timeline.iteration_time_s == evaluation.iteration_time_s == plan.estimate.iteration_time_s
    assert timeline.end_s == pytest.approx(evaluation.iteration_time_s, rel=NEAR.get(name, 1e-9))
    closed = time_schedule(*timed).total_s + sum(timeline.after_s.values())
    assert closed == pytest.approx(evaluation.iteration_time_s, rel=1e-9)


def test_a_cells_plan_has_a_timeline_and_says_what_it_stated_itself() -> None:
    plan = api.plan("gpt-tiny", cluster="a100-80gb:1x4", stages=(2,), global_batch=32).plan
    timeline = make_timeline(plan)
    assert timeline.planned_time_s == plan.estimate.iteration_time_s
    assert [stage.planned.ranks for stage in timeline.stages] == [stage.ranks for stage in plan.stages]


def test_the_store_and_whose_profiles_count_reach_the_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Any, Any]] = []

    def note(setup: Any, *, store: Any, profiles: Any) -> Any:
        seen.append((store, profiles))
        return evaluate_with_store(setup, store=store, profiles=profiles)

    monkeypatch.setattr("planner.one_job.timeline.events.evaluate_with_store", note)
    path = tmp_path / "store.sqlite"
    with ProfileStore(path):
        pass
    api.timeline(plan_named("gpipe"), store=path, profiles="jax")
    api.timeline(plan_named("gpipe"), store=tmp_path / "none.sqlite")
    assert isinstance(seen[0][0], ProfileStore)
    assert [profiles for _, profiles in seen] == ["jax", None]
    assert seen[1][0] is None


def test_a_plan_on_this_machine_needs_its_store(tmp_path: Path) -> None:
    gpt = write_config(tmp_path, "gpt", GPT)
    plan = hand_plan(gpt, HandStage(chunks=((0, 3),)), HandStage(chunks=((3, 6),)))
    store = put_own_rates(tmp_path / "store.sqlite")
    timeline = api.timeline(plan, store=store)
    _, evaluation = estimate_of(plan, store)
    assert timeline.iteration_time_s == pytest.approx(evaluation.iteration_time_s, rel=0.1)  # that is without dropout
    with pytest.raises(InputError, match="local"):
        api.timeline(plan)


def test_a_plan_that_cannot_be_read_back_is_refused_by_its_name(tmp_path: Path) -> None:
    file, plan = tmp_path / "plan.json", replace(plan_named("gpipe"), rank_axis_order=("dp", "tp", "cp", "pp"))
    save_plan(plan, file)
    with pytest.raises(InputError, match=r"plan\.json: rank_axis_order"):
        api.timeline(file)
    with pytest.raises(InputError, match=r"^plan: rank_axis_order"):
        api.timeline(plan)


# Traces


@pytest.mark.parametrize("name", PLANS)
def test_a_trace_is_valid_and_has_every_task(name: str) -> None:
    timeline = make_timeline(plan_named(name))
    complete = validate_trace(write_trace(timeline))
    after = list(timeline.after_s)
    for stage in timeline.stages:
        own = [event for event in complete if event["pid"] == stage.planned.ranks[0]]
        assert [event["cat"] for event in own] == [*(task.kind for task in stage.tasks), *after]
        for event, task in zip(own, stage.tasks, strict=False):
            assert event["ts"] == pytest.approx(task.start_s * 1e6, abs=1e-3)
            assert (event["args"]["micro_batch"], event["args"]["chunk"]) == (task.micro_batch, task.chunk)
        assert max(event["ts"] + event["dur"] for event in own) == pytest.approx(timeline.end_s * 1e6, abs=1e-2)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved"])
def test_a_trace_is_that_of_cellplan_run_for_the_first_rank_of_each_stage(name: str) -> None:
    plan = plan_named(name)
    timeline = make_timeline(plan)
    program = program_of(plan, load_file_model(plan.model.reference), where="plan")
    spans = estimated_spans(program, evaluation_of(plan))
    firsts = {stage.planned.ranks[0]: spans[stage.planned.ranks[0]] for stage in timeline.stages}
    trace = json.loads(write_trace(timeline))
    for event in trace["traceEvents"]:
        if event["name"] == "process_name":
            event["args"]["name"] = event["args"]["name"].split(" (")[0]
    assert trace["traceEvents"] == json.loads(json.dumps(list(trace_events(program, firsts, "estimated"))))


def test_ranks_that_are_alike_share_a_process() -> None:
    trace = json.loads(write_trace(make_timeline(plan_named("gpipe"))))
    names = [event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"]
    assert names == ["estimated: rank 0, stage 0 (4 ranks alike)", "estimated: rank 4, stage 1 (4 ranks alike)"]


# Files


def test_the_name_of_a_file_says_its_form(tmp_path: Path) -> None:
    timeline = made_up("1f1b", stages=2, micro_batches=4)
    for name in ("a.svg", "a.json", "a.json.gz", "b.JSON.GZ"):
        save_timeline(timeline, tmp_path / name)
    plain = (tmp_path / "a.json").read_bytes()
    assert gzip.decompress((tmp_path / "a.json.gz").read_bytes()) == plain
    assert (tmp_path / "b.JSON.GZ").read_bytes() == (tmp_path / "a.json.gz").read_bytes()
    assert (tmp_path / "a.svg").read_text(encoding="utf-8").startswith("<svg ")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.json", "a.json.gz", "a.svg", "b.JSON.GZ"]


@pytest.mark.parametrize("name", ["a.png", "a.gz", "a", ".svg", "a.svg.txt"])
def test_other_names_are_refused_naming_those_that_are_not(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"\.svg \(a picture\), \.json or \.json\.gz \(a trace for Perfetto\)"):
        timeline_form(tmp_path / name)
    with pytest.raises(InputError, match="existing folder"):
        timeline_form(tmp_path / "none" / "a.svg")


# Commands

OPTIONS = ("gpt-tiny", "--cluster", "a100-80gb:1x8", "--global-batch", "32")


def test_estimate_writes_the_timeline_of_options_and_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, picture, again = tmp_path / "plan.json", tmp_path / "a.svg", tmp_path / "b.svg"
    words = ["estimate", *OPTIONS, "--pp", "2", "-o", str(plan), "--timeline", str(picture)]
    assert cli.main(words) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"timeline written to {picture}"
    assert cli.main(["estimate", "--plan", str(plan), "--json", "--timeline", str(again)]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"plan", "estimate"}
    assert picture.read_bytes() == again.read_bytes()
    assert isinstance(api.timeline(plan, output=again), Timeline)
    assert picture.read_bytes() == again.read_bytes()
    assert cli.main(["estimate", "--plan", str(plan), "--cluster", "h100:1x8", "--timeline", str(again)]) == 0
    assert "gpt-tiny on h100:1x8" in again.read_text(encoding="utf-8")


def test_plan_writes_a_timeline_beside_its_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.json"
    assert cli.main(["plan", *OPTIONS, "--stages", "2", "--json", "--timeline", str(file)]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "cellplan.plan/1"
    validate_trace(file.read_text(encoding="utf-8"))
    assert cli.main(["plan", *OPTIONS, "--stages", "2", "--timeline", str(file)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"timeline written to {file}"


@pytest.mark.parametrize(
    ("command", "name", "said"),
    [
        (["plan", *OPTIONS], "a.png", "ends in .svg (a picture), .json or .json.gz"),
        (["estimate", *OPTIONS, "--tp", "2"], "a.png", "ends in .svg (a picture), .json or .json.gz"),
        (["estimate", *OPTIONS], "a.svg", "found Cells, expected one plan to draw"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is_estimated(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    name: str,
    said: str,
) -> None:
    for function in ("planning.searching.plan_model", "planning.estimating_plan.read_any_request"):
        monkeypatch.setattr(f"planner.one_job.{function}", lambda *_, **__: pytest.fail("estimated"))
    assert cli.main([*command, "--timeline", str(tmp_path / name)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert not list(tmp_path.iterdir())


def test_a_plan_that_does_not_fit_leaves_no_timeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.svg"
    words = ["estimate", "gpt3-175b", "--cluster", "a100-80gb:1x8", "--tp", "1", "--pp", "8"]
    assert cli.main([*words, "--timeline", str(file)]) == 3
    assert "does not fit" in capsys.readouterr().err
    assert not file.exists()
