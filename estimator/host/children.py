"""Processes that end when the one that started them does, however that ends: kill -9 as well.

Two things see to it. On Linux the kernel kills every child once its parent is gone (`tied`). What a child has started
in turn, and children on other systems, are killed by a guardian (`guardian`), a small process beside them whose
standard input closes when the parent goes; it also removes the folder they worked in, and undoes what else would stay.
What has left its parent's session is found by a mark in its environment, and where it is the user's code by its
`keeper`.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, Protocol

from estimator.host.descendants import carriers_of, descendants_of, end_all
from estimator.host.keeper import keep
from estimator.host.tied import tie_to

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor
    from multiprocessing.connection import Connection

_ROOT = str(Path(__file__).parents[2])
_MARK = "CELLPLAN_CHILD_"
_BETWEEN_LOOKS_S = 0.01


class Child(Protocol):
    """What of `subprocess.Popen` a fork has too."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...


class Fork:
    """A fork of this process: as `Child`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        """Return how it ended, a signal as a negative number; None while it has not."""
        if self._status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # This process ignores how its children end.
                pid, status = self.pid, 0
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        """Return how it ended; raise `subprocess.TimeoutExpired` where it has not after so many seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("a fork", timeout or 0.0)
            time.sleep(_BETWEEN_LOOKS_S)
        return status


class Children:
    """What `child_processes` gives: starts processes, which work in `folder` if they like."""

    def __init__(self, folder: Path, guardian: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self._guardian = guardian
        self._started: list[Child] = []
        self._mark = f"{_MARK}{secrets.token_hex(8)}"
        self._tell("folder", str(folder))
        self._tell("mark", self._mark)

    def start(self, command: Sequence[str], *, kept: bool = False, **options: Any) -> subprocess.Popen[Any]:
        """Start `command` in a session of its own; `options` are those of `subprocess.Popen`. It is killed, with all
        that it has started, when the context ends or this process does, or (on Linux) this thread. One that is `kept`,
        as code that might do anything is, has a `keeper` as its parent: that is the process that is returned.

        Raises:
            OSError: there is no such program, or the system gives no further process.
        """
        environment = options.pop("env", None) or os.environ
        if shutil.which(command[0], path=environment.get("PATH")) is None:
            raise FileNotFoundError(2, "No such program", command[0])
        if kept:
            command = (*_isolated("keeper"), str(os.getpid()), *command)
        elif sys.platform.startswith("linux"):
            command = (*_isolated("tied"), str(os.getpid()), *command)
        marked = {**environment, self._mark: "1"}
        process = subprocess.Popen(command, start_new_session=True, env=marked, **options)
        self._watch(process)
        return process

    def fork(self, become: Callable[[], object]) -> Fork:
        """Fork this process, and have the fork `become` something and end then; it is `kept` and killed as what `start`
        starts. OSError where the system gives no further process."""
        parent, guarding = os.getpid(), self._guardian.stdin
        assert guarding is not None
        with warnings.catch_warnings():  # Python's own on threads: what the fork does needs none of them.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                os.close(guarding.fileno())
                os.environ[self._mark] = "1"
                keep(parent, become)
            finally:
                os._exit(1)
        process = Fork(pid)
        self._watch(process)
        return process

    def stop(self, process: Child) -> None:
        """Kill a process that was started here, with all that it has started, and wait for its end."""
        end_all(lambda: descendants_of(process.pid))
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS says so of one that has ended.
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._tell("release", process.pid)
        for name in ("stdin", "stdout", "stderr"):
            stream: IO[Any] | None = getattr(process, name, None)
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._started.remove(process)

    @contextlib.contextmanager
    def answer_for_all(self) -> Iterator[None]:
        """Have what this process starts meanwhile by other means, a compiler say, killed too where this process dies,
        though not when the context ends."""
        mark = f"{_MARK}{secrets.token_hex(8)}"
        self._tell("mark", mark)
        os.environ[mark] = "1"
        try:
            yield
        finally:
            del os.environ[mark]

    def undo_after_death(self, command: Sequence[str]) -> None:
        """Have `command` run if this process dies before the context ends. This repository's packages are on its
        path."""
        self._tell("undo", list(command))

    def end(self) -> None:
        """Stop what still runs and remove the folder; nothing is left to guard."""
        for process in reversed(self._started[:]):
            self.stop(process)
        end_all(lambda: carriers_of(self._mark))
        shutil.rmtree(self.folder, ignore_errors=True)
        self._tell("done", True)

    def _watch(self, process: Child) -> None:
        self._started.append(process)
        self._tell("watch", process.pid)

    def _tell(self, word: str, value: object) -> None:
        assert self._guardian.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # It was killed: the kernel still ends each child.
            self._guardian.stdin.write(json.dumps({word: value}).encode() + b"\n")
            self._guardian.stdin.flush()


@contextlib.contextmanager
def child_processes() -> Iterator[Children]:
    """Start processes that end with this one at the latest. On leaving, those that still run are killed and waited for,
    and their folder is removed. OSError where the system gives no further process."""
    path = os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))
    folder = Path(tempfile.gettempdir(), f"cellplan-{secrets.token_hex(8)}")
    guardian = subprocess.Popen(
        _isolated("guardian"),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=dict(os.environ, PYTHONPATH=path),
        cwd="/",
        start_new_session=True,
    )
    assert guardian.stdin is not None
    children = Children(folder, guardian)
    try:
        folder.mkdir(mode=0o700)  # There is one only while somebody is there to remove it.
        yield children
    finally:
        children.end()
        with contextlib.suppress(BrokenPipeError):
            guardian.stdin.close()
        guardian.wait()


