"""The file for nftables on two hosts that are networks of their own: TCP arrives with the DSCP of the job's level."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from planner.contention.emitting.nftables import nftables_file
from planner.contention.emitting.planned import PlannedJob
from planner.contention.emitting.priority_map import default_map

TOOLS = ("nft", "ip", "nsenter", "unshare")
JOB = PlannedJob(id="gpt", hosts=("a", "b"), level=1)
DSCP = default_map(3).levels[1].dscp
SENT = 1_000_000

TWO_HOSTS = """
import socket, subprocess, sys, threading

def run(command):
    return subprocess.run(command.split(), check=True, capture_output=True, text=True, timeout=20).stdout

peer = subprocess.Popen([sys.executable, "-c", '''
import ctypes, os, socket, sys
os.unshare(0x40000000) if hasattr(os, "unshare") else ctypes.CDLL(None, use_errno=True).unshare(0x40000000)
print("apart", flush=True)
sys.stdin.readline()
server = socket.create_server(("10.9.0.2", 5000))
print("listens", flush=True)
connection, _ = server.accept()
while connection.recv(65536):
    pass
print("done", flush=True)
sys.stdin.readline()
'''], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
try:
    assert peer.stdout.readline() == "apart\\n"
    there = f"nsenter -t {peer.pid} -n "
    run("ip link set lo up")
    run("ip link add va type veth peer name vb")
    run(f"ip link set vb netns {peer.pid}")
    run("ip addr add 10.9.0.1/24 dev va")
    run("ip link set va up")
    run(there + "ip addr add 10.9.0.2/24 dev vb")
    run(there + "ip link set vb up")
    run(there + "nft -f COUNTERS")
    run("nft -f MARKS")
    run("nft -f MARKS")
    peer.stdin.write("go\\n")
    peer.stdin.flush()
    assert peer.stdout.readline() == "listens\\n"
    with socket.create_connection(("10.9.0.2", 5000), timeout=20) as connection:
        connection.sendall(b"x" * SENT)
    assert peer.stdout.readline() == "done\\n"
    print(run(there + "nft list table inet counted"))
finally:
    peer.kill()
    peer.wait()
"""
COUNTERS = """\
table inet counted {
    chain arriving {
        type filter hook prerouting priority -300;
        tcp dport 5000 ip dscp LEVEL counter
        tcp dport 5000 ip dscp != LEVEL counter
    }
}
"""


@pytest.mark.parametrize("addresses", [{"a": ("10.9.0.1",), "b": ("10.9.0.2",)}, {}], ids=["to peers", "all"])
def test_what_arrives_has_the_dscp_of_the_level(tmp_path: Path, addresses: dict[str, tuple[str, ...]]) -> None:
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    lacking = [tool for tool in TOOLS if shutil.which(tool, path=path) is None]
    if lacking or os.geteuid() != 0:
        pytest.skip(f"{', '.join(lacking) or 'root'} is not here")
    alone = ["unshare", "-n", "true"]
    if subprocess.run(alone, capture_output=True, check=False, timeout=20).returncode:
        pytest.skip("a network of one's own cannot be had here")
    made = nftables_file(JOB, [JOB], default_map(3), addresses, file="dscp.nft")
    (tmp_path / "marks.nft").write_text(made.text or "", encoding="utf-8")
    (tmp_path / "counters.nft").write_text(COUNTERS.replace("LEVEL", str(DSCP)), encoding="utf-8")
    program = TWO_HOSTS.replace("MARKS", str(tmp_path / "marks.nft")).replace(
        "COUNTERS", str(tmp_path / "counters.nft")
    )
    done = subprocess.run(
        ["unshare", "-n", sys.executable, "-c", program.replace("SENT", str(SENT))],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PATH": path},
    )
    if "not permitted" in done.stderr or "not supported" in done.stderr:
        pytest.skip(f"the kernel does not let it: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    marked, other = (int(count) for count in re.findall(r"counter packets \d+ bytes (\d+)", done.stdout))
    assert marked > SENT
    assert other == 0
