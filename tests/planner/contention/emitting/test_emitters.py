"""What jobs, hosts and switches are told, read by the tools that it is for where they are here."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from planner.contention import emitting
from planner.contention.emitting.addresses import read_addresses
from planner.contention.emitting.axis_levels import axis_levels_snippet
from planner.contention.emitting.environment import environment_of
from planner.contention.emitting.fabric_levels import levels_of_fabric
from planner.contention.emitting.folder import Settings, check_emitted, settings_files, write_folder
from planner.contention.emitting.levels import MapLevel
from planner.contention.emitting.nftables import nftables_file, table_name
from planner.contention.emitting.planned import PlannedConnection, PlannedEnd, PlannedJob, find_job, planned_jobs
from planner.contention.emitting.priority_map import PriorityMap, default_map, for_levels, read_priority_map
from planner.contention.emitting.queue_pairs import PricedPair
from planner.contention.emitting.source_ports import source_ports_json
from planner.contention.emitting.transports import service_levels, transport_of
from profiles.cluster_file import load_cluster
from profiles.errors import InputError, MachineError
from profiles.records import replace
from tests.imports import names_imported

DATA = Path(__file__).parents[3] / "data" / "contention"
NIC = read_priority_map(DATA / "mlnx_qos.txt")
NFT = shutil.which("nft", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def _connection(**changed: Any) -> PlannedConnection:
    own: dict[str, Any] = {
        "axis": "dp",
        "source": PlannedEnd(host="gpu1", nic=0),
        "destination": PlannedEnd(host="gpu2", nic=0),
        "queue_pair": 0,
        "way": ("gpu1 -> leaf0", "leaf0 -> spine1", "spine1 -> leaf1", "leaf1 -> gpu2"),
        "ports": (49152, 49160),
        "hashed": False,
    }
    return PlannedConnection(**{**own, **changed})


GPT = PlannedJob(id="gpt", hosts=("gpu1", "gpu2"), level=0, connections=(_connection(),))
BERT = PlannedJob(id="bert", hosts=("gpu3", "gpu4"), level=2)
MOE = PlannedJob(id="moe", hosts=("gpu5", "gpu6"), axis_levels=(("dp", 2), ("ep", 0)))
LONE = PlannedJob(id="lone", hosts=("gpu7",))


def test_a_level_on_roce_is_four_times_its_dscp_and_short_messages_go_first() -> None:
    assert environment_of(BERT, NIC).by_name == {
        "NCCL_IB_TC": "96",
        "NCCL_IB_FIFO_TC": "160",
        "UCX_IB_TRAFFIC_CLASS": "96",
    }
    assert "2.22.3" in environment_of(BERT, NIC).notes[0]


def test_a_level_on_infiniband_is_a_service_level_alone() -> None:
    four = service_levels(4)
    assert environment_of(GPT, four, "infiniband").by_name == {"NCCL_IB_SL": "3", "UCX_IB_SL": "3"}
    assert environment_of(BERT, four, "infiniband").by_name == {"NCCL_IB_SL": "1", "UCX_IB_SL": "1"}
    assert "no source ports" in four.warnings[0]
    with pytest.raises(InputError, match="virtual lanes"):
        service_levels(9)


def test_levels_by_axis_never_stand_beside_nccl_ib_tc() -> None:
    environment = environment_of(MOE, NIC)
    assert environment.by_name == {"NCCL_IB_SL": "0", "NCCL_IB_FIFO_TC": "160"}
    assert any("NCCL_IB_TC is left out" in note for note in environment.notes)
    assert environment_of(MOE, service_levels(3), "infiniband").by_name == {}


def test_who_shares_no_link_and_who_sends_otherwise_is_told_nothing() -> None:
    assert environment_of(LONE, NIC).variables == ()
    assert "needs no level" in environment_of(LONE, NIC).notes[0]
    assert environment_of(GPT, NIC, "tcp").variables == ()
    assert environment_of(GPT, NIC, "other").variables == ()


def test_a_level_that_the_map_has_not_is_refused() -> None:
    with pytest.raises(InputError, match=r"job bert: level: found 2, expected 0 to 1"):
        environment_of(BERT, for_levels(NIC, 2))


def _options_of(text: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The function of the snippet, with a stand-in for PyTorch, whose build here may lack NCCL."""
    torch, distributed = ModuleType("torch"), ModuleType("torch.distributed")
    group = SimpleNamespace(Options=lambda: SimpleNamespace(config=SimpleNamespace(traffic_class=None)))
    vars(distributed)["ProcessGroupNCCL"], vars(torch)["distributed"] = group, distributed
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    names: dict[str, Any] = {}
    exec(compile(text, "axis_levels.py", "exec"), names)
    return names["options"]


