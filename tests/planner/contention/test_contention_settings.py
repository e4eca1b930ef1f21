"""`contention --emit`, `--verify` and `export --network`: from jobs to what hosts are told, and what is refused."""

from __future__ import annotations

import ast
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from shutil import which
from typing import Any

import jsonschema
import pytest
import yaml

from planner import api
from planner.cli.main import main
from planner.contention import deciding, planning
from planner.contention.contention_file import load_contention
from planner.contention.planning import NetworkPlan
from planner.contention.viewing import Seen
from profiles.errors import InputError

DATA = Path(__file__).parents[2] / "data" / "contention"
NIC = DATA / "mlnx_qos.txt"
CLUSTER = """schema: cellplan.cluster/1
sites:
  - name: north
    nodes: [{count: 4, device: h100, names: "gpu[1-4]"}]
    fabric: {link: LINK, topology: {kind: clos2, leaves: 2, spines: 2, cables: 1}}
"""
JOBS = """schema: cellplan.jobs/1
jobs:
  - {id: gpt, hosts: "gpu[1,3]", traffic: {compute_s: 0.2, bytes: 6.0e+9, flops: 4.0e+15}}
  - {id: bert, hosts: "gpu[2,4]", traffic: {compute_s: 0.2, bytes: 6.0e+9, flops: 1.0e+15}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    _files(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _files(folder: Path, link: str = "roce400") -> None:
    (folder / "c.yaml").write_text(CLUSTER.replace("LINK", link), encoding="utf-8")
    (folder / "jobs.yaml").write_text(JOBS, encoding="utf-8")


def _contention(**asked: Any) -> dict[str, Any]:
    own = {"policy": "crux", "levels": 2, "priority_map": NIC, "queue_pairs": False}
    found: dict[str, Any] = api.contention(Path("jobs.yaml"), cluster="c.yaml", **{**own, **asked})
    jsonschema.validate(found, api.answer_schema("contention"))
    return found


@pytest.mark.usefixtures("folder")
def test_a_plan_is_written_for_those_who_set_it() -> None:
    found = _contention(emit=Path("out"), emit_map=True, output=Path("contention.json"))
    assert found["settings"]["folder"] == "out"
    there = {str(path.relative_to("out")) for path in Path("out").rglob("*") if path.is_file()}
    assert there == set(found["settings"]["files"])
    assert {"jobs/gpt/environment.sh", "jobs/gpt/udp_source_ports.json", "map/mlnx_qos.sh", "contention.json"} <= there
    by_id = {job["id"]: job for job in found["jobs"]}
    assert by_id["gpt"]["environment"]["NCCL_IB_TC"] == str(4 * by_id["gpt"]["dscp"])
    assert Path("out/contention.json").read_bytes() == Path("contention.json").read_bytes()
    assert f"export NCCL_IB_TC={4 * by_id['gpt']['dscp']}" in Path("out/jobs/gpt/environment.sh").read_text("utf-8")
    assert [level["dscp"] for level in found["map"]["levels"]] == [40, 32]


@pytest.mark.usefixtures("folder")
def test_the_same_inputs_give_the_same_folder() -> None:
    _contention(emit=Path("one"), queue_pairs=True)
    _contention(emit=Path("two"), queue_pairs=True)
    for path in Path("one").rglob("*.*"):
        assert path.read_bytes() == (Path("two") / path.relative_to("one")).read_bytes()
    assert "NCCL_IB_QPS_PER_CONNECTION" in Path("one/jobs/gpt/stock_nccl.sh").read_text("utf-8")


@pytest.mark.usefixtures("folder")
def test_shells_take_the_environment() -> None:
    bash = which("bash")
    if bash is None:
        pytest.skip("no bash here")
    _contention(emit=Path("out"))
    command = ". out/jobs/bert/environment.sh && echo $NCCL_IB_TC $NCCL_IB_FIFO_TC $UCX_IB_TRAFFIC_CLASS"
    done = subprocess.run([bash, "-c", command], capture_output=True, text=True, check=True, timeout=60)
    assert set(done.stdout.split()) <= {"160", "128"}


@pytest.mark.usefixtures("folder")
def test_a_file_of_before_is_emitted_by_the_levels_that_it_has() -> None:
    first = _contention(output=Path("contention.json"))
    again = api.contention(
        Path("jobs.yaml"), cluster="c.yaml", network_plan=Path("contention.json"), emit=Path("out"), queue_pairs=False
    )
    assert [job["environment"] for job in again["jobs"]] == [job["environment"] for job in first["jobs"]]
    assert again["map"]["source"] == "mlnx_qos"
    asked: dict[str, Any] = {"network_plan": Path("contention.json"), "emit": Path("out"), "emit_map": True}
    with pytest.raises(InputError, match="--emit-map: found the levels of a file alone"):
        api.contention(Path("jobs.yaml"), cluster="c.yaml", **asked)
    api.contention(Path("jobs.yaml"), cluster="c.yaml", priority_map=NIC, **asked)
    assert "--pfc 0,0,0,1,1,1,0,0" in Path("out/map/mlnx_qos.sh").read_text("utf-8"), "that of other traffic stays"


@pytest.mark.parametrize(
    ("link", "asked", "name"),
    [
        ("ib-ndr400", {"priority_map": None}, "NCCL_IB_SL"),
        ("ethernet-100g", {}, None),
        ("ethernet-100g", {"transport": "roce"}, "NCCL_IB_TC"),
    ],
)
def test_each_network_has_its_own_words(folder: Path, link: str, asked: dict[str, Any], name: str | None) -> None:
    _files(folder, link)
    found = _contention(emit=Path("out"), **asked)
    for job in found["jobs"]:
        assert (name in job["environment"]) if name else job["environment"] == {}
    assert Path("out/jobs/gpt/dscp.nft").is_file() == (name is None)
    ports = Path("out/jobs/gpt/udp_source_ports.json").is_file()
    assert ports == (name == "NCCL_IB_TC")


def _counters(shares: dict[str, dict[int, int]]) -> Path:
    rows = [f"{host},{priority},{sent}" for host, own in shares.items() for priority, sent in own.items()]
    path = Path("counters.csv")
    path.write_text("\n".join(["host,priority,bytes", *rows]) + "\n", encoding="utf-8")
    return path


@pytest.mark.usefixtures("folder")
def test_counters_are_held_against_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    found = _contention()
    dscps = {job["id"]: job["dscp"] for job in found["jobs"]}
    good = _counters({"gpu1": {dscps["gpt"] // 8: 1000}, "gpu2": {dscps["bert"] // 8: 1000}})
    assert _contention(verify=(good,))["verified"]["agrees"] is True
    arguments = ["contention", "jobs.yaml", "--cluster", "c.yaml", "--policy", "crux", "--levels", "2"]
    assert main([*arguments, "--priority-map", str(NIC), "--verify", str(_counters({"gpu1": {0: 1000}}))]) == 0
    said = capsys.readouterr().out
    assert "missing" in said
    assert "not planned" in said
    assert "do not arrive" in said


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"levels": 7}, "1 to 6"),
        ({"levels": 0}, "--levels"),
        ({"reserved": (0, 1, 2, 3, 4, 5, 6, 7)}, "at least one traffic class left"),
        ({"reserved": (1,), "priority_map": None}, "--priority-map"),
        ({"emit_map": True}, "--emit DIR"),
        ({"emit": Path("jobs.yaml")}, "another file"),
        ({"emit": Path("none/out")}, "an existing folder"),
        ({"emit": Path()}, "other files"),
        ({"emit": Path("out"), "addresses": Path("jobs.yaml")}, "an address, then names"),
        ({"verify": (Path("jobs.yaml"),)}, "no counter by priority"),
        ({"verify": (NIC, NIC, NIC)}, "one or two"),
        ({"priority_map": Path("c.yaml")}, "found neither"),
        ({"nccl": "new"}, "a release of NCCL"),
        ({"nccl": "2.21.5", "transport": "tcp"}, "--nccl"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(folder: Path, asked: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        _contention(output=Path("contention.json"), **asked)
    assert sorted(path.name for path in folder.iterdir()) == ["c.yaml", "jobs.yaml"]


def test_counters_of_infiniband_are_those_of_service_levels(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _files(folder, "ib-ndr400")
    dscp = {"priority_map": None}
    found = _contention(**dscp)
    level = {job["id"]: int(job["environment"]["NCCL_IB_SL"]) for job in found["jobs"]}
    for host, sent, agrees in (("gpu1", level["gpt"], True), ("gpu2", level["bert"], True), ("gpu2", 9, False)):
        lines = [f"# PortXmitDataSL counters: Lid 4 port 1\nXmtDataSL{sent}:.....{count}\n" for count in (5, 1005)]
        Path("perfquery.txt").write_text("".join(lines), encoding="utf-8")
        verified = _contention(**dscp, verify=(Path(f"{host}=perfquery.txt"),))["verified"]
        assert verified["agrees"] is agrees
        assert sum(row["counted_bytes"] for row in verified["priorities"]) == 4000
    with pytest.raises(InputError, match="no counter by service level"):
        _contention(**dscp, verify=(DATA / "ethtool_before.txt", DATA / "ethtool_after.txt"))
    options = ["--policy", "crux", "--levels", "2", "--verify", "gpu2=perfquery.txt"]
    assert main(["contention", "jobs.yaml", "--cluster", "c.yaml", *options]) == 0
    assert "Bytes by service level" in capsys.readouterr().out
    _files(folder, "efa400")
    with pytest.raises(InputError, match="nobody sets"):
        _contention(verify=(_counters({"gpu1": {1: 5}}),))


def test_lanes_of_a_subnet_are_the_levels_of_its_jobs(folder: Path) -> None:
    _files(folder, "ib-ndr400")
    found = _contention(priority_map=DATA / "opensm.conf", levels=3, emit=Path("out"), output=Path("contention.json"))
    assert [(level["priority"], level["dscp"]) for level in found["map"]["levels"]] == [(3, None), (1, None), (2, None)]
    told = {job["environment"]["NCCL_IB_SL"] for job in found["jobs"]}
    assert told <= {"3", "1", "2"}
    again = api.contention(Path("jobs.yaml"), cluster="c.yaml", network_plan=Path("contention.json"))
    assert [job["environment"] for job in again["jobs"]] == [job["environment"] for job in found["jobs"]]
    with pytest.raises(InputError, match="a map of DSCPs"):
        _contention(priority_map=NIC)
    with pytest.raises(InputError, match="1 to 4"):
        _contention(priority_map=DATA / "opensm.conf", levels=5)


@pytest.fixture
def plan(folder: Path) -> Path:
    path = folder / "plan.json"
    api.plan("gpt-tiny", cluster="c.yaml", devices=16, output=path)
    return path


def _exported(plan: Path, to: str, **asked: Any) -> tuple[str, list[str]]:
    found = api.export(plan, to=to, network=Path("contention.json"), **asked)
    return found["files"][0]["text"], found["notes"]


def test_what_a_manager_starts_has_the_level_of_its_job(plan: Path) -> None:
    found = _contention(output=Path("contention.json"))
    wanted = {job["id"]: job["environment"] for job in found["jobs"]}["bert"]
    slurm, notes = _exported(plan, "slurm", job="bert")
    assert all(f"export {name}={value}\n" in slurm for name, value in wanted.items())
    assert slurm.index("export NCCL_IB_TC") < slurm.index("srun ")
    assert any("that of the job bert in contention.json" in note for note in notes)
    assert any("other hosts than the job bert" in note for note in notes)
    kubernetes, _ = _exported(plan, "kubernetes", job="bert")
    (jobs,) = yaml.safe_load(kubernetes)["spec"]["replicatedJobs"]
    variables = jobs["template"]["spec"]["template"]["spec"]["containers"][0]["env"]
    assert wanted.items() <= {each["name"]: each["value"] for each in variables}.items()
    ray, _ = _exported(plan, "ray", job="bert")
    (table,) = [
        node.value
        for node in ast.parse(ray).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ENVIRONMENT"
    ]
    assert ast.literal_eval(table) == wanted
    assert "os.environ.update(ENVIRONMENT)" in ray
    assert "ENVIRONMENT" not in api.export(plan, to="ray")["files"][0]["text"]


def test_what_a_manager_starts_has_all_that_is_emitted_for_a_stock_nccl(plan: Path) -> None:
    _contention(output=Path("contention.json"), emit=Path("out"), queue_pairs=True)
    (row,) = [job for job in json.loads(Path("out/settings.json").read_text("utf-8"))["jobs"] if job["id"] == "bert"]
    wanted = {**row["environment"], **row["stock_nccl"]}
    assert set(wanted) >= {"NCCL_IB_TC", "NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_SPLIT_DATA_ON_QPS"}
    for file in ("environment.sh", "stock_nccl.sh"):
        text = Path(f"out/jobs/bert/{file}").read_text("utf-8")
        assert all(f"export {name}={value}\n" in text for name, value in wanted.items() if f" {name}=" in text)
    slurm, notes = _exported(plan, "slurm", job="bert")
    assert all(f"export {name}={value}\n" in slurm for name, value in wanted.items())
    assert any(note.startswith("By chance, not by choice") for note in notes)
    alone = _contention(output=Path("alone.json"), queue_pairs=True)
    assert alone["settings"] is None
    assert Path("alone.json").read_bytes() == Path("contention.json").read_bytes()
    _contention(output=Path("contention.json"))
    assert "QPS_PER_CONNECTION" not in _exported(plan, "slurm", job="bert")[0]


def test_a_slurm_script_with_an_environment_is_one(plan: Path) -> None:
    bash = which("bash")
    if bash is None:
        pytest.skip("no bash here")
    _contention(output=Path("contention.json"), queue_pairs=True)
    text, _ = _exported(plan, "slurm", job="bert")
    Path("job.sbatch").write_text(text, encoding="utf-8")
    assert subprocess.run([bash, "-n", "job.sbatch"], check=False, timeout=60).returncode == 0
    variables = [line for line in text.splitlines() if line.startswith("export NCCL_IB")]
    asked = "\n".join([*variables, "env"])
    told = subprocess.run([bash, "-c", asked], capture_output=True, text=True, check=True, timeout=60).stdout
    assert all(line.removeprefix("export ") in told.splitlines() for line in variables)


def test_a_declared_release_of_nccl_is_in_the_file_and_in_what_is_exported(plan: Path) -> None:
    found = _contention(output=Path("contention.json"), nccl="2.21.5")
    assert all("NCCL_IB_FIFO_TC" not in job["environment"] for job in found["jobs"])
    assert load_contention(Path("contention.json")).nccl == "2.21.5"
    slurm, notes = _exported(plan, "slurm", job="bert")
    assert "NCCL_IB_FIFO_TC" not in slurm
    assert any("2.21.5 has no NCCL_IB_FIFO_TC" in note for note in notes)
    again = api.contention(Path("jobs.yaml"), cluster="c.yaml", network_plan=Path("contention.json"))
    assert [job["environment"] for job in again["jobs"]] == [job["environment"] for job in found["jobs"]]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({}, True),
        ({"nccl": "2.26.2"}, True),
        ({"nccl": "2.25.1"}, False),
        ({"transport": "tcp"}, False),
    ],
)
@pytest.mark.usefixtures("folder")
def test_policies_are_told_of_axes_only_where_these_can_have_levels(
    asked: dict[str, Any], told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    views: list[Sequence[Seen]] = []
    plan = planning.plan_network

    def watched(now: Any, seen: Sequence[Seen], *rest: Any, **more: Any) -> NetworkPlan:
        views.append(seen)
        return plan(now, seen, *rest, **more)

    monkeypatch.setattr(deciding, "plan_network", watched)
    _contention(**asked)
    assert {bool(each.contender.axes) for each in views[0]} == {told}


TWO_SITES = """schema: cellplan.cluster/1
sites:
  - name: north
    nodes: [{count: 4, device: h100, names: "gpu[1-4]"}]
    fabric: {link: roce400, topology: {kind: clos2, leaves: 2, spines: 2, cables: 1}}
  - name: south
    nodes: [{count: 4, device: h100, names: "gpu[5-8]"}]
    fabric: {link: ib-ndr400, topology: {kind: clos2, leaves: 2, spines: 2, cables: 1}}
