"""`cellplan estimate --from`: settings estimated as explicit plans, and compared with the best."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner import api
from planner.cli import main as cli
from planner.cli.imported_output import print_comparison
from planner.one_job.explicit.estimate import estimate_explicit
from planner.one_job.explicit.request import ExplicitRequest
from planner.one_job.explicit.unsaid import Evaluate
from planner.one_job.importing.comparison import compare
from planner.shared.plan import Plan
from planner.shared.plan_file import load_plan
from profiles.errors import InputError, NothingFits
from tests.documents import checked
from tests.planner.one_job.explicit.explicit_plan_examples import fake_evaluate, request_of
from tests.planner.one_job.importing.importing_examples import SMALL_MEGATRON, estimate

GPT_TINY = (
    "--num-layers 4 --hidden-size 256 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128"
    " --vocab-size 4096 --micro-batch-size 1 --global-batch-size 16 --bf16"
)
SETTING = ("--from", "megatron", f"{GPT_TINY} --tensor-model-parallel-size 2", "--cluster", "h100:1x8")


def run(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    assert cli.main(["estimate", *words]) == status
    return capsys.readouterr().out


def test_settings_are_the_explicit_plan_that_their_options_make(capsys: pytest.CaptureFixture[str]) -> None:
    value = checked("estimate", json.loads(run(capsys, *SETTING, "--json")))
    assert list(value) == ["plan", "estimate", "launcher", "comparison"]
    assert value["launcher"] == {"format": "megatron", "setting": "megatron"}
    assert value["comparison"]["iteration_time_s"] == value["estimate"]["iteration_time_s"]
    direct = api.estimate(
        "gpt-tiny",
        cluster="h100:1x8",
        tp=2,
        global_batch=16,
        micro_batch=1,
        recompute="none",
        sequence_parallel=False,
        zero=0,
        overlap=(),
        vocab_pad=128,
        software="megatron-core",
    )
    own, other = value["plan"], direct["plan"]
    assert own["stages"] != other["stages"]  # the loss is not fused where --cross-entropy-loss-fusion is not given
    fused = json.loads(run(capsys, *SETTING[:2], f"{SETTING[2]} --cross-entropy-loss-fusion", *SETTING[3:], "--json"))
    for key in ("model", "stages", "recipe", "batch", "estimate"):
        assert fused["plan"][key] == other[key]


def test_people_see_whose_setting_it_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shown = run(capsys, *SETTING)
    assert shown.startswith(
        "the megatron setting:\ngpt-tiny on h100:1x8: 16 samples of 128 tokens an iteration on 8 h100\n"
    )
    assert max(len(line) for line in shown.splitlines()) <= 80
    script = tmp_path / "run.sh"
    script.write_text(f"torchrun --nproc_per_node 8 pretrain_gpt.py {GPT_TINY}\n", encoding="utf-8")
    assert f"the megatron setting of {script}:" in " ".join(
        run(capsys, "--from", "megatron", f"@{script}", "--cluster", "h100:1x8").split()
    )


def test_the_plan_is_written_with_the_model_that_it_needs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan, again = tmp_path / "plan.json", tmp_path / "again.json"
    setting = ("--from", "megatron", f"{SMALL_MEGATRON} --pipeline-model-parallel-size 2", "--cluster", "h100:1x8")
    shown = run(capsys, *setting, "-o", str(plan))
    assert shown.endswith(f"written to {plan}\n")
    model = tmp_path / "plan-model.json"
    assert sorted(tmp_path.iterdir()) == [model, plan]
    assert load_plan(plan).model.reference == str(model)
    run(capsys, "--plan", str(plan), "-o", str(again))
    assert again.read_bytes() == plan.read_bytes()
    named = " ".join(run(capsys, *setting, "--assumptions").split())
    assert "the model is not in the catalogue: -o PLAN writes its config.json beside the plan" in named
    assert "megatron-8x512 on h100:1x8: 16 samples of 512 tokens an iteration on 8 h100" in named


def test_nothing_is_written_for_a_setting_that_does_not_fit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = SMALL_MEGATRON.replace("--hidden-size 512", "--hidden-size 32768")
    output = tmp_path / "plan.json"
    assert cli.main(["estimate", "--from", "megatron", words, "--cluster", "h100:1x8", "-o", str(output)]) == 3
    captured = capsys.readouterr()
    assert "Memory of a rank in GiB" in captured.out
    assert captured.err.startswith("cellplan: error: megatron on h100:1x8: the setting does not fit; stage 0")
    assert list(tmp_path.iterdir()) == []


def test_options_beside_the_settings_add_to_them_and_may_not_contradict(capsys: pytest.CaptureFixture[str]) -> None:
    value = checked("estimate", json.loads(run(capsys, *SETTING, "--train-tokens", "1e9", "--json")))
    training = value["estimate"]["training"]
    assert training["iterations"] == -(-(10**9) // (16 * 128))
    same = json.loads(run(capsys, *SETTING, "--tp", "2", "--json"))
    assert same["plan"]["stages"][0]["tp"] == 2
    assert cli.main(["estimate", *SETTING, "--tp", "4"]) == 2
    expected = "megatron: --tensor-model-parallel-size: found 2, and --tp 4 beside it, expected one of them"
    assert expected in capsys.readouterr().err
    other = json.loads(run(capsys, *SETTING, "--software", "nemo", "--devices", "4", "--json"))["plan"]
    assert (other["recipe"]["software"]["name"], len(other["devices"])) == ("nemo", 4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--from", "megatron", GPT_TINY), "the following arguments are required: --cluster"),
        (
            ("--from", "nemo", "x", "--cluster", "h100:1x8"),
            "--from: found 'nemo', expected one of megatron, torchtitan",
        ),
        (("--from", "torchtitan", "no.toml", "--cluster", "h100:1x8"), "no.toml: found an error (No such file"),
        (("--from", "deepspeed", "no.json", "--cluster", "h100:1x8"), "no.json: found an error (No such file"),
        ((*SETTING, "--plan", "x.json"), "--from: found --plan x.json too, expected one of them"),
        ((*SETTING, "--stages", "2"), "--stages: found (2,), expected none: an explicit plan"),
        (("bert-base", *SETTING), "--num-layers: found 4, expected 12, as bert-base has"),
        (("no-model", *SETTING), "model: found 'no-model', expected a zoo name"),
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


# Compared with the best


def plan_of(**options: Any) -> Plan:
    settings = {"global_batch": 32, "recompute": "none", **options}
    return estimate_explicit(request_of(**settings), evaluate=fake_evaluate).plan


def faster(plan: Plan, times: float) -> Plan:
    """The plan, said to be so many times as fast."""
    estimate = plan.estimate
    breakdown = replace(
        estimate.breakdown,
        **{name: getattr(estimate.breakdown, name) / times for name in ("gemm_s", "tp_s", "bubble_s", "optimizer_s")},
    )
    seconds = estimate.iteration_time_s / times
    return replace(plan, estimate=replace(estimate, iteration_time_s=seconds, breakdown=breakdown))


def test_a_comparison_holds_both_times_and_what_differs() -> None:
    present, best = plan_of(tp=4), faster(plan_of(tp=2, pp=2), 2)
    found = compare(present, best)
    assert found is not None
    assert (found.present_s, found.best_s, found.speedup) == (2.0, 1.0, 2.0)
    assert found.differences[:2] == ("tp 4 -> 2", "pp 1 -> 2")
    assert compare(present, None) is None


def test_the_best_is_asked_for_the_very_job_and_priced_by_the_same_function() -> None:
    asked: list[ExplicitRequest] = []

    def find_best(request: ExplicitRequest, evaluate: Evaluate) -> Plan:
        asked.append(request)
        other = request_of("gpt-tiny", "h100:1x8", tp=1, zero=1, global_batch=16, recompute="none")
        return estimate_explicit(other, evaluate=evaluate).plan

    result = estimate("megatron", SETTING[2], find_best=find_best)
    setup = asked[0].setups[0]
    assert (setup.recipe.global_batch, setup.model.name, len(setup.stages[0].slots)) == (16, "gpt-tiny", 8)
    comparison = result["comparison"]
    assert comparison["iteration_time_s"] == result["estimate"]["iteration_time_s"]
    assert comparison["best_iteration_time_s"] == comparison["best"]["estimate"]["iteration_time_s"]
    assert "tp 2 -> 1" in comparison["differences"]
    assert estimate("megatron", SETTING[2], find_best=lambda *_: None)["comparison"] is None


def test_a_setting_that_does_not_fit_is_compared_all_the_same() -> None:
    from planner.one_job.importing.estimate import estimate_imported
    from planner.shared.options.estimate import EstimateOptions

    words = SMALL_MEGATRON.replace("--hidden-size 512", "--hidden-size 32768")
    options = EstimateOptions(cluster="h100:1x8", launcher=("megatron", words))
    with pytest.raises(NothingFits) as caught:
        estimate_imported(options, find_best=lambda *_: plan_of(tp=2))
    assert isinstance(caught.value.result, dict)
    assert caught.value.result["comparison"]["best"]["stages"][0]["tp"] == 2


def test_people_see_how_far_the_best_is(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {"iteration_time_s": 2.0, "best_iteration_time_s": 1.6, "speedup": 1.25, "differences": ["tp 4 -> 2"]}
    print_comparison(shown)
    assert capsys.readouterr().out == (
        "compared with the best: 2 s now, 1.6 s with the best plan (1.25 times as fast):\n  - tp 4 -> 2\n"
    )
    print_comparison({**shown, "best_iteration_time_s": 2.0, "differences": []})
    assert capsys.readouterr().out == "compared with the best: 2 s now, and no plan found is faster\n"
    print_comparison(None)
    assert capsys.readouterr().out == ""


def test_python_takes_what_the_command_line_does(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text('{"train_batch_size": 32}', encoding="utf-8")
    result = api.estimate("gpt-tiny", cluster="h100:1x8", launcher=("deepspeed", str(file)), tp=2)
    assert result["launcher"] == {"format": "deepspeed", "setting": str(file)}
    assert result["plan"]["stages"][0]["tp"] == 2
    with pytest.raises(InputError, match="--cluster: found nothing"):
        api.estimate("gpt-tiny", launcher=("deepspeed", str(file)))
