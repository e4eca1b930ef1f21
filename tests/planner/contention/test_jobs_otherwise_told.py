"""What must not depend on how a list of jobs is told: names of jobs, hosts and switches, and the order of the file."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from planner import api
from profiles.records import dataclass, replace
from tests.imports import ROOT

NODES = 16
CLUSTER = """schema: cellplan.cluster/1
sites:
  - name: north
    nodes: [{{count: {nodes}, device: h100, nics: {{count: 1, link: roce400}}, names: [{hosts}]}}]
    fabric: {{link: roce400, topology: {topology}}}
"""
CLOS = "{kind: clos2, leaves: 4, spines: 3, cables: 2}"


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A job on nodes by their numbers."""

    name: str
    nodes: tuple[int, ...]
    traffic: str


def drawn_jobs(seed: int, count: int = 5) -> list[Drawn]:
    """Jobs of two or three nodes each, anywhere, no two of them alike."""
    draw = random.Random(seed)
    nodes, jobs = draw.sample(range(NODES), NODES), []
    for number in range(count):
        own = tuple(nodes.pop() for _ in range(draw.choice((2, 3))))
        compute_s = draw.uniform(0.2, 1.0)
        traffic = (
            f"{{compute_s: {compute_s:.3f}, begins_s: {compute_s * draw.uniform(0.3, 1.0):.3f},"
            f" bytes: {draw.uniform(3e9, 2e10):.0f}, flops: {draw.uniform(1e14, 9e15):.3e}}}"
        )
        jobs.append(Drawn(name=f"job{number}", nodes=own, traffic=traffic))
    return jobs


def host(node: int) -> str:
    return f"gpu{node:02d}"


def answer(
    folder: Path,
    jobs: Sequence[Drawn],
    *,
    called: Callable[[int], str] = host,
    topology: str = CLOS,
    **options: Any,
) -> dict[str, Any]:
    cluster, listed = folder / "c.yaml", folder / "jobs.yaml"
    hosts = ", ".join(called(node) for node in range(NODES))
    cluster.write_text(CLUSTER.format(nodes=NODES, hosts=hosts, topology=topology), encoding="utf-8")
    rows = (
        f"  - {{id: {job.name}, hosts: '{','.join(map(called, job.nodes))}', traffic: {job.traffic}}}\n" for job in jobs
    )
    listed.write_text("schema: cellplan.jobs/1\njobs:\n" + "".join(rows), encoding="utf-8")
    return api.contention(listed, cluster=str(cluster), **{"jitter": 0.0, "levels": 3, **options})


def figures(found: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """What is said of each job, by what it is called in `names`, and of the cluster."""
    by_id = {job["id"]: job for job in found["jobs"]}
    told: dict[str, Any] = {
        own: [by_id[name][key] for key in ("alone_s", "now_s", "planned_s", "gpu_utilization")]
        for own, name in names.items()
    }
    for when in ("alone", "now", "planned", "bound"):
        told[when] = [found["gpu_utilization"][when][key] for key in ("busy", "flops_per_s")]
    return told


def alike(found: dict[str, Any], names: dict[str, str]) -> Any:
    told = figures(found, names)
    return {key: pytest.approx(value, rel=1e-6) for key, value in told.items()}


@pytest.mark.parametrize("policy", ["ours", "crux", "sincronia", "ecmp"])
@pytest.mark.parametrize("seed", range(2))
def test_names_and_order_change_nothing(tmp_path: Path, seed: int, policy: str) -> None:
    """Jobs that differ in all they send: no tie is left for a name to break."""
    jobs, draw = drawn_jobs(seed), random.Random(seed)
    same = {job.name: job.name for job in jobs}
    first = alike(answer(tmp_path, jobs, policy=policy), same)

    names = dict(zip(same, draw.sample(["zz", "b", "Q", "job9", "a0"], len(jobs)), strict=True))
    renamed = [replace(job, name=names[job.name]) for job in jobs]
    assert figures(answer(tmp_path, renamed, policy=policy), names) == first

    assert figures(answer(tmp_path, draw.sample(jobs, len(jobs)), policy=policy), same) == first

    found = answer(tmp_path, jobs, policy=policy, called=lambda node: f"h{node * 7 % 17}-x")
    assert figures(found, same) == first


def wired(spine: Callable[[int], str]) -> str:
    """Four leaves of four nodes under three spines, switch by switch."""
    leaves = [f"leaf{each}" for each in range(4)]
    spines = [spine(each) for each in range(3)]
    switches = ", ".join(f"{{name: {name}}}" for name in (*leaves, *spines))
    down = ", ".join(
        f"{{between: ['{','.join(host(4 * each + node) for node in range(4))}', {leaf}]}}"
        for each, leaf in enumerate(leaves)
    )
    up = ", ".join(f"{{between: [{leaf}, {top}]}}" for leaf in leaves for top in spines)
    return f"{{kind: wired, switches: [{switches}], cables: [{down}, {up}]}}"


@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        *(("ecmp", name) for name in ("crux", "ours", "cassini", "sincronia", "tacclstar", "spray")),
        ("spray", "crux"),
        ("infiniband", "crux"),
    ],
)
def test_a_cable_that_is_down_is_on_nobodys_way(tmp_path: Path, kind: str, policy: str) -> None:
    """Whatever decides, and however switches choose."""
    gone = "{between: [leaf0, spine1]}"
    topology = wired(lambda each: f"spine{each}")
    assert gone in topology
    topology = topology.replace(gone, gone.replace("}", ", down: true}")) + f", routing: {{kind: {kind}}}"
    found = answer(tmp_path, drawn_jobs(2), policy=policy, topology=topology)
    down = {"leaf0 -> spine1", "spine1 -> leaf0"}
    assert not down & {link["name"] for link in found["links"]}
    assert not down & {step for job in found["jobs"] for path in job["paths"] for step in path["way"]}
    for job in found["jobs"]:
        assert job["planned_s"] is None or job["planned_s"] >= job["compute_s"] * (1 - 1e-9)


