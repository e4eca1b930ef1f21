"""Makes the network namespaces of a layout with `ip` and `tc`, and takes them down again, also those of dead runs."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from bench.testbed.layout import Layout
from profiles.errors import MachineError

MADE = re.compile(r"cellplan-(?P<maker>\d+)-(?P<started>\d+)-\d+-.+")
"""A namespace's name carries its maker's process number and when that was started: a number alone may come again."""

QUEUED_BYTES = 512 << 20
"""What a token bucket lets wait: more than the windows of all connections together, so that no frame is dropped."""

_TIMEOUT_S = 60.0
_QUIET_LOOKS, _BETWEEN_LOOKS_S = 4, 0.1
_NETNS = Path("/run/netns")
_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"

# Nothing is lost on these wires, so congestion control has nothing to find out: Reno (the only one that every namespace
# may choose) then only widens its window, and BBR's probing would add its own rates. A pause must not narrow it again.
_SETTINGS = {
    "net/ipv4/ip_forward": "1",
    "net/ipv4/tcp_congestion_control": "reno",
    "net/ipv4/tcp_slow_start_after_idle": "0",
    "net/ipv4/tcp_no_metrics_save": "1",
    "net/ipv4/tcp_rmem": "4096 1048576 67108864",
    "net/ipv4/tcp_wmem": "4096 1048576 67108864",
    "net/ipv6/conf/all/disable_ipv6": "1",
}

Task = TypeVar("Task")


def tool(name: str) -> str | None:
    """The path of a system tool, also where it is not on the PATH."""
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), _SBIN)))


def run_tool(name: str, *arguments: str, text: str = "") -> str:
    """What a tool prints, given `text` on its standard input; MachineError with what it says where it fails."""
    path = tool(name)
    if path is None:
        raise MachineError(f"testbed: {name} is not installed")
    command = " ".join((name, *arguments))
    try:
        done = subprocess.run(
            (path, *arguments), input=text, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MachineError(f"testbed: {command}: {error}") from error
    if done.returncode:
        raise MachineError(f"testbed: {command}: {(done.stderr or done.stdout).strip() or done.returncode}")
    return done.stdout


def own_prefix(number: int) -> str:
    """How the names of this process' namespaces start; `number` counts the networks that it has made."""
    return f"cellplan-{os.getpid()}-{_started(os.getpid())}-{number}-"


def make_namespaces(layout: Layout, prefix: str) -> None:
    """All of a layout except the latencies; what was made before a MachineError is left for `remove_namespaces`."""
    for space in layout.spaces:
        run_tool("ip", "netns", "add", prefix + space.name)
    batches: dict[str, list[str]] = {space.name: [] for space in layout.spaces}
    for space in layout.spaces:
        batches[space.name] += ["link set lo up", *(_address_lines(space.address) if space.address else ())]
    for wire in layout.wires:
        one, other = wire.ends
        batches[one.space].append(
            f"link add name {one.device} type veth peer name {other.device} netns {prefix}{other.space}"
        )
    _run_batches("ip", batches, prefix)
    second: dict[str, list[str]] = {space.name: [] for space in layout.spaces}
    for wire in layout.wires:
        for end in wire.ends:
            second[end.space].append(f"addr add {end.address}/31 dev {end.device}")
            size = wire.segment_bytes(layout.frame_bytes)
            largest = "gso_max_segs 1" if layout.single_frames else f"gso_max_size {size}"
            second[end.space].append(f"link set {end.device} mtu {layout.frame_bytes} {largest} up")
    address_of = {space.name: space.address for space in layout.spaces}
    for space in layout.spaces:
        _set_up(prefix + space.name, _SETTINGS | dict(layout.settings))
    _run_batches("ip", second, prefix)
    third: dict[str, list[str]] = {space.name: [] for space in layout.spaces}
    for route in layout.routes:
        source = f" src {address_of[route.space]}" if address_of[route.space] else ""
        line = f"route add {route.destination or 'default'} via {route.gateway} dev {route.device}{source}"
        table = "" if route.table is None else f" table {route.table}"
        third[route.space].append(f"{line}{table} {route.options}")
    for rule in layout.rules:
        third[rule.space].append(rule.text)
    _run_batches("ip", third, prefix)
    _run_batches("tc", _shaping(layout), prefix)


def remove_namespaces(prefix: str) -> None:
    """Delete the namespaces whose names start so, and whatever still runs in them. Veth pairs go with them."""
    _remove([name for name in _named() if name.startswith(prefix)])


def remove_leftovers() -> tuple[str, ...]:
    """Delete the namespaces that a process made which is no more; their names."""
    names = []
    for name in _named():
        made = MADE.fullmatch(name)
        if made and _started(int(made["maker"])) != made["started"]:
            names.append(name)
    _remove(names)
    return tuple(names)


def main() -> None:
    """Delete the namespaces with the prefix that the command line names, whose maker is gone. What it had begun to make
    may still come into being: until none is there for a while."""
    (prefix,) = sys.argv[1:]
    quiet = 0
    while quiet < _QUIET_LOOKS:
        quiet = 0 if any(name.startswith(prefix) for name in _named()) else quiet + 1
        remove_namespaces(prefix)
        time.sleep(_BETWEEN_LOOKS_S)


def _address_lines(address: str) -> tuple[str, ...]:
    """gloo takes an interface's first address: ours has to come before the loopback's, and of the same scope."""
    return (
        "addr flush dev lo",
        f"addr add {address}/32 dev lo",
        "addr add 127.0.0.1/8 dev lo scope global",
    )


def _shaping(layout: Layout) -> dict[str, list[str]]:
    lines: dict[str, list[str]] = {}
    for queue in layout.queues:
        lines.setdefault(queue.space, []).append(queue.text)
    for wire in layout.wires:
        if wire.bandwidth_bytes_per_s is None:
            continue
        rate = f"rate {round(8 * wire.bandwidth_bytes_per_s)}bit"
        bucket = f"tbf {rate} burst {wire.burst_bytes(layout.frame_bytes)} limit {QUEUED_BYTES}"
        for end in wire.ends:
            lines.setdefault(end.space, []).append(f"qdisc add dev {end.device} root {bucket}")
    return lines


def _run_batches(name: str, batches: dict[str, list[str]], prefix: str) -> None:
    for space, lines in batches.items():
        if lines:
            run_tool(name, "-n", prefix + space, "-batch", "-", text="\n".join(lines) + "\n")


def _set_up(namespace: str, settings: Mapping[str, str]) -> None:
    """The settings of TCP in a namespace; one that this kernel lacks is left as it is."""
    script = "".join(f"[ -w /proc/sys/{key} ] && echo '{value}' > /proc/sys/{key}\n" for key, value in settings.items())
    run_tool("ip", "netns", "exec", namespace, "sh", text=script + "true\n")


def _named() -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return sorted(entry.name for entry in _NETNS.iterdir())
    return []


def _remove(names: Sequence[str]) -> None:
    """Delete them all; the first failure is raised after the rest has been tried."""
    failed = [error for name in names for error in (_attempt(_remove_one, name),) if error]
    if failed:
        raise failed[0]


def _remove_one(name: str) -> None:
    for pid in run_tool("ip", "netns", "pids", name).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    run_tool("ip", "netns", "del", name)


def _attempt(remove: Callable[[Task], None], what: Task) -> MachineError | None:
    try:
        remove(what)
    except MachineError as error:
        return error
    return None


def _started(pid: int) -> str | None:
    """When a process was started, in clock ticks since the boot; None if there is none, or none that still runs."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


if __name__ == "__main__":
    main()
