"""The work behind requests: a few threads, each with a process that answers for it, and the answers of late."""

from __future__ import annotations

import json
import secrets
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from planner.api.page_calls import AT_ONCE, PageProcess
from profiles.errors import InputError, MachineError, NothingFits
from profiles.records import dataclass

MOST_KEPT = 32
MOST_WAITING = 8
"""Of what was asked for and is not done: more are refused."""


class CancelledWorkError(Exception):
    """Somebody asked for it to end."""


class BusyError(Exception):
    """So much is under way that no more is taken."""


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A piece of work: when it began, what it comes to, what ends it, and the file that it says how far it is in."""

    id: str
    start_s: float
    future: Future[Any]
    cancelled: threading.Event
    progress: Path

    def seconds(self) -> float:
        """Return for how long it has been going on."""
        return time.monotonic() - self.start_s

    def said(self) -> str:
        """Return what it last said of how far it is."""
        with suppress(OSError):
            return self.progress.read_text(encoding="utf-8", errors="replace")[:200]
        return ""


class Work:
    """Does what requests ask for; `close` ends all that is under way."""

    def __init__(self, store: Path | None, *, limit_s: float) -> None:
        self._store, self._limit_s = store, limit_s
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="cellplan")
        self._own = threading.local()
        self._lock = threading.Lock()
        self._processes: list[PageProcess] = []
        self._begun: OrderedDict[str, Begun] = OrderedDict()
        self._folder = tempfile.TemporaryDirectory(prefix="cellplan-serve-")

    def begin(self, question: Mapping[str, Any]) -> Begun:
        """Begin to answer a question of `planner.api.pages`. Raise BusyError where too much is under way."""
        name = secrets.token_hex(8)
        progress = Path(self._folder.name) / name
        cancelled = threading.Event()
        store = None if self._store is None else str(self._store)
        asked = {"store": store, "progress": str(progress), **question}
        with self._lock:
            if sum(not begun.future.done() for begun in self._begun.values()) >= AT_ONCE + MOST_WAITING:
                raise BusyError
            begun = Begun(
                id=name,
                start_s=time.monotonic(),
                future=self._threads.submit(self._answer, asked, cancelled),
                cancelled=cancelled,
                progress=progress,
            )
            self._begun[name] = begun
            for old in [key for key, one in self._begun.items() if one.future.done()][: -MOST_KEPT or None]:
                self._begun.pop(old).progress.unlink(missing_ok=True)
        return begun

    def find(self, name: str) -> Begun | None:
        """Return the work of that name, if it is still known."""
        with self._lock:
            return self._begun.get(name)

    def close(self) -> None:
        """End everything."""
        with self._lock:
            for begun in self._begun.values():
                begun.cancelled.set()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for process in self._processes:
            process.end()
        self._folder.cleanup()

    def _answer(self, question: dict[str, Any], cancelled: threading.Event) -> Any:
        """In a thread that lives as long as the server: the kernel ends a process with the thread that started it."""

        def check() -> None:
            if cancelled.is_set():
                raise CancelledWorkError

        check()
        process = getattr(self._own, "process", None)
        if process is None:
            process = self._own.process = PageProcess(limit_s=self._limit_s)
            with self._lock:
                self._processes.append(process)
        try:
            return process.ask(json.loads(json.dumps(question)), check=check)
        except (InputError, NothingFits):
            if not process.runs():
                self._drop(process)
            raise
        except (MachineError, CancelledWorkError):
            self._drop(process)
            raise

    def _drop(self, process: PageProcess) -> None:
        process.end()
        self._own.process = None
        with self._lock:
            self._processes.remove(process)
