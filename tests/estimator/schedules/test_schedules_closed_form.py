"""The closed forms against the simulation: exact where they say so, as near as they say elsewhere; never decreasing."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.pricing.recipe import ScheduleName
from estimator.schedules.closed_form import time_schedule
from estimator.schedules.records import StageTimes, Transfers
from estimator.schedules.simulate import simulate_schedule
from tests.schedule_examples import SCHEDULES, equal_stages, no_transfers, random_counts, random_stages
from tests.seeds import seeds

MESSAGES = ("none", "overlapped", "waited")

EXACT = [("gpipe", m) for m in MESSAGES] + [("1f1b", "none"), ("1f1b", "waited")]
"""Schedules and messages whose closed form is the simulation for any stages."""

EXACT_IF_EQUAL = [(s, "none") for s in SCHEDULES] + [
    ("1f1b", "overlapped"),
    ("interleaved", "overlapped"),
    ("zb-h1", "overlapped"),
    ("dualpipe", "waited"),
]

LARGEST_ERRORS = {
    "1f1b": (0.004, 0.0),
    "interleaved": (0.06, 0.02),
    "zb-h1": (0.015, 0.0),
    "dualpipe": (0.055, 0.008),
}
"""Too short and too long by, at most, for uneven stages."""


def transfers_of(rng: random.Random, times: list[StageTimes], messages: str, *, alike: bool) -> Transfers:
    """About a tenth of a forward."""
    if messages == "none":
        return no_transfers(len(times))
    mean_s = sum(stage.forward_s[0] for stage in times) / len(times)
    seconds = [0.1 * mean_s * (1 if alike else rng.uniform(0, 2)) for _ in times]
    return Transfers(forward_s=tuple(seconds), overlapped=messages == "overlapped")


@pytest.mark.parametrize(("schedule", "messages"), EXACT_IF_EQUAL)
def test_exact_for_equal_stages(schedule: ScheduleName, messages: str) -> None:
    rng = random.Random(1)
    for _ in seeds(200):
        stages, chunks, micro_batches = random_counts(rng, schedule)
        times = random_stages(rng, schedule, stages, chunks, uneven=0)
        transfers = transfers_of(rng, times, messages, alike=True)
        expected = simulate_schedule(schedule, times, transfers, micro_batches).total_s
        assert time_schedule(schedule, times, transfers, micro_batches).total_s == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_exact_for_equal_stages_of_any_ratio(schedule: ScheduleName) -> None:
    rng = random.Random(2)
    numbers = [0, 1, 2, 3, 5, 7, 11, 20]
    for _ in seeds(200):
        stages, chunks, micro_batches = random_counts(rng, schedule, most=10)
        forward, back, weight = (rng.choice(numbers) for _ in range(3))
        times = equal_stages(forward, back + weight, weight, stages=stages, chunks=chunks)
        expected = simulate_schedule(schedule, times, no_transfers(stages), micro_batches).total_s
        found = time_schedule(schedule, times, no_transfers(stages), micro_batches).total_s
        assert found == pytest.approx(expected)


@pytest.mark.parametrize(("schedule", "messages"), EXACT)
def test_exact_for_any_stages(schedule: ScheduleName, messages: str) -> None:
    rng = random.Random(3)
    for _ in seeds(200):
        stages, micro_batches = rng.randint(1, 9), rng.randint(1, 40)
        times = random_stages(rng, schedule, stages, 1, uneven=0.3)
        transfers = transfers_of(rng, times, messages, alike=False)
        expected = simulate_schedule(schedule, times, transfers, micro_batches).total_s
        assert time_schedule(schedule, times, transfers, micro_batches).total_s == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("messages", MESSAGES)
@pytest.mark.parametrize("schedule", LARGEST_ERRORS)
def test_how_far_from_the_simulation(schedule: ScheduleName, messages: str) -> None:
    """The figures of the module's docstring, on other pipelines."""
    rng = random.Random(4)
    too_short, too_long = LARGEST_ERRORS[schedule]
    for _ in seeds(100):
        stages, chunks, micro_batches = random_counts(rng, schedule)
        times = random_stages(rng, schedule, stages, chunks)
        transfers = transfers_of(rng, times, messages, alike=rng.random() < 0.5)
        expected = simulate_schedule(schedule, times, transfers, micro_batches).total_s
        error = time_schedule(schedule, times, transfers, micro_batches).total_s / expected - 1
        assert -too_short - 1e-9 <= error <= too_long + 1e-9


