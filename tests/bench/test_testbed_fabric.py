"""The emulated fabric: its ways by port as the rules, the product's routes and the kernel have them; its levels; and
jobs that run on it."""

from __future__ import annotations

import math
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from bench.testbed.fabric.__main__ import main
from bench.testbed.fabric.cases import Case, Job, make_cases
from bench.testbed.fabric.probing import print_probed, probe_fabric, wrong_ports
from bench.testbed.fabric.report import Row, print_rows, verdicts
from bench.testbed.fabric.running import Timed, run_cases
from bench.testbed.fabric.shape import BLOCK_PORTS, BLOCKS, FIRST_PORT, Shape, place_address
from bench.testbed.fabric.simulated import Simulated, Simulator, cluster_of, known_paths
from bench.testbed.fabric.spaces import lay_out_fabric
from bench.testbed.namespaces import run_tool
from bench.testbed.network import standing, why_not
from estimator.network.links import links_of_cluster
from estimator.network.routes import Flow, Routing, route
from profiles.errors import InputError
from profiles.records import replace

SMALL = Shape(hosts=4, leaves=2, spines=2, places=2, levels=2)


@pytest.fixture(scope="module")
def can_emulate() -> None:
    reason = why_not()
    if reason is not None:
        pytest.skip(f"no network namespaces: {reason}")


def flow(*hosts: int, place: int = 0, level: int = 0, spines: tuple[int, int] = (0, 0)) -> Job:
    return Job(
        kind="flow",
        hosts=hosts,
        place=place,
        compute_s=0.1,
        begins_s=0.1,
        size_bytes=1_000_000,
        spines=spines,
        level=level,
    )


@pytest.mark.parametrize(
    "shape", [Shape(), Shape(hosts=6, leaves=3, spines=3, seed=1), Shape(hosts=2, leaves=1, spines=1)]
)
def test_ways_are_those_that_the_product_routes(shape: Shape) -> None:
    """Of every pair of hosts, and a port of every block."""
    links = links_of_cluster(cluster_of(shape))
    routing = Routing(kind="ecmp", paths=known_paths(shape))
    for source, target in permutations(range(shape.hosts), 2):
        for block in range(BLOCKS):
            port = FIRST_PORT + block * BLOCK_PORTS + 7
            way = shape.way(source, target, shape.spine_of(shape.leaf_of(source), port))
            taken = route(links, routing, Flow(source=source, destination=target, port=port))
            assert {link for link, _ in taken} == {
                link
                for link in range(links.count)
                if (links.names[links.ends[link, 0]], links.names[links.ends[link, 1]]) in way
            }
            assert len(taken) == len(way)