def _isolated(module: str) -> tuple[str, ...]:
    """The command of a small process of this package that nothing from outside has a say in, and that starts at
    once."""
    run = f"import sys; sys.path.append(sys.argv.pop(1)); from estimator.host.{module} import main; main()"
    return (sys.executable, "-I", "-S", "-c", run, _ROOT)


@contextlib.contextmanager
def process_pool(workers: int, method: Literal["spawn", "fork"] = "spawn") -> Iterator[ProcessPoolExecutor]:
    """A pool of processes that end with this one, and at once where the context ends by an exception: an interrupt need
    not wait for what they are at. Its own would wait for work for ever: each holds an end of the queue that the others
    read."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    class _Pool(ProcessPoolExecutor):
        def submit(self, *work: Any, **keywords: Any) -> Future[Any]:
            with interrupts_held_back():  # It starts processes.
                return super().submit(*work, **keywords)

        def map(self, fn: Callable[..., Any], *iterables: Iterable[Any], **_: Any) -> Iterator[Any]:
            """As its own, which cancels each future where somebody reads no further: of one that is cancelled and
            whose worker ends the pool's thread speaks in a traceback. The pool's end cancels them."""
            futures = [self.submit(fn, *items) for items in zip(*iterables, strict=True)]
            return (future.result() for future in futures)

    context = get_context(method)
    reader, writer = context.Pipe(duplex=False)
    pool = _Pool(workers, mp_context=context, initializer=_end_with_pool, initargs=(os.getpid(), reader))
    with reader, writer:
        try:
            yield pool
        except BaseException:
            writer.send_bytes(b"end")
            raise
        finally:
            pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Have an interrupt wait for the end of the context, for what is started in it as well: a process of Python's that
    is interrupted in its own start speaks of it in a traceback, and so does one whose parent was, which then has not
    told it what it is to do."""
    came: list[bool] = []
    handler, mask = signal.getsignal(signal.SIGINT), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    waits = callable(handler) and threading.current_thread() is threading.main_thread()
    try:
        if waits:  # Another thread takes what this one does not, and Python has the main thread answer for it.
            signal.signal(signal.SIGINT, lambda *_: came.append(True))
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # What is started has this thread's mask.
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if waits:
            signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)


def _end_with_pool(parent: int, told: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Of an interrupt at the terminal the parent alone speaks.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # It was started with it held back.
    tie_to(parent)
    threading.Thread(target=_await_parent, args=(told,), daemon=True).start()


def _await_parent(told: Connection) -> None:
    """End this process once its parent has ended or says so; nobody reads what it says, so all see it."""
    from multiprocessing import parent_process
    from multiprocessing.connection import wait

    parent = parent_process()
    assert parent is not None, "a pool's process has one"
    wait([parent.sentinel, told])
    os._exit(1)