def test_names_of_switches_change_nothing(tmp_path: Path) -> None:
    jobs = drawn_jobs(7)
    same = {job.name: job.name for job in jobs}
    first = alike(answer(tmp_path, jobs, policy="crux", topology=wired(lambda each: f"spine{each}")), same)
    found = answer(tmp_path, jobs, policy="crux", topology=wired(lambda each: "zyx"[each]))
    assert figures(found, same) == first


def test_ports_stay_where_jobs_come_and_go(tmp_path: Path) -> None:
    """A job that goes moves nobody else to another way."""
    jobs = drawn_jobs(1)
    ways = {job["id"]: [path["way"] for path in job["paths"]] for job in answer(tmp_path, jobs, policy="ecmp")["jobs"]}
    for gone in jobs[:3]:
        others = answer(tmp_path, [job for job in jobs if job is not gone], policy="ecmp")
        assert {job["id"]: [path["way"] for path in job["paths"]] for job in others["jobs"]} == {
            name: its for name, its in ways.items() if name != gone.name
        }


def test_equal_jobs_share_by_name_what_all_have_in_sum(tmp_path: Path) -> None:
    """Ties are broken by ids: who of two equal jobs comes first goes with the name, what all do together does not."""
    traffic = "{compute_s: 0.5, bytes: 2.0e+10, flops: 1.0e+15}"
    twins = [Drawn(name=name, nodes=(node, node + 4), traffic=traffic) for name, node in (("a", 0), ("b", 1), ("c", 2))]
    swapped = [replace(job, name=name) for job, name in zip(twins, "cba", strict=True)]
    one_spine = "{kind: clos2, leaves: 4, spines: 1, cables: 1}"
    found = [answer(tmp_path, jobs, policy="crux", topology=one_spine) for jobs in (twins, swapped)]
    levels = [{job["id"]: job["level"] for job in each["jobs"]} for each in found]
    assert levels[0] == levels[1]
    assert set(levels[0].values()) == {0, 1, 2}
    for key in ("planned", "bound"):
        assert found[0]["gpu_utilization"][key] == pytest.approx(found[1]["gpu_utilization"][key], rel=1e-6)


def test_the_hash_of_texts_changes_no_byte(tmp_path: Path) -> None:
    """Every figure and file is the same with any PYTHONHASHSEED."""
    answer(tmp_path, drawn_jobs(3), policy="ecmp")  # Writes the files.
    told = []
    for hashed in ("0", "12345"):
        output = tmp_path / "contention.json"
        words = ["contention", "jobs.yaml", "--cluster", "c.yaml", "--levels", "3", "-o", output.name, "--json"]
        run = subprocess.run(
            [sys.executable, "-m", "planner.cli.main", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": hashed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
            timeout=120,
        )
        told.append((run.stdout, output.read_bytes()))
    assert told[0] == told[1]
    assert json.loads(told[0][0])["policy"]["name"] == "ours"
