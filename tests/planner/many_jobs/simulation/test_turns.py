"""Jobs that take turns on the same devices in a simulation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from planner.many_jobs.jobs.records import (
    CellOption,
    Decision,
    Grant,
    Job,
    NodeCounts,
    Stateless,
    Use,
    View,
    Workload,
    grant,
    grant_in_turns,
    grant_on,
)
from planner.many_jobs.placers.best_fit import BestFit
from planner.many_jobs.placers.catalogue import make_placer
from planner.many_jobs.placers.records import FreeNodes, Request
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.failures import Failure, Failures
from planner.many_jobs.simulation.result import Result, summary_json
from planner.many_jobs.simulation.settings import CheckpointFile, Placement, PolicyError, Seated, Settings, Work
from planner.many_jobs.simulation.tables import jobs_csv
from planner.many_jobs.simulation.timeline import timeline_events
from tests.oracles.turns_oracle import replay, shortest_round_s
from tests.planner.many_jobs.scheduling.test_interleaving import draw_use
from tests.planner.many_jobs.simulation.test_simulation_sharing import Neighbours
from tests.scheduling_examples import make_job, make_pool
from tests.seeds import seeds
from tests.simulation_examples import Follow, PowerCells

PAIR = make_pool("a", nodes=1, devices_per_node=2)
GIB = 2**30
HALF = Use(iteration_s=8.0, compute_s=4.0, memory_bytes=10 * GIB, device_memory_bytes=40 * GIB)
"""On one device of "a" an iteration takes 8 s."""


def work(id_: str, submit_s: float, span_s: float, **more: object) -> Job:
    """A job that takes `span_s` seconds by itself on one device of "a"."""
    return replace(make_job(id_, submit_s=submit_s, pool="a", devices=1, iterations=span_s / 8.0), **more)  # type: ignore[arg-type]


def run(jobs: Sequence[Job], plan: Mapping[float, Mapping[str, Grant | None]], **settings: object) -> Result:
    """A run under what is told at each time."""
    uses: Callable[[Job, Grant], Use | None] = lambda _job, _grant: HALF  # noqa: E731
    told = Settings(**({"uses": uses, "restart_s": 0.0} | settings))  # type: ignore[arg-type]
    decisions = {time_s: Decision(grants=grants) for time_s, grants in plan.items()}
    return simulate(jobs, [PAIR], PowerCells(), Follow(decisions), settings=told)


def test_two_jobs_take_turns() -> None:
    """Both compute for half of their time: none is slower for it. They hold one device, half of it each."""
    both = {"x": grant_in_turns("a", 1, "t"), "y": grant_in_turns("a", 1, "t")}
    result = run([work("x", 0.0, 80.0), work("y", 0.0, 40.0)], {0.0: both}, slices=True)
    assert result.table.end_s.tolist() == [80.0, 40.0]
    assert result.table.attained_device_s.tolist() == [60.0, 20.0]
    assert result.summary.utilization_mean == 0.5
    assert result.summary.violations == 0
    assert result.turns is not None
    assert (result.turns.jobs, result.turns.most_jobs, result.turns.device_hours) == (2, 2, 40 / 3600)
    assert result.turns.share_of_held == 0.5


def test_who_computes_all_the_time_gives_half_of_it_away() -> None:
    full = Use(iteration_s=8.0, compute_s=8.0, device_memory_bytes=1)
    plan = {0.0: {"x": grant_in_turns("a", 1, "t")}, 16.0: {"y": grant_in_turns("a", 1, "t")}}
    jobs = [work("x", 0.0, 80.0), work("y", 16.0, 32.0)]
    result = run(jobs, plan, uses=lambda _job, _grant: full, prices={"a": 3600.0})
    assert result.table.end_s.tolist() == [112.0, 80.0]
    assert result.table.revenue.tolist() == [80.0, 32.0]
    assert result.table.restarts.tolist() == [0, 0]
    assert result.summary.violations == 0


def test_the_one_who_stays_keeps_devices_and_pace() -> None:
    """The first leaves for a device of its own, after a restart; the second goes on where both were."""
    plan = {
        0.0: {"x": grant_in_turns("a", 1, "t"), "y": grant_in_turns("a", 1, "t")},
        16.0: {"x": grant("a", 1)},
    }
    result = run([work("x", 0.0, 80.0), work("y", 0.0, 80.0), work("z", 16.0, 8.0)], plan, restart_s=10.0, slices=True)
    assert result.table.end_s.tolist()[:2] == [90.0, 80.0]
    assert result.table.restarts.tolist() == [1, 0, 0]
    seats = {(number, from_s): mask for number, _, _, mask, from_s, _, _ in result.slices}
    assert seats == {(0, 0.0): 1, (1, 0.0): 1, (0, 16.0): 2}


def test_a_node_that_fails_takes_all_who_take_turns_there() -> None:
    failures = Failures(listed=(Failure(time_s=20.0, pool="a", node=0, repair_s=5.0),))
    both: dict[str, Grant | None] = {"x": grant_in_turns("a", 1, "t"), "y": grant_in_turns("a", 1, "t")}
    plan = {0.0: both, 25.0: both}
    result = run([work("x", 0.0, 80.0), work("y", 0.0, 80.0)], plan, failures=failures)
    assert result.table.failures.tolist() == [1, 1]
    assert result.summary.violations == 0
    assert result.summary.finished == 2


@pytest.mark.parametrize(
    ("grants", "found"),
    [
        ({"x": grant_in_turns("a", 1, "t"), "y": grant_in_turns("a", 2, "t")}, "the devices of the others"),
        ({"x": grant_in_turns("a", 1, "t"), "y": grant_in_turns("b", 1, "t")}, "a pool of a"),
        ({"x": grant_in_turns("a", 1, "t"), "y": replace(grant_on("a", ((0, 1),)), turns="t")}, "as the others"),
        ({"x": Grant(parts=(("a", 1),), planner="even", turns="t")}, "as a Cell"),
        ({"x": Grant(parts=(("a", 1),), turns=1)}, "a name, or none"),  # type: ignore[arg-type]
    ],
)
def test_turns_that_cannot_be_taken(grants: Mapping[str, Grant | None], found: str) -> None:
    with pytest.raises(PolicyError, match=found):
        run([work("x", 0.0, 80.0), work("y", 0.0, 80.0)], {0.0: grants})


def test_memory_has_to_hold_all_of_them() -> None:
    large = replace(HALF, memory_bytes=25 * GIB)
    both = {"x": grant_in_turns("a", 1, "t"), "y": grant_in_turns("a", 1, "t")}
    jobs = [work("x", 0.0, 80.0), work("y", 0.0, 80.0)]
    with pytest.raises(PolicyError, match=r"25\.0 \+ 25\.0 GiB.*no more than the device's 40\.0"):
        run(jobs, {0.0: both}, uses=lambda _job, _grant: large)
    with pytest.raises(PolicyError, match="what it needs is not known"):
        run(jobs, {0.0: both}, uses=None)
    assert run(jobs, {0.0: {"x": both["x"]}, 80.0: {"y": both["y"]}}, uses=None).turns is None


def test_devices_of_one_name_are_not_another_s() -> None:
    """Two names are two devices; a third finds none."""
    three: dict[str, Grant | None] = {id_: grant_in_turns("a", 1, id_) for id_ in "xyz"}
    with pytest.raises(PolicyError, match="no more than the 2 that are free"):
        run([work(id_, 0.0, 80.0) for id_ in "xyz"], {0.0: three})


class Looks(BestFit):
    """Best-fit; it remembers when it was told that devices of the first node come free."""

    def __init__(self) -> None:
        self.seen: list[list[tuple[float, int]]] = []

    def place(self, nodes: FreeNodes, request: Request) -> NodeCounts:
        self.seen.append(sorted(nodes.ends(0)))
        return super().place(nodes, request)


def test_rules_of_placement_see_shared_devices_once() -> None:
    """They come free when the last should end, whoever of both came first, and who joined whom."""
    placer = Looks()
    plan = {
        0.0: {"y": grant_in_turns("a", 1, "t")},
        8.0: {"x": grant_in_turns("a", 1, "t")},
        16.0: {"z": grant("a", 1)},
    }
    jobs = [work("x", 0.0, 40.0, duration_s=40.0), work("y", 0.0, 80.0, duration_s=80.0), work("z", 16.0, 8.0)]
    result = run([*jobs, work("w", 8.0, 8.0)], plan, placer=placer, until_s=100.0)
    assert placer.seen == [[], [(80.0, 1)]]
    assert result.summary.violations == 0


class Regroups(Stateless):
    """At each round those that are there go to the groups that the script says."""

    name = "regroups"

    def __init__(self, script: Sequence[Mapping[str, str]], interval_s: float) -> None:
        self.script, self.interval_s = script, interval_s

    def decide(self, view: View) -> Decision:
        number = round(view.now_s / self.interval_s)
        wanted = self.script[number] if number < len(self.script) else {}
        there = view.waiting.keys() | view.running.keys()
        return Decision(
            grants={
                id_: grant_in_turns("a", 1, group) if group else None for id_, group in wanted.items() if id_ in there
            }
        )


class OneSecondCells(PowerCells):
    """What an iteration takes alone is the job's batch in milliseconds."""

    def options(self, workload: Workload, pool: str, devices: int) -> tuple[CellOption, ...]:
        seconds = workload.global_batch / 1000
        return (CellOption(pool=pool, devices=devices, stages=1, iteration_time_s=seconds, assembly=("dp",)),)

    def best(self, workload: Workload, pool: str, devices: int) -> CellOption | None:
        return self.options(workload, pool, devices)[0]


