"""One rank of a link measurement with torch.distributed: started by `measure_torch`, or called by it under torchrun."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from estimator.communication.measuring import DEVICE_OF_BACKEND, Measured, Task, World
from estimator.communication.timing import BUSY_SIZE, time_between_computing, time_calls
from estimator.host.worker_processes import read_request
from profiles.vocabulary import CollectiveOp

_ELEMENT_BYTES = 4
_LACKING = re.compile(r"not support|unsupported|not implemented", re.IGNORECASE)

# torch 2.13 renamed both.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def connect(world: World, timeout_s: float) -> dist.Store:
    """Return the store of a launched world; rank 0 serves it where the launcher does not."""
    store = dist.TCPStore(
        world.address,
        world.port,
        world.world_size,
        is_master=world.rank == 0 and not world.agent_store,
        timeout=timedelta(seconds=timeout_s),
    )
    return dist.PrefixStore("cellplan", store)


def measure(task: Task, store: dist.Store, rank: int, world_size: int) -> Iterator[Measured]:
    """Run the cases of `task` as one of `world_size` ranks; every rank of a case's group gets its results."""
    torch.set_num_threads(1)
    device = torch.device(DEVICE_OF_BACKEND[task.backend])
    if device.type == "cuda":
        device = torch.device("cuda", rank % task.ranks_per_node)
        torch.cuda.set_device(device)
    dist.init_process_group(
        task.backend, store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=task.timeout_s)
    )
    try:
        groups = {ranks: dist.new_group(list(range(ranks))) for ranks in sorted({ranks for _, ranks in task.cases})}
        for op, ranks in task.cases:
            if rank < ranks:
                yield from _measure_case(task, op, ranks, rank, groups[ranks], device)
        largest = max(groups)
        if rank < largest:
            dist.barrier(groups[largest])  # Nobody takes its connections down while another still reads from them.
    finally:
        dist.destroy_process_group()


def _measure_case(
    task: Task, op: CollectiveOp, ranks: int, rank: int, group: dist.ProcessGroup, device: torch.device
) -> Iterator[Measured]:
    table_ranks = 2 if op == "send_recv" else ranks
    nodes = math.ceil(ranks / task.ranks_per_node)
    together = TorchRanks(group, device)
    for size in task.sizes:
        elements = math.ceil(size / (_ELEMENT_BYTES * ranks)) * ranks
        call = _prepare(op, elements, ranks, rank, group, device)
        try:
            seconds: tuple[float, ...]
            if task.busy and op != "send_recv":
                seconds = (time_between_computing(call, task.repeats, together),)
            else:
                seconds = time_calls(call, task.repeats, together)
        except RuntimeError as error:
            if not _LACKING.search(str(error)):
                raise
            reason = str(error).splitlines()[0]
            yield Measured(op=op, ranks=table_ranks, nodes=min(nodes, table_ranks), unsupported=reason)
            return
        if op == "send_recv":
            seconds = tuple(both_ways / 2 for both_ways in seconds)
        yield Measured(
            op=op,
            ranks=table_ranks,
            nodes=min(nodes, table_ranks),
            bytes=elements * _ELEMENT_BYTES,
            seconds=seconds,
        )


def _prepare(
    op: CollectiveOp, elements: int, ranks: int, rank: int, group: dist.ProcessGroup, device: torch.device
) -> Callable[[], object]:
    """The call to time, with `elements` in the larger of input and output. Buffers are written once, so that no page
    of theirs is still the system's page of zeros."""
    whole = torch.ones(elements, device=device)
    other = torch.ones(elements, device=device)
    part = torch.ones(elements // ranks, device=device)
    match op:
        case "all_reduce":
            return lambda: dist.all_reduce(whole, group=group)
        case "all_gather":
            return lambda: all_gather_single(whole, part, group=group)
        case "reduce_scatter":
            return lambda: reduce_scatter_single(part, whole, group=group)
        case "all_to_all":
            return lambda: dist.all_to_all_single(other, whole, group=group)
        case "send_recv":
            return lambda: _round_trip(whole, other, ranks, rank, group)


def _round_trip(sent: torch.Tensor, received: torch.Tensor, ranks: int, rank: int, group: dist.ProcessGroup) -> None:
    """From the first rank to the last and back; the ranks between stand by."""
    if rank not in (0, ranks - 1):
        return
    peer = ranks - 1 - rank
    send = dist.P2POp(dist.isend, sent, peer, group)
    receive = dist.P2POp(dist.irecv, received, peer, group)
    for step in (send, receive) if rank == 0 else (receive, send):
        for work in dist.batch_isend_irecv([step]):
            work.wait()


class TorchRanks:
    """`estimator.communication.timing.Ranks`: those of a process group."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.group, self.device = group, device
        self._square = torch.randn(BUSY_SIZE, BUSY_SIZE, device=device)

    def barrier(self) -> None:
        dist.barrier(self.group)

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def compute(self) -> None:
        torch.mm(self._square, self._square)

    def slowest(self, seconds: list[float]) -> list[float]:
        return self._agreed(seconds, dist.ReduceOp.MAX)

    def fastest(self, seconds: list[float]) -> list[float]:
        return self._agreed(seconds, dist.ReduceOp.MIN)

    def _agreed(self, seconds: list[float], op: dist.ReduceOp.RedOpType) -> list[float]:
        agreed = torch.tensor(seconds, dtype=torch.float64, device=self.device)
        dist.all_reduce(agreed, op=op, group=self.group)
        return [float(value) for value in agreed.tolist()]


def main() -> None:
    """Read the request that `measure_torch` writes and run it; rank 0 writes a JSON line for each result to its file.
    (Standard output will not do: NCCL logs there.)"""
    request = read_request()
    fields = request["task"]
    fields["cases"] = tuple((op, ranks) for op, ranks in fields["cases"])
    task = Task(**{**fields, "sizes": tuple(fields["sizes"])})
    store = dist.FileStore(request["store"], request["world_size"])
    with Path(request["results"]).open("a", encoding="utf-8") as results:
        for measured in measure(task, store, request["rank"], request["world_size"]):
            if request["rank"] == 0:
                print(json.dumps(asdict(measured)), file=results, flush=True)


if __name__ == "__main__":
    main()
