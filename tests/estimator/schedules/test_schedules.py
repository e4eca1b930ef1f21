"""The orders and their simulation: against oracles, by what every schedule must respect, by the papers' formulas."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from estimator.pricing.recipe import ScheduleName
from estimator.schedules.in_flight import in_flight
from estimator.schedules.orders import Action, follower, order_of, schedule_problem, shape_of
from estimator.schedules.records import SimulatedSchedule, StageTimes, Transfers
from estimator.schedules.simulate import simulate_schedule
from tests.oracles.pipeline_oracle import simulate_pipeline
from tests.oracles.schedule_oracle import relax_until_still
from tests.schedule_examples import SCHEDULES, equal_stages, no_transfers, random_counts, random_stages
from tests.seeds import seeds


@pytest.mark.parametrize("overlapped", [True, False])
def test_gpipe_and_1f1b_as_the_oracle_says(overlapped: bool) -> None:
    rng = random.Random(1)
    for _ in seeds(200):
        stages, micro_batches = rng.randint(1, 7), rng.randint(1, 20)
        times = random_stages(rng, "1f1b", stages, 1, uneven=rng.choice([0.3, 4]))
        forward, backward = [t.forward_s[0] for t in times], [t.backward_s[0] for t in times]
        for schedule in ("gpipe", "1f1b"):
            found = simulate_schedule(schedule, times, no_transfers(stages, overlapped=overlapped), micro_batches)
            expected = simulate_pipeline(forward, backward, [0.0] * stages, micro_batches, schedule)
            assert found.total_s == pytest.approx(expected)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_overlapped_messages_as_longest_paths(schedule: ScheduleName) -> None:
    rng = random.Random(2)
    for _ in seeds(40):
        stages, chunks, micro_batches = random_counts(rng, schedule, most=6)
        times = random_stages(rng, schedule, stages, chunks, uneven=rng.choice([0, 0.3, 3]))
        one = rng.uniform(0, 1)  # two stages have two links between them where messages go round
        transfers = Transfers(forward_s=(one,) * stages, overlapped=True)

        def duration_s(stage: int, action: Action, times: list[StageTimes] = times) -> float:
            kind, chunk, _ = action
            split = times[stage].weight_s[chunk] if schedule in ("zb-h1", "dualpipe") else 0.0
            back = times[stage].backward_s[chunk] - split
            return {"forward": times[stage].forward_s[chunk], "backward": back, "weight": split}[kind]

        expected = relax_until_still(shape_of(schedule, stages, chunks, micro_batches), duration_s, one)
        assert simulate_schedule(schedule, times, transfers, micro_batches).total_s == pytest.approx(expected)


@pytest.mark.parametrize("overlapped", [True, False])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_every_simulation_respects(schedule: ScheduleName, overlapped: bool) -> None:
    """Every task once, one at a time on a stage, after what it needs and the message that brings it; memory as said."""
    rng = random.Random(3)
    for _ in seeds(40):
        stages, chunks, micro_batches = random_counts(rng, schedule, most=6)
        times = random_stages(rng, schedule, stages, chunks)
        transfers = Transfers(forward_s=tuple(rng.uniform(0, 0.3) for _ in range(stages)), overlapped=overlapped)
        found = simulate_schedule(schedule, times, transfers, micro_batches)
        shape = shape_of(schedule, stages, chunks, micro_batches)
        by_name = {(t.stage, t.kind, t.chunk, t.micro_batch): t for t in found.tasks}
        kinds = 3 if schedule in ("zb-h1", "dualpipe") else 2
        passes = 1 if schedule == "dualpipe" else chunks
        assert len(by_name) == len(found.tasks) == stages * passes * micro_batches * kinds
        for before, after in zip(found.tasks, found.tasks[1:], strict=False):
            assert before.stage != after.stage or before.end_s <= after.start_s + 1e-9
        for (stage, kind, chunk, k), task in by_name.items():
            if kind == "weight":
                assert by_name[stage, "backward", chunk, k].end_s <= task.start_s + 1e-9
            elif place := follower(shape, stage, chunk):
                other = by_name[place[0], kind, place[1], k]
                first, second = (task, other) if kind == "forward" else (other, task)
                way = transfers.forward_s[stages - 1 if place[1] != chunk else min(stage, place[0])]
                assert first.end_s + way <= second.start_s + 1e-9
            elif kind == "forward":
                assert task.end_s <= by_name[stage, "backward", chunk, k].start_s + 1e-9
        for stage in range(stages):
            said = in_flight(schedule, stage=stage, stages=stages, chunks=chunks, micro_batches=micro_batches)
            assert most_held(found, stage, chunks) == said


def most_held(found: SimulatedSchedule, stage: int, chunks: int) -> tuple[float, ...]:
    """Activations per chunk from the start of a forward to the end of the last task with that micro-batch."""
    last: dict[tuple[int, int], float] = defaultdict(float)
    mine = [task for task in found.tasks if task.stage == stage]
    for task in mine:
        last[task.chunk, task.micro_batch] = max(last[task.chunk, task.micro_batch], task.end_s)
    events = [(task.start_s, 1, task.chunk) for task in mine if task.kind == "forward"]
    events += [(end_s, -1, chunk) for (chunk, _), end_s in last.items()]
    held, most = [0.0] * chunks, [0.0] * chunks
    for _, change, chunk in sorted(events):
        held[chunk] += change
        if sum(held) > sum(most):
            most = list(held)
    return tuple(most)


def test_memory_of_the_papers() -> None:
    for stages, micro_batches in ((4, 8), (6, 20), (8, 16)):
        for stage in range(stages):
            at = {"stage": stage, "stages": stages, "micro_batches": micro_batches}
            assert in_flight("gpipe", chunks=1, **at) == (micro_batches,)
            assert in_flight("1f1b", chunks=1, **at) == (stages - stage,)
            assert in_flight("zb-h1", chunks=1, **at) == (stages,)  # 1f1b's most
            assert sum(in_flight("dualpipe", chunks=2, **at)) == stages + 1  # DeepSeek-V3, table 2
    assert in_flight("1f1b", stage=0, stages=8, chunks=1, micro_batches=3) == (3,)
    # Narayanan et al. 2021, section 2.2: (1 + (p - 1) / (p v)) p v chunks at most.
    assert sum(in_flight("interleaved", stage=0, stages=8, chunks=4, micro_batches=16)) == 8 * 4 + 8 - 1


@pytest.mark.parametrize(("forward", "backward", "weight"), [(1, 2, 1), (3, 5, 2), (2, 5, 2)])
def test_bubbles_of_the_papers(forward: float, backward: float, weight: float) -> None:
    """Of equal stages, without transfers; the backward of Qi et al. is ours without the weight gradients."""
    for p in (2, 4, 8):
        bubble = (p - 1) * (forward + backward)
        zero_bubble = (p - 1) * max(forward + backward - 2 * weight, forward, backward - weight)
        cases: tuple[tuple[ScheduleName, int, float], ...] = (
            ("gpipe", 1, bubble),
            ("1f1b", 1, bubble),
            ("interleaved", 3, bubble),
            ("zb-h1", 1, zero_bubble),
        )
        for schedule, chunks, expected in cases:
            stages = equal_stages(forward, backward, weight, stages=p, chunks=chunks)
            total_s = simulate_schedule(schedule, stages, no_transfers(p), 2 * p).total_s
            assert total_s - 2 * p * chunks * (forward + backward) == pytest.approx(expected)


@pytest.mark.parametrize("weight", [1.0, 0.5, 0.0])
def test_bubble_of_dualpipe(weight: float) -> None:
    """(p / 2 - 1) (F&B + B - 3 W) where a forward and a backward without weight gradients take as long."""
    for p in (2, 4, 8, 12):
        forward, backward = 1.0, 1.0 + weight
        stages = equal_stages(forward, backward, weight, stages=p, chunks=2)
        total_s = simulate_schedule("dualpipe", stages, no_transfers(p), 2 * p + 4).total_s
        bubble = (p / 2 - 1) * (forward + 2 * backward - 3 * weight)
        assert total_s - (2 * p + 4) * (forward + backward) == pytest.approx(bubble)


@pytest.mark.parametrize("overlapped", [True, False])
def test_zero_bubble_is_never_slower_than_1f1b(overlapped: bool) -> None:
    rng = random.Random(4)
    for _ in seeds(200):
        stages, micro_batches = rng.randint(1, 8), rng.randint(1, 24)
        times = random_stages(rng, "zb-h1", stages, 1)
        transfers = Transfers(forward_s=(rng.choice([0.0, 0.1]),) * stages, overlapped=overlapped)
        plain, split = (simulate_schedule(s, times, transfers, micro_batches).total_s for s in ("1f1b", "zb-h1"))
        assert split <= plain * (1 + 1e-12)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_waiting_for_messages_is_never_faster_than_hiding_them(schedule: ScheduleName) -> None:
    rng = random.Random(5)
    for _ in seeds(60):
        stages, chunks, micro_batches = random_counts(rng, schedule)
        times = random_stages(rng, schedule, stages, chunks)
        seconds = tuple(rng.uniform(0, 0.5) for _ in range(stages))
        hidden, waited = (
            simulate_schedule(schedule, times, Transfers(forward_s=seconds, overlapped=o), micro_batches).total_s
            for o in (True, False)
        )
        assert hidden <= waited * (1 + 1e-12)


def test_one_stage_and_one_chunk() -> None:
    one = equal_stages(1, 2, 1, stages=1, chunks=1)
    slow = Transfers(forward_s=(9.0,))
    for schedule in ("gpipe", "1f1b", "interleaved", "zb-h1"):
        assert simulate_schedule(schedule, one, slow, 5).total_s == 15
    assert simulate_schedule("interleaved", equal_stages(1, 2, 1, stages=1, chunks=3), slow, 5).total_s == 45
    four = equal_stages(1, 2, 1, stages=4, chunks=1)
    as_1f1b = simulate_schedule("1f1b", four, no_transfers(4), 7)
    assert simulate_schedule("interleaved", four, no_transfers(4), 7) == as_1f1b


def test_what_is_refused() -> None:
    assert schedule_problem("interleaved", 4, 2, 8) is None
    assert "multiple" in (schedule_problem("interleaved", 4, 2, 6) or "")
    assert "even" in (schedule_problem("dualpipe", 3, 2, 12) or "")
    assert "at least 8" in (schedule_problem("dualpipe", 4, 2, 6) or "")
    assert "one chunk" in (schedule_problem("gpipe", 4, 2, 8) or "")
    assert "at least one" in (schedule_problem("1f1b", 4, 1, 0) or "")
    with pytest.raises(ValueError, match="multiple"):
        simulate_schedule("interleaved", equal_stages(1, 2, 1, stages=4, chunks=2), no_transfers(4), 6)
    with pytest.raises(ValueError, match="one transfer a stage"):
        simulate_schedule("1f1b", equal_stages(1, 2, 1, stages=4, chunks=1), no_transfers(3), 6)
    with pytest.raises(ValueError, match="a part of backward_s"):
        StageTimes(forward_s=(1,), backward_s=(2,), weight_s=(3,))
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="finite seconds"):
            StageTimes(forward_s=(wrong,), backward_s=(2,), weight_s=(1,))
        with pytest.raises(ValueError, match="finite seconds"):
            Transfers(forward_s=(wrong,))
    with pytest.raises(ValueError, match="one per chunk"):
        StageTimes(forward_s=(1, 1), backward_s=(2,), weight_s=(1,))
    for stage in (-1, 4):
        with pytest.raises(ValueError, match="expected 0 to 3"):
            in_flight("1f1b", stage=stage, stages=4, chunks=1, micro_batches=4)
        with pytest.raises(ValueError, match="expected 0 to 3"):
            order_of(shape_of("1f1b", 4, 1, 4), stage)