def test_levels_by_axis_are_options_of_process_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_IB_TC", raising=False)
    text = axis_levels_snippet(MOE, NIC, "roce")
    assert text is not None
    options = _options_of(text, monkeypatch)
    assert (options("ep").config.traffic_class, options("dp").config.traffic_class) == (160, 96)
    with pytest.raises(KeyError):
        options("tp")
    monkeypatch.setenv("NCCL_IB_TC", "96")
    with pytest.raises(RuntimeError, match="NCCL_IB_TC"):
        options("ep")
    monkeypatch.delenv("NCCL_IB_TC")
    own = _options_of(axis_levels_snippet(replace(MOE, level=1), NIC, "roce") or "", monkeypatch)
    assert [own(axis).config.traffic_class for axis in ("ep", "dp", "tp")] == [160, 96, 128]
    lanes = axis_levels_snippet(MOE, service_levels(3), "infiniband")
    assert lanes is not None
    assert '"dp": 0, "ep": 2' in lanes


def test_there_is_no_snippet_without_levels_by_axis_and_no_code_in_an_axis() -> None:
    assert axis_levels_snippet(GPT, NIC, "roce") is None
    assert axis_levels_snippet(MOE, NIC, "tcp") is None
    with pytest.raises(InputError, match="an axis, such as dp"):
        axis_levels_snippet(PlannedJob(id="x", hosts=(), axis_levels=(('"""\nimport os', 0),)), NIC, "roce")


def test_ports_stand_by_connection_and_say_whether_they_are_known() -> None:
    guessed = _connection(queue_pair=1, ports=(5,), hashed=True)
    none = _connection(queue_pair=2, ports=(), hashed=True)
    job = PlannedJob(id="gpt", hosts=("gpu1", "gpu2"), level=0, connections=(_connection(), guessed, none))
    document = json.loads(source_ports_json(job) or "")
    assert document["call"] == "mlx5dv_modify_qp_udp_sport"
    rows = document["connections"]
    assert [(row["port"], row["also"], row["known"]) for row in rows] == [
        (49152, [49160], True),
        (5, [], False),
        (None, [], False),
    ]
    assert rows[0]["from"] == {"host": "gpu1", "nic": 0}
    assert source_ports_json(PlannedJob(id="gpt", hosts=(), connections=(none,))) is None


def _parses(text: str, tmp_path: Path) -> None:
    """Have nft check a file, in a network of its own where that may be."""
    if NFT is None:
        pytest.skip("nft is not installed")
    path = tmp_path / "dscp.nft"
    path.write_text(text, encoding="utf-8")
    alone = ["unshare", "-rn", NFT, "-c", "-f", str(path)]
    done = subprocess.run(alone, capture_output=True, text=True, check=False, timeout=60)
    if "Operation not permitted" in done.stderr or "unshare" in done.stderr:
        pytest.skip("nft cannot reach the kernel from here")
    assert (done.returncode, done.stderr) == (0, "")


ADDRESSES = {"gpu1": ("10.0.0.1", "fd00::1"), "gpu2": ("10.0.0.2",), "gpu3": ("10.0.0.3",)}


def test_tcp_to_the_jobs_peers_is_marked(tmp_path: Path) -> None:
    made = nftables_file(GPT, [GPT, BERT], NIC, ADDRESSES, file="dscp.nft")
    assert made.notes == ()
    text = made.text or ""
    assert "elements = { 10.0.0.1, 10.0.0.2 }" in text
    assert "elements = { fd00::1 }" in text
    assert "meta l4proto tcp ip daddr @peers4 ip dscp set 40" in text
    _parses(text, tmp_path)


def test_tcp_of_hosts_without_addresses_is_marked_whole_and_that_is_said(tmp_path: Path) -> None:
    made = nftables_file(BERT, [GPT, BERT], NIC, ADDRESSES, file="dscp.nft")
    assert "no address is known of gpu4" in made.notes[0]
    assert 'oifname != "lo" meta nfproto ipv4 ip dscp set 24' in (made.text or "")
    _parses(made.text or "", tmp_path)


def test_jobs_of_two_levels_on_one_host_are_not_told_apart_by_addresses() -> None:
    beside = PlannedJob(id="beside", hosts=("gpu2",), level=1)
    made = nftables_file(GPT, [GPT, beside], NIC, ADDRESSES, file="dscp.nft")
    assert made.text is None
    assert "shares hosts with beside" in made.notes[0]
    alike = PlannedJob(id="alike", hosts=("gpu2",), level=0)
    assert nftables_file(GPT, [GPT, alike], NIC, ADDRESSES, file="dscp.nft").text is not None


