"""A whole training within a budget or so many days: which cluster, how many devices; beside looking at everything."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from planner import api
from planner.cli.main import main
from planner.one_job.planning import affording
from planner.one_job.planning.affording import Affordable, training_of
from planner.one_job.planning.choices import best_choice, fewer_devices
from planner.shared.plan_file import load_plan
from profiles.cluster_file import load_cluster
from profiles.errors import InputError, NothingFits
from tests.oracles.afford_oracle import best_within

CLUSTERS = ("h100:1x2", "a100-80gb:1x4")
PRICES = {"h100": 2.5, "a100-80gb": 1.5}
JOB: dict[str, Any] = {"global_batch": 32, "train_tokens": 1e9, "price": tuple(f"{k}={v}" for k, v in PRICES.items())}
WORDS = [
    *("plan", "gpt2-1.3b", "--cluster", CLUSTERS[0], "--beside", CLUSTERS[1], "--global-batch", "32"),
    *("--train-tokens", "1B", "--price", "h100=2.5", "--price", "a100-80gb=1.5"),
]


def _offers() -> list[tuple[float, float]]:
    """(days, cost) of the best plan on each number of devices of each cluster, by the definitions alone."""
    offers = []
    for cluster in CLUSTERS:
        device = cluster.partition(":")[0]
        most = len(load_cluster(cluster).free_slots)
        for devices in (most, *fewer_devices(most)):
            try:
                plan = api.plan("gpt2-1.3b", cluster=cluster, devices=devices, global_batch=32).plan
            except NothingFits:
                continue
            iterations = math.ceil(1e9 / (32 * (plan.model.seq_len or 0)))
            hours = iterations * plan.estimate.iteration_time_s / 3600
            offers.append((hours / 24, hours * len(plan.devices) * PRICES[device]))
    return offers


def test_the_choice_is_what_looking_at_everything_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    offers, search = _offers(), cache(best_choice)
    # Each question asks some of the same searches: they need no second time.
    monkeypatch.setattr(affording, "best_choice", lambda options: search(replace(options, budget=None, days=1.0)))
    budgets = [None, *(cost * 1.0001 for _, cost in offers[::2]), 1.0]
    limits = [None, *(days * 1.0001 for days, _ in offers[::2]), 1e-3]
    for budget, days in itertools.product(budgets, limits):
        if budget is None and days is None:
            continue
        expected = best_within(offers, budget=budget, days=days)
        asked: dict[str, Any] = {"cluster": CLUSTERS[0], "beside": CLUSTERS[1:], "budget": budget, "days": days}
        if expected is None:
            with pytest.raises(NothingFits, match="the nearest miss is") as caught:
                api.afford("gpt2-1.3b", **asked, **JOB)
            assert isinstance(caught.value.result, Affordable)
            continue
        chosen = api.afford("gpt2-1.3b", **asked, **JOB).chosen
        assert chosen is not None
        training = training_of(chosen)
        assert (training.days, training.price) == pytest.approx(expected, rel=1e-9)


def test_each_figure_has_its_interval_and_the_prices_are_whose_they_are(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(
        "schema: cellplan.prices/1\ndate: 2026-03-01\nsource: quote 7\ncurrency: EUR\n"
        "price_per_device_hour: {h100: 3, a100-80gb: 2}\n",
        encoding="utf-8",
    )
    answer = api.plan(
        "gpt-tiny", cluster="h100:1x4", global_batch=16, train_tokens=1e9, prices=file, failure_rate=0.01,
        checkpoint_time=60, restart_time=600,
    )  # fmt: skip
    training, estimate = answer.training, answer.plan.estimate
    assert training is not None
    low_s, high_s = estimate.interval_90_s
    assert training.interval_of(training.days) == pytest.approx(
        (training.days * low_s / estimate.iteration_time_s, training.days * high_s / estimate.iteration_time_s)
    )
    assert training.seconds == pytest.approx(training.compute_s / training.goodput)
    assert training.price == pytest.approx(3 * training.device_hours)
    assert training.price_basis == (f"h100 at 3 EUR a device-hour ({file}: quote 7, 2026-03-01)",)
    value = json.loads(answer.to_json())
    assert value["training"]["price_interval_90"] == pytest.approx(list(training.interval_of(training.price or 0)))
    own = api.plan(
        "gpt-tiny", cluster="h100:1x4", global_batch=16, train_tokens=1e9, prices=file, price=("H100=4",)
    ).training
    assert own is not None
    assert own.price_basis == ("h100 at 4 a device-hour (--price)",)


def test_samples_pay_for_a_model_without_tokens() -> None:
    training = api.plan("resnet-50", cluster="t4:1x2", global_batch=64, train_samples=640).training
    assert training is not None
    assert training.iterations == 10
    assert training.price is None


def test_a_price_serves_the_objective_too() -> None:
    asked: dict[str, Any] = {"cluster": "a100-80gb:1x4", "global_batch": 16, "objective": "cost"}
    with pytest.raises(InputError, match="price_per_device_hour"):
        api.plan("gpt-tiny", **asked)
    assert len(api.plan("gpt-tiny", price=("a100-80gb=2",), **asked).plan.devices) == 1


def test_the_answer_in_lines_and_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.json"
    assert main([*WORDS, "--budget", "1k", "-o", str(file)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "chosen (*): the fastest of these" in shown
    assert "(--price)" in shown
    assert main([*WORDS, "--budget", "1k", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    (chosen,) = [choice for choice in value["choices"] if choice["chosen"]]
    assert chosen["training"]["iterations"] > 0
    assert load_plan(file).estimate.iteration_time_s == chosen["iteration_time_s"]
    assert chosen["tokens_per_s_in_all"] == pytest.approx(chosen["tokens_per_s_per_device"] * chosen["devices"])


def test_where_nothing_is_within_the_nearest_miss_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, "--budget", "1", "--json"]) == 3
    captured = capsys.readouterr()
    value = json.loads(captured.out)
    assert not any(choice["chosen"] for choice in value["choices"])
    assert value["nearest_miss"] in captured.err
    assert "times the budget of 1" in captured.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--budget", "1k"], "--budget: found 1000.0, expected --train-tokens"),
        (["--train-tokens", "1B", "--train-samples", "5"], "--train-samples: found --train-tokens too"),
        (["--train-tokens", "1B", "--budget", "1k"], "--budget: found 1000.0, expected --price DEVICE=PRICE"),
        (["--train-tokens", "1B", "--price", "t4=1"], "--price: found t4, expected a device of the cluster: h100"),
        (["--train-tokens", "1B", "--price", "h100"], "--price: found 'h100', expected DEVICE=PRICE"),
        (["--train-tokens", "1B", "--price", "h100=-1"], "--price: found 'h100=-1', expected DEVICE=PRICE"),
        (["--train-tokens", "1B", "--price", "h100=1", "--price", "H100=2"], "--price: found h100 twice"),
        (["--train-tokens", "1B", "--prices", "none.yaml"], "none.yaml"),
        (["--train-tokens", "1B", "--budget", "9", "--front", "devices"], "--budget or --days too, expected one"),
        (["--train-tokens", "1B", "--days", "9", "--explain"], "--explain: found --budget/--days, --explain"),
    ],
)
def test_wrong_words_are_answered_in_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["plan", "gpt-tiny", "--cluster", "h100:1x2", "--global-batch", "4", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_a_placed_job_is_paid_for_too() -> None:
    asked: dict[str, Any] = {"cluster": "a100-80gb:1x4", "devices": 2, "global_batch": 16, "train_tokens": 1e9}
    placed = api.place("gpt-tiny", price=("a100-80gb=1.5",), **asked)
    assert placed["training"]["price"] == pytest.approx(1.5 * placed["training"]["device_hours"])
    with pytest.raises(NothingFits, match="times the budget of 1e-06"):
        api.place("gpt-tiny", price=("a100-80gb=1.5",), budget=1e-6, **asked)


def test_samples_shorter_than_a_sequence_are_packed_or_padded() -> None:
    asked: dict[str, Any] = {"cluster": "a100-80gb:1x1", "global_batch": 16, "seq_len": 128, "train_samples": 1e6}
    whole = api.plan("gpt-tiny", **asked).training
    packed = api.plan("gpt-tiny", packing=32.0, **asked).training
    padded = api.plan("gpt-tiny", padding=32.0, **asked).training
    assert whole is not None
    assert packed is not None
    assert padded is not None
    assert packed.iterations == -(-whole.iterations // 4)
    assert (padded.iterations, padded.padding_share) == (whole.iterations, 0.75)
    with pytest.raises(InputError, match="at most the 128 tokens of a sequence"):
        api.plan("gpt-tiny", packing=1024.0, **asked)
    with pytest.raises(InputError, match="--padding: found --packing too"):
        api.plan("gpt-tiny", packing=100.0, padding=100.0, **asked)
