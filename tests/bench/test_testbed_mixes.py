"""Mixes of jobs under network policies on the emulated fabric: what policies are told, what comes of what they decide,
and levels by DSCP."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bench.testbed.fabric.cases import Case, Job
from bench.testbed.fabric.gains import Round, report, utilization
from bench.testbed.fabric.mixes import (
    CONTENDING,
    asked_of,
    candidates,
    choice_of,
    draw_mix,
    jobs_text,
    pairs_of,
    view_of_mix,
)
from bench.testbed.fabric.running import Ran, Timed, marking, run_cases
from bench.testbed.fabric.shape import Shape
from bench.testbed.fabric.simulated import Simulator, cluster_file, known_paths
from bench.testbed.fabric.spaces import lay_out_fabric
from bench.testbed.namespaces import tool
from bench.testbed.network import why_not
from planner.contention.policies.catalogue import make_network_policy
from planner.contention.policies.records import Decision, View
from planner.contention.policies.rehearsals import Rehearsals
from planner.contention.viewing import Seen
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster, name_cluster
from profiles.records import replace

DSCPS = (46, 34, 26, 18)
SHAPE = Shape(places=6, levels=4, dscps=DSCPS)


def probed_cluster() -> Cluster:
    """The fabric whose ways are known, as after probing it."""
    cluster = load_cluster(name_cluster(cluster_file(SHAPE, devices=SHAPE.places)))
    (site,) = cluster.sites
    assert site.network.routing is not None
    routing = replace(site.network.routing, paths=known_paths(SHAPE))
    return replace(cluster, sites=(replace(site, network=replace(site.network, routing=routing)),))


def seen_mix(folder: Path, number: int) -> tuple[Cluster, tuple[Job, ...], View, list[Seen]]:
    jobs, cluster = draw_mix(SHAPE, 0, number), probed_cluster()
    file = folder / "jobs.yaml"
    file.write_text(jobs_text(jobs), encoding="utf-8")
    spines = {
        (source, target, port): SHAPE.spine_of(SHAPE.leaf_of(source), port)
        for job in jobs
        for source, target, port in asked_of(job, job.ports)
    }
    return (cluster, jobs, *view_of_mix(cluster, file, jobs, spines, SHAPE.levels))


def decided_case(cluster: Cluster, jobs: tuple[Job, ...], seen: list[Seen], decision: Decision) -> Case:
    """What `deciding` makes of a decision, but for the ports."""
    choice = choice_of(cluster, jobs, seen, decision)
    placed = [
        replace(
            job,
            level=level,
            spines=tuple(own if way is None else way[0] for own, way in zip(job.spines, ways, strict=True)),
        )
        for job, level, ways in zip(jobs, choice.levels, choice.ways, strict=True)
    ]
    return Case(name="mix", mode="crux", jobs=tuple(placed))


def test_mixes_are_four_to_six_jobs_of_which_four_meet() -> None:
    for number in range(6):
        jobs = draw_mix(SHAPE, 0, number)
        assert jobs == draw_mix(SHAPE, 0, number) != draw_mix(SHAPE, 1, number)
        assert len(jobs) == 4 + number % 3
        links = [job.links(SHAPE).keys() for job in jobs]
        assert sum(any(own & other for other in links if other is not own) for own in links) >= CONTENDING
        assert all(SHAPE.leaf_of(source) != SHAPE.leaf_of(target) for source, target in pairs_of(SHAPE, jobs))
        for job in jobs:
            for host, spine, (first, last) in zip(job.hosts, job.spines, job.ports, strict=True):
                ways = {SHAPE.spine_of(SHAPE.leaf_of(host), port) for port in range(first, last + 1)}
                assert ways == {spine}


@pytest.mark.parametrize("number", range(3))
def test_what_policies_foresee_is_what_the_fabric_simulates(tmp_path: Path, number: int) -> None:
    """Paths and levels mean the same spines and levels on both sides: rates agree, but for the words that data has
    come, which the fabric's simulator knows alone."""
    cluster, jobs, view, seen = seen_mix(tmp_path, number)
    simulator, rehearsals = Simulator(SHAPE, from_s=5.0, until_s=65.0), Rehearsals(view)
    spines = set()
    for name in ("ecmp", "crux"):
        decision = make_network_policy(name).decide(view)
        case = decided_case(cluster, jobs, seen, decision)
        spines.add(tuple(job.spines for job in case.jobs))
        told = [1 / rate for rate in rehearsals.iterations_per_s(decision.paths, decision.levels)]
        (played,), _ = simulator.plays(case, jitter=0.0, seeds=1)
        assert utilization(jobs, told) == pytest.approx(utilization(jobs, played), rel=0.02)
    assert len(spines) == 2
    assert [job.spines for job in decided_case(cluster, jobs, seen, make_network_policy("ecmp").decide(view)).jobs] == [
        job.spines for job in jobs
    ]


def test_ports_are_looked_for_around_those_that_were_found() -> None:
    ranges = candidates((0xC123,), 3)
    assert len(set(ranges)) == 8
    assert ranges[0] == (0xC100 + 24, 0xC100 + 31)
    assert ranges[0] != candidates((0xC123,), 4)[0]


