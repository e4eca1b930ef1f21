"""Policies of the network in a simulation: what they are told, what is in force, what a change costs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from estimator.network.fabric import fabric_of
from estimator.network.player.play import play
from planner.contention.playing import playing_under
from planner.contention.policies.catalogue import NETWORK_POLICIES
from planner.contention.policies.records import Decision, View
from planner.many_jobs.jobs.records import Job, Workload, grant
from planner.many_jobs.placers.catalogue import make_placer
from planner.many_jobs.policies.fcfs import Fcfs
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.network_choice import NetworkSteering, network_steering
from planner.many_jobs.simulation.network_steering import SteeredFabric, sharing_links
from planner.many_jobs.simulation.result import Result
from planner.many_jobs.simulation.seat_prices import seat_truth
from planner.many_jobs.simulation.settings import CheckpointFile, Seated, Settings
from planner.many_jobs.simulation.sweep import simulate_sweep
from planner.many_jobs.simulation.tables import jobs_csv
from planner.shared.options.simulate import SimulateOptions, SweepOptions
from profiles.errors import InputError, NothingFits
from profiles.records import replace
from tests.oracles.steered_oracle import Coming, Told, replay
from tests.planner.many_jobs.simulation.test_network_sharing import (
    ACROSS,
    BESIDE,
    GPT,
    INSIDE,
    STEADY,
    THIN,
    Site,
    drawn_jobs,
)
from tests.seeds import seeds

FOUR_WAYS = {"kind": "clos2", "leaves": 2, "spines": 4}
"""A cable from each of two leaves to each of four spines."""
FEW_PLAYS = {"plays": 3, "exact": 20, "axes": False, "offsets": False}
BERT = Workload(model="bert-large", global_batch=16)


@pytest.fixture(scope="module")
def thin() -> Site:
    return Site(THIN)


@pytest.fixture(scope="module")
def wide() -> Site:
    return Site(FOUR_WAYS)


class Levels:
    """Each job a level by its place in `first`; the paths that are."""

    name = "levels"

    def __init__(self, *first: str) -> None:
        self.first = first
        self.seen: list[View] = []

    def decide(self, view: View) -> Decision:
        self.seen.append(view)
        levels = tuple(
            job.own_level
            if not job.may_change
            else self.first.index(job.id)
            if job.id in self.first
            else len(self.first)
            for job in view.jobs
        )
        order = tuple(sorted(range(len(view.jobs)), key=lambda job: (levels[job], view.jobs[job].id)))
        return Decision(
            paths=tuple(job.now for job in view.jobs), levels=levels, offsets_s=(0.0,) * len(view.jobs), order=order
        )


def steered(site: Site, policy: Levels | str, **how: float) -> SteeredFabric:
    name = policy if isinstance(policy, str) else "ecmp"
    few: dict[str, Any] = {"options": tuple(FEW_PLAYS.items())} if name == "ours" else {}
    steering = NetworkSteering(name=name, **few, **how)  # type: ignore[arg-type]
    own = None if isinstance(policy, str) else policy
    return SteeredFabric(site.prices, fabric_of(site.cluster), steering=steering, policy=own, player=STEADY)


def seated(site: Site, id_: str, pieces: tuple[tuple[int, int], ...], workload: Workload = GPT) -> Seated:
    known = site.seated(id_, pieces)
    return replace(known, job=replace(known.job, workload=workload))


def test_fair_shares_are_those_of_ecmp(thin: Site) -> None:
    """Which is `fair` by another name, on the same hashes."""
    jobs = [seated(thin, "a", ACROSS), seated(thin, "b", BESIDE, BERT)]
    told = steered(thin, "ecmp").steer(dict(enumerate(jobs)))
    assert [told.seconds[number] for number in (0, 1)] == pytest.approx(thin.sharing.iterations_s(jobs), rel=1e-6)
    assert told.pauses_s == {}


@pytest.mark.parametrize("name", sorted(NETWORK_POLICIES))
def test_every_policy_decides_and_nobody_is_faster_than_links_allow(wide: Site, name: str) -> None:
    sharing = steered(wide, name)
    jobs = dict(enumerate([seated(wide, "a", ACROSS), seated(wide, "b", BESIDE, BERT), seated(wide, "c", INSIDE)]))
    told = sharing.steer({0: jobs[0], 1: jobs[1]})
    assert told.seconds.keys() == {0, 1}
    for number, seconds in told.seconds.items():
        one = jobs[number]
        key = wide.prices.key(one.job.workload, one.grant, one.placement)
        assert key is not None
        assert seconds >= wide.prices.at(key, 1.0, one.placement) * (1 - 0.01)
    assert sharing.policy_name == name
    assert sharing.decisions == 1
    assert len(sharing.calls_s) == 1
    assert sharing.changes == 0
    if name not in ("cassini", "ours"):  # Those that shift jobs or search need not say the same of what they said.
        again = sharing.steer({0: jobs[0], 1: jobs[1]})
        assert again.seconds == told.seconds
        assert sharing.changes == 0


def test_who_goes_first_is_as_if_alone_and_a_change_is_counted_and_paid(thin: Site) -> None:
    jobs = {3: seated(thin, "a", ACROSS), 7: seated(thin, "b", BESIDE)}
    policy = Levels("a", "b")
    sharing = steered(thin, policy, change_s=5.0)
    alone_s = {number: sharing.iterations_s([one])[0] for number, one in jobs.items()}
    assert sharing.decisions == 0
    told = sharing.steer(jobs)
    assert told.seconds[3] == pytest.approx(alone_s[3], rel=1e-9)
    assert told.seconds[7] > alone_s[7] * 1.05
    assert told.pauses_s == {}
    policy.first = ("b", "a")
    turned = sharing.steer(jobs)
    assert turned.seconds[7] == pytest.approx(alone_s[7], rel=1e-9)
    assert turned.pauses_s == {3: 5.0, 7: 5.0}
    assert (sharing.decisions, sharing.changes) == (2, 2)
    assert [job.own_level for job in policy.seen[-1].jobs] == [0, 1]
    # A job that sits elsewhere begins anew: nothing of it is changed.
    elsewhere = {3: jobs[3], 7: seated(thin, "b", ((0, 0b1111), (3, 0b1111)))}
    assert sharing.steer(elsewhere).pauses_s == {}
    assert sharing.changes == 2


@pytest.mark.parametrize("name", ["cassini", "ecmp"])
def test_nobody_stands_still_for_shares_that_are_fair(thin: Site, name: str) -> None:
    """One by itself has no need of a level; beside another it has the same as that one, and nothing was set."""
    sharing = steered(thin, name, change_s=5.0)
    first = seated(thin, "a", ACROSS)
    assert sharing.steer({0: first}).pauses_s == {}
    assert sharing.steer({0: first, 1: seated(thin, "b", BESIDE)}).pauses_s == {}
    assert sharing.changes == 0


def test_no_more_jobs_are_changed_than_said(thin: Site) -> None:
    """The most important of those that would be; who is new may get anything."""
    halves = [((0, 0b11), (2, 0b11)), ((0, 0b1100), (2, 0b1100)), ((1, 0b11), (3, 0b11))]
    jobs = {number: seated(thin, id_, where) for number, (id_, where) in enumerate(zip("abc", halves, strict=True))}
    policy = Levels("a", "b")
    sharing = steered(thin, policy, change_at_most=1, change_s=1.0)
    sharing.steer({0: jobs[0], 1: jobs[1]})
    policy.first = ("b", "a", "c")
    told = sharing.steer(jobs)
    assert told.pauses_s == {1: 1.0}
    assert sharing.changes == 1
    assert {job.id: job.may_change for job in policy.seen[-1].jobs} == {"a": False, "b": True, "c": True}
    assert [row[2] for row in sharing.state()["in_force"]] == [0, 0, 2]
    assert sharing.decisions == 3


def test_what_is_in_force_goes_through_a_checkpoint(wide: Site) -> None:
    jobs = {0: seated(wide, "a", ACROSS), 1: seated(wide, "b", BESIDE, BERT)}
    sharing = steered(wide, "crux")
    told = sharing.steer(jobs)
    again = steered(wide, "crux")
    again.restore(sharing.state(), jobs)
    assert again.state() == sharing.state()
    assert again.steer(jobs).seconds == told.seconds
    assert again.changes == sharing.changes
    broken = sharing.state()
    broken["in_force"][0][1] = broken["in_force"][0][1][:-1]
    with pytest.raises(ValueError, match="paths of job number 0"):
        steered(wide, "crux").restore(broken, jobs)


def test_users_levels_follow_their_priorities(thin: Site) -> None:
    urgent, other = seated(thin, "a", ACROSS), seated(thin, "b", BESIDE)
    jobs = {
        0: replace(urgent, job=replace(urgent.job, priority=9)),
        1: replace(other, job=replace(other.job, priority=2)),
    }
    sharing = steered(thin, "static", levels=4)
    told = sharing.steer(jobs)
    assert [row[2] for row in sharing.state()["in_force"]] == [0, 1]
    assert told.seconds[0] == pytest.approx(sharing.iterations_s([urgent])[0], rel=1e-9)


def run(site: Site, jobs: list[Job], sharing: SteeredFabric, **more: object) -> Result:
    told = Settings(
        truth=seat_truth(site.prices),
        sharing=sharing,
        placer=make_placer("random"),
        slices=True,
        look_every=1,
        **more,  # type: ignore[arg-type]
    )
    return simulate(jobs, site.cells.pools, site.cells, Fcfs(), settings=told)


def test_where_no_job_sends_nobody_decides(thin: Site) -> None:
    sharing = steered(thin, "crux")
    told = sharing.steer({0: seated(thin, "a", ((0, 0b11),))})
    assert (told.seconds, told.pauses_s, sharing.decisions) == ({}, {}, 0)


def test_nodes_that_no_way_joins_are_said(thin: Site) -> None:
    fabric = fabric_of(thin.cluster)
    above = (fabric.links.ends >= fabric.links.nodes).all(axis=1)
    cut = replace(fabric, links=replace(fabric.links, bytes_per_s=np.where(above, 0.0, fabric.links.bytes_per_s)))
    steering = NetworkSteering(name="crux")
    for sharing in (SteeredFabric(thin.prices, cut, steering=steering, player=STEADY), thin.shared(cut)):
        one = seated(thin, "a", ACROSS)
        with pytest.raises(NothingFits, match="a job on nodes 0, 2 cannot communicate"):
            sharing.uses(one.job, one.grant, one.placement)


@pytest.mark.parametrize("name", ["crux", "ours"])
def test_a_simulation_under_a_policy_can_be_stopped_at_any_time(wide: Site, tmp_path: Path, name: str) -> None:
    count = 12 if name == "crux" else 7
    drawn = drawn_jobs(wide.pool, count)
    jobs = [replace(job, workload=BERT if number % 2 else GPT) for number, job in enumerate(drawn)]
    how = {"change_s": 2.0}
    result = run(wide, jobs, steered(wide, name, **how))
    summary = result.summary
    assert (summary.finished, summary.violations, summary.network_policy) == (count, 0, name)
    assert summary.network_decisions is not None
    assert summary.network_changes is not None
    assert summary.network_changes_device_hours is not None
    assert (summary.network_changes > 0) == (summary.network_changes_device_hours > 0)
    assert result.timing.network_decision_p99_s is not None
    path, stops = tmp_path / "checkpoint.json", 0
    looks = iter(range(10**9))
    while True:
        first = next(looks)
        try:
            kept = CheckpointFile(path=path, every_s=1e9, resume=True)
            again = run(
                wide,
                jobs,
                steered(wide, name, **how),
                checkpoint=kept,
                stop=lambda first=first: next(looks) > first + 6,
            )
        except KeyboardInterrupt:
            stops += 1
            continue
        break
    assert stops > 1
    assert jobs_csv(again) == jobs_csv(result)
    assert again.summary == summary


def test_what_a_change_costs_makes_jobs_longer(thin: Site) -> None:
    """Two that take turns in being first, each time somebody comes."""

    class Turns(Levels):
        def decide(self, view: View) -> Decision:
            self.first = self.first[::-1]
            return super().decide(view)

    at = grant(thin.name, 16)
    first = replace(drawn_jobs(thin.pool, 1)[0], id="a", devices=at.devices, workload=GPT, iterations=50, submit_s=0.0)
    jobs = [first, replace(first, id="b", devices=8, submit_s=5.0), replace(first, id="c", devices=8, submit_s=9.0)]
    results = [run(thin, jobs, steered(thin, Turns("a", "b"), change_s=cost_s)) for cost_s in (0.0, 30.0)]
    free, paid = (result.summary for result in results)
    assert free.network_changes
    assert free.network_changes_device_hours == 0.0
    assert paid.network_changes
    assert paid.network_changes_device_hours
    assert paid.makespan_s > free.makespan_s + 20
    assert paid.violations == free.violations == 0


class Watched(SteeredFabric):
    """What was decided of whom, in the end."""

    said: tuple[tuple[View, Decision], ...] = ()

    def _decide(self, view: View, numbers: Sequence[int]) -> Decision:
        decision = super()._decide(view, numbers)
        self.said = (*self.said, (view, decision))
        return decision


def told_by(view: View, decision: Decision) -> Told:
    """What jobs do under a decision, all played at once; one that needs no level keeps its own."""
    levels = [job.own_level if its is None else its for job, its in zip(view.jobs, decision.levels, strict=True)]
    playings = [
        playing_under(job, decision.paths[number], level=levels[number], offset_s=decision.offsets_s[number])
        for number, job in enumerate(view.jobs)
    ]
    played = play(playings, np.array(view.bytes_per_s), settings=STEADY).jobs
    return Told(
        seconds={job.id: its.seconds for job, its in zip(view.jobs, played, strict=True)},
        given={job.id: (decision.paths[number], levels[number]) for number, job in enumerate(view.jobs)},
    )


@pytest.mark.parametrize(
    ("name", "most", "changed"), [("ours", None, 3), ("ours", 1, 2), ("ours", 0, 0), ("crux", None, 3), ("crux", 1, 3)]
)
def test_arrivals_under_a_policy_are_what_a_small_replay_says(
    thin: Site, name: str, most: int | None, changed: int
) -> None:
    """Ends, changes and what stood still, of four jobs, from what was decided alone."""
    at = grant(thin.name, 8)
    rows = [(0.0, 60, GPT), (4.0, 90, BERT), (7.0, 70, BERT), (9.0, 40, GPT)]
    made = drawn_jobs(thin.pool, 1)[0]
    jobs = [
        replace(made, id=f"j{number}", devices=at.devices, workload=workload, iterations=iterations, submit_s=submit_s)
        for number, (submit_s, iterations, workload) in enumerate(rows)
    ]
    options: dict[str, Any] = {"plays": 100, "exact": 300, "axes": False, "offsets": False, "give_up": 0.0}
    steering = NetworkSteering(
        name=name,
        options=tuple(options.items()) if name == "ours" else (),
        levels=3,
        change_s=5.0,
        change_at_most=most,
    )
    sharing = Watched(thin.prices, fabric_of(thin.cluster), steering=steering, player=STEADY)
    result = run(thin, jobs, sharing)
    coming = {job.id: Coming(submit_s=job.submit_s, iterations=job.iterations, devices=job.devices) for job in jobs}
    replayed = replay(coming, [told_by(*each) for each in sharing.said], 5.0)
    assert result.summary.network_changes == sum(replayed.changes) >= changed
    assert most is None or max(replayed.changes) <= most
    assert result.summary.network_changes_device_hours == pytest.approx(replayed.standing_device_s / 3600)
    assert dict(zip((job.id for job in jobs), result.table.end_s, strict=True)) == pytest.approx(replayed.ends_s)


def test_options_of_no_policy_and_of_another_are_refused() -> None:
    def asked(**options: object) -> SimulateOptions:
        return SimulateOptions(trace=Path("t"), cluster="a40:2x2", **options)  # type: ignore[arg-type]

    assert network_steering(asked(network="fair")) is None
    ours = network_steering(asked(network="ours", network_levels=3))
    assert ours is not None
    assert (ours.levels, ours.policy().name) == (3, "ours")
    for options, key in (
        ({"network": "crucks"}, "--network"),
        ({"network": "fair", "network_levels": 4}, "--network-levels"),
        ({"network_change_s": 4.0}, "--network-change-s"),
        ({"network": "crux", "network_option": {"nonsense": 1}}, "--network-option nonsense"),
        ({"network": "ours", "network_option": {"plays": "many"}}, "--network-option plays"),
        ({"network": "crux", "network_option": {"compression": "best"}}, "--network-option"),
        ({"network": "mixed", "network_option": {"paths": "nothing"}}, "--network-option paths"),
    ):
        with pytest.raises(InputError) as caught:
            network_steering(asked(**options))
        assert caught.value.key == key
        assert caught.value.where == "simulate"


CLUSTER = """\
schema: cellplan.cluster/1
sites:
  - name: north
    nodes: [{count: 4, device: h100}]
    fabric: {link: ib-ndr400, topology: {kind: clos2, leaves: 2, spines: 4}}
