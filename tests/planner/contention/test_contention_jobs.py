"""`contention`: jobs whose losses are known by arithmetic, what is said of them, and files that cannot be."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from estimator.network.fabric import fabric_of
from estimator.network.player.play import play
from planner import api
from planner.cli.main import main
from planner.contention.contending import contend as contend_on
from planner.contention.jobs_file import read_jobs
from profiles.cluster_file import load_cluster
from profiles.errors import InputError, NothingFits
from profiles.records import replace

CLUSTER = """schema: cellplan.cluster/1
sites:
  - name: north
    nodes: [{count: 4, device: h100, names: "gpu[1-4]"}]
    fabric: {link: ib-ndr400, topology: {kind: clos2, leaves: 2, spines: 1, cables: CABLES}}
"""
ONE_LINK = CLUSTER.replace("CABLES", "1")
"""Two leaves of two nodes with one cable of 400 Gb/s up from each."""
REACHED = 47e9
"""Of 50e9 bytes/s, by what training reaches of InfiniBand; the test of one job alone holds it."""


def jobs_file(folder: Path, *jobs: str) -> Path:
    path = folder / "jobs.yaml"
    rows = "\n".join(f"  - {{{job}}}" for job in jobs)
    path.write_text(f"schema: cellplan.jobs/1\njobs:\n{rows}\n", encoding="utf-8")
    return path


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    path = tmp_path / "c.yaml"
    path.write_text(ONE_LINK, encoding="utf-8")
    return str(path)


def two(level: int = 0, *, hosts: str = "gpu[2,4]") -> tuple[str, str]:
    """Jobs that send 2 and 1 s over one cable a round: Crux, section 4.2, example 1. An all-reduce of two nodes sends
    its bytes once each way."""
    sends = [
        f"hosts: '{where}', gpus: '0',"
        f" traffic: {{compute_s: {each}.0, bytes: {each * REACHED:.0f}, flops: {each}.0e15}}"
        for where, each in (("gpu[1,3]", 2), (hosts, 1))
    ]
    return f"id: long, {sends[0]}, level: {level}", f"id: short, {sends[1]}, level: {1 - level if level else 0}"


def contend(folder: Path, cluster: str, *jobs: str, **options: Any) -> dict[str, Any]:
    found = api.contention(jobs_file(folder, *jobs), cluster=cluster, **options)
    jsonschema.validate(found, api.answer_schema("contention"))
    return found


def test_two_jobs_on_one_cable(tmp_path: Path, cluster: str) -> None:
    """The shorter one first: it loses nothing, the longer one takes 6 s for an iteration of 4 (Crux: 41.7% busy)."""
    found = contend(tmp_path, cluster, *two(level=1), jitter=0.0)
    long, short = found["jobs"]
    assert (long["alone_s"], short["alone_s"]) == pytest.approx((4.0, 2.0), rel=1e-3)
    assert (long["iteration_time_s"], short["iteration_time_s"]) == pytest.approx((6.0, 2.0), rel=1e-3)
    assert long["exposed_communication_s"] == pytest.approx(4.0, rel=1e-3)
    assert found["utilization"]["busy_of_held_devices"] == pytest.approx(0.41667, rel=1e-3)
    assert found["utilization"]["busy_of_all_devices"] == pytest.approx(0.41667 * 4 / 32, rel=1e-3)
    assert found["utilization"]["flops_per_s"] == pytest.approx(2e15 / 6 + 1e15 / 2, rel=1e-3)
    assert short["slowed_by"] == []
    (slower,) = long["slowed_by"]
    assert (slower["id"], slower["gained_s"]) == ("short", pytest.approx(2.0, rel=1e-3))
    assert slower["links"][0].startswith("leaf")
    fullest = found["links"][0]
    assert fullest["busy"] == pytest.approx(2 / 6 + 1 / 2, rel=1e-3)
    assert fullest["jobs"] == [{"id": "long", "level": 1}, {"id": "short", "level": 0}]


def test_who_shares_no_cable_loses_nothing(tmp_path: Path, cluster: str) -> None:
    """On two nodes of one leaf each, and on one node, from which nothing goes out."""
    jobs = [
        "id: left, hosts: 'gpu[1-2]', traffic: {compute_s: 0.1, bytes: 1.0e+10}",
        "id: right, hosts: gpu3, traffic: {compute_s: 0.1, bytes: 1.0e+10}",
    ]
    left, right = contend(tmp_path, cluster, *jobs)["jobs"]
    for job in (left, right):
        assert job["iteration_time_s"] == job["alone_s"]
        assert job["slowed_by"] == []
    assert (left["sent_bytes"] > 0, right["sent_bytes"]) == (True, 0.0)


def test_the_order_of_jobs_changes_nothing(tmp_path: Path, cluster: str) -> None:
    there = contend(tmp_path, cluster, *two())["jobs"]
    back = contend(tmp_path, cluster, *reversed(two()))["jobs"]
    for job, other in zip(there, reversed(back), strict=True):
        assert job["iteration_time_s"] == pytest.approx(other["iteration_time_s"], rel=1e-9)


def test_seeds_are_hashes_and_draws(tmp_path: Path) -> None:
    wide = tmp_path / "wide.yaml"
    wide.write_text(
        CLUSTER.replace("CABLES", "2").replace("ib-ndr400,", "ib-ndr400, routing: {kind: ecmp},"), encoding="utf-8"
    )
    once, often = (contend(tmp_path, str(wide), *two(), seeds=seeds)["jobs"][0] for seeds in (1, 30))
    assert once["range_s"] == [once["iteration_time_s"]] * 2
    low, high = often["range_s"]
    # On two cables the jobs meet on some of the four ways by most hashes, and on none by some.
    assert low == pytest.approx(4.0, rel=0.01)
    assert high == pytest.approx(5.0, rel=0.01)
    assert low < often["iteration_time_s"] < high


TABLE = 'job,hosts,end,gpus\nlong,"gpu[1,3]",,0\nshort,"gpu[2,4]",,0\nother,gpu1,,5\n'
SCONTROL = """JobId=7 JobName=long
   JobState=RUNNING Reason=None
   NodeList=gpu[1,3]
     Nodes=gpu[1,3] CPU_IDs=0-7 Mem=0 GRES=gpu:h100:1(IDX:0)

