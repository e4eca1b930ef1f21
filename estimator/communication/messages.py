"""Arrays from process to process over TCP, where a framework has collectives alone: sent ahead, taken when needed."""

from __future__ import annotations

import secrets
import socket
import struct
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiles.errors import MachineError

_HEADER = struct.Struct("!qq")
"""Of a message: its tag and how many bytes follow."""
_GREETING = struct.Struct("!16sq")
"""Of a connection: the receiver's token, and the rank of who connects."""

Publish = Callable[[str, str], None]
"""Makes a text known to all ranks under a name."""
LookUp = Callable[[str], str]
"""Returns the text of a name, waiting until it is known."""


class Sending:
    """A message that was handed over, until the other side's system has it."""

    def __init__(self) -> None:
        self._done = threading.Event()

    def is_completed(self) -> bool:
        """Return whether it is on its way."""
        return self._done.is_set()

    def wait(self) -> None:
        """Wait until it is."""
        self._done.wait()

    def complete(self) -> None:
        """Note that it is."""
        self._done.set()


class Messenger:
    """One rank's messages to and from all others. Messages from one rank with one tag are taken in the order in which
    they were sent; a message lies ready until it is taken.

    Nothing is sent or accepted without the receiver's token, which `publish` and `look_up` hand from rank to rank.
    """

    def __init__(self, rank: int, host: str, *, publish: Publish, look_up: LookUp, timeout_s: float) -> None:
        self.rank, self.timeout_s, self._look_up = rank, timeout_s, look_up
        self._token = secrets.token_bytes(16)
        self._arrived: dict[tuple[int, int], SimpleQueue[bytearray]] = {}
        self._outgoing: dict[int, SimpleQueue[tuple[int, NDArray[np.uint8], Sending]]] = {}
        self._failure: OSError | None = None
        self._lock = threading.Lock()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        port = self._listener.getsockname()[1]
        publish(f"messages/{rank}", f"{self._token.hex()} {port} {host}")
        threading.Thread(target=self._accept, daemon=True).start()

    def send(self, peer: int, tag: int, array: NDArray[Any]) -> Sending:
        """Hand over `array`, which must not change any more, and return at once."""
        sending = Sending()
        queue = self._outgoing.get(peer)
        if queue is None:
            queue = self._outgoing[peer] = SimpleQueue()
            threading.Thread(target=self._deliver, args=(peer, queue), daemon=True).start()
        queue.put((tag, np.ascontiguousarray(array).reshape(-1).view(np.uint8), sending))
        return sending

    def take(self, peer: int, tag: int) -> NDArray[np.uint8]:
        """Return the bytes of the next message of `peer` with `tag`. MachineError if none comes in time."""
        try:
            return np.frombuffer(self._queue(peer, tag).get(timeout=self.timeout_s), np.uint8)
        except Empty:
            raise MachineError(
                f"run: rank {self.rank} waited {self.timeout_s:g} s for a message from rank {peer}"
            ) from self._failure

    def close(self) -> None:
        """Accept nobody any more."""
        self._listener.close()

    def _queue(self, peer: int, tag: int) -> SimpleQueue[bytearray]:
        with self._lock:
            return self._arrived.setdefault((peer, tag), SimpleQueue())

    def _deliver(self, peer: int, queue: SimpleQueue[tuple[int, NDArray[np.uint8], Sending]]) -> None:
        connection: socket.socket | None = None
        while True:
            tag, content, sending = queue.get()
            try:
                if connection is None and self._failure is None:
                    connection = self._connect(peer)
                if connection is not None:
                    connection.sendall(_HEADER.pack(tag, content.nbytes))
                    connection.sendall(content.data)
            except OSError as error:
                self._failure, connection = error, None
            finally:
                sending.complete()

    def _connect(self, peer: int) -> socket.socket:
        token, port, host = self._look_up(f"messages/{peer}").split(" ", 2)
        connection = socket.create_connection((host, int(port)), timeout=self.timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(_GREETING.pack(bytes.fromhex(token), self.rank))
        return connection

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._listen, args=(connection,), daemon=True).start()

    def _listen(self, connection: socket.socket) -> None:
        with connection:
            greeting = _read(connection, _GREETING.size)
            if greeting is None:
                return
            token, peer = _GREETING.unpack(greeting)
            if not secrets.compare_digest(token, self._token):
                return
            while (header := _read(connection, _HEADER.size)) is not None:
                tag, size = _HEADER.unpack(header)
                content = _read(connection, size)
                if content is None:
                    return
                self._queue(peer, tag).put(content)


def _read(connection: socket.socket, size: int) -> bytearray | None:
    """So many bytes, None where the connection ends before."""
    content = bytearray(size)
    rest = memoryview(content)
    while rest:
        try:
            count = connection.recv_into(rest)
        except OSError:
            return None
        if count == 0:
            return None
        rest = rest[count:]
    return content
