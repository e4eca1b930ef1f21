"""Measures link tables through torch.distributed: on processes that it starts here, or as one rank of a torchrun."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import get_args

from estimator.communication.fit import make_table
from estimator.communication.measuring import Backend, Measured, Task, World
from estimator.host.capacity import process_limit
from estimator.host.cpu import cpu_name
from estimator.host.memory import free_host_memory_bytes
from estimator.host.worker_processes import (
    Limits,
    WorkerSpec,
    jax_environment,
    last_line,
    pinned_cores,
    python_worker,
    run_workers,
)
from profiles.errors import InputError, MachineError
from profiles.limits import Limit
from profiles.vocabulary import CollectiveOp, LinkTable

STAND_INS: dict[CollectiveOp, CollectiveOp] = {"reduce_scatter": "all_gather", "all_to_all": "all_gather"}
"""Where a backend lacks an op, the one whose time at the same bytes is taken for it: a rank's link carries as much."""

DEFAULT_SIZES = tuple(4096 * 4**step for step in range(8))
ALL_OPS: tuple[CollectiveOp, ...] = get_args(CollectiveOp)
WORKER = python_worker("estimator.communication.worker_torch")
JAX_WORKER = python_worker("estimator.communication.worker_jax")

BUFFERS = 4
"""Of a message's size, that a rank holds at once: what goes in and comes out, its part, and the backend's own."""

Progress = Callable[[int, int, str], None]
"""Called with measurements done, measurements in all, and what was measured last."""


def measure_links(
    *,
    link_name: str,
    backend: Backend = "gloo",
    ranks: tuple[int, ...] = (2,),
    sizes: tuple[int, ...] = DEFAULT_SIZES,
    ops: tuple[CollectiveOp, ...] = ALL_OPS,
    repeats: int = 20,
    busy: bool = False,
    timeout_s: float = 120.0,
    progress: Progress | None = None,
    world: World | None = None,
) -> tuple[LinkTable, ...]:
    """Measure link tables of `ops` for each of the rank counts, as nccl-tests counts bytes.

    Every size (rounded up to whole elements for each rank) is warmed up and repeated; a repeat counts what its
    slowest rank took and a size the fastest repeat (see `make_table`). send_recv is half a round trip between the
    first and the last rank, with batch_isend_irecv as pipelines use it: a table of two ranks. An op that the backend
    lacks takes the times of its stand-in and is marked modelled.

    Without `world` the ranks are processes of one thread each on this machine, pinned as `cellplan run` pins its
    workers; gloo then runs over the loopback device. With it, every rank of the launcher calls this function and gets
    the tables of the groups it was in. Backend xla: JAX's collectives on a CPU, and the messages that `cellplan run`
    sends between stages with JAX.

    Args:
        link_name: the link that the ranks communicate over; rank counts inside a node and beyond it need two calls.
        repeats: at most so many per size; a size that takes long gets fewer.
        busy: the ranks compute before each call, as in a training, and the mean counts in place of the fastest repeat
            (not of send_recv).
        timeout_s: for the whole measurement; with `world` for each wait of one rank for the others.
        progress: called after every size.

    Raises:
        InputError: an argument that cannot be, ranks or messages that this machine cannot hold, or an op that the
            backend lacks without its stand-in measured.
        MachineError: a worker died, or nothing came in time; no process is left behind.
    """
    _check(backend, ranks, sizes, ops, repeats, timeout_s, world)
    _check_room(backend, ranks, sizes, world)
    task = Task(
        backend=backend,
        cases=_cases(ops, sorted(set(ranks))),
        ranks_per_node=world.ranks_per_node if world else max(ranks),
        sizes=tuple(sorted(set(sizes))),
        repeats=repeats,
        timeout_s=timeout_s,
        busy=busy,
    )
    results: list[Measured] = []

    def record(measured: Measured) -> None:
        results.append(measured)
        if progress:
            progress(len(results), len(task.cases) * len(task.sizes), measured.label)

    if world:
        _join(task, world, record)
    else:
        _start(task, record)
    return _tables(link_name, backend, results, busy=task.busy)


