"""Pipelines whose messages over several boundaries pass the same link, by hand, event by event and at once."""

from __future__ import annotations

import random

import numpy as np
import pytest

from estimator.pricing.recipe import ScheduleName
from estimator.schedules.closed_form import passes_of_stage, time_schedule, time_schedules
from estimator.schedules.records import SharedLink, SimulatedSchedule, StageTimes, Transfers
from estimator.schedules.simulate import simulate_schedule, total_by_events_s
from tests.schedule_examples import SCHEDULES, equal_stages, random_counts, random_stages
from tests.seeds import seeds


def over_two_sites(schedule: ScheduleName, sites: list[int], hop_s: float, *, overlapped: bool = True) -> Transfers:
    """Messages between stages on these sites, of which those from site to site take `hop_s` and occupy its link."""
    ends = list(zip(sites, (*sites[1:], sites[0]), strict=True))
    if schedule != "interleaved":
        ends[-1] = (0, 0)
    hops_s = tuple(hop_s * (here != there) for here, there in ends)

    def leaving(site: int) -> SharedLink:
        return SharedLink(
            up_s=tuple(hop * (here == site) for hop, (here, _) in zip(hops_s, ends, strict=True)),
            down_s=tuple(hop * (there == site) for hop, (_, there) in zip(hops_s, ends, strict=True)),
        )

    return Transfers(forward_s=hops_s, overlapped=overlapped, shared=(leaving(0), leaving(1)))


def messages_s(schedule: ScheduleName, stages: list[StageTimes], link: SharedLink, micro_batches: int) -> float:
    """Seconds of an iteration's messages on a link, counted chunk by chunk."""
    chunks = len(stages[0].forward_s)
    passes = passes_of_stage(schedule, micro_batches)
    found = passes * chunks * sum((*link.up_s[:-1], *link.down_s[:-1]))
    return found + passes * (chunks - 1) * (link.up_s[-1] + link.down_s[-1])


def random_case(rng: random.Random, schedule: ScheduleName) -> tuple[list[StageTimes], Transfers, int]:
    stages, chunks, micro_batches = random_counts(rng, schedule)
    times = random_stages(rng, schedule, stages, chunks)
    hop_s = times[0].forward_s[0] * rng.choice([rng.uniform(0, 0.5), rng.uniform(0, 4)])
    return times, over_two_sites(schedule, [rng.randrange(2) for _ in range(stages)], hop_s), micro_batches