"""


def cluster_and_trace(folder: Path) -> tuple[Path, Path]:
    """Four nodes, and three jobs of two each."""
    cluster, trace = folder / "c.yaml", folder / "t.csv"
    cluster.write_text(CLUSTER)
    rows = [f"j{number},{number * 20},{400 + 50 * number},16,bert-large,32" for number in range(3)]
    trace.write_text("\n".join(["job_id,submit_time_s,duration_s,gpus,model,global_batch", *rows]) + "\n")
    return cluster, trace


def test_runs_over_networks_stand_beside_each_other(tmp_path: Path) -> None:
    cluster, trace = cluster_and_trace(tmp_path)
    options = SweepOptions(
        trace=trace,
        cluster=str(cluster),
        placer="random",
        networks=("fair", "none"),
        network_option={"crux.compression": "algorithm-1"},
        network_levels=3,
    )
    with pytest.raises(InputError, match="network-option"):
        simulate_sweep(options)
    with pytest.raises(InputError, match="network-levels"):
        simulate_sweep(replace(options, network_option=None))
    answer = simulate_sweep(replace(options, networks=("crux", "fair")))
    assert [(row["network"], row["policy"]) for row in answer["means"]] == [("crux", "fcfs"), ("fair", "fcfs")]
    assert [run["network_policy"] for run in answer["runs"]] == ["crux", None]
    crux, ecmp = (row["gpu_utilization_mean"]["mean"] for row in answer["means"])
    assert crux >= ecmp * (1 - 1e-3)
    assert any("crux (3 levels, compression=algorithm-1) decides" in note for note in answer["notes"])
    assert any(note.startswith("(network crux) crux") for note in answer["notes"])


USERS = """
from planner.contention.policies.loads import paths_now
from planner.contention.policies.records import Decision


