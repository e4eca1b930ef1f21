"""Worker processes on this machine: started, handed a request, watched, and never left behind.

A worker reads one line of JSON, its request, from standard input and writes JSON lines to the file that the request
names under `results`. It ends when its parent does (`estimator.host.children`).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import IO, Any

from estimator.host.children import Children, child_processes
from profiles.errors import MachineError
from profiles.records import dataclass

START_S = 120.0
"""A worker that has not said a word for so long may still be starting: on a busy machine, importing its framework takes
much longer than the steps that follow."""

_POLL_S = 0.02

OnLine = Callable[[int, dict[str, Any]], None]
"""Called with a worker's rank and each JSON line that it wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """How to start one worker: its command, what it is told, and the cores that it and its threads may use (None:
    any)."""

    command: tuple[str, ...]
    request: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)
    cores: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When to give up: after `total_s` seconds, or once no worker has written a line for `silent_s`; until each has
    written its first, for `start_s` if that is more."""

    total_s: float | None = None
    silent_s: float | None = None
    start_s: float = START_S

    def patience_s(self, *, all_started: bool) -> float:
        """Return the seconds of silence after which to give up, infinite where nothing was said of it."""
        if self.silent_s is None:
            return math.inf
        return self.silent_s if all_started else max(self.silent_s, self.start_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worker:
    rank: int
    process: subprocess.Popen[bytes]
    errors: Path

    def last_words(self) -> str:
        return f"worker {self.rank}: {last_line(self.errors.read_text(encoding='utf-8', errors='replace'))}"


def run_workers(specs: Sequence[WorkerSpec], *, what: str, limits: Limits, on_line: OnLine) -> None:
    """Start a worker for each of `specs` (rank i is the i-th), hand over what they write as it comes, and return when
    all have ended well. Each request also gets `rank`, `world_size`, `results` and `store`, a file to meet in.

    Raises:
        MachineError: a worker died, nothing came in time, or the machine could not start them. `what` begins its
            message. No process is left behind, whatever happens.
    """
    try:
        with child_processes() as children, contextlib.ExitStack() as stack:
            for rank in range(len(specs)):
                _results(children.folder, rank).touch()
            workers = [_start_worker(spec, rank, len(specs), children) for rank, spec in enumerate(specs)]
            files = [
                stack.enter_context(_results(children.folder, rank).open(encoding="utf-8"))
                for rank in range(len(specs))
            ]
            _watch(workers, files, what, limits, on_line)
    except OSError as error:
        raise MachineError(f"{what}: cannot run {len(specs)} workers: {error}") from error


def pinned_cores(workers: int, threads: int) -> list[tuple[int, ...]] | None:
    """Cores for each worker, none twice; None where this process may not use as many."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < workers * threads:
        return None
    return [tuple(usable[rank * threads : (rank + 1) * threads]) for rank in range(workers)]


def last_line(text: str) -> str:
    """The last line of a worker's standard error that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


def python_worker(module: str) -> tuple[str, ...]:
    """The command of a worker that is a module, run by this interpreter. The current folder is not on its path: what
    lies beside a plan, a `json.py` say, is not imported."""
    return (sys.executable, "-P", "-m", module)


def jax_environment(*flags: str, threads: int = 1, gpu: bool = False) -> dict[str, str]:
    """The environment in which a JAX process has one device: a CPU that computes with one thread where `threads` is 1,
    or a GPU of whichever kind there is. `flags` are XLA's, besides; of flags that contradict each other the last
    counts."""
    ends_on_request = {"JAX_ENABLE_PREEMPTION_SERVICE": "false"}  # JAX would catch SIGTERM, and go on.
    if gpu:
        return ends_on_request | {"JAX_PLATFORMS": ""}
    xla_flags = (
        os.environ.get("XLA_FLAGS", ""),
        "--xla_force_host_platform_device_count=1",
        "--xla_cpu_multi_thread_eigen=false" if threads == 1 else "",
        *flags,
    )
    return ends_on_request | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": " ".join(filter(None, xla_flags))}


def read_request() -> dict[str, Any]:
    """Return the request of this worker. End it where its parent went before it was written."""
    line = sys.stdin.readline()
    if not line.endswith("\n"):
        raise SystemExit(1)
    request: dict[str, Any] = json.loads(line)
    return request


def _results(folder: Path, rank: int) -> Path:
    return folder / f"{rank}.jsonl"


def _start_worker(spec: WorkerSpec, rank: int, world_size: int, children: Children) -> _Worker:
    errors = children.folder / f"{rank}.err"
    with errors.open("wb") as err:
        process = children.start(
            spec.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=err,
            env={**_environment(), **spec.environment},
        )
    request = {
        **spec.request,
        "rank": rank,
        "world_size": world_size,
        "results": str(_results(children.folder, rank)),
        "store": str(children.folder / "store"),
    }
    assert process.stdin is not None
    if spec.cores is not None and hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(process.pid, spec.cores)
    with contextlib.suppress(BrokenPipeError):  # It died at once: `_watch` says of what.
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
    return _Worker(rank=rank, process=process, errors=errors)


def _environment() -> dict[str, str]:
    """Ours, with one thread, this package on the path, and gloo on the loopback device instead of the host's name."""
    return package_path(os.environ) | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"} | _loopback()


def package_path(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` with these packages on Python's path."""
    root = str(Path(__file__).resolve().parents[2])
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH"))))}


def use_loopback() -> None:
    """Lets gloo in this process use the loopback device, unless somebody said otherwise: for ranks of one machine."""
    for name, value in _loopback().items():
        os.environ.setdefault(name, value)


def _loopback() -> dict[str, str]:
    """The host's own name may lead to a slow device, or to none."""
    found = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    return {"GLOO_SOCKET_IFNAME": found[0]} if found else {}


def _watch(workers: list[_Worker], files: Sequence[IO[str]], what: str, limits: Limits, on_line: OnLine) -> None:
    start = time.monotonic()
    heard = [start] * len(workers)
    starting = set(range(len(workers)))
    while True:
        statuses = [worker.process.poll() for worker in workers]
        for rank, lines in enumerate(files):
            for value in _new_lines(lines):
                heard[rank] = time.monotonic()
                starting.discard(rank)
                on_line(rank, value)
        failed = [(worker, status) for worker, status in zip(workers, statuses, strict=True) if status]
        if failed:
            # A killed worker takes the others with it: name it before those that only lost their peer.
            worker, status = min(failed, key=lambda pair: (pair[1] > 0, pair[0].rank))
            ending = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
            raise MachineError(f"{what}: {ending}, {worker.last_words()}")
        if all(status == 0 for status in statuses):
            return
        running = [worker for worker, status in zip(workers, statuses, strict=True) if status is None]
        now = time.monotonic()
        if limits.total_s is not None and now - start > limits.total_s:
            raise MachineError(f"{what}: not done after {limits.total_s:g} s; {running[0].last_words()}")
        patience_s = limits.patience_s(all_started=not starting)
        if now - max(heard) > patience_s:
            first = min(running, key=lambda worker: heard[worker.rank])
            raise MachineError(
                f"{what}: no worker got on for {patience_s:g} s, worker {first.rank} the longest; {first.last_words()}"
            )
        time.sleep(_POLL_S)


def _new_lines(lines: IO[str]) -> Iterator[dict[str, Any]]:
    """The whole lines that have come since; half a line waits for its end."""
    while True:
        start = lines.tell()
        line = lines.readline()
        if not line.endswith("\n"):
            lines.seek(start)
            return
        yield json.loads(line)
