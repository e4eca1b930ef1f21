"""`cellplan estimate` of one explicit plan: output for people and machines, files, exit status."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from planner import api
from planner.cli import explicit_output
from planner.cli import main as cli
from planner.one_job.explicit import evaluation
from planner.one_job.planning import estimating_plan
from planner.shared.plan_file import load_plan
from profiles.errors import NothingFits
from tests.planner.one_job.explicit.explicit_plan_examples import GIB, fake_evaluate

PLAN = ("gpt-tiny", "--cluster", "a100-80gb:1x8", "--tp", "2", "--pp", "2", "--global-batch", "16")


@pytest.fixture(autouse=True)
def _made_up_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    # What the search would choose is not made up: of the setups in turn, the first that fits is taken.
    monkeypatch.setattr(estimating_plan, "estimate_as_planned", lambda *_, **__: None)
    monkeypatch.setattr(evaluation, "evaluate", fake_evaluate)


def _run(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    assert cli.main(["estimate", *words]) == status
    return capsys.readouterr().out


def test_json_holds_the_plan_as_in_the_file_and_its_estimate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.json"
    value = json.loads(_run(capsys, *PLAN, "--json", "-o", str(file)))
    assert list(value) == ["plan", "estimate"]
    assert value["plan"] == json.loads(file.read_text(encoding="utf-8"))
    estimate = value["estimate"]
    assert (estimate["fits"], estimate["lacking_bytes"], estimate["reason"]) == (True, None, None)
    assert sum(estimate["breakdown"].values()) == pytest.approx(estimate["iteration_time_s"])
    assert [len(rank["ranks"]) for rank in estimate["memory"]] == [4, 4]
    assert value == api.estimate("gpt-tiny", cluster="a100-80gb:1x8", tp=2, pp=2, global_batch=16)


def test_a_plan_file_gives_the_same_estimate_and_the_same_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "1.json", tmp_path / "2.json"
    shown = _run(capsys, *PLAN, "-o", str(first))
    again = _run(capsys, "--plan", str(first), "-o", str(second))
    assert first.read_bytes() == second.read_bytes()
    assert shown.replace(str(first), "FILE") == again.replace(str(second), "FILE")
    other = _run(capsys, "--plan", str(first), "--cluster", "h100:1x8", "-o", str(second), "--assumptions")
    assert "ranks on the first 8 devices of h100:1x8" in " ".join(other.split())
    assert load_plan(second).stages[0].device == "h100"


def test_people_get_a_line_tables_and_what_was_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    shown = _run(capsys, *PLAN, "--assumptions")
    assert max(len(line) for line in shown.splitlines()) <= 80
    text = " ".join(shown.split())
    assert "gpt-tiny on a100-80gb:1x8: 16 samples of 128 tokens an iteration on 8 a100-80gb" in text
    assert "8 micro-batches of 2 samples (1 a rank), 1f1b, bf16, adamw" in text
    assert "iteration 2 s (90%: 1.5 s to 2.5 s)" in text
    assert "matrix products 1.25 s 62.5%" in text
    assert "in all 2 s 100.0%" in text
    assert "the attention kernel: 25.0% of the time; `cellplan profile gpt-tiny` measures it" in text
    assert "guessed" not in _run(capsys, *PLAN)


def test_small_parts_are_shown_together() -> None:
    parts = {"gemm_s": 1.0, "attention_s": 0.0004, "launch_s": 0.0004, "pp_s": 0.0}
    rows = explicit_output.time_rows({"iteration_time_s": 1.0008, "breakdown": parts})
    assert [row[0] for row in rows] == ["matrix products", "the rest", "in all"]
    assert rows[1][1] == "800 us"


def test_a_plan_that_does_not_fit_prints_its_figures_and_leaves_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "evaluate", partial(fake_evaluate, activation_bytes=200 * GIB))
    file = tmp_path / "plan.json"
    assert cli.main(["estimate", *PLAN, "--json", "-o", str(file)]) == 3
    captured = capsys.readouterr()
    value = json.loads(captured.out)["estimate"]
    assert not value["fits"]
    assert value["lacking_bytes"] > 0
    assert captured.err.startswith(
        "cellplan: error: gpt-tiny on a100-80gb:1x8: the plan does not fit; stage 1 (ranks 4"
    )
    assert captured.err.endswith("100.0 GiB of it activations\n")
    assert not file.exists()
    assert cli.main(["estimate", *PLAN]) == 3
    assert "Memory of a rank in GiB" in capsys.readouterr().out
    with pytest.raises(NothingFits) as caught:
        api.estimate("gpt-tiny", cluster="a100-80gb:1x8", tp=2)
    assert isinstance(caught.value.result, dict)


def test_a_whole_training_is_priced(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--train-tokens", "2T", "--failure-rate", "0.01", "--checkpoint-time", "30", "--restart-time", "300")
    training = json.loads(_run(capsys, *PLAN, *words, "--json"))["estimate"]["training"]
    iterations = -(-2 * 10**12 // (16 * 128))
    assert (training["iterations"], training["compute_s"]) == (iterations, 2.0 * iterations)
    assert training["seconds"] == pytest.approx(training["compute_s"] / training["goodput"])
    assert training["days"] == pytest.approx(training["seconds"] / 86400)
    assert training["energy_kwh"] == pytest.approx(0.4 * training["device_hours"])
    shown = " ".join(_run(capsys, *PLAN, *words).split())
    assert f"{iterations} iterations" in shown
    assert "no price: a100-80gb:1x8 has no price_per_device_hour for a100-80gb" in shown
    assert "a checkpoint every" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "the following arguments are required: MODEL, --cluster"),
        (("gpt-tiny", "--tp", "2"), "the following arguments are required: --cluster"),
        ((*PLAN, "--plan", "x.json"), "--plan: found a model too (gpt-tiny), expected one of them"),
        (("--plan", "x.json", "--tp", "2"), "--tp: found 2 beside --plan, expected none: the plan file fixes it"),
        (("--plan", "no.json"), "no.json"),
        ((*PLAN, "--cp", "3"), "--tp, --pp, --cp: found tp * pp * cp = 12 on 8 devices"),
        ((*PLAN, "--tp", "3"), "--tp: found it twice, expected it once"),
        ((*PLAN, "--hsdp", "8"), "--hsdp: found '8', expected SHARDxREPLICATE such as 8x4"),
        ((*PLAN, "--overlap", "dp,pp"), "--overlap: found 'pp', expected none, or one or more of dp, tp, p2p"),
        ((*PLAN, "--train-tokens", "lots"), "--train-tokens: found 'lots', expected a number above 0 such as 1.4T"),
        ((*PLAN, "--failure-rate", "-1"), "--failure-rate"),
        ((*PLAN, "--schedule", "zb"), "--schedule: invalid choice: 'zb'"),
        (
            (*PLAN, "--train-tokens", "1e9", "--failure-rate", "86400", "--restart-time", "9"),
            "--failure-rate: found 8 devices fail every",
        ),
        (("resnet-50", "--cluster", "t4:1x2", "--dp", "2", "--train-tokens", "1e9"), "none: resnet-50 has no tokens"),
        (("gpt-tiny", "--cluster", "t4:1x2", "-o", "p.json"), "--output: found p.json, expected a plan to write"),
        (("gpt-tiny", "--cluster", "t4:1x2", "--zero", "4", "--dp", "2"), "--zero: invalid choice: 4"),
        (
            ("gpt-tiny", "--cluster", "t4:1x2", "--micro-batch", "2", "--micro-batches", "best"),
            "--micro-batches, --micro-batch: found both (best, 2)",
        ),
    ],
)
def test_wrong_words_are_answered_in_one_line(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    assert cli.main(["estimate", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        (("--offload", "activations,optimizer"), {"offload": ("optimizer", "activations")}),
        (("--overlap", "none"), {"overlap": ()}),
        (("--freeze", "0:3"), {"freeze": (0, 3)}),
        (("--hsdp", "8x4"), {"hsdp": (8, 4)}),
        (("--train-tokens", "1.4T"), {"train_tokens": 1.4e12}),
        (("--train-tokens", "300B"), {"train_tokens": 300e9}),
        (("--zero", "3"), {"zero": 3}),
        (("--recompute", "full:8"), {"recompute": "full:8"}),
    ],
)
def test_words_mean_what_python_takes(text: tuple[str, ...], meaning: dict[str, Any]) -> None:
    arguments = cli.make_parser("estimate").parse_args(["estimate", *text])
    assert {name: getattr(arguments, name) for name in meaning} == meaning