def drawn_case(seed: int) -> tuple[list[Job], dict[str, Use], list[dict[str, str]]]:
    rng, jobs, uses = Random(seed), [], {}
    for number in range(rng.randrange(2, 7)):
        drawn = draw_use(rng)
        milliseconds = round(1000 * drawn.iteration_s)
        use = Use(iteration_s=milliseconds / 1000, compute_s=min(drawn.compute_s, milliseconds / 1000))
        use = replace(use, hidden_s=min(drawn.hidden_s, use.compute_s), device_memory_bytes=1)
        workload = Workload(model=f"m{number}", global_batch=milliseconds)
        job = make_job(f"j{number}", pool="a", iterations=rng.uniform(5, 60))
        jobs.append(replace(job, workload=workload))
        uses[job.id] = use
    script = [
        {job.id: rng.choice(("", "p", "q", "r", "r")) for job in jobs if number == 0 or rng.random() < 0.3}
        for number in range(5)
    ]
    script.append({job.id: rng.choice("pqr") for job in jobs})
    return jobs, uses, script


def replayed(seed: int, **settings: object) -> Result:
    jobs, uses, script = drawn_case(seed)
    told = Settings(
        round_s=20.0,
        restart_s=3.0,
        uses=lambda job, _grant: uses[job.id],
        slices=True,
        **settings,  # type: ignore[arg-type]
    )
    return simulate(jobs, [make_pool("a", nodes=1)], OneSecondCells(), Regroups(script, 20.0), settings=told)