class Same:
    name = "same"

    def __init__(self, level: int = 0) -> None:
        self.level = level

    def decide(self, view):
        jobs = len(view.jobs)
        return Decision(paths=paths_now(view), levels=(self.level,) * jobs, offsets_s=(0.0,) * jobs, order=())


class Raises(Same):
    def decide(self, view):
        raise RuntimeError("no idea")
"""


def test_a_users_policy_decides_on_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, trace = cluster_and_trace(tmp_path)
    (tmp_path / "usersnetwork.py").write_text(USERS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    options = SweepOptions(
        trace=trace,
        cluster=str(cluster),
        placer="random",
        networks=("fair", "usersnetwork:Same"),
        network_option={"usersnetwork:Same.level": 1},
    )
    fair, users = simulate_sweep(options)["runs"]
    assert users["network_policy"] == "usersnetwork:Same"
    assert users["network_decisions"] > 0
    assert users["jct_mean_s"] == pytest.approx(fair["jct_mean_s"], rel=1e-9), "one level for all is fair shares"
    with pytest.raises(InputError, match=r"network policy usersnetwork:Same: levels of job alone: found 9"):
        simulate_sweep(replace(options, network_option={"usersnetwork:Same.level": 9}))
    with pytest.raises(InputError, match=r"--network-option nonsense: found no such option, expected one of level"):
        simulate_sweep(replace(options, network_option={"usersnetwork:Same.nonsense": 9}))
    with pytest.raises(InputError, match="found RuntimeError: no idea"):
        simulate_sweep(replace(options, networks=("usersnetwork:Raises",), network_option=None))
    with pytest.raises(InputError, match="nowhere"):
        simulate_sweep(replace(options, networks=("nowhere:Same",), network_option=None))


@pytest.mark.parametrize("seed", seeds(40))
def test_who_shares_links_is_who_can_be_reached_over_them(seed: int) -> None:
    rng = random.Random(seed)
    links = [np.array(sorted(rng.sample(range(14), rng.randint(0, 3)))) for _ in range(rng.randint(1, 9))]
    groups = sharing_links(links)
    assert sorted(job for group in groups for job in group) == list(range(len(links)))
    for job in range(len(links)):
        reached = {job}
        for _ in links:
            reached |= {
                other
                for other, its in enumerate(links)
                if any(set(its.tolist()) & set(links[one].tolist()) for one in reached)
            }
        assert sorted(reached) in groups
