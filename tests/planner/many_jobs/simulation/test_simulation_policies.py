"""Random workloads through every policy there is; what must hold is checked by a recorder of its own."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.many_jobs.jobs.records import Decision, Grant, Job, Policy, View
from planner.many_jobs.placers.records import Placer
from planner.many_jobs.policies.arnold import Variant
from planner.many_jobs.policies.catalogue import POLICIES, make_policy
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.failures import Failures
from planner.many_jobs.simulation.placing import devices_of
from planner.many_jobs.simulation.result import Result
from planner.many_jobs.simulation.settings import Placement, Settings
from planner.many_jobs.simulation.truth import cells_truth
from tests.planner.many_jobs.simulation.simulation_workloads import announce, draw_workload
from tests.scheduling_examples import FakeCells, two_pools
from tests.seeds import examples

Device = tuple[str, int, int]


class Recorder:
    """Sits between policy and simulator: passes every decision on, and keeps what it needs to check the run without the
    simulator's help."""

    def __init__(self, policy: Policy, cells: FakeCells) -> None:
        self.policy, self.truth = policy, cells_truth(cells)
        self.name = policy.name
        self.placed: dict[str, tuple[Device, ...]] = {}
        self.speeds: dict[str, list[float]] = {}
        self.dropped: set[str] = set()

    def place(self, job: Job, grant: Grant, placement: Placement | None) -> float | None:
        if placement is not None:
            self.placed[job.id] = tuple(devices_of(placement))
            by_pool = {pool: sum(device[0] == pool for device in self.placed[job.id]) for pool, _ in grant.parts}
            assert by_pool == dict(grant.parts)
        found = self.truth(job, grant, placement)
        if placement is not None and found is not None:
            self.speeds.setdefault(job.id, []).append(found)
        return found

    def decide(self, view: View) -> Decision:
        self._check(view)
        decision = self.policy.decide(view)
        self.dropped |= set(decision.dropped)
        return decision

    def _check(self, view: View) -> None:
        """Nobody holds a device of another or of a node that is down, and free is what nobody holds."""
        held: list[Device] = []
        for id_, state in view.running.items():
            assert state.grant is not None
            assert self.truth(state.job, state.grant, None) is not None
            held += self.placed[id_]
            assert len(self.placed[id_]) == state.grant.devices
        assert len(set(held)) == len(held)
        for name, pool in view.pools.items():
            used = sum(device[0] == name for device in held)
            assert view.free[name] + used == pool.devices
        assert not set(view.running) & set(view.waiting)
        for id_ in view.departed:
            assert id_ not in view.running
            assert id_ not in view.waiting

    def state(self) -> object:
        return self.policy.state()

    def restore(self, state: object) -> None:
        self.policy.restore(state)


def check_run(result: Result, recorder: Recorder, *, restart_s: float, failing: bool) -> None:
    """Nobody is lost; nobody starts before it is submitted; work is done in full, by the slices of the timeline."""
    assert result.summary.violations == 0
    counted = result.summary.finished + result.summary.dropped + result.summary.unfinished
    assert counted == len(result.jobs)
    ran: dict[int, list[tuple[float, float, float]]] = {}
    used: dict[Device, list[tuple[float, float]]] = {}
    for place, pool, node, mask, start_s, restarted_s, end_s in result.slices:
        assert start_s <= restarted_s <= end_s
        ran.setdefault(place, []).append((start_s, restarted_s, end_s))
        for device in devices_of({pool: ((node, mask),)}):
            used.setdefault(device, []).append((start_s, end_s))
    for spans in used.values():
        spans.sort()
        assert all(first[1] <= second[0] for first, second in pairwise(spans))
    for number, job in enumerate(result.jobs):
        stints = sorted(set(ran.get(number, [])))
        assert (result.status(number) == "dropped") == (job.id in recorder.dropped)
        if result.status(number) != "finished":
            continue
        table = result.table
        assert table.end_s[number] >= table.start_s[number] >= job.submit_s
        held_s = sum(end_s - start_s for start_s, _, end_s in stints)
        assert table.waited_s[number] == pytest.approx(table.end_s[number] - job.submit_s - held_s, abs=1e-3)
        assert table.restarts[number] == len(stints) - 1
        cost_s = restart_s + job.checkpoint_bytes / 2e9
        for first, (start_s, restarted_s, end_s) in enumerate(stints):
            assert restarted_s - start_s == pytest.approx(min(cost_s, end_s - start_s) if first else 0.0, abs=1e-3)
    assert failing or result.summary.lost_iterations == 0.0


def run_policy(
    name: str,
    seed: int,
    count: int,
    round_s: float | None,
    failing: bool,
    *,
    announced: bool = False,
    placer: Placer | None = None,
    defragment_s: float | None = None,
    **policy_options: object,
) -> Result:
    rng, cells = Random(seed), FakeCells()
    recorder = Recorder(make_policy(name, **policy_options), cells)
    jobs = draw_workload(rng, count)
    if announced:
        jobs = announce(rng, jobs)
    options = Settings(
        round_s=round_s,
        restart_s=60.0,
        truth=recorder.place,
        placer=placer,
        defragment_s=defragment_s,
        slices=True,
        until_s=300_000.0,
        failures=Failures(mtbf_s=20_000.0, repair_s=1000.0, seed=seed) if failing else None,
    )
    result = simulate(jobs, two_pools(), cells, recorder, settings=options)
    check_run(result, recorder, restart_s=60.0, failing=failing)
    check_work(result, recorder)
    return result


def check_work(result: Result, recorder: Recorder) -> None:
    """The iterations that finished jobs did, by the recorder's speeds and the timeline's spans, are those they had."""
    for number, job in enumerate(result.jobs):
        if result.status(number) == "finished" and not result.table.failures[number]:
            spans = dict.fromkeys((one[4], one[5], one[6]) for one in result.slices if one[0] == number)
            speeds = recorder.speeds[job.id]
            assert len(spans) == len(speeds)
            did = sum((end - begun) / speed for (_, begun, end), speed in zip(spans, speeds, strict=True))
            assert did == pytest.approx(job.iterations, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=examples(8, least=3), suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 25),
    round_s=st.sampled_from([None, 60.0, 300.0]),
    failing=st.booleans(),
    announced=st.booleans(),
)
def test_every_policy(name: str, seed: int, count: int, round_s: float | None, failing: bool, announced: bool) -> None:
    run_policy(name, seed, count, round_s, failing, announced=announced)


@pytest.mark.parametrize("variant", get_args(Variant))
@settings(max_examples=examples(12, least=4), suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 30),
    round_s=st.sampled_from([None, 60.0]),
    failing=st.booleans(),
    patience_s=st.sampled_from([0.0, 600.0, 86_400.0]),
)
def test_every_variant_of_arnold(
    variant: str, seed: int, count: int, round_s: float | None, failing: bool, patience_s: float
) -> None:
    run_policy("arnold", seed, count, round_s, failing, announced=True, variant=variant, patience_s=patience_s)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_the_same_again(name: str) -> None:
    """Two runs are equal to the last bit."""
    one, other = (run_policy(name, 11, 16, 300.0, True) for _ in range(2))
    assert one.summary == other.summary
    assert one.slices == other.slices


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_nobody_waits_for_ever(name: str) -> None:
    """All jobs fit alone where they ask to run, so all of them finish, or the policy dropped them."""
    result = run_policy(name, 5, 24, 300.0, False)
    assert result.unfinished == {}
