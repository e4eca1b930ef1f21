"""What a link does with plain TCP, without gloo: a ping-pong of one byte, then bytes in one direction.

One end runs `python -m bench.testbed.tcp_flow serve ADDRESS PORT`, the other `... send ADDRESS PORT BYTES`, which
prints JSON: the shortest time of a byte one way, and the seconds of each fifth of the bytes until the other end had it.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench.testbed.network import Network
from estimator.host.children import child_processes
from profiles.errors import MachineError

_PINGS = 30
_PARTS = 5
_WARM_UP_BYTES = 4 << 20  # opens the connection's windows
_CONNECT_S = 60.0
_TIMEOUT_S = 120.0
_FIRST_PORT = 22_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Seconds of a byte one way, and bytes/s of the fastest part and of the whole of a transfer."""

    byte_s: float
    fastest: float
    whole: float


def measure_flows(network: Network, pairs: Sequence[tuple[int, int]], size: int) -> list[Flow]:
    """`size` bytes for each (sender, receiver), all pairs at once.

    Raises:
        MachineError: an end failed, or was not done in time.
    """
    seats = {seat.rank: seat for seat in network.seats}
    with child_processes() as children:
        senders = []
        for number, (sender, receiver) in enumerate(pairs):
            place = seats[receiver].address, str(_FIRST_PORT + number)
            script = (sys.executable, "-m", "bench.testbed.tcp_flow")
            children.start((*seats[receiver].prefix, *script, "serve", *place))
            sending = (*seats[sender].prefix, *script, "send", *place, str(size))
            senders.append(children.start(sending, stdout=subprocess.PIPE, text=True))
        found = []
        for process in senders:
            try:
                printed, _ = process.communicate(timeout=_TIMEOUT_S)
            except subprocess.TimeoutExpired as error:
                raise MachineError(f"TCP flow: not done after {_TIMEOUT_S:g} s") from error
            if process.returncode:
                raise MachineError(f"TCP flow: exit status {process.returncode}")
            result = json.loads(printed)
            byte_s, parts_s = float(result["byte_s"]), [float(seconds) for seconds in result["parts_s"]]
            part = size // _PARTS
            found.append(Flow(byte_s=byte_s, fastest=part / min(parts_s), whole=_PARTS * part / sum(parts_s)))
    return found


def _receive(connection: socket.socket, size: int, buffer: bytearray) -> None:
    while size:
        got = connection.recv_into(buffer, min(size, len(buffer)))
        if not got:
            raise SystemExit("TCP flow: the other end has gone")
        size -= got


def _parts(size: int) -> tuple[int, ...]:
    return (*[1] * _PINGS, _WARM_UP_BYTES, *[size // _PARTS] * _PARTS)


def _serve(address: str, port: int) -> None:
    buffer = bytearray(1 << 20)
    with socket.create_server((address, port)) as server:
        connection, _ = server.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _receive(connection, 8, buffer)
        size = int.from_bytes(buffer[:8], "big")
        for part in _parts(size):
            _receive(connection, part, buffer)
            connection.sendall(b"x")


def _connect(address: str, port: int) -> socket.socket:
    deadline = time.monotonic() + _CONNECT_S
    while True:
        try:
            return socket.create_connection((address, port), timeout=_TIMEOUT_S)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _send(address: str, port: int, size: int) -> None:
    buffer = bytearray(1)
    data = memoryview(bytes(max(_parts(size))))
    with _connect(address, port) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(size.to_bytes(8, "big"))
        seconds = []
        for part in _parts(size):
            start = time.perf_counter()
            connection.sendall(data[:part])
            _receive(connection, 1, buffer)
            seconds.append(time.perf_counter() - start)
    byte_s = min(seconds[:_PINGS]) / 2
    print(json.dumps({"byte_s": byte_s, "parts_s": [part_s - 2 * byte_s for part_s in seconds[-_PARTS:]]}))


def main() -> None:
    role, address, port, *size = sys.argv[1:]
    if role == "serve":
        _serve(address, int(port))
    else:
        _send(address, int(port), int(size[0]))


if __name__ == "__main__":
    main()
