"""`cellplan place` into pods: what it prints, its JSON, its plan, its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.cli.main import main
from tests.documents import checked, document_of

NODES = 6
JOB = ["--devices", "8", "--tp", "2", "--pp", "2", "--global-batch", "16"]
FREE = "NODELIST GRES STATE\n" + "".join(f"gpu{node:02} gpu:a100:2 idle\n" for node in range(1, NODES + 1))


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Six named nodes of two devices, of Slurm's tree pods of 1, 3 and 2."""
    cluster = tmp_path / "c.yaml"
    cluster.write_text(
        "schema: cellplan.cluster/1\nsites:\n  - name: north\n    nodes:\n"
        f'      - {{count: {NODES}, device: a100-80gb, devices: 2, names: "gpu[01-06]"}}\n'
        "    fabric: {link: ib-hdr200, levels: [{name: leaf, oversubscription: 4}]}\n",
        encoding="utf-8",
    )
    tree = tmp_path / "topology.conf"
    tree.write_text(
        "SwitchName=s1 Nodes=gpu01\nSwitchName=s2 Nodes=gpu[02-04]\nSwitchName=s3 Nodes=gpu[05-06]\n"
        "SwitchName=top Switches=s[1-3]\n",
        encoding="utf-8",
    )
    return ["--cluster", str(cluster), "--topology", str(tree)]


