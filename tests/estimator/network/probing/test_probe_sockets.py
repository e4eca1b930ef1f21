"""Real packets: over loopback, and through routers in network namespaces, where a user may make these."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import planner
from estimator.network.probing.hops import Trace
from estimator.network.probing.sockets import Probing, resolve, trace
from profiles.errors import InputError

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as taken:
        taken.bind((LOOPBACK, 0))
        return int(taken.getsockname()[1])


def test_a_closed_port_sends_packets_back() -> None:
    port = free_port()
    found = trace(Probing(address=LOOPBACK, port=free_port(), wait_s=5), port)
    assert found == Trace(port=port, hops=(), arrived=True)


def test_whoever_answers_is_the_destination_too() -> None:
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as silent:
        silent.bind((LOOPBACK, 0))
        probing = Probing(address=LOOPBACK, port=silent.getsockname()[1], wait_s=0.01, tries=1, silent=2)
        assert trace(probing, port := free_port()) == Trace(port=port, hops=(), arrived=False)


def test_a_port_that_another_has_is_left_out() -> None:
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as taken:
        taken.bind(("", 0))
        assert trace(Probing(address=LOOPBACK), taken.getsockname()[1]) is None


def test_an_address_of_another_machine_is_no_source() -> None:
    with pytest.raises(InputError, match=r"--source-address: found 192\.0\.2\.1"):
        trace(Probing(address=LOOPBACK, source_address="192.0.2.1"), free_port())


def test_names() -> None:
    assert resolve(LOOPBACK) == LOOPBACK
    for name in ("no-such-host.invalid", "a..b", "x" * 300):
        with pytest.raises(InputError, match="can resolve"):
            resolve(name)


NETWORK = """
set -e
mount -t tmpfs none /run && mkdir -p /run/netns
for n in A L0 S0 S1 L1 B; do ip netns add $n; ip -n $n link set lo up; done
i=0
join() {
  i=$((i+1)); ip -n $1 link add e$2 type veth peer name e$1 netns $2
  ip -n $1 addr add 10.0.$i.1/24 dev e$2; ip -n $2 addr add 10.0.$i.2/24 dev e$1
  ip -n $1 link set e$2 up; ip -n $2 link set e$1 up
}
join A L0; join L0 S0; join L0 S1; join S0 L1; join S1 L1; join L1 B
for n in A L0 S0 S1 L1 B; do
  ip netns exec $n sh -c 'cd /proc/sys/net/ipv4; echo 1 > ip_forward; echo 0 > icmp_ratelimit'
done
ip -n A route add default via 10.0.1.2
ip -n B route add default via 10.0.6.1
ip -n L0 route add default via 10.0.2.2
ip -n L0 route add default via 10.0.3.2 table 100
for port in 50002 50005 50006; do ip -n L0 rule add sport $port table 100; done
for n in S0 S1; do ip -n $n route add 10.0.1.0/24 via 10.0.$((${n#S}+2)).1; done
ip -n S0 route add 10.0.6.0/24 via 10.0.4.2
ip -n S1 route add 10.0.6.0/24 via 10.0.5.2
ip -n L1 route add default via 10.0.4.1
exec ip netns exec A "$@"
"""
"""Host A under leaf L0, host B under leaf L1, two spines; L0 sends three ports by S1, all others by S0."""

CLUSTER = """schema: cellplan.cluster/1
sites:
  - name: north
    nodes: [{count: 2, device: h100, names: [A, B]}]
    fabric:
      link: ib-ndr400
      topology: {kind: clos2, leaves: 2, spines: 2}
      routing:
        addresses: {10.0.1.2: leaf0, 10.0.2.2: spine0, 10.0.3.2: spine1, 10.0.4.2: leaf1, 10.0.5.2: leaf1, 10.0.6.2: B}
"""


def test_ports_are_found_through_real_routers(tmp_path: Path) -> None:
    if any(shutil.which(tool) is None for tool in ("unshare", "ip", "mount")):
        pytest.skip("this system has no unshare, ip or mount")
    (tmp_path / "c.yaml").write_text(CLUSTER, encoding="utf-8")
    probe = ["network", "probe", str(tmp_path / "c.yaml"), "B", "--source", "A", "--ports", "50000-50010", "--json"]
    command = [sys.executable, "-m", "cellplan", *probe, "-o", str(tmp_path / "out.yaml")]
    root = Path(planner.__file__).parents[1]
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--net", "--mount", "sh", "-c", NETWORK, "sh", *command],
        capture_output=True,
        text=True,
        cwd=root,
        timeout=120,
        check=False,
    )
    if not done.stdout:
        pytest.skip(f"no network namespaces for users here: {done.stderr.strip()[-200:]}")
    answer = json.loads(done.stdout)
    # In the order in which ports are tried 50006 is the fifth, and the first of those that the rules send by S1.
    assert (answer["stopped"], answer["asked"], answer["seen"], answer["equal"]) == ("all seen", 5, 2, 2)
    assert {tuple(path["through"]): path["ports"] for path in answer["paths"]} == {
        ("leaf0", "spine0", "leaf1"): "50000,50003,50007,50010",
        ("leaf0", "spine1", "leaf1"): "50006",
    }
    assert "spine1" in (tmp_path / "out.yaml").read_text(encoding="utf-8")