links_between_sites:
  - {between: [north, south], bandwidth_bytes_per_s: 1.25e9, latency_s: 5.0e-3}
"""


def test_jobs_on_a_site_of_another_network_are_told_nothing_and_it_is_said(folder: Path) -> None:
    (folder / "c.yaml").write_text(TWO_SITES, encoding="utf-8")
    more = JOBS + "".join(
        line.replace("gpt", "far")
        .replace("bert", "away")
        .replace("gpu[1,3]", "gpu[5,7]")
        .replace("gpu[2,4]", "gpu[6,8]")
        + "\n"
        for line in JOBS.splitlines()[2:]
    )
    (folder / "jobs.yaml").write_text(more, encoding="utf-8")
    found = _contention(emit=Path("out"), output=Path("contention.json"))
    told = {job["id"]: job["environment"] for job in found["jobs"]}
    assert "NCCL_IB_TC" in told["gpt"]
    assert told["far"] == told["away"] == {}
    assert any("the network of site south is InfiniBand" in note for note in found["notes"])
    assert not Path("out/jobs/far").exists()
    assert "its hosts' network is InfiniBand" in Path("out/README.md").read_text("utf-8")
    rows = {job.id: job.transport for job in load_contention(Path("contention.json")).jobs}
    assert rows == {"gpt": None, "bert": None, "far": "infiniband", "away": "infiniband"}
    assert {job["id"] for job in found["jobs"] if job["dscp"] is not None} == {"gpt", "bert"}
    there = _counters({"gpu5": {0: 1000}})
    assert _contention(verify=(there,))["verified"]["agrees"] is True, "nobody tells them a level"


@pytest.mark.parametrize(
    ("to", "asked", "said"),
    [
        ("slurm", {"job": "moe"}, "gpt, bert"),
        ("slurm", {}, "which of its jobs"),
        ("megatron", {"job": "gpt"}, "slurm, kubernetes, ray"),
    ],
)
def test_a_job_that_the_file_has_not_is_refused(plan: Path, to: str, asked: dict[str, Any], said: str) -> None:
    _contention(output=Path("contention.json"))
    with pytest.raises(InputError, match=said):
        _exported(plan, to, **asked)


def test_files_that_are_none_are_refused(plan: Path) -> None:
    _contention(output=Path("contention.json"))
    text = Path("contention.json").read_text(encoding="utf-8")
    Path("contention.json").write_text(text[: len(text) // 2], encoding="utf-8")
    with pytest.raises(InputError, match="no JSON"):
        _exported(plan, "slurm", job="gpt")
    without = {key: value for key, value in json.loads(text).items() if key != "map"}
    Path("contention.json").write_text(json.dumps(without), encoding="utf-8")
    with pytest.raises(InputError, match="map: found nothing"):
        _exported(plan, "slurm", job="gpt")
    wide = CLUSTER.replace("LINK", "roce400").replace("cables: 1", "cables: 2")
    Path("c.yaml").write_text(wide, encoding="utf-8")
    Path("contention.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="cluster"):
        _exported(plan, "slurm", job="gpt")
    with pytest.raises(InputError, match="--network FILE"):
        api.export(plan, to="slurm", job="gpt")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"nccl": "new"}, r"contention\.json: nccl: found 'new'"),
        (
            {"queue_pairs": [{"queue_pairs": 2, "split_data": False, "work_share": 0.5, "range": [0, 1]}]},
            "queue_pairs: ",
        ),
        ({"queue_pairs": [{"queue_pairs": 0}]}, r"queue_pairs\[0\]"),
    ],
)
def test_a_file_that_was_changed_by_hand_is_read_with_care(plan: Path, changed: dict[str, Any], said: str) -> None:
    _contention(output=Path("contention.json"))
    file = json.loads(Path("contention.json").read_text(encoding="utf-8"))
    Path("contention.json").write_text(json.dumps({**file, **changed}), encoding="utf-8")
    with pytest.raises(InputError, match=said):
        _exported(plan, "slurm", job="gpt")


@pytest.mark.usefixtures("folder")
def test_a_file_says_the_fabrics_levels() -> None:
    _contention(output=Path("contention.json"))
    file = load_contention(Path("contention.json"))
    assert file.map is not None
    assert [(level.dscp, level.pfc) for level in file.map.levels] == [(40, True), (32, True)]


def test_one_dscp_of_two_levels_is_refused(plan: Path) -> None:
    _contention(output=Path("contention.json"))
    file = json.loads(Path("contention.json").read_text(encoding="utf-8"))
    file["map"]["levels"][1]["dscp"] = file["map"]["levels"][0]["dscp"]
    Path("contention.json").write_text(json.dumps(file), encoding="utf-8")
    with pytest.raises(InputError, match="DSCP 40 of two levels"):
        _exported(plan, "slurm", job="gpt")
    with pytest.raises(InputError, match="DSCP 40 of two levels"):
        api.contention(Path("jobs.yaml"), cluster="c.yaml", network_plan=Path("contention.json"))


def _with_axes(levels: dict[str, int]) -> None:
    """Make the first job of contention.json one of levels by axis."""
    _contention(output=Path("contention.json"))
    file = json.loads(Path("contention.json").read_text(encoding="utf-8"))
    file["jobs"][0]["axis_levels"] = levels
    Path("contention.json").write_text(json.dumps(file), encoding="utf-8")


@pytest.mark.usefixtures("folder")
def test_levels_by_axis_come_out_as_a_module_and_hold_for_counters() -> None:
    _with_axes({"dp": 1})
    given = {"network_plan": Path("contention.json"), "policy": "ours", "levels": None, "priority_map": None}
    found = _contention(**given, emit=Path("out"), verify=(_counters({"gpu1": {4: 1000}}),))
    assert found["jobs"][0]["environment"] == {"NCCL_IB_SL": "0", "NCCL_IB_FIFO_TC": "160"}
    assert '"dp": 128' in Path("out/jobs/gpt/axis_levels.py").read_text(encoding="utf-8")
    assert found["verified"]["agrees"] is True


def test_tcp_has_one_level_for_all_axes(folder: Path) -> None:
    _files(folder, "ethernet-100g")
    _with_axes({"dp": 1})
    level = json.loads(Path("contention.json").read_text(encoding="utf-8"))["jobs"][0]["level"]
    given = {"network_plan": Path("contention.json"), "policy": "ours", "levels": None, "priority_map": None}
    found = _contention(**given, verify=(_counters({"gpu1": {5 - level: 1000}}),))
    assert found["verified"]["agrees"] is True


@pytest.mark.usefixtures("folder")
def test_queue_pairs_of_very_many_connections_are_not_played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.contention.settings.MOST_CONNECTIONS", 3)
    found = _contention(emit=Path("out"), queue_pairs=True)
    assert found["settings"]["queue_pairs"] == []
    assert "at most 3" in found["settings"]["notes"][0]