def test_one_command_answers_and_its_plan_is_taken(
    tmp_path: Path, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    value = document_of(["place", "gpt2-1.3b", *files, *JOB, "-o", str(path)], 0, capsys)
    pods = {pod["name"]: pod for pod in value["pods"]}
    assert {name: pod["free"] for name, pod in pods.items()} == {"s1": 1, "s2": 3, "s3": 2}
    assert sum(pod["taken"] for pod in pods.values()) == 4
    ranks = sorted(device["rank"] for pod in pods.values() for device in pod["devices"])
    assert ranks == list(range(8))
    score = value["score"]["pods"]
    (site,) = score["sites"]
    assert score["iteration_time_s"] == value["plan"]["estimate"]["iteration_time_s"]
    assert site["bound_s"] <= score["iteration_time_s"] <= site["default_scheduler"]["iteration_time_s"]
    assert all(way["loses"] for way in value["alternatives"])
    hosts = {device["host"] for device in value["plan"]["devices"]}
    assert hosts == {device["host"] for pod in pods.values() for device in pod["devices"]}
    again = document_of(["estimate", "--plan", str(path)], 0, capsys)
    assert again["estimate"]["iteration_time_s"] == pytest.approx(score["iteration_time_s"], rel=1e-12)
    placed = document_of(["place", "--plan", str(path)], 0, capsys)
    assert placed["score"]["iteration_time_s"] == pytest.approx(score["iteration_time_s"], rel=1e-12)
    assert len([said for said in placed["plan"]["assumptions"] if "placements were priced" in said]) == 1
    assert {device["host"] for site in placed["sites"] for device in site["devices"]} == hosts
    assert main(["place", "--plan", str(path), "--method", "slurm"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for said in ("free nodes", "pods that the widest group", "Slurm's default", "no placement is below", "alpha"):
        assert said in shown


def test_a_tensor_parallel_degree_above_a_node_is_taken_at_its_word(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """TP 4 on nodes of two: a cell is two nodes, of one pod, and the search asks for no wider space."""
    job = ["--devices", "8", "--tp", "4", "--pp", "1", "--global-batch", "16"]
    value = document_of(["place", "gpt2-1.3b", *files, *job], 0, capsys)
    score = value["score"]["pods"]
    assert (score["sites"][0]["nodes_a_cell"], score["spreads"]) == (2, {"dp": 2, "tp": 1})
    planned = document_of(["plan", "gpt2-1.3b", "--cluster", "a100-80gb:4x2", *job], 0, capsys)
    assert [stage["tp"] for stage in planned["stages"]] == [4]
    free = document_of(["plan", "gpt2-1.3b", "--cluster", "a100-80gb:4x2", "--global-batch", "16"], 0, capsys)
    assert max(stage["tp"] for stage in free["stages"]) <= 2


def test_pods_of_one_node_tell_no_placements_apart(
    tmp_path: Path, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    tree = tmp_path / "single.conf"
    leaves = "".join(f"SwitchName=s{node} Nodes=gpu0{node}\n" for node in range(1, NODES + 1))
    tree.write_text(f"{leaves}SwitchName=top Switches=s[1-{NODES}]\n", encoding="utf-8")
    words = ["place", "gpt2-1.3b", *files[:3], str(tree), *JOB]
    assert not document_of(words, 0, capsys)["pods"]
    failure = document_of([*words, "--method", "spread"], 2, capsys)["failure"]["message"]
    assert "expected pods of several nodes" in failure


@pytest.mark.parametrize("method", ["spread", "arnold", "kueue", "cluster-order"])
def test_other_methods_are_named(files: list[str], capsys: pytest.CaptureFixture[str], method: str) -> None:
    assert main(["place", "gpt2-1.3b", *files, *JOB, "--method", method, "--alternatives", "0", "--json"]) == 0
    value = checked("place", json.loads(capsys.readouterr().out))
    assert value["score"]["pods"]["sites"][0]["chosen"] == method
    assert value["method"] == "compact"


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--alpha", "1.5"], 2, "a share from 0 to 1"),
        (["--max-spread", "pp"], 2, "AXIS=N"),
        (["--max-spread", "xx=1"], 2, "an axis of dp, pp"),
        (["--max-spread", "pp=1", "--max-spread", "dp=1"], 3, "no placement"),
        (["--distance", "log"], 2, "--affinity beside it"),
        (["--affinity", "shipped"], 2, "a row of a100-80gb"),
        (["--affinity", "nowhere.csv"], 2, "nowhere.csv"),
        (["--devices", "14"], 3, "14 devices wanted, 12 free"),
    ],
)
def test_wrong_wishes(
    files: list[str], capsys: pytest.CaptureFixture[str], words: list[str], status: int, said: str
) -> None:
    job = JOB if "--devices" not in words else JOB[2:]
    assert main(["place", "gpt2-1.3b", *files, *job, *words, "--alternatives", "0"]) == status
    assert said in " ".join(capsys.readouterr().err.split())


def test_free_nodes_at_their_places(tmp_path: Path, files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    free = tmp_path / "sinfo.txt"
    free.write_text(FREE.replace("gpu03 gpu:a100:2 idle", "gpu03 gpu:a100:2 allocated"), encoding="utf-8")
    value = document_of(["place", "gpt2-1.3b", *files, "--free", str(free), *JOB], 0, capsys)
    assert {pod["name"]: pod["free"] for pod in value["pods"]} == {"s1": 1, "s2": 2, "s3": 2}
    assert "gpu03" not in {device["host"] for device in value["plan"]["devices"]}
    free.write_text(FREE.replace("gpu06", "gpu99"), encoding="utf-8")
    failed = document_of(["place", "gpt2-1.3b", *files, "--free", str(free), *JOB], 2, capsys)
    assert "gpu99" in failed["failure"]["message"]


def test_a_plan_that_exists_is_not_beside_a_model(
    tmp_path: Path, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    assert main(["place", "gpt2-1.3b", *files, *JOB, "-o", str(path), "--alternatives", "0"]) == 0
    assert main(["place", "gpt2-1.3b", "--plan", str(path)]) == 2
    assert "--plan alone" in capsys.readouterr().err
    assert main(["place", "--devices", "8"]) == 2
    assert main(["place", "--plan", str(path), "--cluster", "a100-80gb:6x2"]) == 2
    assert "has no pods" in capsys.readouterr().err
    assert main(["place", "--plan", str(path), "--cluster", "a100-80gb:2x2"]) == 3
    assert "4 too few" in capsys.readouterr().err


@pytest.mark.parametrize("wish", ["--method arnold", "--max-spread pp=1", "--alpha 0.5", "--affinity shipped"])
def test_what_is_said_of_pods_needs_pods(capsys: pytest.CaptureFixture[str], wish: str) -> None:
    words = ["--cluster", "a100-80gb:4x2", *JOB, *wish.split(), "--alternatives", "0"]
    assert main(["place", "gpt2-1.3b", *words]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"{wish.split()[0]}: found {wish.split()[1]} on a100-80gb:4x2, expected a cluster with pods" in said


def test_a_database_without_rows_is_told_before_the_work(
    tmp_path: Path, files: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def chosen(*_: object) -> None:
        raise AssertionError("sites were chosen")

    monkeypatch.setattr("planner.many_jobs.placement.placing.choose_devices", chosen)
    path = tmp_path / "gains.csv"
    path.write_text("device,r1,r2,j_dp,j_pp\n", encoding="utf-8")
    assert main(["place", "gpt2-1.3b", *files, *JOB, "--affinity", str(path)]) == 2
    assert "gains.csv: found no row, expected rows of device, r1" in capsys.readouterr().err


@pytest.fixture
def placed(tmp_path: Path, files: list[str]) -> Path:
    """A plan with the names of its nodes."""
    path = tmp_path / "placed.json"
    assert main(["place", "gpt2-1.3b", *files, *JOB, "-o", str(path), "--alternatives", "0"]) == 0
    return path


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"host": "gpu99"}, "devices[7].host: found 'gpu99', expected a node of north"),
        ({}, "index 1, as devices[1] has, expected a device for each rank"),
        ({"index": 5}, "devices[7]: found node"),
    ],
)
def test_a_plan_whose_places_its_cluster_lacks(
    placed: Path, capsys: pytest.CaptureFixture[str], change: dict[str, object], said: str
) -> None:
    value = json.loads(placed.read_text(encoding="utf-8"))
    value["devices"][7] |= {"host": value["devices"][1]["host"]} | change
    placed.write_text(json.dumps(value), encoding="utf-8")
    capsys.readouterr()
    assert main(["estimate", "--plan", str(placed)]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_plan_with_two_ranks_on_one_device_has_no_stand_in(
    placed: Path, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    value = json.loads(placed.read_text(encoding="utf-8"))
    host = value["devices"][7]["host"] = value["devices"][1]["host"]
    placed.write_text(json.dumps(value), encoding="utf-8")
    capsys.readouterr()
    assert main(["place", "--plan", str(placed), *files, "--replace", host]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"devices[7].host: found '{host}', expected a node of" in said
    assert "which no other rank has" in said


def test_too_few_of_a_type_name_the_others(tmp_path: Path, placed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mixed = tmp_path / "mixed.yaml"
    mixed.write_text(
        "schema: cellplan.cluster/1\nsites:\n  - name: north\n    nodes:\n"
        "      - {count: 1, device: a100-80gb, devices: 2}\n      - {count: 5, device: h100, devices: 2}\n",
        encoding="utf-8",
    )
    capsys.readouterr()
    assert main(["place", "--plan", str(placed), "--cluster", str(mixed)]) == 3
    said = " ".join(capsys.readouterr().err.split())
    assert "8 a100-80gb wanted, 2 free in north: 6 too few; free of other types: 10 h100" in said


def test_hosts_are_named_as_slurm_lists_them(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["place", "gpt2-1.3b", *files, *JOB, "--alternatives", "0"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(" north ")]
    assert line.split()[3].startswith("gpu")
    assert line.endswith(": 0-1")