def test_utilization_and_its_report() -> None:
    """Of two jobs on 2 and 4 hosts that compute half and a quarter of the time: a third."""
    jobs = tuple(
        Job(
            kind="ring",
            hosts=tuple(range(size)),
            place=place,
            compute_s=1.0,
            begins_s=1.0,
            size_bytes=4,
            spines=(0,) * size,
        )
        for place, size in enumerate((2, 4))
    )
    assert utilization(jobs, (2.0, 4.0)) == pytest.approx(1 / 3)

    def ran(policy: str, *seconds: float, late_s: float = 0.0) -> Round:
        times = tuple(Timed(ended_s=tuple(each * turn for turn in range(1, 9))) for each in seconds)
        return Round(
            case=replace(Case(name="mix 1", mode="ecmp", jobs=jobs), mode="crux" if policy == "crux" else "ecmp"),
            ran=Ran(jobs=times, late_s=late_s, busy=0.5, stolen=0.0),
            usual=((2.0, 4.0),) if policy == "ecmp" else ((2.0, 2.0),),
            others=(),
            from_s=0.0,
            until_s=100.0,
        )

    said = list(report([[ran("ecmp", 2.0, 4.0), ran("crux", 2.0, 2.1, late_s=0.01)]]))
    assert said[2] == "| 1 | 2 | ecmp | 33.3% | 33.3% |  |  |  | 0.0 ms, 50% |  |"
    assert said[3] == "| 1 | 2 | crux | 48.4% | 50.0% | +15.1 | +16.7 | +16.7, +16.7 | 10.0 ms, 50% | disturbed |"
    assert "1 of 1 within 3 points" in said[5]
    assert "signs: 1 of 1" in said[6]
    none = replace(ran("ecmp", 2.0, 4.0), ran=Ran(jobs=(Timed(ended_s=()),) * 2, late_s=0.0, busy=0.0, stolen=0.0))
    assert 0 < none.measured < 0.01


def test_iterations_are_held_to_a_period() -> None:
    """Who is early waits; who is late goes on, and whole periods that were missed are not made up for."""
    pytest.importorskip("torch")
    from bench.testbed.fabric.worker import _hold

    now_s = time.perf_counter()
    assert _hold(now_s - 1.0, 0.0) >= now_s
    assert _hold(now_s - 0.05, 0.1) == pytest.approx(now_s + 0.05)
    assert time.perf_counter() >= now_s + 0.05
    late_s = time.perf_counter()
    due_s = _hold(late_s - 0.75, 0.2)
    assert late_s - 0.2 < due_s <= time.perf_counter()
    assert (due_s - late_s + 0.75) / 0.2 == pytest.approx(3.0, abs=1e-6)


def test_a_period_and_a_later_begin_are_simulated() -> None:
    alone = Job(kind="flow", hosts=(0, 4), place=0, compute_s=0.2, begins_s=0.2, size_bytes=4, spines=(0, 0))
    simulator = Simulator(SHAPE, from_s=2.0, until_s=12.0)
    for job, seconds in ((alone, 0.2), (replace(alone, period_s=0.5, offset_s=0.3), 0.5)):
        ((played,),), _ = simulator.plays(Case(name="", mode="ours", jobs=(job,)), jitter=0.0, seeds=1)
        assert played == pytest.approx(seconds, rel=1e-3)


def test_levels_by_dscp() -> None:
    by_port = [line.text for line in lay_out_fabric(replace(SHAPE, dscps=())).queues]
    by_dscp = [line.text for line in lay_out_fabric(SHAPE).queues]
    changed = [(one, other) for one, other in zip(by_port, by_dscp, strict=True) if one != other]
    assert all("sport" in one and "dsfield" in other for one, other in changed)
    assert {other.split("dsfield ")[1].split()[0] for _, other in changed} == {hex(dscp << 2) for dscp in DSCPS}
    assert marking(replace(SHAPE, dscps=()), 2) == ""
    assert "ip dscp set 26" in marking(SHAPE, 2)


def test_the_kernel_tells_levels_by_dscp() -> None:
    """Of two jobs on one uplink the one of level 0 takes what it takes alone."""
    reason = why_not()
    if reason is not None or tool("nft") is None:
        pytest.skip(f"no network namespaces: {reason}" if reason else "nft is not installed")
    small = Shape(hosts=4, leaves=2, spines=2, places=2, levels=2, dscps=(46, 18))

    def flow(place: int, level: int) -> Job:
        return Job(
            kind="flow",
            hosts=(place, 2 + place),
            place=place,
            compute_s=0.05,
            begins_s=0.05,
            size_bytes=1_500_000,
            spines=(0, 0),
            level=level,
        )

    case = Case(name="pair 1", mode="levels", jobs=(flow(0, 1), flow(1, 0)))
    (ran,) = run_cases(small, [case], lasts_s=3.0, jitter=0.0, seed=0, limit_s=200)
    low, high = (timed.mean_s(0.5, 3.0) for timed in ran.jobs)
    assert low > 1.25 * high
