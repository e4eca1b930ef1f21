"""Pieces of tensors between stages, carried by torch.distributed."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from planner.one_job.running.exchange import Exchange, Take, message_tag
from planner.one_job.running.program import Program, Route, Way
from planner.one_job.running.regions import Range
from planner.one_job.running.spans import Recorder
from profiles.vocabulary import Phase


class Gathers(Protocol):
    """Of a tensor-parallel group what an exchange needs."""

    @property
    def degree(self) -> int: ...

    def all_gather(self, x: Tensor, dim: int, phase: Phase) -> Tensor: ...


class TorchCarrier:
    """`planner.one_job.running.exchange.Carrier` of tensors on `device`."""

    def __init__(self, program: Program, rank: int, tp: Gathers, device: torch.device, dtype: torch.dtype) -> None:
        self.program, self.rank, self.tp, self.device, self.dtype = program, rank, tp, device, dtype
        self._pairs = _pair_groups(program) if device.type == "cuda" else {}

    def cut(self, array: Tensor, samples: Range, places: Range) -> Tensor:
        return array.detach()[slice(*samples), slice(*places)].contiguous()

    def send(self, part: Tensor, route: Route, peer: int, number: int) -> dist.Work:
        group, tag = self._channel(route, self.rank, peer, number)
        work = dist.isend(part, peer, group=group, tag=tag)
        assert work is not None, "no rank sends to itself"
        return work

    def receive(self, size: tuple[int, ...], route: Route, peer: int, number: int) -> Take:
        buffer = self.empty(size)
        group, tag = self._channel(route, peer, self.rank, number)
        work = dist.irecv(buffer, peer, group=group, tag=tag)

        def take() -> Tensor:
            work.wait()
            return buffer

        return take

    def empty(self, size: tuple[int, ...]) -> Tensor:
        return torch.empty(size, dtype=self.dtype, device=self.device)

    def whole(self, local: Tensor, route: Route, number: int, *, gathers: bool) -> Tensor:
        del number
        return self.tp.all_gather(local, 1, route.way) if gathers else local

    def _channel(self, route: Route, sender: int, receiver: int, number: int) -> tuple[dist.ProcessGroup | None, int]:
        """gloo tells messages apart by tags, NCCL by their order within a group: there each way between two ranks has a
        group of its own, in which both ends take the messages in the schedule's order."""
        if self._pairs:
            return self._pairs[route.way, sender, receiver], 0
        return None, message_tag(self.program, route, number)


def torch_exchange(
    program: Program, rank: int, tp: Gathers, recorder: Recorder, device: torch.device, dtype: torch.dtype
) -> Exchange:
    """Return the exchange of a rank whose boundary tensors are of `dtype` on `device`."""
    carrier = TorchCarrier(program, rank, tp, device, dtype)
    return Exchange(program, rank, carrier, recorder, element_bytes=dtype.itemsize)


def _pair_groups(program: Program) -> dict[tuple[Way, int, int], dist.ProcessGroup]:
    """A group for each way between two ranks of stages that follow each other; all ranks make all of them."""
    groups: dict[tuple[Way, int, int], dist.ProcessGroup] = {}
    stages = program.stages
    ways: tuple[Way, Way] = ("forward", "backward")
    for here, there in zip(stages, (*stages[1:], stages[0]), strict=True):
        if here is there or (there is stages[0] and program.shape.chunks == 1):
            continue
        for near in here.ranks:
            for far in there.ranks:
                for way in ways:
                    sender, receiver = (near, far) if way == "forward" else (far, near)
                    groups.setdefault((way, sender, receiver), dist.new_group([near, far]))
    return groups
