"""An emulated network: the sites, nodes and links of a cluster as network namespaces of this machine.

Every node is a namespace, every link between sites a pair of virtual Ethernet devices whose two directions are each
limited by a token bucket (`tc` tbf) and held back by `latency.py`. Processes that are started with a seat's prefix and
environment talk over exactly the links that the cluster gives their devices.

    with emulated_network(load_cluster("bench/testbed/clusters/two-sites.yaml")) as network:
        for seat in network.seats:
            subprocess.Popen([*seat.prefix, sys.executable, "worker.py"], env=os.environ | dict(seat.environment))
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from bench.testbed.layout import Layout, Wire, lay_out
from bench.testbed.namespaces import (
    make_namespaces,
    own_prefix,
    remove_leftovers,
    remove_namespaces,
    run_tool,
    tool,
)
from estimator.host.children import Children, child_processes
from profiles.cluster import Cluster, DeviceSlot
from profiles.errors import MachineError

_LOOPBACK = "127.0.0.1"
_READY_S = 60.0
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_numbers = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where a rank's process runs: what its command line starts with, and what its environment has to hold. Ranks count
    through the cluster's free devices. Workers of a node share its address."""

    rank: int
    slot: DeviceSlot
    prefix: tuple[str, ...]
    address: str
    environment: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """`wires` are those between sites and those of NICs. `note` says what was emulated and what was not."""

    seats: tuple[Seat, ...]
    emulated: bool
    note: str
    wires: tuple[Wire, ...] = ()


@contextlib.contextmanager
def emulated_network(cluster: Cluster, *, scale: float = 1.0) -> Iterator[Network]:
    """The network of `cluster` on this machine, for as long as the context lasts.

    Afterwards nothing is left of it, neither after an exception nor after SIGINT, SIGTERM or SIGHUP: whatever still
    runs in its namespaces is killed. After a kill -9 a guardian removes it (see `estimator.host.children`), or else the
    next run. Where there are no namespaces (`why_not`), all seats are on the loopback device and `emulated` is False.

    Args:
        scale: multiplies every rate. Where messages are scaled alike, transfers take the same time on a machine that
            cannot carry the true rates.

    Raises:
        InputError: a cluster that cannot be laid out (see `lay_out`).
        MachineError: a namespace, a device or a route could not be made, or not be taken down.
    """
    layout = lay_out(cluster, scale=scale)
    reason = why_not()
    if reason is not None:
        yield _plain_loopback(layout, reason)
        return
    with standing(layout) as (prefix, children):
        failure = _start_holding(layout, prefix, children) if any(wire.hold_s for wire in layout.wires) else None
        notes = [*layout.notes, *([f"latencies are not emulated: {failure}"] if failure else ())]
        yield Network(
            seats=tuple(_seat(rank, place, prefix) for rank, place in enumerate(layout.seats)),
            emulated=True,
            note="; ".join((_emulated(layout, held=failure is None), *notes)),
            wires=layout.wires,
        )


@contextlib.contextmanager
def standing(layout: Layout) -> Iterator[tuple[str, Children]]:
    """The namespaces of `layout`, without its latencies, for as long as the context lasts: the prefix of their names,
    and what starts processes that end with them.

    Raises:
        MachineError: a namespace, a device or a route could not be made, or not be taken down.
    """
    remove_leftovers()
    prefix = own_prefix(next(_numbers))
    with _ended_by_signals(), child_processes() as children, contextlib.ExitStack() as stack:
        children.undo_after_death((sys.executable, "-m", "bench.testbed.namespaces", prefix))
        stack.callback(_take_down, prefix)
        make_namespaces(layout, prefix)
        yield prefix, children


def why_not() -> str | None:
    """What this machine lacks for an emulated network; None if it can have one. Tries it out, which takes 0.1 s."""
    if not sys.platform.startswith("linux"):
        return f"network namespaces are Linux's, and this is {sys.platform}"
    if os.geteuid():
        return "only root may make network namespaces"
    for name in ("ip", "tc"):
        if tool(name) is None:
            return f"{name} is not installed (iproute2)"
    prefix = own_prefix(next(_numbers))
    space = f"{prefix}probe"
    try:
        run_tool("ip", "netns", "add", space)
        run_tool("ip", "-n", space, "link", "add", "name", "one", "type", "veth", "peer", "name", "other")
        bucket = ("rate", "1gbit", "burst", "100000", "limit", "1000000")
        run_tool("tc", "-n", space, "qdisc", "add", "dev", "one", "root", "tbf", *bucket)
    except MachineError as error:
        return str(error)
    finally:
        with contextlib.suppress(MachineError):
            remove_namespaces(prefix)
    return None


def _plain_loopback(layout: Layout, reason: str) -> Network:
    seats = (
        Seat(rank=rank, slot=slot, prefix=(), address=_LOOPBACK, environment=_environment())
        for rank, (slot, _, _) in enumerate(layout.seats)
    )
    note = f"nothing is emulated, all workers are on the loopback device: {reason}"
    return Network(seats=tuple(seats), emulated=False, note=note)


def _seat(rank: int, place: tuple[DeviceSlot, str, str], prefix: str) -> Seat:
    slot, space, address = place
    command = (tool("ip") or "ip", "netns", "exec", prefix + space)
    return Seat(rank=rank, slot=slot, prefix=command, address=address, environment=_environment())


def _environment() -> tuple[tuple[str, str], ...]:
    """gloo listens on an interface's first address: the loopback device of a namespace has the node's."""
    return (("GLOO_SOCKET_IFNAME", "lo"),)


def _emulated(layout: Layout, *, held: bool) -> str:
    between = [wire for wire in layout.wires if wire.link is not None]
    shaped = sum(wire.bandwidth_bytes_per_s is not None for wire in between)
    late = sum(wire.hold_s > 0 for wire in between) if held else 0
    return f"emulated: {len(between)} links between sites, {shaped} with their rate, {late} with their latency"


def _take_down(prefix: str) -> None:
    """Nothing interrupts it: a second Ctrl-C must not leave half a network behind."""
    if threading.current_thread() is not threading.main_thread():
        remove_namespaces(prefix)
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _ENDING}
    try:
        remove_namespaces(prefix)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP exceptions, as SIGINT is, where nobody else handles them (in the main thread)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    taken = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    for number in taken:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _start_holding(layout: Layout, prefix: str, children: Children) -> str | None:
    """Start the process that adds latency; what it fails with, None if it is ready."""
    queues = [
        {"namespace": prefix + end.space, "device": end.device, "hold_s": wire.hold_s}
        for wire in layout.wires
        if wire.hold_s
        for end in wire.ends
    ]
    process = children.start(
        (sys.executable, "-I", str(Path(__file__).with_name("latency.py"))),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps({"queues": queues}).encode() + b"\n")
        process.stdin.flush()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if not selector.select(_READY_S):
            return f"not ready after {_READY_S:g} s"
    if process.stdout.readline().strip() == b"ready":
        return None
    last = process.stderr.read().decode(errors="replace").strip().splitlines()
    return last[-1] if last else "it ended without a word"
