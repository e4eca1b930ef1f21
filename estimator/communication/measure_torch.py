"""Measures link tables through torch.distributed: on processes that it starts here, or as one rank of a torchrun."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Literal, get_args

from estimator.communication.fit import make_table
from estimator.profiling.host_cpu import cpu_name
from profiles.errors import InputError, MachineError
from profiles.vocabulary import CollectiveOp, LinkTable

Backend = Literal["gloo", "nccl"]
DEVICE_OF_BACKEND: dict[Backend, str] = {"gloo": "cpu", "nccl": "cuda"}
STAND_INS: dict[CollectiveOp, CollectiveOp] = {"reduce_scatter": "all_gather", "all_to_all": "all_gather"}
"""Where a backend lacks an op, the one whose time at the same bytes is taken for it: a rank's link carries as much."""

DEFAULT_SIZES = tuple(4096 * 4**step for step in range(8))
ALL_OPS: tuple[CollectiveOp, ...] = get_args(CollectiveOp)
WORKER = (sys.executable, "-m", "estimator.communication.worker_torch")

_POLL_S = 0.02

Progress = Callable[[int, int, str], None]
"""Called with measurements done, measurements in all, and what was measured last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """This process's place among ranks that a launcher has started, each of which calls `measure_links`.

    `agent_store` is True where the launcher itself serves the store at `address`:`port`, as torchrun does; else rank 0
    has to.
    """

    rank: int
    world_size: int
    ranks_per_node: int
    address: str
    port: int
    agent_store: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What all ranks of a measurement agree on. A case is an op and a rank count: the first n ranks run it."""

    backend: Backend
    cases: tuple[tuple[CollectiveOp, int], ...]
    ranks_per_node: int
    sizes: tuple[int, ...]
    repeats: int
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Seconds of each repeat of a collective at one size, the slowest rank's; or why the backend cannot run it."""

    op: CollectiveOp
    ranks: int
    nodes: int
    bytes: int = 0
    seconds: tuple[float, ...] = ()
    unsupported: str = ""


def measure_links(
    *,
    link_name: str,
    backend: Backend = "gloo",
    ranks: tuple[int, ...] = (2,),
    sizes: tuple[int, ...] = DEFAULT_SIZES,
    ops: tuple[CollectiveOp, ...] = ALL_OPS,
    repeats: int = 20,
    timeout_s: float = 120.0,
    progress: Progress | None = None,
    world: World | None = None,
) -> tuple[LinkTable, ...]:
    """Link tables of `ops` for each of the rank counts, as nccl-tests counts bytes.

    Every size (rounded up to whole elements for each rank) is warmed up and repeated; a repeat counts what its
    slowest rank took and a size the fastest repeat (see `make_table`). send_recv is half a round trip between the
    first and the last rank, with batch_isend_irecv as pipelines use it: a table of two ranks. An op that the backend
    lacks takes the times of its stand-in and is marked modelled.

    Without `world` the ranks are processes of one thread each on this machine; gloo then runs over the loopback
    device. With it, every rank of the launcher calls this function and gets the tables of the groups it was in.

    Args:
        link_name: the link that the ranks communicate over; rank counts inside a node and beyond it need two calls.
        repeats: at most so many per size; a size that takes long gets fewer.
        timeout_s: for the whole measurement; with `world` for each wait of one rank for the others.
        progress: called after every size.

    Raises:
        InputError: an argument that cannot be, or an op that the backend lacks without its stand-in measured.
        MachineError: a worker died, or nothing came in time; no process is left behind.
    """
    _check(backend, ranks, sizes, ops, repeats, timeout_s, world)
    counts = sorted(set(ranks))
    task = Task(
        backend=backend,
        cases=tuple((op, n) for n in counts for op in dict.fromkeys(ops) if op != "send_recv" or n == counts[0]),
        ranks_per_node=world.ranks_per_node if world else counts[-1],
        sizes=tuple(sorted(set(sizes))),
        repeats=repeats,
        timeout_s=timeout_s,
    )
    results: list[Measured] = []

    def record(measured: Measured) -> None:
        results.append(measured)
        if progress:
            what = f"{measured.op} {measured.bytes} bytes, {measured.ranks} ranks"
            progress(len(results), len(task.cases) * len(task.sizes), what)

    if world:
        _join(task, world, record)
    else:
        _run_workers(task, max(ranks), record)
    return _tables(link_name, backend, results)


def _check(
    backend: Backend,
    ranks: tuple[int, ...],
    sizes: tuple[int, ...],
    ops: tuple[CollectiveOp, ...],
    repeats: int,
    timeout_s: float,
    world: World | None,
) -> None:
    most = world.world_size if world else None
    beyond_node = {n > world.ranks_per_node for n in ranks} if world else {False}
    rules: tuple[tuple[bool, str, object, str], ...] = (
        (backend in get_args(Backend), "backend", backend, f"one of {', '.join(get_args(Backend))}"),
        (bool(ranks) and min(ranks, default=0) >= 2, "ranks", ranks, "rank counts of at least 2"),
        (most is None or max(ranks, default=0) <= most, "ranks", ranks, f"at most the {most} that were launched"),
        (len(beyond_node) < 2, "ranks", ranks, "all inside one node or all beyond it: they cross different links"),
        (bool(sizes) and min(sizes, default=0) >= 1, "sizes", sizes, "bytes, at least 1"),
        (bool(ops) and set(ops) <= set(ALL_OPS), "ops", ops, f"some of {', '.join(ALL_OPS)}"),
        (repeats >= 1, "repeats", repeats, "at least 1"),
        (timeout_s > 0, "timeout_s", timeout_s, "more than 0"),
    )
    for holds, key, found, expected in rules:
        if not holds:
            raise InputError(where="measure links", key=key, found=found, expected=expected)