def test_jobs_beside_a_naive_replay() -> None:
    together = 0
    for seed in seeds(120, least=40):
        jobs, uses, script = drawn_case(seed)
        result = replayed(seed)
        work_of = {job.id: job.iterations for job in jobs}
        found = replay(work_of, uses, script, interval_s=20.0, restart_s=3.0)
        assert result.summary.violations == 0
        for number, job in enumerate(result.jobs):
            became = found[job.id]
            assert result.table.end_s[number] == pytest.approx(became.end_s, rel=1e-9)
            assert result.table.attained_device_s[number] == pytest.approx(became.held_s, abs=1e-6)
            assert result.table.waited_s[number] == pytest.approx(became.waited_s, abs=1e-6)
            assert result.table.restarts[number] == became.restarts
        together += result.turns is not None
    assert together > 10


def test_a_run_with_turns_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    stops = 0
    for seed in range(12):
        whole, path, rng = replayed(seed), tmp_path / f"{seed}.json", Random(seed)
        while True:
            looks, stop_after = iter(range(10**9)), rng.randrange(1, 12)
            keep = CheckpointFile(path=path, every_s=1e9, resume=True)
            try:
                result = replayed(seed, look_every=1, checkpoint=keep, stop=lambda: next(looks) >= stop_after)  # noqa: B023
            except KeyboardInterrupt:
                stops += 1
                continue
            break
        assert (result.summary, result.turns) == (whole.summary, whole.turns)
        assert jobs_csv(result) == jobs_csv(whole)
        assert result.slices == whole.slices
    assert stops > 20


