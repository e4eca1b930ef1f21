"""Clusters from short forms and files, back into files, and what is said of wrong ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from profiles.cluster import Cluster, NodeGroup, Site, SiteLink
from profiles.cluster_description import describe_cluster
from profiles.cluster_file import is_at_hand, load_cluster
from profiles.errors import InputError
from profiles.hardware import device_names, load_device, load_link
from profiles.measurements import DeviceRates, device_from_rates
from profiles.network import equal_pods
from profiles.reference_nodes import default_nodes
from profiles.yaml_files import parse_yaml, yaml_text
from tests.seeds import examples

DESIGN_EXAMPLE = """
schema: cellplan.cluster/1
sites:
  - name: north
    nodes:
      - {count: 16, device: a100-80gb, devices: 8, island: {link: nvswitch3, size: 8}, nics: {count: 8, link: ib-hdr200}, host_link: pcie4-x16,
         free: all, price_per_device_hour: 1.9}
    fabric: {link: ib-hdr200, oversubscription: 1.0, pods: 2}
  - name: south
    nodes:
      - {count: 2, device: h100, free: 5}
links_between_sites:
  - {between: [north, south], bandwidth_bytes_per_s: 1.25e9, latency_s: 5.0e-3}
"""  # noqa: E501

INLINE = """
schema: cellplan.cluster/1
sites:
  - name: here
    nodes:
      - count: 3
        device: {name: wafer, memory_bytes: 1_000, memory_bandwidth_bytes_per_s: 1e12, peak_flops_per_s: {bf16: 1e15}}
        devices: 6
        island: {link: {bandwidth_bytes_per_s: 1e11, latency_s: 1e-6}, size: 3}
        nics:
          count: 2
          link: {name: fast, kind: ethernet, bandwidth_bytes_per_s: 5e10, latency_s: 2e-6, efficiency: 0.9}
        host_link: pcie5-x16
    fabric: {link: {bandwidth_bytes_per_s: 4e10, latency_s: 3e-6}}
