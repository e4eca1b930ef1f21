"""Adds latency to wires: a process that holds each arriving frame for a while, without ever touching its bytes.

Linux offers netem for this, but not every kernel has it. Here a rule in the receiving namespace (nf_tables, hook
prerouting) hands the frames of one device to a queue of nfnetlink_queue. What comes to this process is a frame's
number alone; a verdict lets all frames up to a number go on. So a gigabyte costs some ten thousand small messages,
where a relay between two TAP devices would copy every byte twice.

Run as a script by `Holder`, it reads JSON: {"queues": [{"namespace", "device", "hold_s"}]}.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from collections import deque
from pathlib import Path

_NETFILTER = 12
_SO_RCVBUFFORCE = 33
_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK = 1, 29
_REQUEST, _ACKNOWLEDGE, _CREATE, _APPEND = 1, 4, 0x400, 0x800
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_TABLES, _QUEUE = 10, 3  # subsystems of nfnetlink
_NEW_TABLE, _NEW_CHAIN, _NEW_RULE = _TABLES << 8 | 0, _TABLES << 8 | 3, _TABLES << 8 | 6
_PACKET, _CONFIGURE, _VERDICT_BATCH = _QUEUE << 8 | 0, _QUEUE << 8 | 2, _QUEUE << 8 | 3
_IPV4 = 2
_PREROUTING, _RAW_PRIORITY = 0, -300
_INTERFACE_NAME = 6  # NFT_META_IIFNAME
_FAIL_OPEN_AND_WHOLE = 0x1 | 0x4  # let pass what does not fit; do not cut large frames into small ones
_MOST_HELD = 65_535
_ACCEPT = 1
_PACKET_ID_AT = 24  # after nlmsghdr (16), nfgenmsg (4) and the header of the first attribute (4)
_LATENESS_SHARE = 0.1
"""How fast the timers' lateness is learned: a share of what the last one was."""

_MOST_EARLY_S = 1.5e-4
_PRIORITY = -15

Held = deque[tuple[float, bytes]]


# Netlink messages


def _attribute(kind: int, data: bytes) -> bytes:
    size = 4 + len(data)
    return struct.pack("=HH", size, kind) + data + bytes(-size % 4)


def _nested(kind: int, *parts: bytes) -> bytes:
    return _attribute(kind | 0x8000, b"".join(parts))


def _text(kind: int, value: str) -> bytes:
    return _attribute(kind, value.encode() + b"\0")


def _number(kind: int, value: int) -> bytes:
    return _attribute(kind, struct.pack(">I", value & 0xFFFFFFFF))


def _message(kind: int, flags: int, body: bytes = b"", *, family: int = 0, resource: int = 0) -> bytes:
    head = struct.pack("=IHHII", 20 + len(body), kind, _REQUEST | flags, 0, 0)
    return head + struct.pack(">BBH", family, 0, resource) + body


def _expression(name: str, *data: bytes) -> bytes:
    return _nested(1, _text(1, name), _nested(2, *data))


def rule_messages(devices: tuple[str, ...]) -> bytes:
    """A batch that makes a table and its chain, and hands what comes in by the n-th device to queue n.

    The queue is named through iptables' NFQUEUE target, which nf_tables takes too: kernels with that are the most.
    """
    table = _text(1, "cellplan")
    hook = _nested(4, _number(1, _PREROUTING), _number(2, _RAW_PRIORITY))
    parts = [
        _message(_BATCH_BEGIN, 0, resource=_TABLES),
        _message(_NEW_TABLE, _ACKNOWLEDGE | _CREATE, table, family=_IPV4),
        _message(
            _NEW_CHAIN, _ACKNOWLEDGE | _CREATE, table + _text(3, "hold") + hook + _text(7, "filter"), family=_IPV4
        ),
    ]
    for number, device in enumerate(devices):
        expressions = _nested(
            4,
            _expression("meta", _number(2, _INTERFACE_NAME), _number(1, 1)),
            _expression(
                "cmp", _number(1, 1), _number(2, 0), _nested(3, _attribute(1, device.encode().ljust(16, b"\0")))
            ),
            _expression("target", _text(1, "NFQUEUE"), _number(2, 0), _attribute(3, struct.pack("=H6x", number))),
        )
        rule = table + _text(2, "hold") + expressions
        parts.append(_message(_NEW_RULE, _ACKNOWLEDGE | _CREATE | _APPEND, rule, family=_IPV4))
    return b"".join((*parts, _message(_BATCH_END, 0, resource=_TABLES)))


def _open() -> socket.socket:
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETFILTER)
    opened.bind((0, 0))
    opened.settimeout(5.0)
    return opened