def test_tcp_has_the_least_urgent_level_of_axes_and_none_of_a_job_without() -> None:
    made = nftables_file(MOE, [MOE], NIC, {}, file="dscp.nft")
    assert "ip dscp set 24" in (made.text or "")
    assert "its axes are not told apart" in made.notes[0]
    assert nftables_file(LONE, [LONE], NIC, {}, file="dscp.nft").text is None
    assert table_name(PlannedJob(id='x"; flush ruleset #', hosts=())) == "cellplan_x___flush_ruleset__"


def test_addresses_are_the_cluster_files_and_those_of_a_hosts_file(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# training\n10.0.0.1 gpu1 gpu1.ib # first\n\nfd00::1 gpu1\n", encoding="utf-8")
    assert read_addresses(path, [("10.1.0.2", "gpu2")]) == {
        "gpu2": ("10.1.0.2",),
        "gpu1": ("10.0.0.1", "fd00::1"),
        "gpu1.ib": ("10.0.0.1",),
    }
    for text, said in (("gpu1 10.0.0.1\n", "an address, then names"), ("10.0.0.1\n", "names behind")):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=said):
            read_addresses(path)


def _settings(**changed: Any) -> Settings:
    own: dict[str, Any] = {"jobs": (GPT, BERT, MOE, LONE), "map": NIC, "transport": "roce", "addresses": {}}
    return Settings(**{**own, **changed})


PAIRS = (
    PricedPair(queue_pairs=4, split_data=True, work_share=0.9, range=(0.85, 0.95)),
    PricedPair(queue_pairs=1, split_data=False, work_share=0.8, range=(0.7, 0.9)),
)


def test_a_folder_has_a_part_for_each_job_and_says_what_is_what() -> None:
    files = settings_files(_settings(pairs=PAIRS, with_map=True))
    assert set(files) == {
        "README.md",
        "settings.json",
        "jobs/gpt/environment.sh",
        "jobs/gpt/udp_source_ports.json",
        "jobs/gpt/stock_nccl.sh",
        "jobs/bert/environment.sh",
        "jobs/moe/environment.sh",
        "jobs/moe/axis_levels.py",
        "map/mlnx_qos.sh",
        "map/sonic_qos.json",
    }
    assert "export NCCL_IB_TC=160" in files["jobs/gpt/environment.sh"]
    assert "By chance" in files["jobs/gpt/stock_nccl.sh"]
    assert "NCCL_IB_QPS_PER_CONNECTION=4\nexport NCCL_IB_SPLIT_DATA_ON_QPS=1" in files["jobs/gpt/stock_nccl.sh"]
    index = json.loads(files["settings.json"])
    assert [job["dscp"] for job in index["jobs"]] == [40, 24, None, None]
    assert index["queue_pairs"][0]["certain"] is False
    assert "| moe | 2 | dp 2, ep 0 | `jobs/moe` |" in files["README.md"]
    assert "| lone | 1 | none | nothing to set |" in files["README.md"]
    assert "has no PFC" in files["README.md"]
    assert settings_files(_settings(pairs=PAIRS, with_map=True)) == files


def test_infiniband_and_tcp_have_files_of_their_own() -> None:
    lanes = settings_files(_settings(map=service_levels(3), transport="infiniband", with_map=True, pairs=PAIRS))
    assert set(lanes) == {
        "README.md",
        "settings.json",
        "jobs/gpt/environment.sh",
        "jobs/bert/environment.sh",
        "jobs/moe/axis_levels.py",
        "map/opensm.conf",
    }
    assert "no source ports" in lanes["README.md"]
    tcp = settings_files(_settings(transport="tcp"))
    assert {name for name in tcp if name.startswith("jobs/")} == {
        f"jobs/{job}/dscp.nft" for job in ("gpt", "bert", "moe")
    }


def test_a_folder_is_written_whole_and_only_over_its_like(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    write_folder(folder, {"settings.json": "{}\n", "jobs/a/environment.sh": "a\n"})
    write_folder(folder, {"settings.json": "{}\n", "README.md": "b\n"})
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "settings.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (folder / "settings.json").unlink()
    for wrong in (folder, folder / "README.md", tmp_path / "none" / "out"):
        with pytest.raises(InputError, match="--emit"):
            check_emitted(wrong)
    assert (folder / "README.md").read_text(encoding="utf-8") == "b\n"


def test_a_folder_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="could not be written"):
        write_folder(tmp_path / "out", {"settings.json": "{}\n", "jobs": "a\n", "jobs/b": "c\n"})
    assert list(tmp_path.iterdir()) == []


def test_a_job_is_found_by_its_id_or_its_hosts() -> None:
    jobs = [GPT, BERT]
    assert find_job(jobs, "bert", where="contention.json") is BERT
    assert find_job(jobs, None, where="contention.json", hosts=("gpu2", "gpu1")) is GPT
    assert find_job([BERT], None, where="contention.json") is BERT
    for name in ("moe", None):
        with pytest.raises(InputError, match="gpt, bert"):
            find_job(jobs, name, where="contention.json")


