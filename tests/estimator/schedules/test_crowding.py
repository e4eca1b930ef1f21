"""Stages that slow each other on a machine: the closed form against the simulation, slot by slot."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from estimator.pricing.recipe import ScheduleName
from estimator.schedules.closed_form import time_schedule
from estimator.schedules.crowding import Crowd, crowd_of, crowding
from estimator.schedules.records import StageTimes
from estimator.schedules.simulate import simulate_schedule
from profiles.cluster import DeviceSlot
from profiles.hardware import load_device
from profiles.vocabulary import Device
from tests.schedule_examples import SCHEDULES, equal_stages, no_transfers, random_counts, random_stages
from tests.seeds import seeds

ALONE = load_device("a100-80gb")


def _device(*contention: tuple[int, float]) -> Device:
    return replace(ALONE, contention=contention)


def _on_one_machine(device: Device, stages: int, own: int = 1) -> Crowd:
    return Crowd(workers=((own,) * stages,), own=(own,) * stages, devices=(device,) * stages)


def _times_of(schedule: ScheduleName, times: list[StageTimes], micro_batches: int, crowd: Crowd) -> list[float]:
    forward_s, backward_s, weight_s = (
        np.array([getattr(one, name) for one in times])[:, :, None] for name in ("forward_s", "backward_s", "weight_s")
    )
    return [float(x) for x in crowding(schedule, forward_s, backward_s, weight_s, micro_batches, crowd)[:, 0]]


def _crowded_s(schedule: ScheduleName, times: list[StageTimes], micro_batches: int, crowd: Crowd) -> float:
    slower = _times_of(schedule, times, micro_batches, crowd)
    longer = [
        StageTimes(
            forward_s=tuple(x * times_as_long for x in one.forward_s),
            backward_s=tuple(x * times_as_long for x in one.backward_s),
            weight_s=tuple(x * times_as_long for x in one.weight_s),
        )
        for one, times_as_long in zip(times, slower, strict=True)
    ]
    return time_schedule(schedule, longer, no_transfers(len(times)), micro_batches).total_s


def _slot_by_slot_s(
    schedule: ScheduleName, times: list[StageTimes], micro_batches: int, device: Device, own: int = 1
) -> float:
    """Between any two events of the simulation as many stages are busy: what passes is that many workers' slowdown."""
    tasks = simulate_schedule(schedule, times, no_transfers(len(times)), micro_batches).tasks
    moments = sorted({moment for task in tasks for moment in (task.start_s, task.end_s)})
    total_s = 0.0
    for start_s, end_s in pairwise(moments):
        middle_s = (start_s + end_s) / 2
        busy = own * sum(task.start_s < middle_s < task.end_s for task in tasks)
        total_s += (end_s - start_s) * device.slowdown(busy) / device.slowdown(own)
    return total_s


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_it_is_the_sum_over_slots_where_contention_grows_on_a_line(schedule: ScheduleName) -> None:
    rng = random.Random(1)
    for _ in seeds(60):
        stages, micro_batches, own = rng.randint(2, 6), rng.randint(1, 12), rng.randint(1, 3)
        times = random_stages(rng, schedule, stages, 1, uneven=0.5)
        device = _device((own * stages, rng.uniform(1.0, 3.0)))
        crowd = _on_one_machine(device, stages, own)
        expected = _slot_by_slot_s(schedule, times, micro_batches, device, own)
        assert _crowded_s(schedule, times, micro_batches, crowd) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_it_is_near_the_sum_over_slots_on_any_line_between_measured_counts(schedule: ScheduleName) -> None:
    rng = random.Random(2)
    for _ in seeds(40):
        stages, chunks, micro_batches = random_counts(rng, schedule, most=6)
        times = random_stages(rng, schedule, stages, chunks, uneven=0.2)
        middle = rng.uniform(1.0, 1.5)
        device = _device((stages // 2 + 1, middle), (stages + 1, middle + rng.uniform(0.0, 0.5)))
        expected = _slot_by_slot_s(schedule, times, micro_batches, device)
        found = _crowded_s(schedule, times, micro_batches, _on_one_machine(device, stages))
        plain = time_schedule(schedule, times, no_transfers(stages), micro_batches).total_s
        assert plain <= found * (1 + 1e-12)
        assert found == pytest.approx(expected, rel=0.06)


def test_equal_stages_have_as_many_busy_as_their_ramps_leave() -> None:
    # Four micro-batches through two stages: 8 passes of 5 slots are busy.
    crowd = _on_one_machine(_device((2, 1.5)), 2)
    for schedule in ("gpipe", "1f1b"):
        slower = _times_of(schedule, equal_stages(1, 2, 1, stages=2, chunks=1), 4, crowd)
        assert slower == pytest.approx([1 + 0.5 * 0.6] * 2)


def test_an_idle_stage_slows_nobody() -> None:
    lone = StageTimes(forward_s=(1.0,), backward_s=(2.0,), weight_s=(0.0,))
    idle = StageTimes(forward_s=(0.0,), backward_s=(0.0,), weight_s=(0.0,))
    assert _times_of("1f1b", [lone, idle], 4, _on_one_machine(_device((2, 1.5)), 2)) == [1.0, 1.0]
    assert _times_of("1f1b", [idle, idle], 4, _on_one_machine(_device((2, 1.5)), 2)) == [1.0, 1.0]


def _slots(node: int, *indices: int) -> list[DeviceSlot]:
    return [DeviceSlot(site="s", node=node, index=index, group=0, device="d") for index in indices]


def test_only_stages_that_share_a_machine_of_measured_contention_are_a_crowd() -> None:
    device, quiet = _device((4, 2.0)), _device()
    shared = [(_slots(0, 0, 1), device), (_slots(0, 2), device)]
    assert crowd_of(shared) == Crowd(workers=((2, 1),), own=(2, 1), devices=(device, device))
    assert crowd_of(shared[:1]) is None
    assert crowd_of([(slots, quiet) for slots, _ in shared]) is None
    assert crowd_of([(_slots(0, 0, 1), device), (_slots(1, 0), device)]) is None
    partly = crowd_of([(_slots(0, 0), device), (_slots(0, 1) + _slots(1, 0), device), (_slots(2, 0), device)])
    assert partly == Crowd(workers=((1, 1, 0), (0, 1, 0), (0, 0, 1)), own=(1, 1, 1), devices=(device,) * 3)
    one = StageTimes(forward_s=(1.0,), backward_s=(1.0,), weight_s=(0.0,))
    slower = _times_of("gpipe", [one] * 3, 2, partly)
    assert slower[0] == slower[1] > slower[2] == 1.0