def _cases(ops: tuple[CollectiveOp, ...], counts: list[int]) -> tuple[tuple[CollectiveOp, int], ...]:
    """Each op once, for each rank count; send_recv has two ranks in any case."""
    return tuple((op, n) for n in counts for op in dict.fromkeys(ops) if op != "send_recv" or n == counts[0])


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
        (backend in get_args(Backend), "--backend", backend, f"one of {', '.join(get_args(Backend))}"),
        (bool(ranks) and min(ranks, default=0) >= 2, "--ranks", ranks, "rank counts of at least 2"),
        (backend != "xla" or world is None, "--backend", "xla in a launched world", "gloo or nccl"),
        (
            backend != "xla" or find_spec("jax") is not None,
            "--backend",
            "xla without JAX",
            "JAX, which `pip install jax` adds",
        ),
        (most is None or max(ranks, default=0) <= most, "--ranks", ranks, f"at most the {most} that were launched"),
        (len(beyond_node) < 2, "--ranks", ranks, "all inside one node or all beyond it: they cross different links"),
        (bool(sizes) and min(sizes, default=0) >= 1, "--sizes", sizes, "bytes, at least 1"),
        (bool(ops) and set(ops) <= set(ALL_OPS), "--ops", ops, f"some of {', '.join(ALL_OPS)}"),
        (repeats >= 1, "--repeats", repeats, "at least 1"),
        (timeout_s > 0, "--timeout", timeout_s, "more than 0"),
    )
    for holds, key, value, expected in rules:
        if not holds:
            raise InputError(where="measure links", key=key, found=value, expected=expected)


def _check_room(backend: Backend, ranks: tuple[int, ...], sizes: tuple[int, ...], world: World | None) -> None:
    """InputError where this machine cannot hold the ranks that it is to start, or the messages of its ranks."""
    if world is None:
        process_limit().check(max(ranks), where="measure links", key="--ranks")
    if backend != "nccl":
        here, free_bytes = min(max(ranks), world.ranks_per_node if world else max(ranks)), free_host_memory_bytes()
        message_limit = Limit(
            most=free_bytes // (BUFFERS * here),
            unit="bytes in a message",
            reason=f"{here} ranks hold {BUFFERS} buffers each in {free_bytes / 2**30:.1f} GiB of free memory here",
            beyond="fewer ranks or more machines take larger ones",
        )
        message_limit.check(max(sizes), where="measure links", key="--sizes")


def _tables(link: str, backend: Backend, results: list[Measured], *, busy: bool) -> tuple[LinkTable, ...]:
    """One table for each op and rank count, those that a stand-in gives last."""
    package = "jax" if backend == "xla" else "torch"
    try:
        installed = version(package)
    except PackageNotFoundError:
        installed = "of unknown version"
    counted = "mean of calls between computing" if busy else "fastest repeat of the slowest rank"
    source = f"{package} {installed} {backend}, {counted}"
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


def _start(task: Task, record: Callable[[Measured], None]) -> None:
    """Ranks on this machine, its one node: a process each."""
    in_jax, ranks = task.backend == "xla", task.ranks_per_node
    cores = None if task.backend == "nccl" else pinned_cores(ranks, 1)
    run_workers(
        [
            WorkerSpec(
                command=JAX_WORKER if in_jax else WORKER,
                request={"task": asdict(task)},
                environment=jax_environment() if in_jax else {},
                cores=cores[rank] if cores else None,
            )
            for rank in range(ranks)
        ],
        what="measure links",
        limits=Limits(total_s=task.timeout_s),
        on_line=lambda _, line: record(Measured(**{**line, "seconds": tuple(line["seconds"])})),
    )


def _join(task: Task, world: World, record: Callable[[Measured], None]) -> None:
    from estimator.communication.worker_torch import connect, measure

    try:
        for measured in measure(task, connect(world, task.timeout_s), world.rank, world.world_size):
            record(measured)
    except (RuntimeError, OSError) as error:
        raise MachineError(
            f"measure links: rank {world.rank} of {world.world_size}: {last_line(str(error))}"
        ) from error
