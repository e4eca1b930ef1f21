"""A server of the page, in a thread of this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from planner.cli.serve_server import PageServer
from planner.shared.options.serve import ServeOptions


@contextmanager
def serving() -> Iterator[PageServer]:
    with PageServer(ServeOptions()) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