JobId=8 JobName=short
   JobState=RUNNING Reason=None
   NodeList=gpu[2,4]
     Nodes=gpu2 CPU_IDs=0-7 Mem=0 GRES=gpu:h100:1(IDX:0)
     Nodes=gpu4 CPU_IDs=0-7 Mem=0 GRES=gpu:h100:1(IDX:0)

JobId=9 JobName=waits
   JobState=PENDING Reason=Resources
   NodeList=(null)
"""


def pods(**nodes: Sequence[str]) -> str:
    """Pods with a GPU each of jobs on nodes, the last ones first."""
    items = [
        {
            "kind": "Pod",
            "metadata": {
                "name": f"{job}-{rank}",
                "labels": {
                    "training.kubeflow.org/job-name": job,
                    "training.kubeflow.org/replica-index": str(rank),
                },
            },
            "spec": {"nodeName": node, "containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
            "status": {"phase": "Running"},
        }
        for job, on in nodes.items()
        for rank, node in enumerate(on)
    ]
    return json.dumps({"kind": "List", "items": items[::-1]})


@pytest.mark.parametrize(
    ("text", "names", "notes"),
    [
        (TABLE, ("long", "short"), 0),
        (SCONTROL, ("7", "8"), 0),
        (pods(long=("gpu1", "gpu3"), short=("gpu2", "gpu4")), ("long", "short"), 1),
    ],
)
def test_hosts_of_jobs_that_run(tmp_path: Path, cluster: str, text: str, names: tuple[str, str], notes: int) -> None:
    (tmp_path / "running").write_text(text, encoding="utf-8")
    long, short = (job.replace("gpus: '0', ", "") for job in two())
    named = [
        long.replace("hosts: 'gpu[1,3]', ", "").replace("id: long", f"id: '{names[0]}'"),
        short.replace("hosts: 'gpu[2,4]', ", "").replace("id: short", f"id: '{names[1]}'"),
    ]
    told = contend(tmp_path, cluster, *named, running=tmp_path / "running", jitter=0.0)
    plain = contend(tmp_path, cluster, *two(), jitter=0.0)
    assert [(job["hosts"], job["iteration_time_s"]) for job in told["jobs"]] == [
        (job["hosts"], job["iteration_time_s"]) for job in plain["jobs"]
    ]
    assert len(told["notes"]) == len(plain["notes"]) + notes


@pytest.mark.parametrize(
    "text", ["JobId=x\n", '{"items": []}', '{"kind": "List", "items": [{"kind": "Pod"}]}', "a,b\n"]
)
def test_files_that_say_not_who_runs(tmp_path: Path, cluster: str, text: str) -> None:
    (tmp_path / "running").write_text(text, encoding="utf-8")
    with pytest.raises(InputError):
        contend(tmp_path, cluster, *two(), running=tmp_path / "running")


PLANNED = "model: gpt2-1.3b, degrees: {dp: 16, global_batch: 64, zero: 1}"


def test_models_with_their_degrees(tmp_path: Path) -> None:
    """A job that is alone takes what its plan's estimate says; its work is the model's."""
    cluster = "h100:4x8"
    found = contend(tmp_path, cluster, f"id: a, hosts: 'node[2,0]', {PLANNED}")
    estimated = api.estimate("gpt2-1.3b", cluster=cluster, devices=16, dp=16, global_batch=64, zero=1)["estimate"]
    (job,) = found["jobs"]
    assert job["hosts"] == "node2,node0"
    assert job["alone_s"] == pytest.approx(estimated["iteration_time_s"], rel=0.01)
    done = estimated["tflops_per_device"] * 1e12 * 16 * estimated["iteration_time_s"]
    assert found["utilization"]["flops_per_s"] * job["iteration_time_s"] == pytest.approx(done, rel=1e-6)


def test_plans_on_their_own_hosts_and_on_others(tmp_path: Path, cluster: str) -> None:
    plan = api.plan("gpt2-1.3b", cluster=cluster, devices=16, global_batch=64)
    (tmp_path / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    own = contend(tmp_path, cluster, "id: a, plan: plan.json")["jobs"][0]
    assert own["hosts"] == "gpu[1-2]"
    moved = contend(tmp_path, cluster, "id: a, plan: plan.json, hosts: 'gpu[3-4]'")["jobs"][0]
    assert (moved["hosts"], moved["alone_s"]) == ("gpu[3-4]", pytest.approx(own["alone_s"], rel=1e-9))


@pytest.mark.parametrize(
    ("job", "key", "found"),
    [
        ("plan: plan.json, hosts: gpu1", "devices", "16 devices"),
        ("model: 'os:abort', hosts: 'gpu[1-2]', degrees: {dp: 16}", "model", "os:abort"),
        ("model: gpt-tiny, hosts: 'gpu[1-2]', degrees: {store: x}", "degrees", "store"),
        ("model: gpt-tiny, hosts: 'gpu[1-2]'", "degrees", "none"),
        ("model: gpt-tiny, hosts: 'gpu[1-2]', degrees: {tp: 7}", "degrees: --tp, --pp, --cp", "tp * pp * cp = 7"),
        ("model: gpt-tiny, hosts: 'gpu[1-2]', degrees: {tp: x}", "degrees: --tp", "'x'"),
        ("model: gpt-tiny, hosts: 'gpu[1-2]', degrees: {dp: 16}, plan: plan.json", "jobs[0]", "plan and model"),
        ("plan: plan.json, degrees: {dp: 16}", "jobs[0].degrees", "beside plan"),
        ("plan: nosuch.json, hosts: gpu1", None, ""),
    ],
)
def test_plans_that_cannot_be(
    tmp_path: Path, cluster: str, capsys: pytest.CaptureFixture[str], job: str, key: str | None, found: str
) -> None:
    plan = api.plan("gpt2-1.3b", cluster=cluster, devices=16, global_batch=64)
    (tmp_path / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    jobs = jobs_file(tmp_path, f"id: a, {job}")
    assert main(["contention", str(jobs), "--cluster", cluster, "--json"]) == 2
    failure = json.loads(capsys.readouterr().out)["failure"]
    assert failure["key"] == key
    assert found in (failure["found"] or "")


def test_for_people_with_files(tmp_path: Path, cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    jobs, timeline, plot = jobs_file(tmp_path, *two(level=1)), tmp_path / "t.json", tmp_path / "p.svg"
    words = ["contention", str(jobs), "--cluster", cluster, "--timeline", str(timeline), "--plot", str(plot)]
    assert main([*words, "--jitter", "0"]) == 0
    said = capsys.readouterr().out
    assert "long is slowed by short by 2 s on leaf" in said
    assert "GPUs busy: 41.7%" in said
    events = json.loads(timeline.read_text())["traceEvents"]
    first = next(event for event in events if event.get("cat") == "communication" and event["pid"] == 1)
    assert (first["ts"], first["dur"]) == (pytest.approx(1e6, rel=1e-3), pytest.approx(1e6, rel=1e-3))
    assert "leaf0" in plot.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("job", "key", "found"),
    [
        ("id: a, hosts: gpu9, traffic: {compute_s: 1.0, bytes: 1.0}", "jobs[1].hosts", "gpu9"),
        ("id: a, hosts: gpu1, traffic: {compute_s: 1.0, bytes: 1.0}", "jobs[1].hosts", "which first has"),
        ("id: first, hosts: gpu2, traffic: {compute_s: 1.0, bytes: 1.0}", "id", "'first' twice"),
        ("id: a, traffic: {compute_s: 1.0, bytes: 1.0}", "jobs[1].hosts", "none"),
        ("id: a, hosts: gpu2, gpus: '8', traffic: {compute_s: 1.0, bytes: 1.0}", "jobs[1].gpus", "GPU 8"),
        ("id: a, hosts: 'gpu[2-3]', gpus: '0/1/2', traffic: {compute_s: 1.0, bytes: 1.0}", "jobs[1].gpus", "3 lists"),
        ("id: a, hosts: gpu2", "jobs[1]", "none"),
        ("id: a, hosts: gpu2, traffic: {compute_s: 0.0, bytes: 1.0}", "jobs[1].traffic.compute_s", "0.0"),
        ("id: a, hosts: gpu2, traffic: {compute_s: 1.0, bytes: 1.0, begins_s: 1.1}", "jobs[1].traffic.begins_s", "1.1"),
        ("id: a, hosts: gpu2, traffic: {compute_s: 1.0, bites: 1.0}", "jobs[1].traffic", "bites"),
        ("id: a, hosts: 'gpu2,gpu2', traffic: {compute_s: 1.0, bytes: 1.0}", "jobs[1].hosts", "a host twice"),
    ],
)
def test_jobs_that_cannot_be(
    tmp_path: Path, cluster: str, capsys: pytest.CaptureFixture[str], job: str, key: str, found: str
) -> None:
    jobs = jobs_file(tmp_path, "id: first, hosts: gpu1, traffic: {compute_s: 1.0, bytes: 1.0}", job)
    assert main(["contention", str(jobs), "--cluster", cluster, "--json"]) == 2
    failure = json.loads(capsys.readouterr().out)["failure"]
    assert failure["key"] == key
    assert found in failure["found"]


def test_sites_that_nothing_joins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    apart = tmp_path / "apart.yaml"
    sites = [f"  - {{name: s{n}, nodes: [{{count: 1, device: h100}}], fabric: {{link: ib-ndr400}}}}\n" for n in (0, 1)]
    apart.write_text(f"schema: cellplan.cluster/1\nsites:\n{''.join(sites)}", encoding="utf-8")
    jobs = jobs_file(tmp_path, "id: a, hosts: 'node[0-1]', traffic: {compute_s: 1.0, bytes: 1.0e+9}")
    assert main(["contention", str(jobs), "--cluster", str(apart), "--json"]) == 3
    assert "job a cannot communicate: " in json.loads(capsys.readouterr().out)["failure"]["message"]


def test_a_link_that_lacks(tmp_path: Path, cluster: str) -> None:
    jobs = read_jobs(jobs_file(tmp_path, *two()), load_cluster(cluster))
    fabric = fabric_of(load_cluster(cluster))
    names = [fabric.links.name(link) for link in range(fabric.links.count)]
    cut = replace(fabric, links=fabric.links.without([names.index("leaf0 -> spine0")]))
    with pytest.raises(NothingFits, match=r"job long cannot communicate: .*leaf0 -> spine0.* is down"):
        contend_on(jobs, cut)


def test_short_plays_say_of_many_jobs_what_long_ones_do(tmp_path: Path) -> None:
    """Ten jobs over one cable, of two levels: whoever takes more than 5% of an iteration by plays to the end is said,
    and takes as much to 5% of it; a job of the upper level loses nothing to one below."""
    path = tmp_path / "c.yaml"
    path.write_text(ONE_LINK.replace("count: 4", "count: 20").replace("[1-4]", "[1-20]"), encoding="utf-8")
    jobs = [
        f"id: j{each}, hosts: 'gpu[{each},{each + 10}]', gpus: '0', level: {each % 2},"
        f" traffic: {{compute_s: {1 + each / 7:.3f}, bytes: {(0.1 + each / 60) * REACHED:.0f}}}"
        for each in range(1, 11)
    ]
    cluster = load_cluster(str(path))
    found = contend_on(read_jobs(jobs_file(tmp_path, *jobs), cluster), fabric_of(cluster))
    rates, packed = fabric_of(cluster).links.bytes_per_s, list(found.packed)
    names = [job.job.id for job in found.jobs]
    assert any(job.slowed_by for job in found.jobs)
    assert found.short_plays == len(jobs)
    for gone, name in enumerate(names):
        others = [number for number in range(len(names)) if number != gone]
        without = play([packed[number] for number in others], rates, names=[names[number] for number in others])
        for number, after in zip(others, without.jobs, strict=True):
            job = found.jobs[number]
            said = {slower.id: slower.gained_s for slower in job.slowed_by}
            gained_s = job.seconds - after.seconds
            if gained_s > 0.05 * job.seconds:
                assert said[name] == pytest.approx(gained_s, abs=0.05 * job.seconds)
            if job.job.level < found.jobs[gone].job.level:
                assert name not in said


def test_who_is_elsewhere_changes_nothing_of_who_slows_whom(tmp_path: Path) -> None:
    """Three triples, each over a cable of its own: played among nine, of which each is played with its neighbours, a
    job loses to another what it loses where the triple is alone."""
    path = tmp_path / "c.yaml"
    cables = ", ".join(
        f"{{between: ['gpu[{4 * n + 1}-{4 * n + 3}]', a{n}]}}, {{between: [a{n}, b{n}]}}" for n in range(3)
    )
    below = ", ".join(f"{{between: ['gpu[{4 * n + 13}-{4 * n + 15}]', b{n}]}}" for n in range(3))
    spare = "{between: ['gpu[4,8,12,16,20,24]', a0]}, {between: [a0, a1]}, {between: [a1, a2]}"
    path.write_text(
        "schema: cellplan.cluster/1\nsites:\n  - name: north\n"
        '    nodes: [{count: 24, device: h100, names: "gpu[1-24]"}]\n'
        "    fabric: {link: roce400, topology: {kind: wired, switches: [{name: 'a[0-2]'}, {name: 'b[0-2]'}],"
        f" cables: [{cables}, {below}, {spare}]}}}}\n",
        encoding="utf-8",
    )
    jobs = [
        f"id: j{n}{each}, hosts: 'gpu[{4 * n + each},{4 * n + 12 + each}]', gpus: '0',"
        f" traffic: {{compute_s: {1 + each / 5 + n / 3:.3f}, bytes: {(0.2 + each / 10) * REACHED:.0f}}}"
        for n in range(3)
        for each in range(1, 4)
    ]
    cluster = load_cluster(str(path))
    fabric = fabric_of(cluster)

    def losses(some: list[str]) -> dict[str, dict[str, float]]:
        found = contend_on(read_jobs(jobs_file(tmp_path, *some), cluster), fabric)
        return {
            job.job.id: {slower.id: slower.gained_s / job.seconds for slower in job.slowed_by} for job in found.jobs
        }

    among = losses(jobs)
    assert any(among.values())
    for n in range(3):
        for name, its in losses(jobs[3 * n : 3 * n + 3]).items():
            assert set(among[name]) <= set(its)
            assert its == pytest.approx({other: among[name].get(other, 0.0) for other in its}, abs=0.02)


def test_hosts_may_be_a_list_and_a_gpu_a_number(tmp_path: Path, cluster: str) -> None:
    told = jobs_file(tmp_path, "id: a, hosts: [gpu2, 'gpu[3-4]'], gpus: 0, traffic: {compute_s: 1.0, bytes: 1.0e+9}")
    (job,) = read_jobs(told, load_cluster(cluster))
    assert [(seat.node, seat.device) for seat in job.seats] == [(1, 0), (2, 0), (3, 0)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "found nothing, expected a mapping of keys to values"),
        ("[1, 2]", r"found \[1, 2\], expected a mapping of keys to values"),
        ("schema: cellplan.jobs/1\njobs: [3]", r"jobs\[0\]: found 3, expected a mapping of keys to values"),
    ],
)
def test_what_is_no_list_of_jobs_is_said_in_words_of_files(tmp_path: Path, cluster: str, text: str, found: str) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=found):
        read_jobs(path, load_cluster(cluster))
