"""Plans whose nodes have names: every rank on its own host in Slurm, in the parts of the tree in Kubernetes, in host
files; and what a manager cannot promise with its cost."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from planner.cli.main import main
from planner.one_job.launchers.hosts import export_hosts
from planner.one_job.launchers.named_hosts import cost_of_order
from planner.one_job.launchers.node_layout import lay_out
from planner.one_job.launchers.slurm import export_slurm
from planner.one_job.tools.base.export_records import CannotExpress, ExportContext, OrderCosts
from planner.shared.plan import Plan
from tests.documents import document_of
from tests.planner.one_job.launchers.test_export_managers import (
    BASH,
    DATA,
    HOMOGENEOUS,
    MIXED,
    MIXED_SCATTERED,
    ONE_NODE,
    SCATTERED,
    _plan,
    _run_slurm,
    _text,
)

LONG = _plan("h100:6x2", tp=2, pp=2, dp=3)
PLANS = {
    "homogeneous": HOMOGENEOUS,
    "one-node": ONE_NODE,
    "mixed": MIXED,
    "scattered": SCATTERED,
    "mixed-scattered": MIXED_SCATTERED,
    "six": LONG,
}


def _named(plan: Plan) -> Plan:
    """The plan with names of its nodes as `_run_slurm` calls those of each component, the last one's first."""
    layout = lay_out(plan, "test")
    names, first = {}, 0
    for part, nodes in enumerate(layout.parts):
        for number, node in enumerate(nodes):
            names[node.node] = f"part{part}-node{len(nodes) - 1 - number}"
        first += len(nodes)
    return replace(plan, devices=tuple(replace(device, host=names[device.node]) for device in plan.devices))


@pytest.fixture(params=PLANS.values(), ids=list(PLANS))
def plan(request: pytest.FixtureRequest) -> Plan:
    return _named(request.param)


def test_slurm_starts_every_rank_on_its_own_host(plan: Plan, tmp_path: Path) -> None:
    layout = lay_out(plan, "test")
    said = _run_slurm(plan, tmp_path, "--lr", "1e-4")
    hosts = {device.rank: device.host for device in plan.devices}
    if layout.node_major:
        started = {}
        for line in said:
            number = re.search(r"--node-rank=(\d+)", line[2])
            assert number
            started[line[1]] = int(number[1])
        assert started == {hosts[node.ranks[0]]: number for number, node in enumerate(layout.nodes)}
    else:
        assert {int(line[0]): line[5] for line in said} == hosts
        assert {int(line[0]): int(line[1]) for line in said} == {
            rank: local for rank, (_, local) in enumerate(layout.places)
        }


