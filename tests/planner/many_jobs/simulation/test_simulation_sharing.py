"""Jobs that slow each other while they are beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.many_jobs.jobs.records import Decision, Grant, Job, View, grant, grant_on
from planner.many_jobs.placers.catalogue import make_placer
from planner.many_jobs.policies.fcfs import Fcfs
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.failures import Failure, Failures
from planner.many_jobs.simulation.settings import CheckpointFile, Placement, PolicyError, Seated, Settings, Work
from planner.many_jobs.simulation.sharing import SharedAmounts
from planner.many_jobs.simulation.tables import jobs_csv, series_csv
from tests.scheduling_examples import make_job, make_pool
from tests.simulation_examples import Follow, PowerCells, Scripted, draw_jobs, small_pools, speed_over_pools

PAIR = make_pool("a", nodes=1, devices_per_node=2)


def alone_s(job: Job, grant: Grant) -> float:
    """Whatever the stages are."""
    found = speed_over_pools(job, Grant(parts=grant.parts))
    assert found is not None
    return found


class Neighbours(SharedAmounts):
    """An iteration takes a quarter longer for every device of others on its fullest node; exact in binary."""

    def uses(self, job: Job, grant: Grant, placement: Placement) -> Mapping[str, int]:
        del job, grant
        return {f"{pool}/{node}": mask.bit_count() for pool, pieces in placement.items() for node, mask in pieces}

    def iteration_s(self, job: Job, grant: Grant, placement: Placement, in_use: Mapping[str, int]) -> float:
        own = self.uses(job, grant, placement)
        return alone_s(job, grant) * (1 + 0.25 * max(in_use[name] - own[name] for name in own))


def work(id_: str, submit_s: float, span_s: float) -> Job:
    """A job that takes `span_s` seconds by itself on one device of "a"."""
    return make_job(id_, submit_s=submit_s, pool="a", devices=1, iterations=span_s / 8.0)


def test_two_jobs_beside_each_other() -> None:
    """One has done 10 s of its work when the other comes; both then take 5/4 as long, until the other has gone."""
    jobs = [work("x", 0.0, 100.0), work("y", 10.0, 40.0)]
    result = simulate(jobs, [PAIR], PowerCells(), Fcfs(), settings=Settings(sharing=Neighbours()))
    assert result.table.end_s.tolist() == [110.0, 60.0]
    assert result.summary.throughput_peak == 1.6
    assert result.summary.violations == 0


def test_a_neighbour_that_restarts_slows_already() -> None:
    """It holds its devices, and its own speed counts from the end of its restart."""
    plan = {
        0.0: Decision(grants={"x": grant("a", 1), "y": grant("a", 1)}),
        10.0: Decision(grants={"y": None}),
        30.0: Decision(grants={"y": grant("a", 1)}),
    }
    settings = Settings(sharing=Neighbours(), restart_s=40.0, round_s=10.0)
    jobs = [work("x", 0.0, 90.0), work("y", 0.0, 100.0)]
    result = simulate(jobs, [PAIR], PowerCells(), Follow(plan), settings=settings)
    # x has done 8 s of its work by 10, 20 more by 30, and the other 62 take 5/4 as long: until 107.5.
    # y has done 8 by 10, restarts until 70, does 30 beside x, and the other 62 alone.
    assert result.table.end_s.tolist() == [107.5, 169.5]


def test_what_a_failure_costs_counts_from_the_start() -> None:
    """Checkpoints every 30 s from 0 on: at 50 s a job loses 20 s, at the speed that it has then; not the 10 s since its
    neighbour left."""
    jobs = [work("x", 0.0, 200.0), work("y", 0.0, 32.0)]
    failures = Failures(listed=(Failure(time_s=50.0, pool="a", node=0, repair_s=10.0),))
    settings = Settings(sharing=Neighbours(), checkpoint_interval_s=30.0, restart_s=0.0, failures=failures)
    result = simulate(jobs, [PAIR], PowerCells(), Fcfs(), settings=settings)
    # x has done 32 s of its work by 40 and 10 more by 50, loses 20, and is back at 60 with 178 to do.
    assert result.table.end_s.tolist() == [238.0, 40.0]
    assert result.summary.lost_iterations == 20.0 / 8.0


@pytest.mark.parametrize("round_s", [None, 16.0])
def test_work_is_that_of_the_time_beside_others(round_s: float | None) -> None:
    """Whatever random decisions do: what each job did, added up from who sat where when, is its work."""
    finished = beside = 0
    for seed in range(60):
        jobs = draw_jobs(Random(seed), 12)
        settings = Settings(
            round_s=round_s,
            restart_s=4.0,
            truth=lambda job, grant, _: alone_s(job, grant),
            sharing=Neighbours(),
            slices=True,
        )
        result = simulate(jobs, small_pools(), PowerCells(), Scripted(seed), settings=settings)
        assert result.summary.violations == 0
        edges = sorted({time_s for one in result.slices for time_s in (one[4], one[5], one[6])})
        did = dict.fromkeys(range(len(jobs)), 0.0)
        for from_s, to_s in pairwise(edges):
            now = [one for one in result.slices if one[4] <= from_s and one[6] >= to_s]
            held: dict[tuple[str, int], int] = {}
            for _, pool, node, mask, *_ in now:
                held[pool, node] = held.get((pool, node), 0) + mask.bit_count()
            for number in {one[0] for one in now}:
                own = [one for one in now if one[0] == number]
                if own[0][5] > from_s:
                    continue
                more = max(held[pool, node] - mask.bit_count() for _, pool, node, mask, *_ in own)
                beside += more > 0
                did[number] += (to_s - from_s) / (1 + 0.25 * more) * _rate(own)
        for number, job in enumerate(result.jobs):
            if result.status(number) == "finished" and job.iterations:
                finished += 1
                assert did[number] == pytest.approx(job.iterations, rel=1e-9)
    assert finished > 100
    assert beside > 1000


def _rate(pieces: list[tuple[int, str, int, int, float, float, float]]) -> float:
    devices = sum(mask.bit_count() for _, _, _, mask, *_ in pieces)
    return devices / (8.0 if {pool for _, pool, *_ in pieces} == {"a"} else 16.0)


def test_a_resumed_run_is_the_same(tmp_path: Path) -> None:
    stops = 0
    for seed in range(8):
        rng = Random(seed)
        jobs = draw_jobs(rng, 12)

        def run(stop_after: int | None, path: Path, jobs: tuple[Job, ...] = jobs, seed: int = seed) -> str:
            looks = iter(range(10**9))
            settings = Settings(
                restart_s=3.7,
                checkpoint_interval_s=11.3,
                truth=lambda job, grant, _: alone_s(job, grant),
                sharing=Neighbours(),
                failures=Failures(mtbf_s=900.0, repair_s=33.3, seed=seed),
                series=True,
                slices=True,
                look_every=1,
                checkpoint=CheckpointFile(path=path, every_s=1e9, resume=True),
                stop=None if stop_after is None else lambda: next(looks) >= stop_after,
            )
            result = simulate(jobs, small_pools(), PowerCells(), Scripted(seed), settings=settings)
            return "\n".join((repr(result.summary), jobs_csv(result), series_csv(result), repr(result.slices)))

        whole = run(None, tmp_path / "none.json")
        while True:
            try:
                found = run(rng.randrange(1, 20), tmp_path / f"{seed}.json")
            except KeyboardInterrupt:
                stops += 1
                continue
            break
        assert found == whole
    assert stops > 20


class Chained:
    """An iteration takes twice as long for each other job of the component; it keeps whom it was asked for together."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def uses(self, job: Job, grant: Grant, placement: Placement) -> Mapping[str, int]:
        return Neighbours().uses(job, grant, placement)

    def iterations_s(self, together: Sequence[Seated]) -> Sequence[float]:
        self.asked.append(tuple(each.job.id for each in together))
        return [2.0 ** (len(together) - 1) * alone_s(each.job, each.grant) for each in together]


