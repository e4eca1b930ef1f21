"""A port for a server that another process starts a little later."""

from __future__ import annotations

import errno
import secrets
import socket

LOOPBACK = "127.0.0.1"
_FIRST, _COUNT = 10_240, 20_000
"""Below those that systems give to connections by themselves (Linux from 32,768, others from 49,152)."""
_TRIES = 1000


def unused_port() -> int:
    """Return a port of the loopback device that nobody has now. No connection is given it before the server takes it,
    as one that the system chooses may be. OSError where none can be had."""
    for _ in range(_TRIES):
        port = _FIRST + secrets.randbelow(_COUNT)
        with socket.socket() as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return port
    raise OSError(errno.EADDRINUSE, "no port is unused")
