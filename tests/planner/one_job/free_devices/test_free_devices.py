"""What is free now, from what Slurm and Kubernetes print.

The samples in `tests/data/free_devices` are made up, in the form in which Slurm 22.05.8 printed the nodes of a small
cluster of ours (`sinfo -o`, `-O`, `--json`, `scontrol show node` with and without `-d`), Slurm 23.11's data_parser
writes them, and kubectl does.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from estimator.pricing.build import uniform_setup
from estimator.pricing.recipe import Recipe, Setup
from models_zoo.catalogue import load_model
from planner.one_job.free_devices.nodes import device_type
from planner.one_job.free_devices.reading import cluster_with_free, read_free_nodes
from planner.one_job.free_devices.slurm import parse_gres
from profiles.cluster import Cluster
from profiles.cluster_description import describe_cluster
from profiles.cluster_file import load_cluster
from profiles.errors import InputError, NothingFits
from profiles.hardware import device_names
from profiles.host_lists import expand_hosts
from profiles.network import equal_pods
from tests.seeds import examples

DATA = Path(__file__).parents[3] / "data" / "free_devices"
SAMPLES = sorted(path.name for path in DATA.iterdir())


def _free(name: str, cluster: str | None = None, **more: Any) -> Cluster:
    return cluster_with_free(load_cluster(cluster) if cluster else None, DATA / name, **more)


def _groups(cluster: Cluster) -> list[tuple[str, int, int, int | None]]:
    return [
        (group.device.name, group.count, group.devices, group.free) for site in cluster.sites for group in site.nodes
    ]


def _by_node(cluster: Cluster) -> list[int]:
    """Free devices of each node, by number."""
    free = Counter((slot.site, slot.node) for slot in cluster.free_slots)
    return [free[node] for node in dict.fromkeys((slot.site, slot.node) for slot in cluster.slots)]


def _write(folder: Path, text: str, name: str = "now.txt") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


# Slurm


def test_one_gpu_is_free_of_three_nodes_of_six() -> None:
    cluster = _free("sinfo_used.txt")
    assert cluster.text == "h100:3x6"
    assert _groups(cluster) == [("h100", 1, 6, 1), ("h100", 2, 6, 0)]
    (slot,) = cluster.free_slots
    assert (slot.node, slot.index, slot.device) == (0, 0, "h100")
    notes = "\n".join(cluster.notes)
    assert "not free: gpu-a01 (allocated), gpu-a03 (drained)" in notes
    assert "nodes without GPUs, which are left out: 1" in notes
    assert "devices free: 1, on nodes (by number, with how many) 0 gpu-a02 (1)" in notes
    assert "nodes are the catalogue's reference node of h100, changed from its 8 devices to 6" in notes


@pytest.mark.parametrize(
    "name",
    ["scontrol.txt", "scontrol_detail.txt", "scontrol_23_11.json", "sinfo_22_05.json"],
)
def test_all_forms_of_the_same_three_nodes_say_the_same(name: str) -> None:
    cluster = _free(name)
    assert (cluster.text, _groups(cluster)) == (
        "h100:3x8",
        [("h100", 1, 8, None), ("h100", 1, 8, 5), ("h100", 1, 8, 0)],
    )
    assert any(note.endswith("not free: gpu-a03 (idle+drain)") for note in cluster.notes)
    assert any("0 gpu-a02 (8), 1 gpu-a01 (5)" in note for note in cluster.notes)


def test_rows_of_newer_sinfo_hold_several_nodes() -> None:
    """In a row of several nodes with GPUs in use it is not said in which: none of them counts as free."""
    cluster = _free("sinfo_23_11.json")
    assert _by_node(cluster) == [8, 8, 5, 0, 0, 0]
    assert any("counted as not free (GresUsed says it): gpu-a05, gpu-a06" in note for note in cluster.notes)


def test_states_that_keep_jobs_off_and_use_that_is_not_said() -> None:
    cluster = _free("sinfo_states.txt")
    assert _groups(cluster) == [("a100-80gb", 2, 8, None), ("a100-80gb", 8, 8, 0)]
    barred = (
        "gpu-a03 (alloc), gpu-a05 (down*), gpu-a06 (drng), gpu-a07 (resv), gpu-a08 (mix-), gpu-a09 (idle$), gpu-a10"
    )
    assert any(f"not free: {barred} (comp)" in note for note in cluster.notes)
    assert any("counted as not free (GresUsed says it): gpu-a02" in note for note in cluster.notes)
    assert any("a100 is read as a100-80gb" in note for note in cluster.notes)


def test_mig_slices_are_left_out_and_two_types_in_a_node_are_two_nodes() -> None:
    cluster = _free("sinfo_bars.txt")
    assert cluster.text == "v100-32gb:4x4+a100-80gb:1x1+a100-80gb:1x4+h100:1x2"
    assert _by_node(cluster) == [4, 4, 4, 2, 1, 3, 2]
    notes = "\n".join(cluster.notes)
    assert "slices of GPUs (MIG) are left out: mig-01 (a100_1g.10gb)" in notes
    assert "nodes with several types of GPU, each type as a node of its own: two-01" in notes


def test_gres_of_all_forms() -> None:
    assert parse_gres("gpu:8", "f", "k") == {"gpu": (("", 8),)}
    assert parse_gres("gpu:a100:no_consume:4,shard:16", "f", "k") == {"gpu": (("a100", 4),), "shard": (("", 16),)}
    assert parse_gres("gpu:(null):0(IDX:N/A)", "f", "k") == {"gpu": (("", 0),)}
    assert parse_gres("gpu:nvidia_h100_80gb_hbm3:8(IDX:0-2,5)", "f", "k") == {"gpu": (("nvidia_h100_80gb_hbm3", 8),)}
    for nothing in (None, "", "(null)", "N/A"):
        assert parse_gres(nothing, "f", "k") == {}
    for broken in ("gpu:a100:8(S:0-1", "gpu", "gpu:a100:", "gpu:a100:8,,"):
        with pytest.raises(InputError, match="GRES such as gpu:a100:8"):
            parse_gres(broken, "f", "k")


def test_host_lists() -> None:
    assert expand_hosts("r[1-2]n[08-10],x", "f", "k") == ("r1n08", "r1n09", "r1n10", "r2n08", "r2n09", "r2n10", "x")
    for broken in ("gpu[1-", "gpu[1-x]", "gpu[9-1]", "a,,b", "gpu[1-999999999]"):
        with pytest.raises(InputError):
            expand_hosts(broken, "f", "k")


@pytest.mark.parametrize(
    "hosts",
    ["gpu[1-100001]", "r[1-1000]n[1-1000]", "a[1-60000],b[1-60000]", "n[1-99999,1-99999]", "[0-9]" * 30_000],
)
def test_more_hosts_than_there_are_nodes_are_refused_before_they_are_named(hosts: str) -> None:
    with pytest.raises(InputError, match="nodes in a list, expected at most 50,000"):
        expand_hosts(hosts, "f", "k")


def test_rows_of_many_hosts_are_counted_together(tmp_path: Path) -> None:
    rows = "\n".join(f"{rack}[1-30000] idle gpu:8" for rack in "ab")
    (tmp_path / "sinfo.txt").write_text(f"NODELIST STATE GRES\n{rows}\n")
    with pytest.raises(InputError, match="line 3: found 60,000 nodes in a list"):
        read_free_nodes(tmp_path / "sinfo.txt")


def test_shared_gpus_and_a_sum_over_two_types_leave_nothing_certain(tmp_path: Path) -> None:
    text = (
        "NODELIST GRES GRES_USED STATE\n"
        "a gpu:h100:8,shard:32 gpu:h100:0(IDX:N/A),shard:h100:2(2/32) mixed\n"
        "b gpu:h100:4,gpu:a100:4 gpu:2 mixed\n"
        "c gpu:h100:8 gpu:3 mixed\n"
    )
    found = read_free_nodes(_write(tmp_path, text.replace("shard:h100:2(2/32)", "shard:2")))
    assert [(node.name, node.device, node.free) for node in found.nodes] == [
        ("a", "h100", 0),
        ("b", "h100", 0),
        ("b", "a100-80gb", 0),
        ("c", "h100", 5),
    ]


def test_a_type_may_stand_in_the_features(tmp_path: Path) -> None:
    text = "NODELIST|GRES|STATE|AVAIL_FEATURES\na|gpu:8|idle|ib,h100\nb|gpu:8|idle|h100,a100\n"
    with pytest.raises(InputError, match=r"node b: found 8 GPUs of no type, expected a type, as in gpu:a100:8"):
        cluster_with_free(None, _write(tmp_path, text))
    found = cluster_with_free(None, _write(tmp_path, text.splitlines()[0] + "\n" + text.splitlines()[1] + "\n"))
    assert found.text == "h100:1x8"


# Kubernetes


def test_kubernetes_nodes_less_what_their_pods_request() -> None:
    cluster = _free("kubectl_nodes_pods.json")
    assert cluster.text == "h100:6x8+t4:1x4+a100-80gb:1x1"
    assert _by_node(cluster) == [8, 6, 2, 0, 0, 0, 3, 1]
    notes = "\n".join(cluster.notes)
    assert "not free: h-3 (cordoned), h-4 (not ready), h-5 (taint team:NoSchedule)" in notes
    assert "m-1 (NVIDIA-A100-SXM4-80GB-MIG-1g.10gb), m-2 (nvidia.com/mig-1g.10gb), s-1 (NVIDIA-L40S-SHARED)" in notes
    assert "nodes of a kind of which none has a free GPU are left out: i-1 (8 mi300x)" in notes


def test_pods_may_come_in_a_file_of_their_own() -> None:
    assert _groups(_free("kubectl_nodes.json", pods=DATA / "kubectl_pods.json")) == _groups(
        _free("kubectl_nodes_pods.json")
    )
    alone = _free("kubectl_nodes.json")
    assert _by_node(alone) == [8, 8, 8, 0, 0, 0, 4, 1, 8]
    assert any("no pods in the file" in note for note in alone.notes)
    with pytest.raises(InputError, match="none beside Slurm's nodes"):
        _free("sinfo_used.txt", pods=DATA / "kubectl_pods.json")
    with pytest.raises(InputError, match="found Pod, expected nodes"):
        _free("kubectl_pods.json")


def test_kubernetes_errors_name_item_and_key(tmp_path: Path) -> None:
    data = json.loads((DATA / "kubectl_nodes_pods.json").read_text(encoding="utf-8"))

    def refuse(change: Any, match: str) -> None:
        changed = json.loads(json.dumps(data))
        change(changed["items"])
        with pytest.raises(InputError, match=match):
            cluster_with_free(None, _write(tmp_path, json.dumps(changed)))

    refuse(lambda items: items[0]["status"].pop("allocatable"), r"items\[0\]: status.allocatable: found nothing")
    refuse(lambda items: items[1]["metadata"].update(name=7), r"items\[1\]: metadata.name: found 7")
    refuse(
        lambda items: items[0]["status"]["allocatable"].update({"nvidia.com/gpu": "8k"}), "node h-1: .*a whole number"
    )
    refuse(lambda items: items[12]["spec"].update(containers=3), r"items\[12\]: spec.containers: found 3")
    limits = {"requests": {"nvidia.com/gpu": "two"}}
    refuse(
        lambda items: items[12]["spec"]["containers"][0].update(resources=limits), r"items\[12\]: resources.requests"
    )
    refuse(lambda items: items.append(5), "expected a list of objects")
    refuse(lambda items: items[1]["metadata"].update(name="h-1"), "node h-1: found it twice, expected each node once")


# Names


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("NVIDIA-H100-80GB-HBM3", "h100"),
        ("NVIDIA-A100-SXM4-80GB", "a100-80gb"),
        ("A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA-A100-80GB-PCIe", "a100-80gb-pcie"),
        ("NVIDIA-A100-PCIE-40GB", "a100-40gb-pcie"),
        ("NVIDIA-H100-PCIe", "h100-pcie"),
        ("NVIDIA-H100-NVL", "h100-nvl"),
        ("NVIDIA-H200", "h200"),
        ("NVIDIA-GH200-480GB", "gh200"),
        ("NVIDIA-B200", "b200"),
        ("NVIDIA-GB200", "gb200"),
        ("Tesla-T4", "t4"),
        ("Tesla-V100-SXM2-16GB", "v100-16gb"),
        ("Tesla-P100-SXM2-16GB", "p100"),
        ("NVIDIA-GeForce-RTX-3090", "rtx-3090"),
        ("AMD_Instinct_MI300X_OAM", "mi300x"),
        ("nvidia-tesla-a100", "a100-40gb"),
        ("nvidia-h100-mega-80gb", "h100"),
        ("nvidia_h100_80gb_hbm3", "h100"),
        ("rtx3090", "rtx-3090"),
        ("A100", "a100-80gb"),
        ("rtx_a6000", "rtx-a6000"),
    ],
)
def test_names_of_drivers_and_labels(said: str, name: str) -> None:
    assert device_type(said) == name


def test_the_labels_that_an_export_asks_for_are_read_back() -> None:
    from planner.one_job.launchers.gpu_names import PRODUCT_LABELS

    for device, label in PRODUCT_LABELS.items():
        assert device in device_names()
        assert device_type(label) == device


# On a given cluster


def test_a_cluster_file_keeps_its_links_and_prices(tmp_path: Path) -> None:
    path = _write(
        tmp_path,
        "schema: cellplan.cluster/1\nsites:\n  - name: north\n    nodes:\n"
        "      - {count: 4, device: h100, devices: 8, free: 3, nics: {count: 4, link: roce400},"
        " price_per_device_hour: 2.5, power_w: 650}\n",
        "mine.yaml",
    )
    cluster = cluster_with_free(load_cluster(str(path)), DATA / "scontrol_detail.txt")
    assert cluster.text == str(path)
    assert _groups(cluster) == [("h100", 1, 8, None), ("h100", 1, 8, 5), ("h100", 2, 8, 0)]
    for group in cluster.sites[0].nodes:
        assert (group.nic_link.name, group.nics, group.price_per_device_hour, group.power_w) == ("roce400", 4, 2.5, 650)
    assert any(f"nodes of {path} that it does not name and count as not free: 1" in note for note in cluster.notes)
    again = _write(tmp_path, json.dumps(describe_cluster(cluster)), "again.yaml")
    assert _by_node(load_cluster(str(again))) == [8, 5, 0, 0]


def test_types_are_found_on_the_cluster_by_name_alone_where_they_are_short(tmp_path: Path) -> None:
    text = "NODELIST GRES GRES_USED STATE\nn1 gpu:a100:8 gpu:a100:2 mixed\n"
    path = _write(tmp_path, text)
    assert _groups(cluster_with_free(load_cluster("a100-40gb:1x8"), path)) == [("a100-40gb", 1, 8, 6)]
    with pytest.raises(
        InputError, match="node n1: found 8 GPUs of type a100, expected a type that tells a100-40gb from"
    ):
        cluster_with_free(load_cluster("a100-40gb:1x8+a100-80gb:1x8"), path)
    untyped = _write(tmp_path, text.replace(":a100:", ":"))
    assert _groups(cluster_with_free(load_cluster("h200:1x8"), untyped)) == [("h200", 1, 8, 6)]
    with pytest.raises(InputError, match="8 GPUs of no type"):
        cluster_with_free(load_cluster("h200:1x8+h100:1x8"), untyped)


def test_a_node_that_lost_a_gpu_is_still_the_cluster_s(tmp_path: Path) -> None:
    text = "NODELIST GRES GRES_USED STATE\nn1 gpu:h100:7 gpu:h100:0 idle\nn2 gpu:h100:8 gpu:h100:0 idle\n"
    cluster = cluster_with_free(load_cluster("h100:2x8"), _write(tmp_path, text))
    assert _groups(cluster) == [("h100", 1, 8, None), ("h100", 1, 8, 7)]


def test_nodes_that_the_cluster_has_not_are_left_out_or_refused() -> None:
    cluster = _free("sinfo_bars.txt", "v100-32gb:4x4")
    assert _by_node(cluster) == [4, 4, 4, 2]
    assert any(
        "nodes that v100-32gb:4x4 does not have are left out: mig-01 (1 a100), two-01 (4 a100), two-01 (2 h100)" in note
        for note in cluster.notes
    )
    with pytest.raises(
        InputError, match="node gpu-b02: found more nodes with v100-32gb than v100-32gb:1x4 has, expected at"
    ):
        _free("sinfo_bars.txt", "v100-32gb:1x4")
    with pytest.raises(NothingFits, match="nothing is free of h200:1x8"):
        _free("sinfo_bars.txt", "h200:1x8")


def test_a_kind_of_node_in_two_sites_is_refused(tmp_path: Path) -> None:
    sites = "".join(f"  - {{name: {name}, nodes: [{{count: 2, device: h100}}]}}\n" for name in ("north", "south"))
    path = _write(tmp_path, f"schema: cellplan.cluster/1\nsites:\n{sites}", "two.yaml")
    with pytest.raises(InputError, match="h100 in north and south, and no word of where node gpu-a01 is"):
        cluster_with_free(load_cluster(str(path)), DATA / "scontrol_detail.txt")


def test_of_racks_whole_nodes_stay_joined(tmp_path: Path) -> None:
    rows = "".join(f"n{node:02} gpu:gb200:4 gpu:gb200:{1 if node == 5 else 0} mixed\n" for node in range(36))
    cluster = cluster_with_free(None, _write(tmp_path, f"NODELIST GRES GRES_USED STATE\n{rows}"))
    assert [(group.count, group.free, group.island_size) for group in cluster.sites[0].nodes] == [
        (17, None, 68),
        (1, 3, 4),
        (18, None, 72),
    ]
    notes = "\n".join(cluster.notes)
    assert "does not say which nodes share a rack of 72 gb200; taken in its order" in notes
    assert "partly free nodes of a rack count as joined to its others by NICs" in notes


@st.composite
def _cases(draw: st.DrawFn) -> tuple[int, int, int, int, list[int]]:
    """Nodes, devices of each, nodes of an island, pods, and the free devices of each node."""
    devices = draw(st.sampled_from([1, 2, 4]))
    nodes = draw(st.integers(1, 12))
    rack = draw(st.sampled_from([1, 2, 3, 4]))
    pods = draw(st.integers(1, min(3, nodes)))
    free = draw(st.lists(st.integers(0, devices), min_size=nodes, max_size=nodes).filter(any))
    return nodes, devices, rack, pods, free


@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=_cases())
def test_regrouping_keeps_every_count_pod_and_rack(case: tuple[int, int, int, int, list[int]], tmp_path: Path) -> None:
    nodes, devices, rack, pods, free = case
    base = load_cluster(f"h100:{nodes}x{devices}")
    (site,) = base.sites
    group = replace(site.nodes[0], island_size=devices * rack)
    base = replace(base, sites=(replace(site, nodes=(group,), network=equal_pods(nodes, pods=pods)),))
    rows = "".join(f"n{node} gpu:h100:{devices} gpu:h100:{devices - count} mixed\n" for node, count in enumerate(free))
    found = cluster_with_free(base, _write(tmp_path, f"NODELIST GRES GRES_USED STATE\n{rows}"))
    result = _by_node(found)
    pod = -(-nodes // pods)
    # Nodes that are a pod each stand alike.
    whole = (
        [index // pod if pod > 1 else 0 for index in range(nodes)],
        [index // rack if rack > 1 else 0 for index in range(nodes)],
    )
    blocks = list(zip(*whole, strict=True))
    for block in dict.fromkeys(blocks):
        inside = [index for index in range(nodes) if blocks[index] == block]
        assert [result[index] for index in inside] == sorted((free[index] for index in inside), reverse=True)
    islands = _islands(found)
    if rack > 1:
        for one in range(nodes):
            for other in range(one):
                same = one // rack == other // rack
                assert same or islands[one] != islands[other]
                if blocks[one] == blocks[other] and result[one] == result[other] == devices:
                    assert islands[one] == islands[other]


def _islands(cluster: Cluster) -> list[tuple[int, int]]:
    """Which island each node is in, as `estimator.communication.groups` places them."""
    found = []
    for number, group in enumerate(cluster.sites[0].nodes):
        for node in range(group.count):
            wide = group.island_size > group.devices
            found.append((number, node * group.devices // group.island_size if wide else node))
    return found


def test_a_plan_is_made_of_free_devices_alone() -> None:
    cluster = _free("scontrol_detail.txt")
    setup = uniform_setup(load_model("gpt-tiny"), cluster, Recipe(global_batch=24, seq_len=128), tp=4, dp=3)
    assert isinstance(setup, Setup)
    slots = setup.stages[0].slots
    assert set(slots) <= set(cluster.free_slots)
    assert Counter(slot.node for slot in slots) == {0: 8, 1: 4}


# Files that are not what they should be


def test_nothing_free_is_a_result_and_not_an_error(tmp_path: Path) -> None:
    text = "NODELIST GRES STATE\nn1 gpu:h100:8 alloc\nn2 gpu:h100:8 down*\n"
    with pytest.raises(NothingFits, match=r"none of the 16 GPUs is free; not free: n1 \(alloc\), n2 \(down\*\)"):
        cluster_with_free(None, _write(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"now.txt: found an empty file, expected `sinfo -N` with its header"),
        ("hello\n", "found no such header"),
        ("NODELIST STATE\nn1 idle\n", r"now.txt, line 1: found NODELIST STATE, expected a column GRES"),
        ("PARTITION AVAIL NODES STATE NODELIST\ngpu* up 2 idle n[1-2]\n", "expected a column GRES"),
        ("NODELIST GRES\nn1 gpu:h100:8\n", "expected a column STATE"),
        ("NODELIST GRES STATE\nn1 gpu:h100:8\n", r"now.txt, line 2: found 2 columns, expected 3 columns"),
        ("NODELIST GRES STATE\nn1 gpu:h100:8(S:0- idle\n", r"node n1, GRES: found 'gpu:h100:8\(S:0-'"),
        ("NODELIST GRES STATE\nn1 gpu:h100:８ idle\n", "node n1, GRES: found 'gpu:h100:８'"),
        ("NODELIST GRES STATE\nn[1 gpu:h100:8 idle\n", r"now.txt, line 2: NODELIST: found 'n\[1'"),
        ("NODELIST GRES STATE\nn1 (null) idle\n", "found nodes without GPUs, which are left out: 1, expected GPUs"),
        (
            "NODELIST GRES STATE\nn1 gpu:1g.10gb:7 idle\n",
            r"slices of GPUs \(MIG\) are left out: n1 \(1g.10gb\), expected",
        ),
        ("NODELIST GRES STATE\nn1 gpu:rtx_a2000:4 idle\n", r"catalogue does not have are left out: n1 \(rtx_a2000\)"),
        ("NODELIST GRES STATE\nn1 gpu:4 idle\n", "node n1: found 4 GPUs of no type"),
        ("NodeName=n1 Arch=x86_64\n   Gres=gpu:h100:8\n", "NodeName=n1: found no State, expected State= as `scontrol"),
        ("NodeName=n1 State=IDLE\n", "NodeName=n1: found no Gres"),
        ("{", "found no JSON"),
        ("[]", "found list, expected `nodes` or `sinfo`"),
        ("{}", "found an empty object"),
        ('{"jobs": []}', "found jobs, expected"),
        ('{"nodes": {}}', "nodes: found {}, expected"),
        ('{"nodes": []}', "found no node, expected GPUs in some node's GRES"),
        ('{"nodes": [{"name": "n1", "state": "idle"}]}', r"nodes\[0\].gres: found nothing"),
        ('{"nodes": [{"name": "n1", "gres": 5, "state": "idle"}]}', r"nodes\[0\].gres: found 5"),
        ('{"sinfo": [{"gres": {"total": ""}}]}', r"sinfo\[0\].nodes: found nothing"),
        ('{"kind": "List", "items": 3}', "items: found int 3"),
        ('{"kind": "List", "items": []}', "items: found no item, expected nodes"),
    ],
)
def test_strange_files_are_one_error_each(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        cluster_with_free(None, _write(tmp_path, text))


def test_no_file_and_no_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a readable text file"):
        cluster_with_free(None, tmp_path / "nowhere")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="expected text in UTF-8"):
        cluster_with_free(None, tmp_path / "bytes")
    shutil.copy(DATA / "sinfo_used.txt", tmp_path / "copy.txt")
    assert cluster_with_free(None, tmp_path / "copy.txt").text == "h100:3x6"


def _try(path: Path) -> str | None:
    """The one error about a file, None if it is a cluster with something free."""
    try:
        found = cluster_with_free(None, path)
    except (InputError, NothingFits) as error:
        return str(error)
    assert found.free_slots
    return None


@pytest.mark.parametrize("name", SAMPLES)
def test_a_file_cut_anywhere_is_a_cluster_or_one_error(name: str, tmp_path: Path) -> None:
    whole = (DATA / name).read_text(encoding="utf-8")
    for end in range(0, len(whole), max(1, len(whole) // 150)):
        said = _try(_write(tmp_path, whole[:end]))
        assert said is None or (str(tmp_path) in said and "\n" not in said)


@pytest.mark.parametrize("name", [name for name in SAMPLES if name.endswith(".json")])
def test_json_with_any_value_replaced_is_a_cluster_or_one_error(name: str, tmp_path: Path) -> None:
    whole = json.loads((DATA / name).read_text(encoding="utf-8"))
    key = next(key for key in ("nodes", "sinfo", "items") if key in whole)
    whole[key] = whole[key][:2] + whole[key][-1:]
    for strange in (None, 7, "x", [], {}, [3], {"a": 1}):
        for path in _paths(whole):
            changed = json.loads(json.dumps(whole))
            at = changed
            for step in path[:-1]:
                at = at[step]
            at[path[-1]] = strange
            said = _try(_write(tmp_path, json.dumps(changed)))
            assert said is None or str(tmp_path) in said


def _paths(value: Any, so_far: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where each value inside `value` stands."""
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for step, inner in steps for path in ((*so_far, step), *_paths(inner, (*so_far, step)))]
