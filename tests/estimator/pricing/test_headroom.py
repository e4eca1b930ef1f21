"""How sure it is that a plan fits: the interval's share below what can be handed out, and what is safe by it."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from estimator.pricing.evaluate import evaluate
from estimator.pricing.headroom import interval_share, memory_fit, memory_half_width, safe_memory_bytes, verdict_of
from estimator.pricing.outcome import Evaluation, RankMemory
from planner.one_job.explicit.request import read_explicit
from planner.shared.options.estimate import EstimateOptions
from tests.seeds import seeds

GIB = 2**30


def evaluated(cluster: str, **options: object) -> Evaluation:
    request = read_explicit(EstimateOptions("llama3-8b", cluster=cluster, **options), store=None)  # type: ignore[arg-type]
    evaluation = evaluate(request.setups[0])
    assert isinstance(evaluation, Evaluation)
    return evaluation


@pytest.mark.parametrize("memory_margin", [None, "10GiB"])
@pytest.mark.parametrize("pp", [1, 2, 4])
def test_what_fits_is_tight_or_safe_and_nothing_else_is(pp: int, memory_margin: str | None) -> None:
    for zero in (0, 1, 2, 3):
        evaluation = evaluated("h100:1x8", tp=1, pp=pp, zero=zero, recompute="none", memory_margin=memory_margin)
        fit = memory_fit(evaluation)
        if memory_margin is None:
            assert (evaluation.out_of_memory is None) == (fit.verdict != "unlikely")
            assert (evaluation.out_of_memory is None) == (fit.headroom_bytes >= 0)
        low, high = evaluation.memory_interval_90_bytes
        assert (fit.verdict == "safe") == (high <= fit.usable_bytes or math.isclose(high, fit.usable_bytes))
        assert fit.interval_share == 0 or low < fit.usable_bytes
        assert fit.usable_bytes < fit.device_bytes == 84932978278


def test_a_margin_is_room_for_the_verdict_and_none_for_the_plan() -> None:
    plain, kept = (
        evaluated("h100:1x8", tp=1, pp=2, zero=1, recompute="none", memory_margin=margin) for margin in (None, "10GiB")
    )
    assert plain.out_of_memory is None
    assert kept.out_of_memory is not None
    assert kept.device_margin_bytes == (10 * GIB,) * 2
    assert memory_fit(plain) == memory_fit(kept)
    assert plain.iteration_time_s == kept.iteration_time_s


@pytest.mark.parametrize(("share", "verdict"), [(1.0, "safe"), (0.999, "tight"), (0.5, "tight"), (0.499, "unlikely")])
def test_verdicts_are_named_by_the_share(share: float, verdict: str) -> None:
    assert verdict_of(share) == verdict


@pytest.mark.parametrize("seed", seeds(40))
def test_what_needs_no_more_than_is_safe_is_safe(seed: int) -> None:
    rng = random.Random(seed)
    evaluation = evaluated("h100:1x8", tp=1, pp=2)
    half_width, device = rng.uniform(0.01, 0.4), rng.randint(4 * GIB, 200 * GIB)
    context = rng.randint(0, 2 * GIB)
    most = safe_memory_bytes(device, context, half_width)
    reserve = rng.randint(context, max(context, most // 3))
    rank = replace(evaluation.memory[0], weight_bytes=max(1, most - reserve), **dict.fromkeys(PARTS, 0))
    rank = replace(rank, reserve_bytes=reserve, firm_reserve_bytes=reserve)
    assert rank.needed_bytes <= most
    peak = rank.peak_bytes
    fit = memory_fit(
        replace(
            evaluation,
            memory=(rank,),
            device_memory_bytes=(device,),
            device_margin_bytes=(0,),
            memory_interval_90_bytes=(
                math.floor(peak / math.exp(half_width)),
                math.ceil(peak * math.exp(half_width)),
            ),
        )
    )
    assert fit.verdict == "safe"


PARTS = ("gradient_bytes", "optimizer_bytes", "activation_bytes", "temporary_bytes", "communication_bytes")


def test_without_a_width_or_a_peak_the_estimate_decides() -> None:
    assert interval_share(10, 10, 0.0) == 1.0
    assert interval_share(11, 10, 0.0) == 0.0
    assert interval_share(0, 10, 0.2) == 1.0
    assert interval_share(1, 0, 0.2) == 0.0
    evaluation = replace(evaluated("h100:1x8", tp=1, pp=2), memory_interval_90_bytes=(0, 0))
    assert memory_half_width(evaluation) == 0.0


def test_a_rank_of_an_older_record_keeps_its_reserve() -> None:
    evaluation = evaluated("h100:1x8", tp=1, pp=2)
    older: tuple[RankMemory, ...] = tuple(replace(rank, firm_reserve_bytes=None) for rank in evaluation.memory)
    assert memory_fit(replace(evaluation, memory=older)).usable_bytes < memory_fit(evaluation).usable_bytes
