"""Activations and gradients between stages (see `planner.one_job.running.regions`), sent and received with torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from planner.one_job.running.program import Program, Route, Way
from planner.one_job.running.regions import Piece, length_of, pieces_to_receive, pieces_to_send, region_of, within
from planner.one_job.running.spans import Recorder
from profiles.vocabulary import Phase


class Gathers(Protocol):
    """Of a tensor-parallel group what an exchange needs."""

    @property
    def degree(self) -> int: ...

    def all_gather(self, x: Tensor, dim: int, phase: Phase) -> Tensor: ...


@dataclass(slots=True)
class _Incoming:
    """Posted receives of one route: for each tensor its pieces and their buffers."""

    buffers: list[list[tuple[Piece, Tensor]]]
    works: list[dist.Work]


class Exchange:
    """Sends without waiting and receives ahead of need. One for each rank; `flush` ends an iteration.

    `upcoming` names this rank's receives of an iteration in the order in which it needs them, of which `AHEAD` are
    posted before their time.
    """

    AHEAD = 2

    def __init__(
        self, program: Program, rank: int, tp: Gathers, recorder: Recorder, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.program, self.rank, self.tp, self.recorder = program, rank, tp, recorder
        self.stage, self.device, self.dtype = program.stage_of(rank), device, dtype
        self._upcoming: deque[Route] = deque()
        self._posted: dict[Route, _Incoming] = {}
        self._sent: list[tuple[dist.Work, Tensor]] = []
        self._pairs = _pair_groups(program) if device.type == "cuda" else {}

    def begin(self, upcoming: Sequence[Route]) -> None:
        """A new iteration that will receive `upcoming`."""
        self._upcoming.extend(upcoming)
        self._post_ahead()

    def send(self, route: Route, tensors: Sequence[Tensor]) -> None:
        """Hands over this rank's part of `tensors`; they must not change any more."""
        receiver = self.program.stages[route.receiver]
        for number, tensor in enumerate(tensors):
            shape = self.program.boundary_shapes(route.layer)[number]
            here = region_of(self.stage, self.rank, shape[0])
            for piece in pieces_to_send(self.stage, receiver, self.rank, shape[0]):
                part = tensor.detach()[
                    slice(*within(piece.samples, here.samples)), slice(*within(piece.places, here.held))
                ].contiguous()
                group, tag = self._channel(route, self.rank, piece.peer, number)
                work = dist.isend(part, piece.peer, group=group, tag=tag)
                self._sent.append((work, part))
        self._sent = [(work, part) for work, part in self._sent if not work.is_completed()]

    def receive(self, route: Route) -> tuple[Tensor, ...]:
        """The tensors of `route` as this rank holds them, once they have come."""
        while route not in self._posted:
            self._post(self._upcoming.popleft())
        incoming = self._posted.pop(route)
        shapes = self.program.boundary_shapes(route.layer)
        size = sum(buffer.nbytes for pieces in incoming.buffers for _, buffer in pieces)
        with self.recorder.span(
            "wait",
            f"{route.way} from stage {route.sender}",
            phase=route.way,
            micro_batch=route.k,
            axis="pp",
            bytes=size,
        ):
            for work in incoming.works:
                work.wait()
        self._post_ahead()
        return tuple(
            self._whole(pieces, shape, route.way) for pieces, shape in zip(incoming.buffers, shapes, strict=True)
        )

    def flush(self) -> None:
        """Waits until everything sent has been taken."""
        with self.recorder.span("wait", "messages taken", axis="pp"):
            for work, _ in self._sent:
                work.wait()
        self._sent = []

    def _post_ahead(self) -> None:
        while self._upcoming and len(self._posted) < self.AHEAD:
            self._post(self._upcoming.popleft())

    def _post(self, route: Route) -> None:
        sender = self.program.stages[route.sender]
        incoming = _Incoming(buffers=[], works=[])
        for number, shape in enumerate(self.program.boundary_shapes(route.layer)):
            pieces = []
            for piece in pieces_to_receive(sender, self.stage, self.rank, shape[0]):
                size = (length_of(piece.samples), length_of(piece.places), *shape[1:])
                buffer = torch.empty(size, dtype=self.dtype, device=self.device)
                group, tag = self._channel(route, piece.peer, self.rank, number)
                work = dist.irecv(buffer, piece.peer, group=group, tag=tag)
                incoming.works.append(work)
                pieces.append((piece, buffer))
            incoming.buffers.append(pieces)
        self._posted[route] = incoming

    def _whole(self, pieces: Sequence[tuple[Piece, Tensor]], shape: tuple[int, ...], way: Way) -> Tensor:
        """Pieces put together to this rank's own part, and that gathered where it holds more."""
        region = region_of(self.stage, self.rank, shape[0])
        if len(pieces) == 1:
            local = pieces[0][1]
        else:
            size = (length_of(region.samples), length_of(region.own), *shape[1:])
            local = torch.empty(size, dtype=self.dtype, device=self.device)
            for piece, buffer in pieces:
                local[slice(*within(piece.samples, region.samples)), slice(*within(piece.places, region.own))] = buffer
        return local if region.held == region.own else self.tp.all_gather(local, 1, way)

    def _channel(self, route: Route, sender: int, receiver: int, number: int) -> tuple[dist.ProcessGroup | None, int]:
        """gloo tells messages apart by tags, NCCL by their order within a group: there each way between two ranks has a
        group of its own, in which both ends take the messages in the schedule's order."""
        if self._pairs:
            return self._pairs[route.way, sender, receiver], 0
        shape = self.program.shape
        forward = route.way == "forward"
        # 0 is left to messages that are none of a boundary.
        return None, ((forward * shape.chunks + route.chunk) * shape.micro_batches + route.k) * 2 + number + 1


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
