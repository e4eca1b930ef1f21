"""The emulated network: laid out after the cluster, shaped and routed as the kernel shows, and gone afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import pairwise, permutations
from pathlib import Path

import pytest

from bench.killed.processes import TOKEN, processes_with
from bench.testbed.layout import LEAST_HELD_S, OWN_LATENCY_S, Layout, lay_out
from bench.testbed.measure import measure_between
from bench.testbed.namespaces import run_tool
from bench.testbed.network import Network, emulated_network, why_not
from estimator.communication.uplinks import doors_above
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster
from profiles.errors import InputError, MachineError
from profiles.network import FabricLevel, FabricPart
from profiles.network import Network as Fabric
from tests.processes import GUARDIAN, HANGS_S, new_token, running, wait_until

ROOT = Path(__file__).parents[2]
CLUSTERS = ROOT / "bench" / "testbed" / "clusters"


@pytest.fixture(scope="module")
def can_emulate() -> None:
    reason = why_not()
    if reason is not None:
        pytest.skip(f"no network namespaces: {reason}")


def cluster_of(name: str) -> Cluster:
    return load_cluster(str(CLUSTERS / f"{name}.yaml"))


def own_namespaces(pid: int) -> list[str]:
    folder = Path("/run/netns")
    return (
        [entry.name for entry in folder.iterdir() if entry.name.startswith(f"cellplan-{pid}-")]
        if folder.exists()
        else []
    )


# Layout


def hops(layout: Layout, start: str, address: str) -> list[str]:
    """The namespaces from `start` to the one that has `address`, by the routes of each; ends after 10."""
    far = {(wire.ends[i].space, wire.ends[i].device): wire.ends[1 - i] for wire in layout.wires for i in (0, 1)}
    owner = {space.address: space.name for space in layout.spaces if space.address}
    at, way = start, [start]
    while at != owner[address] and len(way) < 10:
        route = next(r for r in layout.routes if r.space == at and r.destination in (address, None))
        end = far[at, route.device]
        assert end.address == route.gateway
        at = end.space
        way.append(at)
    return way


def test_the_testbed_of_spiderflow_has_its_sites_and_links_in_the_paper_s_range() -> None:
    cluster = cluster_of("spiderflow-eight-sites")
    counts = [sum(slot.site == site.name for slot in cluster.slots) for site in cluster.sites]
    assert counts == [2, 2, 2, 2, 2, 4, 1, 1]
    assert len(cluster.site_links) == 28
    assert all(0.125e9 <= link.bandwidth_bytes_per_s <= 1.875e9 for link in cluster.site_links)


def test_linked_sites_talk_over_their_own_link() -> None:
    layout = lay_out(cluster_of("spiderflow-eight-sites"))
    addresses = {space.name: space.address for space in layout.spaces}
    for one, other in permutations(addresses, 2):
        assert hops(layout, one, addresses[other] or "") == [one, other]


def test_sites_without_a_link_go_by_the_widest_of_the_shortest_ways() -> None:
    layout = lay_out(cluster_of("four-sites"))
    east, west = "s1n0", "s3n0"
    by_south = [east, "s2n0", west]  # 3 and 4 Gb/s, while by north it is 5 and 1
    assert hops(layout, east, "10.201.3.1") == by_south
    assert hops(layout, west, "10.201.1.1") == by_south[::-1]
    assert any("1 pairs of sites without a link" in note for note in layout.notes)


def test_nodes_of_a_site_meet_behind_their_nics() -> None:
    cluster = cluster_of("two-sites")
    north = cluster.sites[0]
    slow = replace(north.nodes[0].nic_link, bandwidth_bytes_per_s=1e9, efficiency=0.5)
    several = replace(north, nodes=(replace(north.nodes[0], count=2, nic_link=slow),))
    layout = lay_out(replace(cluster, sites=(several, cluster.sites[1])))
    assert hops(layout, "s0n0", "10.201.0.2") == ["s0n0", "s0", "s0n1"]
    assert hops(layout, "s0n1", "10.201.1.1") == ["s0n1", "s0", "s1n0"]
    assert hops(layout, "s1n0", "10.201.0.2") == ["s1n0", "s0", "s0n1"]
    nics = [wire.bandwidth_bytes_per_s for wire in layout.wires if wire.link is None]
    assert nics == [0.5e9, 0.5e9]
    assert [space for _, space, _ in layout.seats] == ["s0n0", "s0n0", "s0n1", "s0n1", "s1n0", "s1n0"]


def pods_of_nodes() -> Cluster:
    """Nine nodes of one device in pods of 4, 3 and 2, on leaves of two at most, uplinks a half and a quarter of the
    NICs below."""
    cluster = cluster_of("two-sites")
    north = cluster.sites[0]
    nic = replace(north.nodes[0].nic_link, bandwidth_bytes_per_s=1e9, efficiency=1.0)
    nodes = replace(north.nodes[0], count=9, devices=1, island_size=1, nics=1, nic_link=nic, free=None)
    levels = (("leaf", 2.0, (0, 0, 1, 1, 2, 2, 3, 4, 4)), ("pod", 4.0, (0, 0, 1, 1, 2)))
    tree = Fabric(
        levels=tuple(
            FabricLevel(
                name=name,
                parts=tuple(
                    FabricPart(name=f"{name}{number}", oversubscription=over) for number in range(max(part_of) + 1)
                ),
                part_of=part_of,
                hop_latency_s=1e-4,
            )
            for name, over, part_of in levels
        )
    )
    fabric = replace(north.fabric_link, bandwidth_bytes_per_s=1e10, efficiency=1.0)
    site = replace(north, nodes=(nodes,), fabric_link=fabric, network=tree)
    return replace(cluster, sites=(site, cluster.sites[1]))


def test_parts_of_the_network_are_namespaces_and_their_uplinks_wires() -> None:
    cluster = pods_of_nodes()
    layout = lay_out(cluster)
    rates = {wire.uplink: wire.bandwidth_bytes_per_s for wire in layout.wires if wire.uplink}
    assert rates == {
        **{"leaf leaf0": 1e9, "leaf leaf1": 1e9, "leaf leaf2": 1e9, "leaf leaf3": 0.5e9, "leaf leaf4": 1e9},
        **{"pod pod0": 1e9, "pod pod1": 0.75e9, "pod pod2": 0.5e9},
    }
    assert {wire.hold_s for wire in layout.wires if wire.uplink} == {1e-4 - OWN_LATENCY_S}
    assert hops(layout, "s0n0", "10.201.0.2") == ["s0n0", "s0l0p0", "s0n1"]
    assert hops(layout, "s0n0", "10.201.0.3") == ["s0n0", "s0l0p0", "s0l1p0", "s0l0p1", "s0n2"]
    across = ["s0n0", "s0l0p0", "s0l1p0", "s0", "s0l1p2", "s0l0p4", "s0n8"]
    assert hops(layout, "s0n0", "10.201.0.9") == across
    assert hops(layout, "s0n8", "10.201.0.1") == across[::-1]
    assert hops(layout, "s1n0", "10.201.0.9") == ["s1n0", *across[3:]]
    assert hops(layout, "s0n8", "10.201.1.1")[-2:] == ["s0", "s1n0"]


def test_frames_pass_the_uplinks_that_the_estimator_counts() -> None:
    cluster = pods_of_nodes()
    layout = lay_out(cluster)
    slots = [slot for slot in cluster.slots if slot.site == cluster.sites[0].name]
    addresses = {space.name: space.address or "" for space in layout.spaces}
    wires = {tuple(end.space for end in wire.ends): wire for wire in layout.wires if wire.uplink}
    for one, other in permutations(slots, 2):
        way = hops(layout, f"s0n{one.node}", addresses[f"s0n{other.node}"])
        passed = [wires[pair] for step in pairwise(way) for pair in (step, step[::-1]) if pair in wires]
        doors = doors_above(cluster, one, other)
        assert sorted(wire.bandwidth_bytes_per_s or 0.0 for wire in passed) == pytest.approx(
            sorted(rate for _, rate in doors)
        )


def test_a_link_gets_its_scaled_rate_and_what_is_left_of_its_latency() -> None:
    cluster = cluster_of("two-sites")
    link = cluster.site_links[0]
    (wire,) = lay_out(cluster, scale=0.5).wires
    assert wire.bandwidth_bytes_per_s == link.bandwidth_bytes_per_s / 2
    assert wire.hold_s == pytest.approx(link.latency_s - OWN_LATENCY_S)
    short = replace(cluster, site_links=(replace(link, latency_s=LEAST_HELD_S / 2, bandwidth_bytes_per_s=1e11),))
    layout = lay_out(short)
    assert (layout.wires[0].hold_s, layout.wires[0].bandwidth_bytes_per_s) == (0.0, None)
    assert sum("machine" in note for note in layout.notes) == 2


def test_no_frame_or_segment_fills_its_bucket() -> None:
    for scale in (0.01, 0.3, 1.0, 2.0):
        layout = lay_out(cluster_of("spiderflow-eight-sites"), scale=scale)
        for wire in layout.wires:
            burst, segment = (size(layout.frame_bytes) for size in (wire.burst_bytes, wire.segment_bytes))
            assert 3 * layout.frame_bytes <= burst
            assert 2 * segment <= burst or segment > burst
            assert layout.frame_bytes <= segment


def test_sites_that_nothing_joins_are_refused() -> None:
    with pytest.raises(InputError, match="no way between south and north"):
        lay_out(replace(cluster_of("two-sites"), site_links=()))
    with pytest.raises(InputError, match="scale"):
        lay_out(cluster_of("two-sites"), scale=0)


def test_without_namespaces_all_are_on_the_loopback_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.testbed.network.why_not", lambda: "none here")
    with emulated_network(cluster_of("two-sites")) as network:
        assert not network.emulated
        assert "none here" in network.note
        assert {(seat.prefix, seat.address) for seat in network.seats} == {((), "127.0.0.1")}


def test_ranks_that_cannot_be_measured_are_refused() -> None:
    network = Network(seats=(), emulated=False, note="")
    with pytest.raises(InputError, match="two or more different ones"):
        measure_between(network, (0, 1), (8,), "send_recv")


# The network itself


def queued(network: Network, rank: int) -> int:
    """Frames that have been held in the namespace of a seat."""
    command = [*network.seats[rank].prefix, "cat", "/proc/net/netfilter/nfnetlink_queue"]
    fields = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return int(fields[7])


@pytest.mark.usefixtures("can_emulate")
def test_traffic_between_sites_passes_their_shaped_link() -> None:
    with emulated_network(cluster_of("two-sites")) as network:
        assert network.emulated, network.note
        assert len(own_namespaces(os.getpid())) == 2
        first, last = network.seats[0], network.seats[-1]
        space = first.prefix[-1]
        bucket = run_tool("tc", "-n", space, "qdisc", "show", "dev", "to1")
        assert "tbf" in bucket
        assert "rate 5Gbit" in bucket
        assert "dev to1" in run_tool("ip", "-n", space, "route", "get", last.address)
        assert "dev lo" in run_tool("ip", "-n", space, "route", "get", network.seats[1].address)
        points = measure_between(network, (0, 3), (1024, 1 << 20), "send_recv", repeats=3, timeout_s=HANGS_S)
        assert [size for size, _ in points] == [1024, 1 << 20]
        sent = run_tool("tc", "-n", space, "-s", "qdisc", "show", "dev", "to1").split("Sent ")[1].split()
        assert int(sent[0]) > 1 << 20
        if "latencies are not emulated" not in network.note:
            assert queued(network, 3) > 20
    assert not own_namespaces(os.getpid())


@pytest.mark.usefixtures("can_emulate")
def test_traffic_between_pods_passes_the_shaped_uplinks_of_both() -> None:
    cluster = pods_of_nodes()
    alone = replace(cluster, sites=cluster.sites[:1], site_links=())
    with emulated_network(alone) as network:
        prefix = network.seats[0].prefix[-1].removesuffix("s0n0")
        leaf, pod = f"{prefix}s0l0p0", f"{prefix}s0l1p0"
        assert "rate 8Gbit" in run_tool("tc", "-n", pod, "qdisc", "show", "dev", "uplink")
        assert "rate 4Gbit" in run_tool("tc", "-n", f"{prefix}s0l0p3", "qdisc", "show", "dev", "uplink")
        points = measure_between(network, (0, 8), (1 << 20,), "send_recv", repeats=2, timeout_s=HANGS_S)
        assert len(points) == 1
        assert min(_sent(leaf), _sent(pod)) > 1 << 20
        assert _sent(f"{prefix}s0l0p2") == 0
    assert not own_namespaces(os.getpid())


def _sent(space: str) -> int:
    """Bytes that have gone up from a switch."""
    return int(run_tool("tc", "-n", space, "-s", "qdisc", "show", "dev", "uplink").split("Sent ")[1].split()[0])


@pytest.mark.usefixtures("can_emulate")
def test_nothing_is_left_after_an_exception_not_even_a_worker() -> None:
    started: list[subprocess.Popen[bytes]] = []

    def fail_inside() -> None:
        with emulated_network(cluster_of("four-sites")) as network:
            started.append(stack.enter_context(running([*network.seats[0].prefix, "sleep", "600"])))
            name = Path(f"/proc/{started[0].pid}/cmdline")
            # Only once `ip` has given way to it is it in the namespace: `ip`'s own words name it too.
            wait_until(lambda: name.read_bytes().startswith(b"sleep"), "it did not begin")
            raise MachineError("of the run")

    with ExitStack() as stack:
        with pytest.raises(MachineError, match="of the run"):
            fail_inside()
        assert started[0].wait(timeout=HANGS_S) == -signal.SIGKILL
    assert not own_namespaces(os.getpid())


MAKER = textwrap.dedent(
    """
    import sys, time
    from bench.testbed.network import emulated_network
    from profiles.cluster_file import load_cluster
    with emulated_network(load_cluster(sys.argv[1])):
        print("up", flush=True)
        time.sleep(600)
    """
)


@contextmanager
def started_maker(token: str = "") -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", MAKER, str(CLUSTERS / "two-sites.yaml")]
    environment = {**os.environ, TOKEN: token}
    with running(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield process


@pytest.mark.usefixtures("can_emulate")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_run_that_is_told_to_end_takes_its_network_down(number: signal.Signals) -> None:
    with started_maker() as process:
        assert len(own_namespaces(process.pid)) == 2
        process.send_signal(number)
        assert process.wait(timeout=HANGS_S)
    assert not own_namespaces(process.pid)


@pytest.mark.usefixtures("can_emulate")
def test_nothing_is_left_of_a_run_that_is_killed() -> None:
    """Not of its network either, nor of the processes that add latency."""
    token = new_token()
    with started_maker(token) as process:
        assert len(own_namespaces(process.pid)) == 2
        process.kill()
    wait_until(lambda: not processes_with(token), lambda: f"left: {processes_with(token)}")
    assert not own_namespaces(process.pid)


@pytest.mark.usefixtures("can_emulate")
def test_the_next_run_removes_what_a_killed_one_left_and_spares_a_living_one() -> None:
    token = new_token()
    with started_maker(token) as killed, started_maker() as living:
        for pid in [pid for pid, command in processes_with(token).items() if GUARDIAN in command]:
            os.kill(pid, signal.SIGKILL)
        killed.kill()
        wait_until(lambda: not processes_with(token), lambda: f"left: {processes_with(token)}")
        assert len(own_namespaces(killed.pid)) == 2
        with emulated_network(cluster_of("two-sites")):
            assert not own_namespaces(killed.pid)
            assert len(own_namespaces(living.pid)) == 2
        living.terminate()
        living.wait(timeout=HANGS_S)
    assert not own_namespaces(living.pid)


@pytest.mark.usefixtures("can_emulate")
def test_a_network_whose_latency_cannot_be_had_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "latency.py").write_text("import sys; sys.exit('latency: no such queue')", encoding="utf-8")
    monkeypatch.setattr("bench.testbed.network.__file__", str(tmp_path / "network.py"))
    with emulated_network(cluster_of("two-sites")) as network:
        assert "0 with their latency" in network.note
        assert "latencies are not emulated: latency: no such queue" in network.note
    assert not own_namespaces(os.getpid())