def test_slurm_asks_for_exactly_these_hosts(plan: Plan) -> None:
    export = export_slurm(plan, ExportContext())
    text = _text(export)
    done = subprocess.run([BASH, "-n"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    known = json.loads((DATA / "slurm_options.json").read_text(encoding="utf-8"))
    said = re.findall(r"^#SBATCH (\S+?)(?:=\S+)?$", text, re.MULTILINE)
    assert set(said) <= {*known["sbatch"], *known["not_an_option"]}
    srun = text[text.index("\nsrun ") :]
    assert set(re.findall(r" (--[a-z-]+)", srun)) <= set(known["srun"])
    assert text.count("#SBATCH --nodelist=") == len(lay_out(plan, "test").parts)
    assert "scontrol create reservation" in text
    assert any("was not priced" in note for note in export.notes)


def test_the_host_list_is_in_slurms_form() -> None:
    names = {node: f"gpu{number:03}" for node, number in enumerate((9, 10, 11, 3, 4, 7))}
    plan = replace(LONG, devices=tuple(replace(device, host=names[device.node]) for device in LONG.devices))
    text = _text(export_slurm(plan, ExportContext()))
    assert "#SBATCH --nodelist=gpu[003-004,007,009-011]\n" in text
    assert "hosts=(\n  gpu009 gpu010 gpu011 gpu003 gpu004 gpu007\n)" in text


def test_host_files_are_in_the_order_of_the_ranks(plan: Plan) -> None:
    layout = lay_out(plan, "test")
    export = export_hosts(plan, ExportContext(script="x.py"))
    hosts, slots, ranks = (file.text.splitlines() for file in export.files[:3])
    by_rank = {device.rank: device.host for device in plan.devices}
    assert hosts == [by_rank[node.ranks[0]] for node in layout.nodes]
    assert slots == [f"{host} slots={len(node.ranks)}" for host, node in zip(hosts, layout.nodes, strict=True)]
    for rank, line in enumerate(ranks):
        assert line == f"rank {rank}={by_rank[rank]} slot={layout.places[rank][1]}"
    assert "Megatron" in export.notes[0]
    assert any(note.startswith("torchrun") for note in export.notes) == layout.node_major


def test_gpus_of_partly_used_nodes_are_set_on_every_host() -> None:
    devices = tuple(
        replace(device, index=(2, 5, 6, 7)[place % 4], node=place // 4, host=f"gpu{place // 4}")
        for place, device in enumerate(HOMOGENEOUS.devices)
    )
    export = export_hosts(replace(HOMOGENEOUS, devices=devices), ExportContext(script="x.py"))
    (setting,) = (file.text for file in export.files if file.name.endswith(".gpus.sh"))
    for node in range(len(devices) // 4):
        assert f"  gpu{node}) export CUDA_VISIBLE_DEVICES=2,5,6,7 NODE_RANK={node} RANKS_HERE=4 ;;" in setting
    assert any("--include=" in note and "gpu0:2,5,6,7" in note for note in export.notes)


def test_nodes_without_names_have_no_host_file() -> None:
    with pytest.raises(CannotExpress, match=r"devices\[\].host"):
        export_hosts(HOMOGENEOUS, ExportContext())


def test_costs_are_said_in_words() -> None:
    orders = OrderCosts(time_s=5.0, by_name_s=5.5, in_parts_s=5.0001)
    assert "5.5 s in place of 5 s, 10.0% more" in cost_of_order(orders, "by_name_s")
    assert "nothing" in cost_of_order(orders, "in_parts_s")
    assert "not priced" in cost_of_order(None, "by_name_s")


@pytest.fixture
def placed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A plan file of four of eight named nodes in pods of 2, 3 and 3 whose uplinks are thin."""
    cluster, tree, free = tmp_path / "c.yaml", tmp_path / "topology.conf", tmp_path / "sinfo.txt"
    cluster.write_text(
        "schema: cellplan.cluster/1\nsites:\n  - name: north\n    nodes:\n"
        '      - {count: 8, device: a100-80gb, devices: 2, names: "gpu[01-08]"}\n'
        "    fabric: {link: ib-hdr200, levels: [{name: leaf, oversubscription: 8}]}\n",
        encoding="utf-8",
    )
    tree.write_text(
        "SwitchName=s1 Nodes=gpu[01,05]\nSwitchName=s2 Nodes=gpu[02,04,06]\nSwitchName=s3 Nodes=gpu[03,07-08]\n"
        "SwitchName=top Switches=s[1-3]\n",
        encoding="utf-8",
    )
    free.write_text(
        "NODELIST GRES STATE\n" + "".join(f"gpu{node:02} gpu:a100:2 idle\n" for node in (1, 2, 3, 5, 6)),
        encoding="utf-8",
    )
    path = tmp_path / "plan.json"
    words = f"gpt2-1.3b --cluster {cluster} --topology {tree} --free {free} --devices 8 --tp 2 --pp 2 --global-batch 16"
    assert main(["place", *words.split(), "--alternatives", "0", "-o", str(path)]) == 0
    capsys.readouterr()
    return path


def test_a_placed_plan_goes_into_the_manager(placed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = json.loads(placed.read_text(encoding="utf-8"))
    by_node = list(dict.fromkeys(device["host"] for device in plan["devices"]))
    slurm = document_of(["export", str(placed), "--to", "slurm"], 0, capsys)
    assert f"  {' '.join(by_node)}\n" in slurm["files"][0]["text"]
    (said,) = [note for note in slurm["notes"] if "by the names of the hosts" in note]
    assert "an iteration then takes" in said or "nothing" in said
    pods = {"gpu01": "s1", "gpu05": "s1", "gpu02": "s2", "gpu06": "s2", "gpu03": "s3"}
    kubernetes = document_of(["export", str(placed), "--to", "kubernetes"], 0, capsys)
    jobs = yaml.safe_load(kubernetes["files"][0]["text"])["spec"]["replicatedJobs"]
    ranked = []
    for job in jobs:
        spec = job["template"]["spec"]
        selector = spec["template"]["spec"]["nodeSelector"]
        ranked += [selector["cellplan.io/topology-leaf"]] * spec["parallelism"]
    assert ranked == [pods[host] for host in by_node]
    assert all(one["template"] is not None for one in jobs)
    assert any("is ours: `cellplan hardware topology" in note for note in kubernetes["notes"])
    assert any("Kueue's topology request alone" in note for note in kubernetes["notes"])
    hosts = document_of(["export", str(placed), "--to", "hosts"], 0, capsys)
    assert hosts["files"][0]["text"].split() == by_node


def test_a_tree_that_is_elsewhere_leaves_the_order(placed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (placed.parent / "topology.conf").unlink()
    kubernetes = document_of(["export", str(placed), "--to", "kubernetes"], 0, capsys)
    assert "cellplan.io" not in kubernetes["files"][0]["text"]
    slurm = document_of(["export", str(placed), "--to", "slurm"], 0, capsys)
    assert any("was not priced" in note for note in slurm["notes"])