def test_blocks_are_spread_evenly_by_chance() -> None:
    for leaf in range(2):
        sizes = [len(Shape().blocks_to(leaf, spine)) for spine in range(2)]
        assert sizes == [BLOCKS // 2] * 2
    assert Shape().spine_of_block != Shape(seed=1).spine_of_block
    assert Shape().spine_of(0, 80) == 0


def test_shapes_that_cannot_be_are_refused() -> None:
    wrongs: list[dict[str, Any]] = [{"hosts": 65}, {"hosts": 7}, {"spines": 0}, {"levels": 8}]
    wrongs += [{"dscps": (46, 34)}, {"dscps": (46, 34, 26, 26, 18)}, {"dscps": (64, 34, 26, 18, 10)}]
    for wrong in wrongs:
        with pytest.raises(InputError, match=f"fabric: {next(iter(wrong))}"):
            Shape(**wrong)
    with pytest.raises(InputError, match="rates"):
        Shape(nic_bytes_per_s=0.0)


def test_pairs_meet_and_every_mode_has_the_same_jobs() -> None:
    shape = Shape()
    cases = make_cases(shape, 0)
    assert len(cases) == 3 * 15
    assert cases == make_cases(shape, 0) != make_cases(shape, 1)
    for fair, levels, paths in zip(*[iter(cases)] * 3, strict=True):
        assert [case.mode for case in (fair, levels, paths)] == ["fair", "levels", "paths"]
        assert [replace(job, level=0) for job in levels.jobs] == list(fair.jobs)
        assert sorted(job.level for job in levels.jobs) == list(range(len(levels.jobs)))
        assert [job.size_bytes for job in paths.jobs] == [job.size_bytes for job in fair.jobs]
        if len(fair.jobs) == 2:
            one, other = fair.jobs
            assert one.links(shape).keys() & other.links(shape).keys()
    apart = [case for case in cases if case.mode == "paths" and not set(case.jobs[0].hosts) & set(case.jobs[1].hosts)]
    assert len(apart) >= 6
    for case in apart:
        if len(case.jobs) == 2:
            assert not case.jobs[0].links(shape).keys() & case.jobs[1].links(shape).keys()


def test_simulated_jobs_by_hand() -> None:
    """Alone as long as it computes and sends; two on one uplink get half each; the lower level waits for the other."""
    simulator = Simulator(SMALL, from_s=1.0, until_s=21.0)
    sent_s = 1_000_000 / (SMALL.nic_bytes_per_s * 2948 / 3014)

    def simulated(*jobs: Job) -> list[Simulated]:
        return simulator.simulate(Case(name="", mode="fair", jobs=jobs), jitter=0.0, seeds=1)

    (alone,) = simulated(flow(0, 2))
    assert alone.mean_s == pytest.approx(alone.alone_s) == pytest.approx(0.1 + sent_s)
    both = simulated(flow(0, 2), flow(1, 3, place=1))
    assert [one.mean_s for one in both] == [pytest.approx(0.1 + 2 * sent_s, rel=0.02)] * 2
    apart = simulated(flow(0, 2), flow(1, 3, place=1, spines=(1, 1)))
    assert [one.mean_s for one in apart] == [pytest.approx(0.1 + sent_s)] * 2
    first, second = simulated(flow(0, 2), flow(1, 3, place=1, level=1))
    assert first.mean_s == pytest.approx(0.1 + sent_s)
    assert second.mean_s > 1.3 * first.mean_s


def test_what_is_looked_at() -> None:
    timed = Timed(ended_s=(0.5, 1.0, 1.6, 2.0, 3.0))
    assert timed.iterations_s(0.9, 2.5) == pytest.approx((0.6, 0.4))
    assert timed.mean_s(0.9, 2.5) == pytest.approx(0.5)
    assert math.isnan(timed.mean_s(2.9, 9.0))


def test_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    stable = Simulated(alone_s=0.2, mean_s=1.0, range_s=(0.99, 1.01))
    row = Row(case="pair 1", mode="fair", job=flow(0, 2), measured_s=0.8, iterations=9, simulated=stable, looked_at_s=9)
    moving = replace(row, simulated=replace(stable, range_s=(0.7, 1.3)))
    starving = replace(row, measured_s=math.nan, iterations=0, simulated=replace(stable, mean_s=math.inf))
    assert [one.counts for one in (row, moving, starving)] == ["stable", "unstable", "starves"]
    assert starving.to_json()["measured_s"] is starving.to_json()["simulated_s"] is None
    print_rows([row, moving, starving])
    said = "\n".join(verdicts([row, moving, starving]))
    assert "| pair 1 | fair | flow 0-2 | 200 ms | 800 | 1000 | +25.0% | 990, 1010 | stable |" in capsys.readouterr().out
    assert "25.0% at worst (asked 15%) of 1 jobs that are stable; above 5%: 1" in said
    assert "1 of 1 that are unstable inside their range" in said
    assert "1 of 1 that the simulation lets starve do" in said


@pytest.mark.usefixtures("can_emulate")
def test_the_kernel_routes_by_port_and_has_a_class_for_each_place_and_level() -> None:
    with standing(lay_out_fabric(SMALL)) as (prefix, _):
        target = place_address(3, 1)
        for block in range(BLOCKS):
            ports = ("ipproto", "tcp", "sport", str(FIRST_PORT + block * BLOCK_PORTS + 3), "dport", "29000")
            come = ("from", place_address(0, 1), "iif", "to-h0")
            found = run_tool("ip", "-n", f"{prefix}l0", "route", "get", target, *come, *ports)
            assert f"dev to-s{SMALL.spine_of_block[0][block]}" in found
            down = run_tool("ip", "-n", f"{prefix}l1", "route", "get", target, *come[:2], "iif", "to-s1", *ports)
            assert "dev to-h3" in down
        shown = run_tool("tc", "-n", f"{prefix}l0", "class", "show", "dev", "to-s1")
        assert sum(" leaf " in line for line in shown.splitlines()) == SMALL.places * SMALL.levels
        assert "rate 80Mbit" in shown
    assert not [entry for entry in Path("/run/netns").iterdir() if entry.name.startswith(prefix)]


@pytest.mark.usefixtures("can_emulate")
def test_jobs_run_and_sum() -> None:
    """At least as long as they compute and the link is wide."""
    ring = Job(
        kind="ring", hosts=(0, 1, 2, 3), place=1, compute_s=0.05, begins_s=0.02, size_bytes=80_000, spines=(0,) * 4
    )
    case = Case(name="pair 1", mode="fair", jobs=(flow(0, 2), ring))
    (ran,) = run_cases(SMALL, [case], lasts_s=1.5, jitter=0.0, seed=0, limit_s=200)
    found = ran.jobs
    assert len(found) == 2
    sent_s = 1_000_000 / SMALL.nic_bytes_per_s
    assert min(found[0].iterations_s(0.0, math.inf)) > 0.95 * (0.1 + sent_s)
    assert min(found[1].iterations_s(0.0, math.inf)) >= 0.05


@pytest.mark.usefixtures("can_emulate")
def test_the_port_probe_finds_the_ways_of_the_rules() -> None:
    """And what went another way than the rules say would be told."""
    pairs = ((0, 3), (0, 1))
    found = probe_fabric(SMALL, pairs)
    assert [(probed.answer["equal"], probed.answer["stopped"]) for probed in found] == [
        (2, "all seen"),
        (1, "all seen"),
    ]
    assert found[0].answer["paths"][0]["through"][::2] == ["leaf0", "leaf1"]
    assert [wrong_ports(SMALL, probed) for probed in found] == [[], []]
    assert wrong_ports(replace(SMALL, seed=1), found[0])
    assert print_probed(SMALL, found) == 0


def test_the_command_says_why_not(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("bench.testbed.fabric.__main__.why_not", lambda: "none here")
    assert main(["--short"]) == 0
    assert capsys.readouterr().out == "nothing is emulated: none here\n"
