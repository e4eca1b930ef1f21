"""Start now or wait: the starts against placing at every end, chances, reservations, and what the command says."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from estimator.pricing.recipe import Setup
from estimator.pricing.training import WholeTraining
from planner.cli.later_output import fold_command
from planner.cli.main import main
from planner.many_jobs.placement.free_seats import on_free_devices
from planner.many_jobs.placement.holding import held_for
from planner.many_jobs.placement.waiting import Waiting, chance_above, first_start, wait_or_start
from planner.one_job.free_devices.coming_free import Occupancy, read_occupancy
from planner.one_job.site_pods.placing import PlanInPods, PodWishes, place_plan
from profiles.cluster import Cluster, host_of
from tests.documents import document_of
from tests.planner.one_job.free_devices.test_running_jobs import number
from tests.planner.one_job.site_pods.pod_examples import in_pods, plan, price

WISHES = PodWishes(alpha=0.5)
JOB = ["--devices", "8", "--tp", "2", "--pp", "1", "--global-batch", "16"]


def _named(cluster: Cluster) -> Cluster:
    """The cluster with names of its nodes."""
    (site,) = cluster.sites
    nodes = sum(group.count for group in site.nodes)
    network = replace(site.network, hosts=tuple(f"n{node}" for node in range(nodes)))
    return replace(cluster, sites=(replace(site, network=network),))


def _drawn(rng: random.Random, folder: Path) -> tuple[Occupancy, Setup]:
    """A plan of four nodes on ten in three pods, some held by jobs that end."""
    setup = plan(10, tp=1, pp=2, dp=2, devices=1)
    sizes, over = rng.choice([(4, 3, 3), (5, 4, 1), (2, 4, 4)]), rng.choice([(8.0, 4.0, 2.0), (2.0, 8.0, 4.0)])
    cluster = _named(in_pods(setup.cluster, sizes, over=over))
    held = rng.sample(range(10), 6)
    rows = [f"{job},n{node},{1000 + rng.randrange(1, 5) * 3600}" for job, node in enumerate(held)]
    path = folder / "running.csv"
    path.write_text("job,hosts,end\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return read_occupancy(cluster, path, now_s=1000), setup


def _placed(setup: Setup, cluster: Cluster) -> PlanInPods:
    placed = place_plan(on_free_devices(setup, cluster), price, WISHES)
    assert isinstance(placed, PlanInPods)
    return placed


def _waiting(occupancy: Occupancy, setup: Setup, whole: WholeTraining | None = None) -> Waiting:
    placed = _placed(setup, occupancy.cluster_at(None))
    first = first_start(occupancy, 0.0, (placed.setup, placed.evaluation, placed), whole)
    return wait_or_start(occupancy, first, price, WISHES, whole)


@pytest.mark.parametrize("seed", range(8))
def test_the_starts_are_those_of_placing_at_every_end(seed: int, tmp_path: Path) -> None:
    occupancy, setup = _drawn(random.Random(seed), tmp_path)
    waiting = _waiting(occupancy, setup)
    for wait_s in (0.0, *occupancy.waits_s):
        by_then = min(
            _placed(setup, occupancy.cluster_at(earlier or None)).evaluation.iteration_time_s
            for earlier in (0.0, *occupancy.waits_s)
            if earlier <= wait_s
        )
        said = min(start.time_s for start in waiting.starts if start.wait_s <= wait_s)
        assert said == pytest.approx(by_then, rel=5e-4)
    for start in waiting.starts:
        held = {job for host in start.hosts for job in occupancy.jobs_on.get(host, ())}
        assert all(job.limit_s is not None and job.limit_s <= 1000 + start.wait_s for job in held)


@pytest.mark.parametrize("seed", range(8))
def test_what_is_free_then_is_the_sum_over_its_nodes(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    cluster = _drawn(rng, tmp_path)[0].cluster
    path, free = tmp_path / "jobs.csv", tmp_path / "sinfo.txt"
    rows = [f"{job},n{rng.randrange(10)},{rng.choice(['N/A', 1000 + rng.randrange(90)])}" for job in range(15)]
    path.write_text("\n".join(["job,hosts,end", *rows, ""]), encoding="utf-8")
    states = [f"n{node} gpu:a100:8 {rng.choice(['idle', 'allocated', 'draining'])}" for node in range(10)]
    free.write_text("\n".join(["NODELIST GRES STATE", *states, ""]), encoding="utf-8")
    occupancy = read_occupancy(cluster, path, free=rng.choice([None, free]), now_s=950)
    for wait_s in (None, *occupancy.waits_s):
        assert occupancy.free_devices(wait_s) == sum(node.free for node in occupancy.free_nodes(wait_s))
    for job, end in occupancy.endings.items():
        waits_s = max(60.0, end.likely_s - 950)
        assert [job in occupancy.ending_at(wait_s) for wait_s in occupancy.waits_s] == [
            wait_s <= waits_s <= wait_s + 1 for wait_s in occupancy.waits_s
        ]
        if end.likely_s - 950 > 60:
            assert sum(job in occupancy.ending_at(wait_s) for wait_s in occupancy.waits_s) == 1
    for devices in range(1, sum(node.devices for node in occupancy.nodes) + 2):
        enough = [wait_s for wait_s in (None, *occupancy.waits_s) if occupancy.free_devices(wait_s) >= devices]
        assert occupancy.first_with(devices) == (enough[0] or 0.0 if enough else None)


def test_a_start_pays_beyond_the_length_at_which_both_end_together(tmp_path: Path) -> None:
    occupancy, setup = _drawn(random.Random(1), tmp_path)
    for seed in range(1, 9):
        occupancy, setup = _drawn(random.Random(seed), tmp_path)
        waiting = _waiting(occupancy, setup, WholeTraining(tokens=1e12))
        if len(waiting.starts) > 1:
            break
    first, later = waiting.starts[0], waiting.starts[-1]
    beyond_s = later.pays_beyond_s(first)
    assert beyond_s is not None
    assert first.wait_s + beyond_s == pytest.approx(later.wait_s + beyond_s * later.time_s / first.time_s)
    assert waiting.best.end_s == min(start.end_s for start in waiting.starts if start.end_s is not None)
    chance = later.chance_pays(first)
    assert chance is not None
    # By drawing the factor that both times share.
    assert first.training is not None
    assert later.training is not None
    low, high = first.training.interval_90
    won = first.training.seconds - later.training.seconds
    rng = random.Random(0)
    drawn = [rng.gauss(0, 1) for _ in range(20_000)]
    factors = [(high if draw > 0 else 1 / low) ** (draw / 1.6448536) for draw in drawn]
    assert chance == pytest.approx(sum(won * factor > later.wait_s for factor in factors) / 20_000, abs=0.02)
    assert chance_above(2.0, 1.0, 1.0) == 0.0


def test_a_job_beyond_its_limit_ends_within_a_minute(tmp_path: Path) -> None:
    occupancy, _ = _drawn(random.Random(0), tmp_path)
    path = tmp_path / "late.csv"
    path.write_text("job,hosts,end\n1,n3,500\n2,n4,1030\n3,n5,4600\n4,n5,N/A\n", encoding="utf-8")
    late = read_occupancy(occupancy.cluster, path, now_s=1000)
    assert late.waits_s == (60.0, 3600.0)
    assert late.ending_at(60.0) == ("1", "2")
    assert [late.free_devices(wait_s) for wait_s in (None, 60.0, 3600.0)] == [7, 9, 9]
    assert late.chance_free(["n3", "n4"], 60.0) == 1.0
    assert any("nobody knows" in note and "4" in note for note in late.notes)


def test_nodes_are_held_from_their_last_jobs_end(tmp_path: Path) -> None:
    occupancy, setup = _drawn(random.Random(2), tmp_path)
    wait_s = occupancy.waits_s[-1]
    placed = _placed(setup, occupancy.cluster_at(wait_s))
    first = first_start(occupancy, wait_s, (placed.setup, placed.evaluation, placed), None)
    waiting = wait_or_start(occupancy, first, price, WISHES, None)
    held = held_for(waiting, first, "gpt 2")
    hosts = {host_of(placed.setup.cluster, slot) for stage in placed.setup.stages for slot in stage.slots}
    assert set(held.hosts) == hosts
    idle_s = 0.0
    for host in held.hosts:
        ends = [job.limit_s - 1000 for job in occupancy.jobs_on.get(host, ()) if job.limit_s is not None]
        idle_s += wait_s - max(ends, default=0.0)
    assert held.idle_device_hours == pytest.approx(idle_s / 3600)
    words = held.scontrol()
    assert words[:4] == ("scontrol", "create", "reservation", "ReservationName=gpt-2")
    assert f"StartTime=now+{wait_s / 60:.0f}minutes" in words
    assert "Duration=UNLIMITED" in words
    assert not any(word.startswith("Flags") for word in words)
    assert held.kubectl()[-1] == "cellplan.io/held-for=gpt-2:NoSchedule"


def test_a_folded_command_is_read_as_one() -> None:
    hosts = ",".join(f"gpu{number:04}" for number in range(0, 300, 2))
    shown = fold_command(["scontrol", "create", "reservation", "Users=$USER", f"Nodes={hosts}"])
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.replace("\\\n", "").split() == f"scontrol create reservation Users=$USER Nodes={hosts}".split()


# The command


def _squeue(folder: Path, jobs: dict[int, tuple[str, float]]) -> str:
    path = folder / "squeue.json"
    told = [
        {"job_id": job, "job_state": ["RUNNING"], "nodes": nodes, "start_time": number(0)}
        | {"end_time": number(1_000_000 + 3600 * hours), "time_limit": number(hours * 60 + 1)}
        for job, (nodes, hours) in jobs.items()
    ]
    path.write_text(json.dumps({"jobs": told, "last_update": number(1_000_000)}), encoding="utf-8")
    return str(path)


def _starts(value: dict[str, Any]) -> list[dict[str, Any]]:
    starts: list[dict[str, Any]] = value["waiting"]["starts"]
    return starts


@pytest.fixture
def wide(tmp_path: Path) -> list[str]:
    """Eight named nodes of two devices in pods of 4 and 4 behind thin uplinks."""
    cluster = tmp_path / "wide.yaml"
    cluster.write_text(
        "schema: cellplan.cluster/1\nsites:\n  - name: north\n    nodes:\n"
        '      - {count: 8, device: a100-80gb, devices: 2, names: "gpu[01-08]"}\n'
        "    fabric: {link: ib-hdr200, levels: [{name: leaf, oversubscription: 8}]}\n",
        encoding="utf-8",
    )
    tree = tmp_path / "topology.conf"
    tree.write_text(
        "SwitchName=s1 Nodes=gpu[01-04]\nSwitchName=s2 Nodes=gpu[05-08]\nSwitchName=top Switches=s[1-2]\n",
        encoding="utf-8",
    )
    return ["--cluster", str(cluster), "--topology", str(tree)]


def test_the_command_says_when_to_start_and_what_to_hold(
    tmp_path: Path, wide: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    running = _squeue(tmp_path, {7: ("gpu[01-02]", 2), 8: ("gpu[05-06]", 5)})
    words = ["place", "gpt2-1.3b", *wide, *JOB, "--running", running, "--alternatives", "0"]
    output = tmp_path / "plan.json"
    value = document_of([*words, "--train-tokens", "100G", "--reserve", "-o", str(output)], 0, capsys)
    now, later = _starts(value)
    assert (now["wait_s"], later["wait_s"]) == (0, 7200)
    assert set(now["hosts"]) == {"gpu03", "gpu04", "gpu07", "gpu08"}
    assert set(later["hosts"]) == {"gpu01", "gpu02", "gpu03", "gpu04"}
    assert later["jobs"] == ["7"]
    assert (now["pods"], later["pods"]) == ({"s1": 2, "s2": 2}, {"s1": 4})
    assert later["iteration_time_s"] < now["iteration_time_s"] == value["score"]["iteration_time_s"]
    gain = 1 - later["iteration_time_s"] / now["iteration_time_s"]
    assert later["pays_beyond_s"] == pytest.approx(7200 / gain)
    assert [end["jobs"] for end in value["waiting"]["ends"]] == [["7"], ["8"]]
    best = _starts(value)[value["waiting"]["best"]]
    assert best["end_s"] == min(start["end_s"] for start in _starts(value))
    held = value["waiting"]["reservation"]
    assert {node["host"] for node in held["nodes"]} == set(best["hosts"])
    assert best is later
    assert held["idle_device_hours"] == pytest.approx(2 * 2 * 2)
    assert "Nodes=gpu[01-04]" in held["scontrol"]
    written = json.loads(output.read_text(encoding="utf-8"))
    assert {device["host"] for device in written["devices"]} == set(best["hosts"])
    placed = document_of(["place", "--plan", str(output), "--running", running, "--alternatives", "0"], 0, capsys)
    assert [start["wait_s"] for start in _starts(placed)] == [0, 7200]
    assert main([*words, "--train-tokens", "100G", "--reserve"]) == 0
    shown = capsys.readouterr().out
    assert max(len(line) for line in shown.splitlines() if str(tmp_path) not in line) <= 80
    for said in ("start now, or wait?", "pays beyond", "job 7 ends then", "scontrol create", "stay idle", "taint"):
        assert said in " ".join(shown.split())


def test_predictions_take_the_place_of_limits(
    tmp_path: Path, wide: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    running = _squeue(tmp_path, {7: ("gpu[01-02]", 20), 8: ("gpu[05-06]", 50)})
    said = {"job_id": "7", "point_s": 1_003_600, "interval_90_s": [1_001_800, 1_010_800]}
    predicted = tmp_path / "predicted.json"
    predicted.write_text(json.dumps({"jobs": [said]}), encoding="utf-8")
    told = json.loads(Path(running).read_text(encoding="utf-8"))
    for job in told["jobs"]:
        job["start_time"] = number(1)
    Path(running).write_text(json.dumps(told), encoding="utf-8")
    words = ["place", "gpt2-1.3b", *wide, *JOB, "--running", running, "--jct", str(predicted), "--alternatives", "0"]
    value = document_of([*words, "--train-tokens", "100G", "--reserve"], 0, capsys)
    assert value["waiting"]["ends_by"] == "prediction"
    assert any("without a prediction, by their time limits: 8" in note for note in value["waiting"]["notes"])
    later = _starts(value)[1]
    assert 3600 <= later["wait_s"] < 7200
    assert later["chance_free"] == pytest.approx(0.5, abs=0.01)
    assert later["chance_pays"] <= later["chance_free"]
    # A reservation that begins before a time limit ends wants its flag.
    assert "Flags=IGNORE_JOBS" in value["waiting"]["reservation"]["scontrol"]


def test_what_falls_back_to_a_time_limit_is_told(
    tmp_path: Path, wide: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    running = Path(_squeue(tmp_path, {7: ("gpu01", 20), 8: ("gpu02", 20), 9: ("gpu05", 20), 10: ("gpu06", 20)}))
    told = json.loads(running.read_text(encoding="utf-8"))
    for job, start in zip(told["jobs"], (1, 1, None, 999_000), strict=True):
        job |= {} if start is None else {"start_time": number(start)}
    running.write_text(json.dumps(told), encoding="utf-8")
    rows = [
        {"job_id": "7", "point_s": 60, "interval_90_s": [30, 120]},
        {"job_id": "9", "point_s": 60, "interval_90_s": [30, 120]},
        {"job_id": "10", "point_s": 3000, "interval_90_s": [2000, 9000]},
    ]
    predicted = tmp_path / "predicted.json"
    predicted.write_text(json.dumps({"jobs": rows}), encoding="utf-8")
    words = ["place", "gpt2-1.3b", *wide, *JOB, "--running", str(running), "--jct", str(predicted)]
    value = document_of([*words, "--alternatives", "0"], 0, capsys)
    assert [note for note in value["waiting"]["notes"] if "by their time limits" in note] == [
        "jobs that have outrun their prediction, or whose limit comes before it, by their time limits: 7",
        "jobs without a prediction, by their time limits: 8",
        "jobs predicted, whose start nobody knows, by their time limits: 9",
    ]
    assert main(words) == 0
    assert "outrun their prediction" in " ".join(capsys.readouterr().out.split())


def test_a_model_says_when_jobs_end(tmp_path: Path, wide: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("lightgbm")
    rows = [f"{job},{job * 60},user{job % 3},part,{2 + job % 2 * 2},{3600 + job % 7 * 600}" for job in range(400)]
    trace = tmp_path / "trace.csv"
    trace.write_text("job_id,submit_time_s,user,vc,gpus,duration_s\n" + "\n".join(rows) + "\n", encoding="utf-8")
    model = tmp_path / "model.txt"
    assert main(["jct", "train", str(trace), "-o", str(model)]) == 0
    running = Path(_squeue(tmp_path, {7: ("gpu[01-02]", 20), 8: ("gpu05", 20)}))
    told = json.loads(running.read_text(encoding="utf-8"))
    for job, user in zip(told["jobs"], ("user0", "user2"), strict=True):
        job |= {"start_time": number(999_000), "submit_time": number(999_000), "user_name": user, "partition": "part"}
    running.write_text(json.dumps(told), encoding="utf-8")
    words = ["place", "gpt2-1.3b", *wide, *JOB, "--running", str(running), "--jct", str(model), "--alternatives", "0"]
    capsys.readouterr()
    value = document_of(words, 0, capsys)
    assert value["waiting"]["ends_by"] == "prediction"
    assert not any("without a prediction" in note for note in value["waiting"]["notes"])
    # The longest job of the trace took two hours; their limits are 20 hours from now.
    assert {job for end in value["waiting"]["ends"] for job in end["jobs"]} == {"7", "8"}
    assert all(end["wait_s"] < 3 * 3600 for end in value["waiting"]["ends"])
    trace.write_text("no model\n", encoding="utf-8")
    words[words.index(str(model))] = str(trace)
    assert "a model of `cellplan jct train`" in document_of(words, 2, capsys)["failure"]["message"]


def test_too_few_now_says_when(tmp_path: Path, wide: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    running = _squeue(tmp_path, {7: ("gpu[01-03]", 2), 8: ("gpu[04-06]", 3.5)})
    words = ["place", "gpt2-1.3b", *wide, *JOB, "--running", running, "--alternatives", "0"]
    document = document_of(words, 3, capsys)
    assert "8 devices wanted, 4 free now: 4 too few; 10 are in 2 h, when job 7 ends" in document["failure"]["message"]
    value = document_of([*words, "--reserve"], 0, capsys)
    first = _starts(value)[0]
    assert first["wait_s"] == 7200
    assert first["pays_beyond_s"] is None
    words = [word if word != running else _squeue(tmp_path, {7: ("gpu[01-07]", 2)}) for word in words]
    words[words.index("--devices") + 1] = "18"
    assert "18 devices wanted, 2 free now" in document_of(words, 3, capsys)["failure"]["message"]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--reserve"], 2, "--running beside it"),
        (["--running", "nowhere.json"], 2, "nowhere.json"),
        (["--running", "strange"], 2, "job 7: found the host gpu99, expected one of the 8 nodes"),
        (["--running", "strange", "--lenient"], 0, "left out: gpu99"),
        (["--running", "strange", "--lenient", "--jct", "strange"], 2, "point_s"),
        (["--replace", "gpu01"], 2, "--plan FILE"),
        (["--now", "5"], 2, "--comm or --links"),
        (["--running", "strange", "--now", "1e17"], 2, "--now: found '1e17', expected seconds since 1970"),
    ],
)
def test_wrong_words(
    tmp_path: Path, wide: list[str], capsys: pytest.CaptureFixture[str], words: list[str], status: int, said: str
) -> None:
    running = _squeue(tmp_path, {7: ("gpu99", 2)})
    words = [running if word == "strange" else word for word in words]
    assert main(["place", "gpt2-1.3b", *wide, *JOB, *words, "--alternatives", "0"]) == status
    shown = capsys.readouterr()
    assert said in " ".join((shown.err + shown.out).split())


def test_hosts_without_names_cannot_be_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    running = _squeue(tmp_path, {7: ("gpu01", 2)})
    words = ["place", "gpt2-1.3b", "--cluster", "a100-80gb:4x2", *JOB, "--running", running]
    assert "a cluster whose nodes have names" in document_of(words, 2, capsys)["failure"]["message"]


def test_a_draining_node_does_not_come_free(
    tmp_path: Path, wide: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    running = _squeue(tmp_path, {7: ("gpu[01-02]", 2)})
    free = tmp_path / "sinfo.txt"
    rows = {"gpu01": "draining", "gpu02": "allocated", "gpu08": "drained"}
    free.write_text(
        "NODELIST GRES STATE\n"
        + "".join(f"{host} gpu:a100:2 {rows.get(host, 'idle')}\n" for host in (f"gpu{n:02}" for n in range(1, 9))),
        encoding="utf-8",
    )
    words = ["place", "gpt2-1.3b", *wide, *JOB, "--running", running, "--free", str(free), "--alternatives", "0"]
    value = document_of(words, 0, capsys)
    (end,) = value["waiting"]["ends"]
    assert end["free_devices"] == 12