seconds = st.floats(0, 10)


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[ScheduleName, list[StageTimes], Transfers, int]:
    schedule = draw(st.sampled_from(SCHEDULES))
    stages, chunks, micro_batches = random_counts(random.Random(draw(st.integers(0, 10**6))), schedule)
    if schedule in ("gpipe", "1f1b", "zb-h1"):
        micro_batches = draw(st.integers(1, 30))
    times = []
    for _ in range(stages):
        forward, back, weight = (draw(st.tuples(*[seconds] * chunks)) for _ in range(3))
        backward = tuple(x + y for x, y in zip(back, weight, strict=True))
        times.append(StageTimes(forward_s=forward, backward_s=backward, weight_s=weight))
    transfers = Transfers(forward_s=draw(st.tuples(*[seconds] * stages)), overlapped=draw(st.booleans()))
    return schedule, times, transfers, micro_batches


@given(pipelines(), st.data())
def test_never_falls_when_anything_grows(
    pipeline: tuple[ScheduleName, list[StageTimes], Transfers, int], data: st.DataObject
) -> None:
    schedule, times, transfers, micro_batches = pipeline
    before = time_schedule(schedule, times, transfers, micro_batches)
    assert before.total_s == pytest.approx(before.busy_s + before.transfer_s + before.bubble_s)
    assert min(before.transfer_s, before.bubble_s) >= 0
    more = data.draw(seconds)
    stage = data.draw(st.integers(0, len(times) - 1))
    what = data.draw(st.sampled_from(["forward", "backward", "weight", "transfer", "micro-batch"]))
    if what == "transfer":
        links = [s + more * (i == stage) for i, s in enumerate(transfers.forward_s)]
        transfers = replace(transfers, forward_s=tuple(links))
    elif what == "micro-batch":
        micro_batches += len(times) if schedule == "interleaved" else 2
    else:
        old, chunk = times[stage], data.draw(st.integers(0, len(times[stage].forward_s) - 1))

        def grown(values: tuple[float, ...], grows: bool) -> tuple[float, ...]:
            return tuple(x + more * (grows and i == chunk) for i, x in enumerate(values))

        times[stage] = StageTimes(
            forward_s=grown(old.forward_s, what == "forward"),
            backward_s=grown(old.backward_s, what != "forward"),
            weight_s=grown(old.weight_s, what == "weight"),
        )
    after = time_schedule(schedule, times, transfers, micro_batches)
    assert after.total_s >= before.total_s * (1 - 1e-9)


def test_where_the_time_goes() -> None:
    """Of four stages the third is slow: the path stays there, and the rest of the iteration is bubble and transfers."""
    times = equal_stages(1, 2, 1, stages=4, chunks=1)
    times[2] = StageTimes(forward_s=(2,), backward_s=(4,), weight_s=(2,))
    found = time_schedule("1f1b", times, no_transfers(4), 16)
    assert (found.bottleneck, found.busy_s, found.transfer_s) == (2, 96, 0)
    assert found.bubble_s == simulate_schedule("1f1b", times, no_transfers(4), 16).total_s - 96
    slow = time_schedule("1f1b", times, Transfers(forward_s=(0.5,) * 4), 16)
    assert (slow.busy_s, slow.bubble_s) == (96, found.bubble_s)
    # The slow stage stands still for both its neighbours, once for each forward and each backward.
    assert slow.transfer_s >= 16 * 2 * 0.5


def test_one_stage_has_no_bubble() -> None:
    for schedule, chunks in (("gpipe", 1), ("1f1b", 1), ("zb-h1", 1), ("interleaved", 3)):
        times = equal_stages(1, 2, 1, stages=1, chunks=chunks)
        for overlapped in (True, False):
            found = time_schedule(schedule, times, Transfers(forward_s=(9,), overlapped=overlapped), 5)  # type: ignore[arg-type]
            assert (found.total_s, found.bubble_s, found.transfer_s) == (15 * chunks, 0, 0)
    as_1f1b = time_schedule("1f1b", equal_stages(1, 2, 1, stages=4, chunks=1), no_transfers(4), 7)
    assert time_schedule("interleaved", equal_stages(1, 2, 1, stages=4, chunks=1), no_transfers(4), 7) == as_1f1b


def test_messages_slower_than_stages_set_the_pace() -> None:
    """One boundary that takes longer than any pass: gpipe exactly, 1f1b nearly as event by event."""
    rng = random.Random(7)
    errors: dict[ScheduleName, float] = {"gpipe": 1 - 1e-9, "1f1b": 0.92}
    for schedule, least in errors.items():
        for _ in seeds(100):
            stages = rng.randint(2, 6)
            times = random_stages(rng, schedule, stages, 1)
            transfers = Transfers(forward_s=tuple(rng.uniform(0, 4) for _ in range(stages)), overlapped=True)
            micro_batches = rng.randint(1, 4 * stages)
            found = time_schedule(schedule, times, transfers, micro_batches).total_s
            exact = simulate_schedule(schedule, times, transfers, micro_batches).total_s
            assert least * exact <= found <= exact * (1 + 1e-9)