""".replace("1_000", "1000")

RATES = DeviceRates(
    device="cpu",
    hardware="some CPU",
    software="torch 2.13.0+cpu, python 3.11.7",
    threads=1,
    memory_bytes=4 * 2**30,
    memory_bandwidth_bytes_per_s=1e10,
    flops_per_s=(("fp32", 5e10), ("bf16", 1e10)),
    flash_attention=True,
)


def load_text(text: str, folder: Path) -> Cluster:
    (folder / "cluster.yaml").write_text(text)
    return load_cluster(str(folder / "cluster.yaml"))


def test_short_form_is_the_reference_node() -> None:
    cluster = load_cluster("a100-80gb:16x8")
    (group,) = cluster.sites[0].nodes
    assert len(cluster.slots) == 128
    assert (group.count, group.devices, group.island_size, group.nics) == (16, 8, 8, 8)
    assert (group.island_link, group.host_link) == (load_link("nvswitch3"), load_link("pcie4-x16"))
    assert group.nic_link == cluster.sites[0].fabric_link == load_link("ib-hdr200")
    assert "reference node of a100-80gb: islands of 8 on nvswitch3" in cluster.notes[0]


def test_sum_keeps_each_groups_nics_under_the_fastest_fabric() -> None:
    cluster = load_cluster("a40:16x2+a10:16x2")
    assert cluster.device_types == ("a40", "a10")
    assert [group.nic_link.name for group in cluster.sites[0].nodes] == ["ib-edr100", "ib-hdr200"]
    assert cluster.sites[0].fabric_link.name == "ib-hdr200"


@pytest.mark.parametrize(
    ("text", "island", "nics"),
    [
        ("a100-80gb:3x6", 6, 6),
        ("v100-32gb:20x16", 8, 8),
        ("h100:1x12", 4, 12),
        ("a10:16x2", 2, 1),
        ("h100-nvl:2x6", 2, 3),
        ("gb200:36x4", 72, 4),
        ("gb200:64x4", 64, 4),
        ("gb200:37x4", 72, 4),
        ("gb200:9x8", 72, 8),
        ("gb200:1x64", 64, 64),
        ("gb200:2x5", 70, 5),
    ],
)
def test_another_node_than_the_reference(text: str, island: int, nics: int) -> None:
    cluster = load_cluster(text)
    (group,) = cluster.sites[0].nodes
    assert (group.island_size, group.nics) == (island, nics)
    reference = group.device.reference_node
    assert ("changed from its" in cluster.notes[0]) == (group.devices != reference.devices)


@given(st.sampled_from(device_names()), st.integers(1, 300), st.integers(1, 20))
def test_any_short_form_gives_a_legal_cluster(device: str, count: int, devices: int) -> None:
    group = default_nodes(load_device(device), count=count, devices=devices)
    reference = group.device.reference_node
    assert group.island_size <= max(reference.island_size, devices)
    assert 1 <= group.nics <= max(1, reference.nics * devices / reference.devices)
    if devices == reference.devices:
        assert (group.island_size, group.nics) == (reference.island_size, reference.nics)


def test_an_alias_is_named_in_the_notes() -> None:
    assert "A100 is read as a100-80gb" in load_cluster("A100:1x8").notes[0]


def test_local_is_one_island_of_this_machines_device() -> None:
    cluster = load_cluster("local:1x3", local_device=lambda: device_from_rates(RATES))
    (group,) = cluster.sites[0].nodes
    assert (group.devices, group.island_size, group.island_link.name) == (3, 3, "loopback")
    assert group.device.name == "cpu"
    assert group.device.peak("bf16") == 1e10
    assert "some CPU" in group.device.source
    assert group.device.memory_bytes == 4 * 2**30 // 3
    assert group.device.peak_basis == "measured"
    assert "an equal part of the memory (1.3 GiB)" in cluster.notes[0]


@pytest.mark.parametrize("asked", [None, lambda: None])
def test_local_without_a_profile_says_what_to_run(asked: None) -> None:
    with pytest.raises(InputError, match="run `cellplan profile MODEL --device cpu`"):
        load_cluster("local:1x2", local_device=asked)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("16x", r"found '16x', expected NAME:NODESxDEVICES such as a100-80gb:16x8"),
        ("a100:2y8", r"found 'a100:2y8', expected NAME:NODESxDEVICES"),
        ("a100-80gb", "expected NAME:NODESxDEVICES"),
        ("a100:2x8+", "found ''"),
        ("a100:-2x8", "expected NAME:NODESxDEVICES"),
        ("", "found ''"),
        ("a100:0x8", "found 0 nodes of 8 devices in 'a100:0x8', expected at least 1 node"),
        ("a100:2x0", "found 2 nodes of 0 devices"),
        ("a1000:2x8", "cluster a1000:2x8: found an unknown device 'a1000', expected .* such as a100"),
        ("h100:900000000x8", "found 7,200,000,000 devices in a cluster, expected at most 262,144"),
        ("local:2x2", "expected local:1xWORKERS"),
        ("local:1x2+a100:1x8", "expected local:1xWORKERS, on its own"),
        ("nowhere.yaml", "No such file"),
    ],
)
def test_wrong_short_forms(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_cluster(text, local_device=lambda: device_from_rates(RATES))


def test_file_as_designed(tmp_path: Path) -> None:
    cluster = load_text(DESIGN_EXAMPLE, tmp_path)
    north, south = cluster.sites
    assert north.nodes == (replace(load_cluster("a100-80gb:16x8").sites[0].nodes[0], price_per_device_hour=1.9),)
    assert (north.network, north.fabric_link.name) == (equal_pods(16, pods=2), "ib-hdr200")
    assert south.nodes == (replace(load_cluster("h100:2x8").sites[0].nodes[0], free=5),)
    assert cluster.site_links == (SiteLink(between=("north", "south"), bandwidth_bytes_per_s=1.25e9, latency_s=5e-3),)
    assert cluster.text == str(tmp_path / "cluster.yaml")
    assert len(cluster.notes) == 2
    assert "sites[1].nodes[0]: devices, island, nics, host_link not given" in cluster.notes[0]


def test_everything_may_be_defined_in_the_file(tmp_path: Path) -> None:
    cluster = load_text(INLINE, tmp_path)
    (group,) = cluster.sites[0].nodes
    assert (group.device.name, group.device.memory_bytes, group.device.peak("bf16")) == ("wafer", 1000, 1e15)
    assert (group.island_link.bandwidth_bytes_per_s, group.island_link.latency_s) == (1e11, 1e-6)
    assert (group.nic_link.name, group.nic_link.efficiency) == ("fast", 0.9)
    assert group.host_link == load_link("pcie5-x16")
    assert cluster.sites[0].fabric_link.bandwidth_bytes_per_s == 4e10
    assert cluster.notes == ()


@pytest.mark.parametrize("text", [DESIGN_EXAMPLE, INLINE])
def test_described_file_loads_as_the_same_cluster(text: str, tmp_path: Path) -> None:
    first = load_text(text, tmp_path)
    second = load_text(yaml_text(describe_cluster(first)), tmp_path)
    assert (second.sites, second.site_links, second.notes) == (first.sites, first.site_links, ())


def test_described_local_cluster_needs_no_profile(tmp_path: Path) -> None:
    first = load_cluster("local:1x2", local_device=lambda: device_from_rates(RATES))
    assert load_text(yaml_text(describe_cluster(first)), tmp_path).sites == first.sites


def test_local_device_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "{schema: cellplan.cluster/1, sites: [{name: x, nodes: [{count: 1, device: local, devices: 2}]}]}"
    )
    with pytest.raises(InputError, match=r"c\.yaml, line 1: sites\[0\]\.nodes\[0\]\.device: .* run `cellplan profile"):
        load_cluster(str(tmp_path / "c.yaml"))
    cluster = load_cluster(str(tmp_path / "c.yaml"), local_device=lambda: device_from_rates(RATES))
    assert cluster.sites[0].nodes[0].island_size == 2


NAMES = st.text(st.characters(exclude_categories=("C", "Z"), include_characters=" "), min_size=1, max_size=5)
"""All that is printable."""


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    sites = []
    for name in names:
        groups = []
        for _ in range(draw(st.integers(1, 2))):
            device = load_device(draw(st.sampled_from(device_names())))
            group = default_nodes(device, count=draw(st.integers(1, 9)), devices=draw(st.integers(1, 9)))
            link = replace(group.nic_link, bandwidth_bytes_per_s=draw(st.floats(1, 1e15)), name=draw(NAMES))
            groups.append(draw(st.sampled_from([group, replace(group, nic_link=link, free=0, power_w=1.5)])))
        over = draw(st.floats(1, 100))
        nodes = sum(group.count for group in groups)
        network = equal_pods(nodes, pods=draw(st.integers(1, nodes)), oversubscription=over)
        sites.append(Site(name=name, nodes=tuple(groups), fabric_link=groups[0].nic_link, network=network))
    links = tuple(
        SiteLink(between=(names[0], name), bandwidth_bytes_per_s=draw(st.floats(1, 1e12)), latency_s=1e-3)
        for name in names[1:]
    )
    return Cluster(text="x", sites=tuple(sites), site_links=links)


@settings(max_examples=examples(40))
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(1 - 10**18, 10**18 - 1) | st.floats(allow_nan=False) | st.text(),
        st.lists,
    )
)
@example(["1e9", "0e1", "no", "0x1F", "1_000", "12:30", "2001-01-01", ".5", "~", "", "=", "<<", "yes", ".inf"])
def test_what_is_written_as_yaml_is_read_back(value: object) -> None:
    read = parse_yaml(yaml_text(value), where="text")
    assert (repr(read), type(read)) == (repr(value), type(value))


@settings(max_examples=examples(40))
@given(clusters())
def test_round_trip_of_any_cluster(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> None:
    folder = tmp_path_factory.mktemp("round")
    loaded = load_text(yaml_text(describe_cluster(cluster)), folder)
    assert (loaded.sites, loaded.site_links) == (cluster.sites, cluster.site_links)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema: cellplan.cluster/1", "schema: cellplan.cluster/9", "schema: found 'cellplan.cluster/9'"),
        ("schema: cellplan.cluster/1\n", "", "schema: found nothing"),
        ("count: 16", "count: -1", r"sites\[0\]\.nodes\[0\]\.count: found -1, expected greater than or equal to 1"),
        ("count: 16", "count: '16'", r"nodes\[0\]\.count: found '16', expected a valid integer"),
        ("count: 16", "count: 16.5", r"nodes\[0\]\.count: found 16.5"),
        ("count: 16", "count: true", r"nodes\[0\]\.count: found True"),
        ("count: 16, ", "", r"sites\[0\]\.nodes\[0\]\.count: found nothing"),
        ("count: 16, ", "cuont: 16, ", r"found an unknown key 'cuont', expected 'count'"),
        ("a100-80gb", "b100-80gb", r"sites\[0\]\.nodes\[0\]\.device: found an unknown device 'b100-80gb'.*a100-80gb"),
        ("a100-80gb", "7", r"nodes\[0\]\.device: found 7, expected a device's name"),
        ("a100-80gb", "{name: x}", r"nodes\[0\]\.device\.memory_bytes: found nothing"),
        ("nvswitch3", "nvswich3", r"nodes\[0\]\.island\.link: found an unknown link 'nvswich3'.*nvswitch3"),
        ("nvswitch3", "{latency_s: 1}", r"nodes\[0\]\.island\.link\.bandwidth_bytes_per_s: found nothing"),
        ("nvswitch3", "[1]", r"nodes\[0\]\.island\.link: found \[1\], expected a link's name"),
        ("size: 8", "size: 3", r"nodes\[0\]\.island\.size: found 3 in a node of 8 devices, expected a divisor"),
        ("size: 8", "size: 0", r"nodes\[0\]\.island\.size: found 0, expected at least 1"),
        ("{count: 8, link", "{count: -8, link", r"nodes\[0\]\.nics\.count: found -8, expected at least 0"),
        ("free: all", "free: some", r"nodes\[0\]\.free: found 'some', expected all, or a number"),
        ("free: all", "free: 129", r"nodes\[0\]\.free: found 129, expected all, or a number from 0 to the group's 128"),
        ("price_per_device_hour: 1.9", "price_per_device_hour: -1", "price_per_device_hour: found -1"),
        ("price_per_device_hour: 1.9", "price_per_device_hour: .inf", "price_per_device_hour: found inf"),
        ("pods: 2", "pods: 17", r"sites\[0\]\.fabric\.pods: found 17, expected from 1 to the site's 16 nodes"),
        ("oversubscription: 1.0", "oversubscription: 0.5", r"sites\[0\]\.fabric\.oversubscription: found 0.5"),
        ("name: south", "name: north", r"sites\[1\]\.name: found 'north' a second time"),
        ("name: south", "name: no", r"links_between_sites\[0\]\.between: found no site called south"),
        ("[north, south]", "[north, west]", r"between: found no site called west, expected two of north, south"),
        ("[north, south]", "[north, north]", r"links_between_sites\[0\]\.between: found north twice"),
        ("[north, south]", "[north]", r"links_between_sites\[0\]\.between: found 1 entries, expected at least 2"),
        ("1.25e9", "1e-300", r"sites\[0\]\.bandwidth_bytes_per_s: found 1e-300, expected greater than or equal to 1"),
        ("1.25e9", ".inf", r"sites\[0\]\.bandwidth_bytes_per_s: found inf, expected a finite number"),
        ("1.25e9", "1e300", r"sites\[0\]\.bandwidth_bytes_per_s: found 1e\+300, expected less than or equal to 1"),
        (
            "1.25e9",
            "0",
            r"links_between_sites\[0\]\.bandwidth_bytes_per_s: found 0, expected greater than or equal to 1",
        ),
        ("5.0e-3", "-1", r"links_between_sites\[0\]\.latency_s: found -1"),
        ("sites:", "sites: []\nother:", "found an unknown key 'other'"),
        (
            "    nodes:\n      - {count: 2, device: h100, free: 5}",
            "    nodes: []",
            r"sites\[1\]\.nodes: found 0 entries, expected at least 1",
        ),
    ],
)
def test_wrong_files(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in DESIGN_EXAMPLE
    with pytest.raises(InputError, match=rf"cluster\.yaml(, line \d+)?: .*{message}") as error:
        load_text(DESIGN_EXAMPLE.replace(old, new, 1), tmp_path)
    nowhere = error.value.key is None or message == "schema: found nothing"
    assert nowhere == (", line " not in error.value.where)


@pytest.mark.parametrize("text", ["", "[]", "3", "schema: cellplan.cluster/1\nsites: 7", "sites: []"])
def test_files_that_are_no_cluster(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cluster\.yaml"):
        load_text(text, tmp_path)


def test_a_device_defined_in_the_file_needs_its_whole_node(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nodes\[0\]\.host_link: found nothing, expected all of devices"):
        load_text(INLINE.replace("        host_link: pcie5-x16\n", ""), tmp_path)


def test_records_refuse_what_files_may_not_say() -> None:
    group = load_cluster("h100:2x8").sites[0].nodes[0]
    site = Site(name="a", nodes=(group,), fabric_link=group.nic_link)
    for change in ({"count": 0}, {"devices": -1}, {"island_size": 3}, {"free": 17}, {"nics": -1}, {"power_w": -1.0}):
        with pytest.raises(InputError):
            replace(group, **change)
    with pytest.raises(InputError, match="a second time"):
        Cluster(text="", sites=(site, site))
    with pytest.raises(InputError, match="the same sites again"):
        Cluster(
            text="",
            sites=(site, replace(site, name="b")),
            site_links=tuple(
                SiteLink(between=pair, bandwidth_bytes_per_s=1.0, latency_s=0.0) for pair in (("a", "b"), ("b", "a"))
            ),
        )
    assert isinstance(group, NodeGroup)


def test_a_device_defined_in_place_on_nodes_of_several_shapes(tmp_path: Path) -> None:
    """It is one device; with other figures under the same name the file is wrong."""
    text = """
