"""The catalogue: complete, consistent, and equal to the published tables that it cites."""

from __future__ import annotations

import csv
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

from profiles.efficiencies import load_operator_efficiencies
from profiles.errors import InputError
from profiles.hardware import device_names, link_names, load_device, load_link

DATA = Path(__file__).parents[3] / "shared" / "data"

DIFFERENT_ON_PURPOSE = {
    "MI250X": "a device is one of the package's two dies",
    "MI300X": "the datasheet's digits where the table rounds",
    "MI325X": "the datasheet's digits where the table rounds",
}
NAMES_IN_TABLE = {"TPU v7x (Ironwood)": "tpu-v7x"}


def published(name: str) -> list[dict[str, str]]:
    path = DATA / name
    if not path.is_file():
        pytest.skip(f"no {name}: the published tables are not part of the project")
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", device_names())
def test_each_device_is_complete(name: str) -> None:
    device = load_device(name)
    node = device.reference_node
    for link in (node.island_link, node.host_link, node.nic_link):
        load_link(link)
    assert node.devices % node.island_size == 0 or node.island_size % node.devices == 0
    assert 8e9 < device.memory_bytes < 310e9
    assert 1e11 < device.memory_bandwidth_bytes_per_s < 1e13
    peaks = [peak for dtype in ("fp32", "tf32", "bf16", "fp8") if (peak := dict(device.peak_flops_per_s).get(dtype))]
    assert peaks[0] > 1e12
    assert peaks == sorted(peaks)
    assert len(device.source) > 10
    assert load_operator_efficiencies(name).architecture != "generic"


def test_tpu_has_no_fp32_peak() -> None:
    assert load_device("tpu-v5e").peak("fp32") is None


@pytest.mark.parametrize("name", link_names())
def test_each_link_is_complete(name: str) -> None:
    link = load_link(name)
    assert 1e9 < link.bandwidth_bytes_per_s < 1e12
    assert 0 < link.latency_s < 1e-4
    assert 0.2 < link.efficiency <= 1
    assert len(link.source) > 10


def test_aliases_name_devices_and_hide_none() -> None:
    rows = tomllib.loads(files("profiles").joinpath("data/devices.toml").read_text(encoding="utf-8"))
    aliases = [(alias, name) for name, row in rows.items() for alias in row["aliases"]]
    assert len({alias for alias, _ in aliases} | set(device_names())) == len(aliases) + len(device_names())
    assert all(load_device(alias).name == name for alias, name in aliases)
    assert load_device("A100").name == load_device("a100_sxm4_80gb").name == "a100-80gb"


def test_unknown_names_come_with_near_ones() -> None:
    with pytest.raises(InputError, match=r"my\.yaml: sites\[0\]: found an unknown device 'h1000'.*h100"):
        load_device("h1000", where="my.yaml", key="sites[0]")
    with pytest.raises(InputError, match=r"found an unknown link 'nvswitch9'.*nvswitch"):
        load_link("nvswitch9")


def test_devices_equal_the_published_table() -> None:
    for row in published("gpu_specs.csv"):
        if row["gpu"] in DIFFERENT_ON_PURPOSE:
            continue
        name = NAMES_IN_TABLE.get(row["gpu"], row["gpu"].replace("V100-SXM2 32GB", "V100").replace("-SXM", " sxm"))
        device = load_device(name.replace("P100 sxm2", "P100"))
        peaks = dict(device.peak_flops_per_s)
        for dtype in ("fp32", "fp16", "bf16", "fp8"):
            if row[f"peak_{dtype}_tflops"] and dtype in peaks:
                assert peaks[dtype] == pytest.approx(float(row[f"peak_{dtype}_tflops"]) * 1e12, rel=1e-3), name
        assert device.memory_bandwidth_bytes_per_s == pytest.approx(float(row["mem_bw_gbs"]) * 1e9), name
        assert 0.9 < device.memory_bytes / (float(row["mem_gb"]) * 1e9) < 1.09, name


@pytest.mark.parametrize(
    ("link", "row_id", "nics"),
    [
        ("nvlink3-bridge", "C00729", 1),
        ("nvswitch4", "C00363", 1),
        ("pcie4-x16", "C00730", 1),
        ("ib-edr100", "C00752", 1),
        ("ib-hdr200", "C00726", 4),
        ("efa400", "C00403", 8),
    ],
)
def test_efficiencies_equal_the_rows_they_name(link: str, row_id: str, nics: int) -> None:
    row = next(row for row in published("comm.csv") if row["id"] == row_id)
    record = load_link(link)
    measured = float(row["busbw_gbps"]) * 1e9 / (nics * record.bandwidth_bytes_per_s)
    assert record.efficiency == pytest.approx(measured, abs=0.011)
    assert row_id in record.source
