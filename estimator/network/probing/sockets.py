"""Sends UDP packets with rising time to live and listens who returns them: an ordinary socket, no privilege.

A packet that dies on its way comes back as an ICMP error, which Linux hands to whoever asked for it (IP_RECVERR:
ip(7)). Every packet of a trace has the same addresses and ports, so that every switch hashes them alike (Augustin et
al., "Avoiding traceroute anomalies with Paris traceroute", 2006).
"""

from __future__ import annotations

import errno
import select
import socket
import struct
import time
from contextlib import closing

from estimator.network.probing.hops import Trace
from profiles.errors import InputError, MachineError
from profiles.records import dataclass

IP_RECVERR = getattr(socket, "IP_RECVERR", 11)
_FROM_ICMP, _UNREACHABLE, _EXCEEDED = 2, 3, 11
_ERROR = struct.Struct("=IBBBBII")
"""`struct sock_extended_err` of linux/errqueue.h: number, origin, type, code, pad, info, data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probing:
    """Where packets go, from which of this machine's addresses (empty: any), and how long an answer is waited for.
    `tries` packets are sent for a hop before it is taken for silent; after `silent` such in a row, or `most_hops`, a
    trace ends."""

    address: str
    source_address: str = ""
    port: int = 4791
    wait_s: float = 1.0
    tries: int = 2
    most_hops: int = 16
    silent: int = 3


def resolve(host: str) -> str:
    """Return the IPv4 address of a host. Raise InputError where it has none."""
    try:
        return str(socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_DGRAM)[0][4][0])
    except (OSError, UnicodeError) as error:
        expected = "an IPv4 address, or a name that this machine can resolve"
        raise InputError(where="network probe", key="HOST", found=f"{host!r} ({error})", expected=expected) from None


def trace(probing: Probing, source_port: int) -> Trace | None:
    """Return the hops of packets from a source port; None where another program has that port. Raise MachineError where
    the machine cannot send at all."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sender:
        try:
            sender.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
            sender.bind((probing.source_address, source_port))
            sender.connect((probing.address, probing.port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return None
            raise _cannot(probing, error) from error
        sender.setblocking(False)
        hops: list[tuple[str, ...]] = []
        for ttl in range(1, probing.most_hops + 1):
            answer, arrived = _ask(sender, probing, ttl)
            if arrived:
                return Trace(port=source_port, hops=tuple(hops), arrived=True)
            hops.append((answer,) if answer else ())
            if not any(hops[-probing.silent :]) and len(hops) >= probing.silent:
                break
        while hops and not hops[-1]:
            hops.pop()
        return Trace(port=source_port, hops=tuple(hops), arrived=False)


def _ask(sender: socket.socket, probing: Probing, ttl: int) -> tuple[str | None, bool]:
    """Who returns a packet of this time to live, and whether it is its destination."""
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, ttl)
    for _ in range(probing.tries):
        try:
            sender.send(b"cellplan network probe".ljust(32, b"\0"))
        except OSError as error:
            if error.errno in (errno.ENETUNREACH, errno.ENETDOWN, errno.EPERM, errno.EACCES):
                raise _cannot(probing, error) from error
            # What came back for the packet before is told by the next call: it waits in the queue of errors.
        ends = time.monotonic() + probing.wait_s
        while (left := ends - time.monotonic()) > 0:
            if not _wait(sender, left):
                break
            answer = _returned(sender)
            if answer is not None:
                return answer
            if _replied(sender):
                return probing.address, True
    return None, False


def _wait(sender: socket.socket, seconds: float) -> bool:
    poll = select.poll()
    poll.register(sender, select.POLLIN | select.POLLERR)
    return bool(poll.poll(max(1, int(seconds * 1000))))


def _returned(sender: socket.socket) -> tuple[str, bool] | None:
    """Who returned a packet, of those in the queue of errors, and whether it had arrived there."""
    while True:
        try:
            _, ancillary, _, _ = sender.recvmsg(64, 512, socket.MSG_ERRQUEUE)
        except OSError:
            return None
        for level, kind, data in ancillary:
            if level != socket.IPPROTO_IP or kind != IP_RECVERR or len(data) < _ERROR.size + 8:
                continue
            _, origin, icmp_type, code, *_ = _ERROR.unpack_from(data)
            offender = socket.inet_ntoa(data[_ERROR.size + 4 : _ERROR.size + 8])
            if origin == _FROM_ICMP and icmp_type == _EXCEEDED:
                return offender, False
            if origin == _FROM_ICMP and icmp_type == _UNREACHABLE:
                return offender, code == 3


def _replied(sender: socket.socket) -> bool:
    """Whether the destination answered with a packet of its own."""
    try:
        sender.recv(2048)
    except OSError:
        return False
    return True


def _cannot(probing: Probing, error: OSError) -> MachineError:
    return MachineError(f"network probe: cannot send to {probing.address} port {probing.port}: {error.strerror}")