def test_jobs_are_read_from_a_plans_json() -> None:
    row = {
        "id": "gpt",
        "hosts": ["gpu1", "gpu2"],
        "level": None,
        "axis_levels": {"pp": 0, "dp": 1},
        "paths": [
            {
                "axis": "dp",
                "from": {"host": "gpu1", "nic": 0},
                "to": {"host": "gpu2", "nic": 3},
                "queue_pair": 1,
                "way": ["a", "b"],
                "ports": [7],
                "hashed": True,
            }
        ],
    }
    (job,) = planned_jobs([row])
    assert job.axis_levels == (("dp", 1), ("pp", 0))
    assert job.levels == (0, 1)
    assert job.last_level == 1
    assert job.connections[0].destination == PlannedEnd(host="gpu2", nic=3)


CLUSTER = """schema: cellplan.cluster/1
sites:
  - name: north
    nodes: [{count: 2, device: h100}]
    fabric: {link: LINK}
"""


@pytest.mark.parametrize(
    ("link", "transport"),
    [
        ("ib-ndr400", "infiniband"),
        ("roce400", "roce"),
        ("ethernet-100g", "tcp"),
        ("tcpx200", "tcp"),
        ("efa400", "other"),
        ("slingshot200", "other"),
        ("omni-path100", "other"),
        ("gaudi3-roce", "other"),
    ],
)
def test_a_networks_links_say_how_bytes_cross_it(tmp_path: Path, link: str, transport: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(CLUSTER.replace("LINK", link), encoding="utf-8")
    assert transport_of(load_cluster(str(path))) == transport


def test_levels_are_those_of_the_map_that_is_named() -> None:
    nic = DATA / "mlnx_qos.txt"
    assert len(levels_of_fabric(None, "roce", levels=None).levels) == 8
    assert levels_of_fabric(None, "infiniband", levels=4) == service_levels(4)
    assert len(levels_of_fabric(nic, "roce", levels=None).levels) == 6
    assert levels_of_fabric(nic, "roce", levels=2, reserved=(5,)).levels == (
        MapLevel(dscp=32, traffic_class=4, priority=4, pfc=True, service="strict"),
        MapLevel(dscp=24, traffic_class=3, priority=3, pfc=True, service="strict"),
    )
    for path, transport, levels, reserved, said in (
        (nic, "infiniband", None, None, "service levels alone"),
        (None, "roce", None, (1,), "--priority-map"),
        (nic, "roce", 7, None, "1 to 6"),
        (None, "roce", 9, None, "1 to 8"),
    ):
        with pytest.raises(InputError, match=said):
            levels_of_fabric(path, transport, levels=levels, reserved=reserved)  # type: ignore[arg-type]


def test_an_assumed_map_is_one() -> None:
    files = settings_files(_settings(map=default_map(3)))
    assert "no map of the fabric was named" in files["README.md"]
    assert isinstance(default_map(3), PriorityMap)


HOSTILE = ["../../etc/passwd", "$(touch x)`id`", "a'b\"c;\\", "# {comment} | * }", "-rf", "\u0663evil", "a" * 300]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_jobs_are_data_in_every_file(name: str, tmp_path: Path) -> None:
    job = PlannedJob(id=name, hosts=("gpu1", "gpu2"), level=0, axis_levels=(("dp", 1),), connections=(_connection(),))
    files = settings_files(_settings(jobs=(job, replace(job, axis_levels=())), pairs=PAIRS, with_map=True))
    files |= settings_files(_settings(jobs=(job,), transport="tcp"))
    write_folder(tmp_path / "out", files)
    assert {path.name for path in tmp_path.iterdir()} == {"out"}
    for path in (tmp_path / "out").rglob("*.py"):
        assert ast.literal_eval(path.read_text(encoding="utf-8").split("JOB = ")[1].split("\n")[0]) == name
        compile(path.read_text(encoding="utf-8"), str(path), "exec")
    for path in (tmp_path / "out").rglob("*.sh"):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert not any(name in line for line in lines if not line.startswith("#"))
    (rules,) = (tmp_path / "out").rglob("*.nft")
    _parses(rules.read_text(encoding="utf-8"), tmp_path)


def test_nothing_is_run_on_any_host() -> None:
    package = Path(emitting.__file__).parent
    sources = [*package.glob("*.py"), package.parent / "settings.py", package.parent / "plan_environment.py"]
    assert len(sources) > 15
    imported = {name.split(".")[0] for path in sources for name in names_imported(path)}
    assert not imported & {
        "subprocess",
        "socket",
        "os",
        "ctypes",
        "pty",
        "multiprocessing",
        "asyncio",
        "urllib",
        "http",
    }
