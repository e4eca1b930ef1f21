"""What the links of an emulated network do with gloo: the times that an estimate of a run on it may be fed with."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from bench.testbed.network import Network
from estimator.host.ports import unused_port
from estimator.host.worker_processes import Limits, WorkerSpec, python_worker, run_workers
from profiles.errors import InputError
from profiles.vocabulary import CollectiveOp

WORKER = python_worker("bench.testbed.link_worker")
_FIRST_PORT, _PORTS = 23_000, 2_000
_ports = itertools.count()


def measure_between(
    network: Network,
    ranks: Sequence[int],
    sizes: Sequence[int],
    op: CollectiveOp,
    *,
    repeats: int = 20,
    timeout_s: float = 120.0,
) -> list[tuple[int, float]]:
    """(bytes, seconds) of `op` among the seats of `ranks`, in that order, for each size (bytes as nccl-tests counts).

    Every rank is a process of one thread. A time is the fastest repeat's on its slowest rank; send_recv is half a round
    trip between the first and the last rank. See `measure_links`.

    Raises:
        InputError: fewer than two ranks, one twice, or one that has no seat.
        MachineError: a rank failed (as where gloo lacks the op), or not all were done in time.
    """
    seats = {seat.rank: seat for seat in network.seats}
    if len(ranks) < 2 or len(set(ranks)) != len(ranks) or not set(ranks) <= set(seats):
        expected = f"two or more different ones of the {len(seats)} seats"
        raise InputError(where="measure between", key="ranks", found=tuple(ranks), expected=expected)
    taken = [seats[rank] for rank in ranks]
    request = {
        "sizes": list(sizes),
        "op": op,
        "repeats": repeats,
        "timeout_s": timeout_s,
        "address": taken[0].address,
        "port": _FIRST_PORT + next(_ports) % _PORTS if network.emulated else unused_port(),
    }
    found: list[dict[str, Any]] = []
    run_workers(
        [
            WorkerSpec(command=(*seat.prefix, *WORKER), request=request, environment=dict(seat.environment))
            for seat in taken
        ],
        what="measure between",
        limits=Limits(total_s=timeout_s),
        on_line=lambda _, line: found.append(line),
    )
    return [(int(size), float(seconds)) for size, seconds in found[0]["points"]]