schema: cellplan.cluster/1
sites:
  - name: a
    nodes:
      - count: 1
        device: &own
          name: own
          memory_bytes: 17179869184
          memory_bandwidth_bytes_per_s: 40.0e9
          peak_flops_per_s: {fp32: 0.6e12}
        devices: 2
        island: {link: pcie4-x16, size: 2}
        nics: {count: 1, link: ethernet-100g}
        host_link: pcie4-x16
      - count: 2
        device: *own
        devices: 4
        island: {link: pcie4-x16, size: 1}
        nics: {count: 2, link: ethernet-100g}
        host_link: pcie4-x16
"""
    cluster = load_text(text, tmp_path)
    small, large = cluster.sites[0].nodes
    assert small.device == large.device
    assert (small.devices, large.devices, len(cluster.slots)) == (2, 4, 10)
    other = text.replace(
        "device: *own",
        "device: {name: own, memory_bytes: 1, memory_bandwidth_bytes_per_s: 1.0, peak_flops_per_s: {fp32: 1.0}}",
    )
    with pytest.raises(InputError, match="two different devices called 'own'"):
        load_text(other, tmp_path)


def test_a_name_that_no_file_can_have_is_of_no_file_at_hand(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    assert is_at_hand("a100-80gb:1x4")
    assert not is_at_hand(str(path))
    path.touch()
    assert is_at_hand(str(path))
    for name in ("x" * 3000 + ".yaml", "a100-80gb:1x4@" + "x" * 3000, "a\0b.yaml"):
        assert not is_at_hand(name)
