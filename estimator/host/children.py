"""Processes that end when the one that started them does, however that ends: kill -9 as well.

Two things see to it. On Linux the kernel kills every child once its parent is gone (`tied`). What a child has started
in turn, and children on other systems, are killed by a guardian (`guardian`), a small process beside them whose
standard input closes when the parent goes; it also removes the folder they worked in, and undoes what else would stay.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from estimator.host.tied import tie_to

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

_HERE = Path(__file__).parent
_SCRIPT = (sys.executable, "-I", "-S")


class Children:
    """What `child_processes` gives: starts processes, which work in `folder` if they like."""

    def __init__(self, folder: Path, guardian: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self._guardian = guardian
        self._started: list[subprocess.Popen[Any]] = []
        self._tell("folder", str(folder))

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start `command` in a session of its own; `options` are those of `subprocess.Popen`. It is killed, with all
        that it has started, when the context ends or this process does, or (on Linux) this thread.

        Raises:
            OSError: there is no such program, or the system gives no further process.
        """
        environment = options.get("env") or os.environ
        if shutil.which(command[0], path=environment.get("PATH")) is None:
            raise FileNotFoundError(2, "No such program", command[0])
        tied = (*_SCRIPT, str(_HERE / "tied.py"), str(os.getpid())) if sys.platform.startswith("linux") else ()
        process = subprocess.Popen((*tied, *command), start_new_session=True, **options)
        self._started.append(process)
        self._tell("watch", process.pid)
        return process

    def stop(self, process: subprocess.Popen[Any]) -> None:
        """Kill a process that was started here, with all that it has started, and wait for its end."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._tell("release", process.pid)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._started.remove(process)

    def undo_after_death(self, command: Sequence[str]) -> None:
        """Have `command` run if this process dies before the context ends. This repository's packages are on its
        path."""
        self._tell("undo", list(command))

    def end(self) -> None:
        """Stop what still runs; nothing is left to guard."""
        for process in reversed(self._started[:]):
            self.stop(process)
        self._tell("done", True)

    def _tell(self, word: str, value: object) -> None:
        assert self._guardian.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # It was killed: the kernel still ends each child.
            self._guardian.stdin.write(json.dumps({word: value}).encode() + b"\n")
            self._guardian.stdin.flush()


@contextlib.contextmanager
def child_processes() -> Iterator[Children]:
    """Start processes that end with this one at the latest. On leaving, those that still run are killed and waited for,
    and their folder is removed. OSError where the system gives no further process."""
    root = str(_HERE.parents[1])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    with tempfile.TemporaryDirectory(prefix="cellplan-", ignore_cleanup_errors=True) as name:
        guardian = subprocess.Popen(
            (*_SCRIPT, str(_HERE / "guardian.py")),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=dict(os.environ, PYTHONPATH=path),
            cwd="/",
            start_new_session=True,
        )
        assert guardian.stdin is not None
        children = Children(Path(name), guardian)
        try:
            yield children
        finally:
            children.end()
            with contextlib.suppress(BrokenPipeError):
                guardian.stdin.close()
            guardian.wait()


def process_pool(workers: int, method: Literal["spawn", "fork"] = "spawn") -> ProcessPoolExecutor:
    """Return a pool of processes that end with this one. Its own would wait for work for ever: each holds an end of the
    queue that the others read."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    return ProcessPoolExecutor(
        workers, mp_context=get_context(method), initializer=_end_with_pool, initargs=(os.getpid(),)
    )


def _end_with_pool(parent: int) -> None:
    tie_to(parent)
    threading.Thread(target=_await_parent, daemon=True).start()


def _await_parent() -> None:
    from multiprocessing import parent_process
    from multiprocessing.connection import wait

    parent = parent_process()
    assert parent is not None, "a pool's process has one"
    wait([parent.sentinel])
    os._exit(1)