def _tables(link: str, backend: Backend, results: list[Measured]) -> tuple[LinkTable, ...]:
    """One table for each op and rank count, those that a stand-in gives last."""
    try:
        torch_version = version("torch")
    except PackageNotFoundError:
        torch_version = "of unknown version"
    source = f"torch {torch_version} {backend}, fastest repeat of the slowest rank"
    samples: dict[tuple[CollectiveOp, int, int], dict[int, tuple[float, ...]]] = {}
    for measured in results:
        if not measured.unsupported:
            samples.setdefault((measured.op, measured.ranks, measured.nodes), {})[measured.bytes] = measured.seconds
    tables = [
        replace(
            make_table(link=link, op=op, ranks=ranks, nodes=nodes, samples=by_size, source=source),
            backend=backend,
            hardware=cpu_name(),
        )
        for (op, ranks, nodes), by_size in samples.items()
    ]
    for lacking in (measured for measured in results if measured.unsupported):
        stand_in = STAND_INS.get(lacking.op)
        same = (table for table in tables if table.op == stand_in and table.ranks == lacking.ranks)
        table = next(same, None)
        if table is None:
            raise InputError(
                where="measure links",
                key="ops",
                found=f"{lacking.op}, which {backend} lacks ({lacking.unsupported})",
                expected=f"{stand_in} measured as well, to stand in for it" if stand_in else "ops that it has",
            )
        derived = f"{source}; {lacking.op} taken from {table.op}, as {backend} lacks it"
        tables.append(replace(table, op=lacking.op, source=derived, provenance="modelled"))
    return tuple(tables)


def _join(task: Task, world: World, record: Callable[[Measured], None]) -> None:
    from estimator.communication.worker_torch import connect, measure

    try:
        for measured in measure(task, connect(world, task.timeout_s), world.rank, world.world_size):
            record(measured)
    except (RuntimeError, OSError) as error:
        raise MachineError(
            f"measure links: rank {world.rank} of {world.world_size}: {_last_line(str(error))}"
        ) from error


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


# Processes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worker:
    rank: int
    process: subprocess.Popen[bytes]
    errors: Path

    def last_words(self) -> str:
        return f"worker {self.rank}: {_last_line(self.errors.read_text(encoding='utf-8', errors='replace'))}"


def _run_workers(task: Task, world_size: int, record: Callable[[Measured], None]) -> None:
    """Start `world_size` workers, hand rank 0's results to `record` as they come, and leave no process behind."""
    try:
        with tempfile.TemporaryDirectory(prefix="cellplan-") as folder, contextlib.ExitStack() as stack:
            results = Path(folder) / "results"
            results.touch()
            workers = [stack.enter_context(_worker(task, world_size, rank, results)) for rank in range(world_size)]
            _watch(workers, results, task.timeout_s, record)
    except OSError as error:
        raise MachineError(f"measure links: cannot run {world_size} workers: {error}") from error


@contextlib.contextmanager
def _worker(task: Task, world_size: int, rank: int, results: Path) -> Iterator[_Worker]:
    """A worker in a process group of its own, killed on leaving.

    It ends by itself when its standard input does: also where this process is killed.
    """
    folder = results.parent
    errors = folder / f"{rank}.err"
    with errors.open("wb") as err:
        process = subprocess.Popen(
            WORKER,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=err,
            env=_environment(),
            start_new_session=True,
        )
    request = {
        "task": asdict(task),
        "store": str(folder / "store"),
        "results": str(results),
        "rank": rank,
        "world_size": world_size,
    }
    assert process.stdin is not None
    try:
        with contextlib.suppress(BrokenPipeError):  # It died at once: `_watch` says of what.
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        yield _Worker(rank=rank, process=process, errors=errors)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def _environment() -> dict[str, str]:
    """Ours, with one thread, this package on the path, and gloo on the loopback device instead of the host's name."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    root = str(Path(__file__).resolve().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH"))))
    loopback = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    if loopback:
        environment["GLOO_SOCKET_IFNAME"] = loopback[0]
    return environment


def _watch(workers: list[_Worker], results: Path, timeout_s: float, record: Callable[[Measured], None]) -> None:
    deadline = time.monotonic() + timeout_s
    with results.open(encoding="utf-8") as lines:
        while True:
            statuses = [worker.process.poll() for worker in workers]
            _read_results(lines, record)
            failed = [(worker, status) for worker, status in zip(workers, statuses, strict=True) if status]
            if failed:
                # A killed worker takes the others with it: name it before those that only lost their peer.
                worker, status = min(failed, key=lambda pair: (pair[1] > 0, pair[0].rank))
                ending = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
                raise MachineError(f"measure links: {ending}, {worker.last_words()}")
            if all(status == 0 for status in statuses):
                return
            if time.monotonic() > deadline:
                running = next(worker for worker, status in zip(workers, statuses, strict=True) if status is None)
                raise MachineError(f"measure links: not done after {timeout_s:g} s; {running.last_words()}")
            time.sleep(_POLL_S)


def _read_results(lines: IO[str], record: Callable[[Measured], None]) -> None:
    """Hand over the whole lines that have come since; half a line waits for its end."""
    while True:
        start = lines.tell()
        line = lines.readline()
        if not line.endswith("\n"):
            lines.seek(start)
            return
        fields = json.loads(line)
        record(Measured(**{**fields, "seconds": tuple(fields["seconds"])}))