def test_a_checkpoint_without_turns_does_not_know_them(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    looks = iter(range(10**9))
    with pytest.raises(KeyboardInterrupt):
        run(
            [work("x", 0.0, 80.0), work("y", 40.0, 80.0)],
            {0.0: {"x": grant("a", 1)}},
            look_every=1,
            checkpoint=CheckpointFile(path=path, every_s=1e9),
            stop=lambda: next(looks) >= 0,
        )
    document = json.loads(path.read_text())
    assert "turns" not in document
    assert set(document["running"][0]["grant"]) == {"parts", "stages", "planner", "nodes"}


def test_only_runs_with_turns_say_so() -> None:
    both = {"x": grant_in_turns("a", 1, "t"), "y": grant_in_turns("a", 1, "t")}
    jobs = [work("x", 0.0, 80.0), work("y", 0.0, 80.0)]
    assert "turns" in summary_json(run(jobs, {0.0: both}))
    assert "turns" not in summary_json(run(jobs, {0.0: {"x": grant("a", 1), "y": grant("a", 1)}}))


def test_turns_stand_in_rows_of_their_own() -> None:
    """Slices of one row of the timeline never overlap."""
    both = {"x": grant_in_turns("a", 1, "t"), "y": grant_in_turns("a", 1, "t")}
    result = run([work("x", 0.0, 80.0), work("y", 0.0, 40.0)], {0.0: both}, slices=True, series=True)
    events = [event for event in timeline_events(result) if event["ph"] == "X"]
    assert len({(event["pid"], event["tid"]) for event in events}) == 2
    assert {event["name"] for event in events} == {"x", "y"}


def test_turns_beside_others_on_the_node() -> None:
    """Alone on their device both would keep their pace; a third one on the node slows each by a quarter, and the two
    that take turns are to it as one."""
    plan = {0.0: {"x": grant_in_turns("a", 1, "t"), "y": grant_in_turns("a", 1, "t"), "z": grant("a", 1)}}
    jobs = [work("x", 0.0, 80.0), work("y", 0.0, 80.0), work("z", 0.0, 800.0)]
    result = run(jobs, plan, sharing=Neighbours(), placer=make_placer("best-fit"))
    slowed = replace(HALF, iteration_s=10.0)
    round_takes_s = shortest_round_s([slowed, slowed])
    assert result.table.end_s.tolist() == [120.0, 120.0, 824.0]
    assert 10 * round_takes_s == 120.0
    assert result.table.lost_to_others_s.tolist() == pytest.approx([40.0, 40.0, 24.0])
    assert result.summary.violations == 0


class ByComponents:
    """Three jobs on a node take three times as long; it does not know turns."""

    def uses(self, job: Job, grant: Grant, placement: Placement) -> Mapping[str, int]:
        del job, grant, placement
        return {"node": 1}

    def iterations_s(self, together: Sequence[Seated]) -> Sequence[float]:
        return [8.0 * len(together)] * len(together)

    def work(self, job: Job, grant: Grant, placement: Placement) -> Work | None:
        del job, grant, placement
        return Work(flops=1.0, busy_device_s=4.0)


def test_a_sharing_that_does_not_know_turns_is_asked_for_each() -> None:
    plan = {0.0: {"x": grant_in_turns("a", 1, "t"), "y": grant_in_turns("a", 1, "t"), "z": grant("a", 1)}}
    jobs = [work("x", 0.0, 80.0), work("y", 0.0, 80.0), work("z", 0.0, 800.0)]
    result = run(jobs, plan, sharing=ByComponents())
    slowed = replace(HALF, iteration_s=16.0)
    assert result.table.end_s[0] == result.table.end_s[1] == 10 * shortest_round_s([slowed, slowed])
    assert result.table.flops.tolist() == [10.0, 10.0, 100.0]
    assert result.summary.violations == 0
