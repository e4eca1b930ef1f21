"""The largest size that fits: bisection beside a scan of all sizes."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from planner.cli import main as cli
from planner.one_job.explicit.estimate import estimate_explicit
from planner.one_job.explicit.largest import family_of, largest_number, last_holding, length_candidates
from planner.one_job.explicit.request import read_explicit
from planner.one_job.planning.largest import find_largest, why_none_fits
from planner.shared.options.estimate import EstimateOptions
from planner.shared.options.search import LargestOptions, SearchOptions
from profiles.errors import InputError
from tests.documents import document_of
from tests.seeds import seeds


@pytest.mark.parametrize("seed", seeds(160))
def test_bisection_finds_what_a_scan_finds(seed: int) -> None:
    rng = random.Random(seed)
    count, start = rng.randint(1, 300), rng.randint(-1, 320)
    most = rng.randint(-1, count - 1)
    asked: list[int] = []

    def holds(place: int) -> bool:
        asked.append(place)
        return place <= most

    assert last_holding(range(count), start, holds) == most
    assert len(asked) == len(set(asked)) <= 2 * count.bit_length() + 2


@pytest.mark.parametrize("seed", seeds(160))
def test_a_hasty_answer_has_not_the_last_word(seed: int) -> None:
    """`fits_surely` may miss what fits, here and there."""
    rng = random.Random(seed)
    candidates = sorted(rng.sample(range(1, 400), rng.randint(1, 60)))
    most, asked = rng.randint(0, 400), rng.randint(1, 400)
    missed = {size for size in candidates if rng.random() < 0.2}

    def why_not(size: int) -> str | None:
        return None if size <= most else f"{size} is too large"

    def same(size: int) -> int:
        return size

    answer = largest_number(
        "seq-len",
        candidates,
        asked,
        why_not,
        same,
        fits_surely=lambda size: size <= most and size not in missed,
    )
    largest, chosen = answer
    fitting = [size for size in candidates if size <= most]
    assert largest.value == chosen == (fitting[-1] if fitting else None)
    above = [size for size in candidates if size > most]
    assert largest.next_value == (above[0] if above else None)
    assert largest.next_reason == (f"{above[0]} is too large" if above else None)
    assert largest.asked_fits == (asked <= most and bool(fitting) and asked <= fitting[-1])


def test_the_longest_sequence_of_a_plan_is_that_of_a_scan() -> None:
    options = EstimateOptions("llama3.2-1b", cluster="t4:1x1", tp=1, optimizer="adam8bit", global_batch=8)
    value = json.loads(_stdout(options, "seq-len"))["largest"]
    assert value["step"] == 512
    assert not value["asked_fits"]
    fits = [tokens for tokens in range(512, 6 * 1024, 512) if _fits(replace(options, seq_len=tokens))]
    assert value["value"] == max(fits)
    assert value["next_value"] == max(fits) + 512
    assert "lacks" in value["next_reason"]


def test_the_largest_micro_batch_of_a_plan_is_that_of_a_scan() -> None:
    options = EstimateOptions("llama3.2-1b", cluster="t4:1x2", tp=2, global_batch=12, seq_len=1024)
    value = json.loads(_stdout(options, "micro-batch"))["largest"]
    fits = [samples for samples in (1, 2, 3, 4, 6, 12) if _fits(replace(options, micro_batch=samples))]
    assert value["value"] == max(fits)


def _fits(options: EstimateOptions) -> bool:
    return estimate_explicit(read_explicit(options, store=None)).shortfall is None


def _stdout(options: EstimateOptions, of: str) -> str:
    from planner import api

    return json.dumps(api.estimate(replace(options, largest=of)))  # type: ignore[arg-type]


def test_the_longest_sequence_of_all_plans_is_that_of_a_scan() -> None:
    options = SearchOptions("llama3.2-1b", cluster="t4:1x1", global_batch=4, optimizer="adam8bit", no_offload=True)
    answer = find_largest(_largest(options, "seq-len"))
    fits = [n for n in range(512, 6 * 1024, 512) if why_none_fits(replace(options, seq_len=n)) is None]
    assert answer.largest.value == max(fits) < 5 * 1024
    assert answer.plan.model.seq_len == max(fits)


def test_the_largest_micro_batch_of_all_plans_is_that_of_a_scan() -> None:
    options = SearchOptions("llama3.2-1b", cluster="t4:1x2", global_batch=12, seq_len=2048, fix=("pp=1",))
    answer = find_largest(_largest(options, "micro-batch"))
    fits = [n for n in (1, 2, 3, 4, 6, 12) if why_none_fits(replace(options, micro_batch=n)) is None]
    assert answer.largest.value == max(fits)
    assert answer.plan.batch.micro_batch // answer.plan.stages[0].dp >= max(fits)


def _largest(options: SearchOptions, of: Any) -> LargestOptions:
    return LargestOptions(**{name: getattr(options, name) for name in options.changed()}, largest=of)


def test_the_largest_model_of_a_family() -> None:
    assert family_of("qwen2.5-14b") == ("qwen2.5-7b", "qwen2.5-14b", "qwen2.5-32b", "qwen2.5-72b")
    assert family_of("deepseek-v3") == ("deepseek-v3",)
    with pytest.raises(InputError, match="a model of the catalogue"):
        family_of("some/config.json")
    answer = find_largest(LargestOptions("gpt2-350m", cluster="t4:1x1", largest="model", global_batch=8))
    assert answer.largest.name == answer.plan.model.name
    assert answer.largest.next_name is None or "no plan" in (answer.largest.next_reason or "")


def test_lengths_are_multiples_that_the_degrees_divide() -> None:
    assert length_candidates(8192, 12)[:2] == range(3072, 6145, 3072)
    assert length_candidates(128)[0] == 16
    assert length_candidates(1)[0] == 1


def test_where_nothing_fits_the_answer_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["llama3-405b", "--cluster", "t4:1x1", "--largest"]
    value = document_of(["estimate", *words, "seq-len", "--tp", "1"], 3, capsys)
    assert value["plan"] is None
    assert value["largest"]["value"] is None
    assert value["largest"]["next_value"] == 1024
    assert "lacks" in value["largest"]["next_reason"]
    value = document_of(["plan", *words, "micro-batch"], 3, capsys)
    assert value["plan"] is None
    assert value["largest"]["value"] is None


def test_answers_are_documents_of_their_commands(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["gpt2-350m", "--cluster", "t4:1x1", "--global-batch", "4", "--largest", "micro-batch"]
    explicit = document_of(["estimate", *words, "--tp", "1"], 0, capsys)
    searched = document_of(["plan", *words], 0, capsys)
    assert explicit["largest"]["of"] == searched["largest"]["of"] == "micro-batch"
    assert explicit["estimate"]["memory_fit"] == explicit["plan"]["estimate"]["memory_fit"]


def test_no_sequence_is_longer_than_learned_positions(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["gpt-tiny", "--cluster", "a100-80gb:1x4", "--global-batch", "16", "--largest", "seq-len"]
    largest = document_of(["estimate", *words, "--tp", "2", "--pp", "2"], 0, capsys)["largest"]
    assert largest["value"] == 128
    assert "exceed its 128 learned positions" in largest["next_reason"]


def test_what_cannot_be_asked_together_is_refused() -> None:
    for words in (
        ["estimate", "gpt-tiny", "--cluster", "t4:1x1", "--largest", "seq-len"],
        ["estimate", "gpt-tiny", "--cluster", "t4:1x1", "--tp", "1", "--largest", "model", "--timeline", "x.svg"],
        ["estimate", "wide-resnet-tiny", "--cluster", "t4:1x1", "--dp", "1", "--largest", "seq-len"],
        ["plan", "gpt-tiny", "--cluster", "t4:1x1", "--largest", "seq-len", "--meet", "3"],
        ["plan", "gpt-tiny", "--cluster", "t4:1x1", "--largest", "seq-len", "--search", "cells"],
        ["plan", "wide-resnet-tiny", "--cluster", "t4:1x1", "--largest", "seq-len"],
    ):
        assert cli.main(words) == 2


def test_people_are_told_what_fits(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["llama3.2-1b", "--cluster", "t4:1x2", "--global-batch", "4", "--seq-len", "512"]
    assert cli.main(["plan", *words, "--largest", "micro-batch"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("largest micro-batch that fits: 4 samples a rank")
    assert "1 samples a rank, which fits" in shown
    assert max(map(len, shown.splitlines())) <= 80
