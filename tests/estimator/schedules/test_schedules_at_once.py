"""Many pipelines at once take what each takes alone, and both what following its paths one by one gives."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.pricing.recipe import ScheduleName
from estimator.schedules.closed_form import lower_bounds, time_schedule, time_schedules
from estimator.schedules.orders import schedule_problem
from estimator.schedules.records import StageTimes, Transfers
from tests.oracles.schedule_paths import time_by_paths
from tests.schedule_examples import SCHEDULES, random_stages
from tests.seeds import seeds

FloatArray = npt.NDArray[np.float64]

AT_ONCE = 10


def arrays_of(pipelines: Sequence[Sequence[StageTimes]]) -> list[FloatArray]:
    """Forward, backward and weight: stages x chunks x pipelines."""
    return [
        np.moveaxis(np.array([[getattr(stage, name) for stage in stages] for stages in pipelines]), 0, -1)
        for name in ("forward_s", "backward_s", "weight_s")
    ]


def random_shape(rng: random.Random, schedule: ScheduleName) -> tuple[int, int, int]:
    """Stages, chunks and micro-batches, fewer of these than stages as well, up to five times as many."""
    while True:
        stages = rng.choice([1, 2, 2, 3, 4, 5, 6, 8, 10, 13])
        chunks = {"interleaved": rng.randint(1, 4), "dualpipe": 2}.get(schedule, 1)
        micro_batches = rng.randint(1, 5 * stages)
        if schedule == "interleaved" and chunks > 1:
            micro_batches = stages * rng.randint(1, 5)
        if schedule_problem("1f1b" if chunks == 1 else schedule, stages, chunks, micro_batches) is None:
            return stages, chunks, micro_batches


def random_pipeline(rng: random.Random, schedule: ScheduleName, stages: int, chunks: int) -> list[StageTimes]:
    """Equal stages, uneven ones, one with a heavy head, or any numbers; some without weight gradients."""
    kind = rng.choice(["equal", "uneven", "head", "any"])
    found = random_stages(rng, schedule, stages, chunks, uneven=0 if kind == "equal" else 0.3)
    without = rng.random() < 0.3

    def some(seconds: float) -> float:
        return rng.choice([0.0, rng.uniform(0, 5), 1.0]) if kind == "any" else seconds

    def times_of(i: int) -> StageTimes:
        one, head = found[i], rng.uniform(1, 3) if kind == "head" and i == stages - 1 else 1.0
        forward = tuple(some(x) * (head if c == chunks - 1 else 1) for c, x in enumerate(one.forward_s))
        weight = tuple(0.0 if without else some(x) for x in one.weight_s)
        back = tuple(some(b - w) * head for b, w in zip(one.backward_s, one.weight_s, strict=True))
        backward = tuple(x + w for x, w in zip(back, weight, strict=True))
        return StageTimes(forward_s=forward, backward_s=backward, weight_s=weight)

    return [times_of(i) for i in range(stages)]


def random_transfers(rng: random.Random, stages: int, messages: str) -> tuple[float, ...]:
    """None, some equal ones, some that differ, or some that are longer than passes."""
    if messages == "none":
        return (0.0,) * stages
    kind = rng.choice(["none", "equal", "few", "long"])
    if kind == "none":
        return (0.0,) * stages
    if kind == "equal":
        return (rng.uniform(0, 0.3),) * stages
    return tuple(rng.choice([0.0, rng.uniform(0, 0.5 if kind == "few" else 8)]) for _ in range(stages))


@pytest.mark.parametrize("messages", ["none", "overlapped", "waited"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_as_one_by_one(schedule: ScheduleName, messages: str) -> None:
    rng = random.Random(f"{schedule} {messages}")
    for _ in seeds(60):
        stages, chunks, micro_batches = random_shape(rng, schedule)
        pipelines = [random_pipeline(rng, schedule, stages, chunks) for _ in range(AT_ONCE)]
        transfers = [
            Transfers(forward_s=random_transfers(rng, stages, messages), overlapped=messages == "overlapped")
            for _ in pipelines
        ]
        forward, backward, weight = arrays_of(pipelines)
        at_once_s = time_schedules(
            schedule,
            forward,
            backward,
            weight,
            np.array([t.forward_s for t in transfers]).T,
            overlapped=messages == "overlapped",
            micro_batches=micro_batches,
        )
        each = list(zip(pipelines, transfers, strict=True))
        by_paths = [time_by_paths(schedule, *pipeline, micro_batches) for pipeline in each]
        alone = [time_schedule(schedule, *pipeline, micro_batches) for pipeline in each]
        totals_s = [time.total_s for time in by_paths]
        assert at_once_s.shape == (AT_ONCE,)
        assert at_once_s == pytest.approx(totals_s, rel=1e-12)
        assert [time.total_s for time in alone] == pytest.approx(totals_s, rel=1e-12)
        assert [time.bottleneck for time in alone] == [time.bottleneck for time in by_paths]
        assert [time.bubble_s for time in alone] == pytest.approx([time.bubble_s for time in by_paths], abs=1e-9)
        assert (lower_bounds(schedule, forward, backward, micro_batches) <= at_once_s * (1 + 1e-12)).all()


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_equal_stages_take_the_lower_bound(schedule: ScheduleName) -> None:
    chunks = 3 if schedule == "interleaved" else 1
    ones = np.ones((4, chunks, 2))
    bounds = lower_bounds(schedule, ones, 2 * ones, 12)
    found = time_schedules(schedule, ones, 2 * ones, ones, np.zeros((4, 2)), overlapped=True, micro_batches=12)
    assert found == pytest.approx(bounds)
    assert found == pytest.approx([3 * (12 * chunks + 3)] * 2)


seconds = st.floats(0, 10)


@given(st.data())
def test_never_falls_when_anything_grows(data: st.DataObject) -> None:
    """Side by side: a pipeline, and the same with one entry grown."""
    schedule: ScheduleName = data.draw(st.sampled_from(["gpipe", "1f1b"]))
    stages, micro_batches = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 30))
    row = st.lists(seconds, min_size=stages, max_size=stages)
    pair = [np.repeat(np.array(data.draw(row))[:, None], 2, axis=1) for _ in range(3)]
    pair[data.draw(st.integers(0, 2))][data.draw(st.integers(0, stages - 1)), 1] += data.draw(seconds)
    forward, backward, transfers = pair
    before, after = time_schedules(
        schedule,
        forward[:, None],
        backward[:, None],
        np.zeros((stages, 1, 2)),
        transfers,
        overlapped=data.draw(st.booleans()),
        micro_batches=micro_batches,
    )
    assert after >= before * (1 - 1e-12)


@pytest.mark.parametrize(
    ("schedule", "stages", "chunks", "micro_batches"),
    [("gpipe", 2, 2, 4), ("1f1b", 2, 1, 0), ("interleaved", 4, 2, 6), ("dualpipe", 3, 2, 12), ("dualpipe", 4, 2, 6)],
)
def test_counts_that_a_schedule_cannot_be_run_with(
    schedule: ScheduleName, stages: int, chunks: int, micro_batches: int
) -> None:
    problem = schedule_problem(schedule, stages, chunks, micro_batches)
    assert problem
    ones = np.ones((stages, chunks, 1))
    with pytest.raises(ValueError, match=problem):
        time_schedules(schedule, ones, ones, ones, ones[:, 0], overlapped=True, micro_batches=micro_batches)
    with pytest.raises(ValueError, match=problem):
        lower_bounds(schedule, ones, ones, micro_batches)


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"forward_s": -np.ones((2, 1, 3))}, "forward_s from -1.0"),
        ({"backward_s": np.full((2, 1, 3), np.nan)}, "backward_s from nan"),
        ({"transfers_s": np.full((2, 3), np.inf)}, "transfers_s from 0.0 to inf"),
        ({"weight_s": np.full((2, 1, 3), 2.0)}, "weight_s longer"),
        ({"weight_s": np.ones((2, 1, 4))}, "stages x chunks x n"),
        ({"transfers_s": np.ones((3, 3))}, "stages x n"),
        ({"forward_s": np.ones((2, 3))}, "stages x chunks x n"),
    ],
)
def test_arrays_that_hold_no_times(changed: dict[str, Any], match: str) -> None:
    ones = np.ones((2, 1, 3))
    good = {"forward_s": ones, "backward_s": ones, "weight_s": ones, "transfers_s": ones[:, 0]}
    with pytest.raises(ValueError, match=match):
        time_schedules("1f1b", **(good | changed), overlapped=True, micro_batches=4)


def test_no_pipelines() -> None:
    none = np.ones((4, 1, 0))
    assert time_schedules("1f1b", none, none, none, none[:, 0], overlapped=True, micro_batches=4).shape == (0,)