def test_an_interleaved_pipeline_over_two_sites_by_hand() -> None:
    # Two stages of two chunks, a site each, passes that take hardly any time. Of each of 8 micro-batches the link to
    # the second site carries two activations on and, of the way round, one gradient: 3 x 8 messages of a second.
    times = equal_stages(0.001, 0.002, 0.001, stages=2, chunks=2)
    transfers = over_two_sites("interleaved", [0, 1], 1.0)
    assert transfers.shared[0] == SharedLink(up_s=(1, 0), down_s=(0, 1))
    found = time_schedule("interleaved", times, transfers, 8).total_s
    assert 24 < found <= simulate_schedule("interleaved", times, transfers, 8).total_s
    alone = Transfers(forward_s=transfers.forward_s, overlapped=True)
    assert time_schedule("interleaved", times, alone, 8).total_s < 24


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_never_less_than_a_link_needs_nor_more_than_by_events(schedule: ScheduleName) -> None:
    rng = random.Random(schedule)
    for _ in seeds(60):
        times, transfers, micro_batches = random_case(rng, schedule)
        found = time_schedule(schedule, times, transfers, micro_batches)
        plain = Transfers(forward_s=transfers.forward_s, overlapped=True)
        alone = time_schedule(schedule, times, plain, micro_batches)
        events_s = total_by_events_s(schedule, times, transfers, micro_batches)
        need_s = max(messages_s(schedule, times, link, micro_batches) for link in transfers.shared)
        assert found.total_s >= need_s * (1 - 1e-12)
        assert found.total_s >= alone.total_s * (1 - 1e-12)
        if found.total_s > alone.total_s * (1 + 1e-12):
            assert found.total_s <= events_s * (1 + 1e-9)
        assert (found.bottleneck, found.bubble_s) == (alone.bottleneck, alone.bubble_s)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_at_once_as_one_by_one(schedule: ScheduleName) -> None:
    rng = random.Random(schedule)
    for _ in seeds(20):
        times, _, micro_batches = random_case(rng, schedule)
        several = [
            over_two_sites(schedule, [rng.randrange(2) for _ in times], rng.uniform(0, 4), overlapped=True)
            for _ in range(5)
        ]
        both = [
            (
                np.array([each.shared[number].up_s for each in several]).T,
                np.array([each.shared[number].down_s for each in several]).T,
            )
            for number in range(2)
        ]
        forward_s, backward_s, weight_s = (
            np.repeat(np.array([getattr(time, name) for time in times])[:, :, None], 5, axis=2)
            for name in ("forward_s", "backward_s", "weight_s")
        )
        found = time_schedules(
            schedule,
            forward_s,
            backward_s,
            weight_s,
            np.array([each.forward_s for each in several]).T,
            overlapped=True,
            micro_batches=micro_batches,
            shared_s=both,
        )
        alone = [time_schedule(schedule, times, each, micro_batches).total_s for each in several]
        assert found == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_by_events_a_link_passes_one_message_after_another(schedule: ScheduleName) -> None:
    """Every result is there no sooner than its link has brought it, of all that were sent before it."""
    rng = random.Random(schedule)
    for _ in seeds(20):
        times, transfers, micro_batches = random_case(rng, schedule)
        plain = Transfers(forward_s=transfers.forward_s, overlapped=True)
        shared = simulate_schedule(schedule, times, transfers, micro_batches)
        alone = simulate_schedule(schedule, times, plain, micro_batches)
        assert order_of(shared) == order_of(alone)
        need_s = max(messages_s(schedule, times, link, micro_batches) for link in transfers.shared)
        assert shared.total_s >= max(need_s, alone.total_s) * (1 - 1e-9)


def order_of(simulated: SimulatedSchedule) -> list[list[tuple[object, ...]]]:
    """What each stage does, in turn."""
    stages = 1 + max(task.stage for task in simulated.tasks)
    return [
        [(task.kind, task.chunk, task.micro_batch) for task in simulated.tasks if task.stage == stage]
        for stage in range(stages)
    ]


def test_a_link_of_one_boundary_changes_nothing_by_events() -> None:
    rng = random.Random(4)
    for _ in seeds(20):
        stages, _, micro_batches = random_counts(rng, "1f1b")
        times = random_stages(rng, "1f1b", stages, 1)
        here = rng.randint(1, stages)
        transfers = over_two_sites("1f1b", [0] * here + [1] * (stages - here), rng.uniform(0, 4))
        plain = Transfers(forward_s=transfers.forward_s, overlapped=True)
        assert simulate_schedule("1f1b", times, transfers, micro_batches) == simulate_schedule(
            "1f1b", times, plain, micro_batches
        )
        found, alone = (time_schedule("1f1b", times, each, micro_batches) for each in (transfers, plain))
        assert found.total_s == pytest.approx(alone.total_s, rel=1e-12)


def test_what_is_no_link_is_refused() -> None:
    with pytest.raises(ValueError, match="one per boundary"):
        SharedLink(up_s=(1.0,), down_s=(1.0, 2.0))
    with pytest.raises(ValueError, match="finite seconds"):
        SharedLink(up_s=(-1.0,), down_s=(1.0,))
    with pytest.raises(ValueError, match="as many boundaries"):
        Transfers(forward_s=(1.0, 1.0), shared=(SharedLink(up_s=(1.0,), down_s=(1.0,)),))