def _ask(netlink: socket.socket, messages: bytes, answers: int) -> None:
    """Send and wait for as many acknowledgements; OSError with the kernel's reason."""
    netlink.send(messages)
    while answers:
        data = netlink.recv(1 << 16)
        while len(data) >= 20:
            size, kind, code = *struct.unpack_from("=IH", data), *struct.unpack_from("=i", data, 16)
            if kind == 2:  # NLMSG_ERROR, with 0 as an acknowledgement
                if code:
                    raise OSError(-code, os.strerror(-code))
                answers -= 1
            data = data[(size + 3) & ~3 :]


def _bind_queue(number: int) -> socket.socket:
    """A socket that receives the numbers of the frames in a queue of the current namespace."""
    netlink = _open()
    netlink.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 1 << 24)
    bind = _attribute(1, struct.pack(">BBH", 1, 0, socket.AF_INET))
    numbers_only = _attribute(2, struct.pack(">IB", 0, 1))
    flags = _number(4, _FAIL_OPEN_AND_WHOLE) + _number(5, _FAIL_OPEN_AND_WHOLE)
    _ask(netlink, _message(_CONFIGURE, _ACKNOWLEDGE, bind, resource=number), 1)
    settings = numbers_only + _number(3, _MOST_HELD) + flags
    _ask(netlink, _message(_CONFIGURE, _ACKNOWLEDGE, settings, resource=number), 1)
    netlink.setblocking(False)
    return netlink


# Holding


class _Queue:
    """The frames that one device's queue holds, by when they are due."""

    def __init__(self, netlink: socket.socket, number: int, hold_s: float) -> None:
        self.netlink = netlink
        self.held: Held = deque()
        self._hold_s = hold_s
        body = struct.pack("=HH", 12, 2) + struct.pack(">I", _ACCEPT)
        whole = _message(_VERDICT_BATCH, 0, body + bytes(4), resource=number)
        self._verdict = whole[:-4]

    def take(self) -> None:
        """Note the frames that have come."""
        due = time.monotonic() + self._hold_s
        while True:
            try:
                message = self.netlink.recv(256)
            except BlockingIOError:
                return
            except OSError as error:  # More came than the socket's buffer holds: the kernel let those pass.
                if error.errno != errno.ENOBUFS:
                    raise
                continue
            if int.from_bytes(message[4:6], sys.byteorder) == _PACKET:
                self.held.append((due, message[_PACKET_ID_AT : _PACKET_ID_AT + 4]))

    def release(self, until: float) -> None:
        """Let those go on that are due by then."""
        last = None
        while self.held and self.held[0][0] <= until:
            last = self.held.popleft()[1]
        if last is not None:
            self.netlink.send(self._verdict + last)


def _hold(queues: list[_Queue]) -> None:
    """Hold and release for ever. Timers come late, on virtual machines by 0.1 ms: what they were late is learned, and
    the next is set as much earlier."""
    early_s = 0.0
    sockets = {queue.netlink: queue for queue in queues}
    while True:
        due = min((queue.held[0][0] for queue in queues if queue.held), default=None)
        aim = None if due is None else due - early_s
        wait_s = None if aim is None else max(0.0, aim - time.monotonic())
        ready = select.select(list(sockets), (), (), wait_s)[0]
        now = time.monotonic()
        if aim is not None and wait_s and not ready:
            early_s += _LATENESS_SHARE * (min(now - aim, _MOST_EARLY_S) - early_s)
        for netlink in ready:
            sockets[netlink].take()
        for queue in queues:
            queue.release(now + early_s)


def _enter(libc: ctypes.CDLL, namespace: str) -> None:
    handle = os.open(Path("/run/netns") / namespace, os.O_RDONLY)
    try:
        if libc.setns(handle, 0):
            code = ctypes.get_errno()
            raise OSError(code, f"namespace {namespace}: {os.strerror(code)}")
    finally:
        os.close(handle)


def main() -> None:
    """Set up all queues, say `ready`, and hold: a process for each namespace, all of which end with the first."""
    by_namespace: dict[str, list[tuple[str, float]]] = {}
    for queue in json.loads(sys.stdin.readline())["queues"]:
        by_namespace.setdefault(queue["namespace"], []).append((queue["device"], queue["hold_s"]))
    libc = ctypes.CDLL(None, use_errno=True)
    groups = []
    try:
        for namespace, entries in by_namespace.items():
            _enter(libc, namespace)
            queues = [_Queue(_bind_queue(n), n, hold_s) for n, (_, hold_s) in enumerate(entries)]
            devices = tuple(device for device, _ in entries)
            with _open() as netlink:
                _ask(netlink, rule_messages(devices), 2 + len(devices))
            groups.append(queues)
    except OSError as error:
        sys.exit(f"latency: {error}")
    parent = os.getpid()
    for queues in groups:
        if os.fork() == 0:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
            with contextlib.suppress(OSError):  # A wire does not wait for a free core.
                os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
            if os.getppid() == parent:
                _hold(queues)
            os._exit(1)
    print("ready", flush=True)
    while os.read(sys.stdin.fileno(), 1):  # Ends when whoever started this does.
        pass


if __name__ == "__main__":
    main()
