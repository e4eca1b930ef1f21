"""`cellplan plan --explain` and `--compare`, for people and as JSON; two plans side by side."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from pathlib import Path

import pytest

from estimator.pricing.outcome import TimeBreakdown
from planner import api
from planner.cli import main as cli
from planner.cli.explain_output import COLUMNS, print_comparison
from planner.cli.plan_output import describe_certificate, describe_layers, describe_settings, print_plan
from planner.one_job.explicit.estimate import estimate_explicit
from planner.one_job.planning.plan_comparison import compare_plans, describe_plan_comparison
from planner.one_job.search.certificate import Certificate
from planner.shared.plan import Plan
from planner.shared.plan_file import plan_to_json, save_plan
from profiles.errors import InputError
from tests.documents import checked
from tests.planner.one_job.explicit.explicit_plan_examples import fake_evaluate, request_of
from tests.planner.shared.plan_examples import example_plan
from tests.seeds import some

SMALL = ("gpt2-350m", "--cluster", "a100-80gb:1x4", "--global-batch", "16")
CASES = [
    SMALL,
    ("gpt2-350m", "--cluster", "a100-80gb:2x2", "--global-batch", "16", "--fix", "pp=2", "--max", "tp=1"),
    ("wide-resnet-0.5b", "--cluster", "a40:1x2", "--global-batch", "64", "--objective", "energy"),
    ("gpt2-350m", "--cluster", "a100-80gb:1x4", "--global-batch", "16", "--limit", "1"),
    ("moe-0.69b", "--cluster", "h100:1x2+a100-80gb:1x2", "--global-batch", "8"),
]


def run(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    assert cli.main(["plan", *words]) == status
    captured = capsys.readouterr()
    assert bool(captured.err) == bool(status)
    return captured.out


def plan_of(**options: object) -> Plan:
    settings = {"global_batch": 32, "recompute": "none", **options}
    return estimate_explicit(request_of(**settings), evaluate=fake_evaluate).plan  # type: ignore[arg-type]


@pytest.mark.parametrize("words", some(CASES, 3), ids=lambda words: words[0])
def test_an_explanation_fits_a_hundred_columns(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    shown = run(capsys, *words, "--explain")
    assert max(map(len, shown.splitlines())) <= 80
    for heading in ("why this plan:", "What an iteration waits for", "What a change would bring", "The space"):
        assert heading in shown
    assert ("What your constraints cost" in shown) == ("--fix" in words)


def test_the_columns_of_the_runners_up_are_all_parts_once() -> None:
    parts = sorted(part.name for part in fields(TimeBreakdown))
    assert sorted(name for own in COLUMNS.values() for name in own) == parts


def test_json_is_the_plan_and_beside_it_what_was_asked_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    alone = run(capsys, *SMALL, "--json", "-o", str(file))
    assert alone == file.read_text(encoding="utf-8")
    explained = json.loads(run(capsys, *SMALL, "--json", "--explain"))
    assert list(explained) == ["plan", "explanation"]
    assert explained["plan"] == json.loads(alone)
    assert explained["explanation"]["certificate"]["proved"]
    compared = json.loads(run(capsys, *SMALL, "--json", "--compare", str(file)))
    assert list(compared) == ["plan", "comparison"]
    assert compared["comparison"]["speed"] == 1
    assert compared["comparison"]["differences"] == []
    assert compared["comparison"]["notes"] == []
    both = checked("plan", json.loads(run(capsys, *SMALL, "--json", "--explain", "--compare", str(file))))
    assert list(both) == ["plan", "explanation", "comparison"]


def test_without_a_plan_people_and_machines_see_what_helps(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", *SMALL, "--fix", "tp=3", "--explain"]) == 3
    captured = capsys.readouterr()
    assert "no plan is possible; there would be one:\n  - without --fix tp=3: tp " in captured.out
    assert captured.err.count("\n") == 1
    assert cli.main(["plan", *SMALL, "--fix", "tp=3", "--explain", "--json"]) == 3
    value = json.loads(capsys.readouterr().out)
    assert value["plan"] is None
    assert [one["name"] for one in value["explanation"]["reliefs"]] == ["without --fix tp=3"]


@pytest.mark.parametrize("words", [("--search", "cells"), ("--stages", "2"), ("--profile-budget", "1")])
def test_only_the_exact_search_is_explained(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    assert cli.main(["plan", *SMALL, *words, "--explain"]) == 2
    assert "plan: --explain: found" in capsys.readouterr().err


def test_what_is_wrong_with_a_file_is_said_before_the_search(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["plan", "no-such-model", "--cluster", "h100:1x8", "--compare", str(tmp_path / "none")]) == 2
    assert "none: " in capsys.readouterr().err


def test_python_has_both(tmp_path: Path) -> None:
    plan = api.plan("gpt-tiny", cluster="a100-80gb:1x2", global_batch=8).plan
    explained = api.plan("gpt-tiny", cluster="a100-80gb:1x2", global_batch=8, explain=True)
    assert explained.explanation is not None
    assert explained.explanation.plan == plan == explained.plan
    save_plan(plan, tmp_path / "plan.json")
    found = api.compare(tmp_path / "plan.json", tmp_path / "plan.json")
    assert found.differences == ()
    with pytest.raises(InputError, match="none: "):
        api.compare(plan, tmp_path / "none")


def test_every_plan_comes_with_its_certificate(capsys: pytest.CaptureFixture[str]) -> None:
    shown = " ".join(run(capsys, *SMALL, "--fix", "pp=2").split())
    assert "proved: no plan of the space is better; run by events it takes" in shown
    shown = " ".join(run(capsys, *SMALL, "--search", "cells").split())
    assert "searched:" not in shown


def test_a_certificate_says_the_gap_and_the_events() -> None:
    certificate = Certificate(
        considered=100,
        removed={"a rule": 60},
        ways=40,
        bounded=30,
        families=3,
        plans=1200,
        out_of_memory=7,
        proved=True,
        value=2.0,
        lower_bound=2.0,
        gap=0.0,
        iteration_time_s=2.0,
        simulated_s=2.1,
    )
    assert describe_certificate(certificate) == (
        "searched: 1.2 k plans of 10 ways to share the devices priced, the other 30 ways bounded; proved: no plan of"
        " the space is better; run by events it takes 2.1 s (+5.0%)"
    )
    short = describe_certificate(replace(certificate, proved=False, gap=0.034, simulated_s=None))
    assert (
        "cut short: a better plan is at most 3.4% better; no pipeline of so few steps that it is run by events" in short
    )
    assert "(as much)" in describe_certificate(replace(certificate, simulated_s=2.0))


def test_two_plans_differ_by_the_sum_of_their_parts(capsys: pytest.CaptureFixture[str]) -> None:
    one, other = plan_of(tp=4), plan_of(tp=2, pp=2, zero=1)
    slower = replace(
        other,
        estimate=replace(
            other.estimate,
            iteration_time_s=3.0,
            samples_per_s=32 / 3.0,
            breakdown=replace(other.estimate.breakdown, bubble_s=1.125),
        ),
    )
    found = compare_plans(replace(one, estimate=replace(one.estimate, samples_per_s=16.0)), slower)
    assert (found.one_s, found.other_s, found.speed) == (2.0, 3.0, 1.5)
    assert math.fsum(pair.more for pair in found.parts) == pytest.approx(1.0)
    assert {pair.name: pair.more for pair in found.parts if pair.more} == {"bubble_s": 1.0}
    assert found.memory[-1].name == "peak_bytes"
    assert math.fsum(pair.one for pair in found.memory[:-1]) == found.memory[-1].one
    assert "tp 4 -> 2" in found.differences
    print_comparison(found, "other.json")
    shown = capsys.readouterr().out
    assert shown.startswith("compared with other.json: 2 s with this plan, 3 s with that, this plan is 1.5")
    assert "  - pp 1 -> 2\n" in shown
    (row,) = (line.split() for line in shown.splitlines() if line.startswith(" pipeline bubble"))
    assert row[2:] == ["125", "ms", "1.12", "s", "+1", "s"]
    assert max(map(len, shown.splitlines())) <= 80
    json.dumps(describe_plan_comparison(found), allow_nan=False)


def test_a_plan_whose_memory_nobody_took_apart_is_compared_by_its_peak() -> None:
    whole, explicit = example_plan(), plan_of(tp=4)
    for one, other in ((whole, explicit), (explicit, whole), (whole, whole)):
        found = compare_plans(one, other)
        assert {pair.name for pair in found.parts} == {part.name for part in fields(TimeBreakdown)}
        assert math.fsum(pair.one for pair in found.parts) == pytest.approx(one.estimate.iteration_time_s)
        assert math.fsum(pair.other for pair in found.parts) == pytest.approx(other.estimate.iteration_time_s)
        assert [pair.name for pair in found.memory] == ["peak_bytes"]


def test_a_file_of_another_version_is_estimated_again_and_said(tmp_path: Path) -> None:
    plan = api.plan("gpt-tiny", cluster="a100-80gb:1x2", global_batch=8).plan
    estimate = plan.estimate
    breakdown = replace(estimate.breakdown, bubble_s=estimate.breakdown.bubble_s + 1.0)
    old = replace(
        plan, estimate=replace(estimate, iteration_time_s=estimate.iteration_time_s + 1.0, breakdown=breakdown)
    )
    file = tmp_path / "old.json"
    file.write_text(plan_to_json(old), encoding="utf-8")
    found = api.compare(plan, file)
    assert found.other_s == pytest.approx(found.one_s)
    assert len(found.notes) == 1
    assert "another version" in found.notes[0]


def test_layers_of_many_chunks_stay_short() -> None:
    stage = example_plan().stages[0]
    for chunks, text in (
        (((0, 4),), "0-3"),
        (((0, 1), (4, 6)), "0, 4-5"),
        (tuple((2 * i, 2 * i + 2) for i in range(12)), "12 chunks of 2"),
        (tuple((3 * i, 3 * i + 1 + i % 2) for i in range(12)), "12 chunks of 1-2"),
    ):
        assert describe_layers(replace(stage, chunks=chunks)) == text


def test_the_plan_s_table_shows_what_a_reader_misses(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of(tp=2, pp=2, dp=2, zero=1, micro_batch=2, sequence_parallel=True, offload=("optimizer",))
    assert describe_settings(plan) == [
        "8 micro-batches of 4 samples (2 a rank), 1f1b, bf16, adamw",
        "optimizer sharding: ZeRO 1, optimizer state over 2 ranks",
        "sequence parallelism: yes",
        "held in host memory: optimizer",
    ]
    print_plan(plan)
    shown = capsys.readouterr().out
    assert shown.startswith("gpt-tiny on a100-80gb:1x8: 32 samples of 128 tokens an iteration on 8 a100-80gb\n")
    print_plan(example_plan())
    assert "ep" not in capsys.readouterr().out.splitlines()[5].split()


def test_many_stages_that_are_alike_are_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    print_plan(plan_of(pp=6, dp=1, devices=6))
    shown = capsys.readouterr().out
    rows = [line.split() for line in shown.splitlines() if line.lstrip().startswith("0-5")]
    assert [row[:3] for row in rows] == [["0-5", "1", "each"]]
