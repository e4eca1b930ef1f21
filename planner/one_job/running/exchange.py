"""Activations and gradients between stages (see `planner.one_job.running.regions`), sent and received in either
framework."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Protocol, TypeVar

from planner.one_job.running.program import Program, Route
from planner.one_job.running.regions import (
    Piece,
    Range,
    length_of,
    pieces_to_receive,
    pieces_to_send,
    region_of,
    within,
)
from planner.one_job.running.spans import Recorder
from profiles.records import dataclass

Array = TypeVar("Array")
Take = Callable[[], Any]
"""Waits for a message and returns what it brought."""


class Sending(Protocol):
    """A message that was handed over."""

    def is_completed(self) -> bool:
        """Return whether it has been taken."""

    def wait(self) -> object:
        """Wait until it has been taken."""


class Carrier(Protocol[Array]):
    """How a framework carries pieces of its arrays: `Array` is what its layers take and make of a boundary."""

    def cut(self, array: Array, samples: Range, places: Range) -> Any:
        """Return these of the samples and places that this rank holds of `array`, ready to be sent."""

    def send(self, part: Any, route: Route, peer: int, number: int) -> Sending:
        """Send `part`, which is kept until then, without waiting, as the `number`-th array of `route`."""

    def receive(self, size: tuple[int, ...], route: Route, peer: int, number: int) -> Take:
        """Prepare for what `peer` sends as the `number`-th array of `route`, of that size."""

    def empty(self, size: tuple[int, ...]) -> Any:
        """Return an array to put pieces into."""

    def whole(self, local: Any, route: Route, number: int, *, gathers: bool) -> Array:
        """Return the array as the layers take it, from this rank's own part; `gathers` where it holds the others' of
        its tensor-parallel group too."""


@dataclass(slots=True)
class _Incoming:
    """Expected messages of one route: for each array its pieces."""

    pieces: list[list[tuple[Piece, Take]]]
    bytes: int


class Exchange:
    """Sends without waiting and receives ahead of need. One for each rank; `flush` ends an iteration.

    `upcoming` names this rank's receives of an iteration in the order in which it needs them, of which `AHEAD` are
    posted before their time.
    """

    AHEAD = 2

    def __init__(
        self, program: Program, rank: int, carrier: Carrier[Any], recorder: Recorder, *, element_bytes: int
    ) -> None:
        self.program, self.rank, self.carrier, self.recorder = program, rank, carrier, recorder
        self.stage, self.element_bytes = program.stage_of(rank), element_bytes
        self._upcoming: deque[Route] = deque()
        self._posted: dict[Route, _Incoming] = {}
        self._sent: list[tuple[Sending, Any]] = []

    def begin(self, upcoming: Sequence[Route]) -> None:
        """A new iteration that will receive `upcoming`."""
        self._upcoming.extend(upcoming)
        self._post_ahead()

    def send(self, route: Route, arrays: Sequence[Any]) -> None:
        """Hand over this rank's part of `arrays`; they must not change any more."""
        receiver = self.program.stages[route.receiver]
        for number, array in enumerate(arrays):
            length = self.program.boundary_shapes(route.layer)[number][0]
            here = region_of(self.stage, self.rank, length)
            for piece in pieces_to_send(self.stage, receiver, self.rank, length):
                samples, places = within(piece.samples, here.samples), within(piece.places, here.held)
                part = self.carrier.cut(array, samples, places)
                self._sent.append((self.carrier.send(part, route, piece.peer, number), part))
        self._sent = [(sending, part) for sending, part in self._sent if not sending.is_completed()]

    def receive(self, route: Route) -> tuple[Any, ...]:
        """Return the arrays of `route` as this rank holds them, once they have come."""
        while route not in self._posted:
            self._post(self._upcoming.popleft())
        incoming = self._posted.pop(route)
        shapes = self.program.boundary_shapes(route.layer)
        with self.recorder.span(
            "wait",
            f"{route.way} from stage {route.sender}",
            phase=route.way,
            micro_batch=route.k,
            axis="pp",
            bytes=incoming.bytes,
        ):
            arrived = [[(piece, take()) for piece, take in pieces] for pieces in incoming.pieces]
        self._post_ahead()
        return tuple(
            self._whole(pieces, shape, route, number)
            for number, (pieces, shape) in enumerate(zip(arrived, shapes, strict=True))
        )

    def flush(self) -> None:
        """Wait until everything sent has been taken."""
        with self.recorder.span("wait", "messages taken", axis="pp"):
            for sending, _ in self._sent:
                sending.wait()
        self._sent = []

    def _post_ahead(self) -> None:
        while self._upcoming and len(self._posted) < self.AHEAD:
            self._post(self._upcoming.popleft())

    def _post(self, route: Route) -> None:
        sender = self.program.stages[route.sender]
        incoming = _Incoming(pieces=[], bytes=0)
        for number, shape in enumerate(self.program.boundary_shapes(route.layer)):
            pieces = []
            for piece in pieces_to_receive(sender, self.stage, self.rank, shape[0]):
                size = (length_of(piece.samples), length_of(piece.places), *shape[1:])
                pieces.append((piece, self.carrier.receive(size, route, piece.peer, number)))
                incoming.bytes += prod(size) * self.element_bytes
            incoming.pieces.append(pieces)
        self._posted[route] = incoming

    def _whole(self, pieces: Sequence[tuple[Piece, Any]], shape: tuple[int, ...], route: Route, number: int) -> Any:
        """Pieces put together to this rank's own part, and that gathered where it holds more."""
        region = region_of(self.stage, self.rank, shape[0])
        if len(pieces) == 1:
            local = pieces[0][1]
        else:
            local = self.carrier.empty((length_of(region.samples), length_of(region.own), *shape[1:]))
            for piece, part in pieces:
                local[slice(*within(piece.samples, region.samples)), slice(*within(piece.places, region.own))] = part
        return self.carrier.whole(local, route, number, gathers=region.held != region.own)


def message_tag(program: Program, route: Route, number: int) -> int:
    """Return what tells messages from one rank to another apart within an iteration. 0 is left to messages that are
    none of a boundary."""
    shape, forward = program.shape, route.way == "forward"
    return ((forward * shape.chunks + route.chunk) * shape.micro_batches + route.k) * 2 + number + 1