def test_a_component_is_all_that_are_joined_by_others() -> None:
    """x and z sit on nodes of their own, y on both: they are asked for together, and apart once y is gone; w, by itself
    on the third node, is never asked for with them."""
    pool = make_pool("a", nodes=3, devices_per_node=2)
    named = {"x": ((0, 1),), "y": ((0, 1), (1, 1)), "z": ((1, 1),), "w": ((2, 1),)}
    plan = {0.0: Decision(grants={name: grant_on("a", nodes) for name, nodes in named.items()})}
    jobs = [make_job(name, pool="a", devices=len(named[name]), iterations=10.0) for name in named]
    sharing = Chained()
    result = simulate(jobs, [pool], PowerCells(), Follow(plan), settings=Settings(sharing=sharing))
    assert ("x", "y", "z") in sharing.asked
    assert {"w"} in [set(ids) for ids in sharing.asked]
    assert all("w" not in ids or len(ids) == 1 for ids in sharing.asked)
    # y has two devices, so its iterations take 4 s alone and 16 s beside both; then x and z do the rest alone.
    ends_s = dict(zip([job.id for job in result.jobs], result.table.end_s, strict=True))
    assert ends_s == {"w": 80.0, "y": 160.0, "x": 200.0, "z": 200.0}
    table = result.table
    assert list(zip(table.progress_s, table.lost_to_others_s, table.contended_s, strict=True)) == [
        (200.0, 120.0, 160.0),
        (160.0, 120.0, 160.0),
        (200.0, 120.0, 160.0),
        (80.0, 0.0, 0.0),
    ]
    summary = result.summary
    assert (summary.slowdown_by_others_max, summary.slowdown_by_others_mean) == (4.0, (2.5 + 4.0 + 2.5 + 1.0) / 4)
    assert (summary.contended_hours, summary.lost_to_others_hours) == (480.0 / 3600, 360.0 / 3600)
    assert summary.gpu_utilization_mean is None


