"""Worker processes that stay for a whole queue, as `bench.scheduling.live.driver.Machines`: jobs come and go on
them."""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from estimator.host.children import Children, child_processes
from estimator.host.worker_processes import last_line
from planner.many_jobs.jobs.records import Grant, Job, Workload
from planner.many_jobs.simulation.placing import devices_of
from planner.many_jobs.simulation.settings import Placement
from profiles.errors import MachineError

COMMAND = (sys.executable, "-m", "bench.scheduling.live.worker")
START_S = 120.0
PATIENCE_S = 180.0
"""After so long without a word from anybody, something hangs."""

Seat = tuple[str, int, int]
"""Pool, node and index there."""
Orders = Callable[[Workload, str, int, int | None], Mapping[str, Any]]
"""What the workers of a workload are told, on so many devices of a pool and in so many stages: `plan`, `sleeps`, and
where they sleep `times`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """How a seat's worker is started; `cores` None: on any."""

    prefix: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    cores: tuple[int, ...] | None = None


@dataclass(slots=True)
class Part:
    """A job's iterations since its last start. `left` counts the ranks that have ended it."""

    job: str
    seats: tuple[Seat, ...]
    wanted: int
    started_s: float
    done: int = 0
    left: int = 0
    told: bool = False
    times_s: list[float] = field(default_factory=list)
    ended_s: float = math.nan

    @property
    def over(self) -> bool:
        return self.left == len(self.seats)


class Crew:
    """The workers of all seats. Use `crew_on`."""

    def __init__(self, workers: Mapping[Seat, subprocess.Popen[str]], orders: Orders, folder: Path) -> None:
        self.workers, self.orders, self.folder = workers, orders, folder
        self.said: queue.Queue[tuple[float, Seat, dict[str, Any] | None]] = queue.Queue()
        self.parts: list[Part] = []
        self.last: dict[str, Part] = {}
        self.began_s = time.monotonic()
        for seat, worker in workers.items():
            threading.Thread(target=self._listen, args=(seat, worker), daemon=True).start()

    def await_ready(self) -> None:
        """Until all workers have imported what they need; from here on the clock counts."""
        ready = 0
        while ready < len(self.workers):
            *_, value = self._next(START_S)
            ready += value.get("event") == "ready"
        self.began_s = time.monotonic()

    def begin(self) -> None:
        """The clock starts anew."""
        self.began_s = time.monotonic()

    def now_s(self) -> float:
        return time.monotonic() - self.began_s

    def start(self, job: Job, grant: Grant, placement: Placement, iterations: int) -> None:
        (pool, devices), seats = grant.parts[0], tuple(devices_of(placement))
        self.start_part(job.id, seats, self.orders(job.workload, pool, devices, grant.stages), iterations)

    def start_part(self, job: str, seats: Sequence[Seat], orders: Mapping[str, Any], iterations: int) -> Part:
        """Let these seats' workers do so many iterations."""
        part = Part(job=job, seats=tuple(seats), wanted=iterations, started_s=self.now_s())
        number = len(self.parts)
        self.parts.append(part)
        self.last[job] = part
        for rank, seat in enumerate(seats):
            request = {
                "do": "run",
                "run": number,
                "rank": rank,
                "world_size": len(seats),
                "store": str(self.folder / f"store-{number}"),
                "iterations": iterations,
                **orders,
            }
            self._tell(seat, request)
        return part

    def stop(self, ids: Sequence[str]) -> None:
        stopping = [self.last[id_] for id_ in ids]
        for part in stopping:
            part.told = True
            for seat in part.seats:
                self._tell(seat, {"do": "stop", "run": self.parts.index(part)})
        self._await(stopping)

    def done(self, id_: str) -> int:
        part = self.last.get(id_)
        return 0 if part is None else part.done

    def ended(self, timeout_s: float) -> Sequence[str]:
        until_s = self.now_s() + timeout_s
        while True:
            with contextlib.suppress(queue.Empty):
                while True:
                    self._take(0.0)
            found = [part for part in self.last.values() if part.over and not part.told]
            if found or self.now_s() >= until_s:
                for part in found:
                    part.told = True
                return [part.job for part in found]
            left_s = max(0.0, until_s - self.now_s())
            try:
                self._take(min(PATIENCE_S, left_s))
            except queue.Empty:
                if left_s > PATIENCE_S and any(not part.over for part in self.last.values()):
                    raise _silent() from None

    def finish(self, parts: Sequence[Part]) -> None:
        """Until these have ended."""
        self._await(parts)
        for part in parts:
            part.told = True

    def _await(self, parts: Sequence[Part]) -> None:
        while not all(part.over for part in parts):
            try:
                self._take(PATIENCE_S)
            except queue.Empty:
                raise _silent() from None

    def _tell(self, seat: Seat, value: Mapping[str, Any]) -> None:
        stdin = self.workers[seat].stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps(value) + "\n")
            stdin.flush()
        except OSError as error:
            raise MachineError(f"live: worker {seat} is gone: {error}") from error

    def _listen(self, seat: Seat, worker: subprocess.Popen[str]) -> None:
        assert worker.stdout is not None
        for line in worker.stdout:
            self.said.put((time.monotonic(), seat, json.loads(line)))
        self.said.put((time.monotonic(), seat, None))

    def _next(self, timeout_s: float) -> tuple[float, Seat, dict[str, Any]]:
        """What was said next, and when; queue.Empty where nothing is, MachineError where a worker died."""
        heard_s, seat, value = self.said.get(timeout=timeout_s) if timeout_s > 0 else self.said.get_nowait()
        if value is None:
            errors = _errors(self.folder, seat).read_text(errors="replace")
            raise MachineError(f"live: worker {seat} ended: {last_line(errors)}")
        return heard_s - self.began_s, seat, value

    def _take(self, timeout_s: float) -> None:
        heard_s, seat, value = self._next(timeout_s)
        if value["event"] == "failed":
            raise MachineError(f"live: {self.parts[value['run']].job} on {seat}: {value['reason']}")
        part = self.parts[value["run"]]
        if value["event"] == "iteration":
            part.done = value["done"]
            part.times_s.append(heard_s)
        else:
            part.left += 1
            part.ended_s = heard_s


def _errors(folder: Path, seat: Seat) -> Path:
    return folder / f"{'-'.join(map(str, seat)).replace('/', '_')}.err"


def _silent() -> MachineError:
    return MachineError(f"live: no worker said anything for {PATIENCE_S:g} s")


@contextlib.contextmanager
def crew_on(places: Mapping[Seat, Place], orders: Orders) -> Iterator[Crew]:
    """A worker on each place, ready; none is left behind."""
    with child_processes() as children:
        workers = {seat: _start_worker(seat, place, children) for seat, place in places.items()}
        crew = Crew(workers, orders, children.folder)
        try:
            crew.await_ready()
        except queue.Empty:
            raise MachineError(f"live: not all {len(places)} workers were ready after {START_S:g} s") from None
        yield crew


def _start_worker(seat: Seat, place: Place, children: Children) -> subprocess.Popen[str]:
    root = str(Path(__file__).resolve().parents[3])
    environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH"))))
    with _errors(children.folder, seat).open("wb") as errors:
        process: subprocess.Popen[str] = children.start(
            (*place.prefix, *COMMAND),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**environment, **place.environment},
        )
    if place.cores is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(process.pid, place.cores)
    return process