class ByComponents:
    """`Neighbours` as a sharing of which nobody knows that amounts are all that counts."""

    def uses(self, job: Job, grant: Grant, placement: Placement) -> Mapping[str, int]:
        return Neighbours().uses(job, grant, placement)

    def iterations_s(self, together: Sequence[Seated]) -> Sequence[float]:
        return Neighbours().iterations_s(together)


@given(st.integers(0, 10_000))
def test_amounts_slow_as_their_components_do(seed: int) -> None:
    """Where amounts are all that counts only users of what has changed are asked for: nobody else's time is another."""
    draw, pool = Random(seed), make_pool("a", nodes=4, devices_per_node=2)
    jobs = [
        make_job(
            str(number),
            submit_s=float(draw.randint(0, 60)),
            pool="a",
            devices=draw.randint(1, 4),
            iterations=float(draw.randint(1, 20)),
        )
        for number in range(12)
    ]
    placer = make_placer("random")
    tables = [
        simulate(jobs, [pool], PowerCells(), Fcfs(), settings=Settings(placer=placer, sharing=sharing)).table
        for sharing in (Neighbours(), ByComponents())
    ]
    for column in ("start_s", "end_s", "progress_s", "lost_to_others_s", "contended_s"):
        assert list(getattr(tables[0], column)) == list(getattr(tables[1], column)), column


def test_what_a_policy_sees_of_jobs_beside_each_other() -> None:
    seen: list[tuple[float, tuple[str, ...], float | None, float | None]] = []

    class Looking(Fcfs):
        def decide(self, view: View) -> Decision:
            for id_, state in view.running.items():
                if id_ == "x":
                    seen.append(
                        (view.now_s, tuple(view.neighbours(id_)), state.iteration_now_s, state.iteration_alone_s)
                    )
            assert view.neighbours("nobody") == ()
            return super().decide(view)

    jobs = [work("x", 0.0, 100.0), work("y", 10.0, 40.0), work("z", 30.0, 8.0)]
    simulate(jobs, [PAIR], PowerCells(), Looking(), settings=Settings(sharing=Neighbours()))
    assert seen[:2] == [(10.0, (), 8.0, 8.0), (30.0, ("y",), 10.0, 8.0)]


def test_work_is_counted_of_whom_it_is_known() -> None:
    class Working(Neighbours):
        def work(self, job: Job, grant: Grant, placement: Placement) -> Work | None:
            del grant, placement
            return None if job.id == "z" else Work(flops=6.0, busy_device_s=4.0)

    jobs = [work("x", 0.0, 100.0), work("y", 10.0, 40.0)]
    known = simulate(jobs, [PAIR], PowerCells(), Fcfs(), settings=Settings(sharing=Working()))
    iterations = 140.0 / 8.0
    assert known.summary.gpu_utilization_mean == pytest.approx(iterations * 4.0 / (2 * 110.0))
    assert known.summary.work_flops_per_s == pytest.approx(iterations * 6.0 / 110.0)
    other = simulate([*jobs, work("z", 60.0, 8.0)], [PAIR], PowerCells(), Fcfs(), settings=Settings(sharing=Working()))
    assert (other.summary.gpu_utilization_mean, other.summary.work_flops_per_s) == (None, None)


def test_nonsense_is_refused() -> None:
    class Nonsense(Neighbours):
        def iteration_s(self, *about: object) -> float:
            return 0.0 * len(about)

    with pytest.raises(PolicyError, match="beside others"):
        simulate([work("x", 0.0, 8.0)], [PAIR], PowerCells(), Fcfs(), settings=Settings(sharing=Nonsense()))
