"""What a rank did when, as it noted it itself: seconds from the start of an iteration, after all ranks had met."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, Literal

from profiles.records import dataclass

SpanKind = Literal["forward", "backward", "weight", "layer", "collective", "wait", "sync", "optimizer", "offload"]
SpanPhase = Literal["forward", "backward", "step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One piece of a rank's time.

    `forward`, `backward` and `weight` (`estimator.schedules.records.Kind`) are tasks of the schedule; inside them lie
    `layer` (one layer's part) and `collective` (of the tensor-parallel ranks). `wait` is for a message from another
    stage, `sync` for gradients and weights of the replicas, with collectives inside, `offload` for state kept in host
    memory. `bytes` follows nccl-tests, as `profiles.vocabulary.Collective`.
    """

    kind: SpanKind
    name: str
    start_s: float
    end_s: float
    phase: SpanPhase = "step"
    chunk: int = 0
    micro_batch: int = 0
    layer: int | None = None
    axis: str = ""
    ranks: int = 0
    bytes: int = 0

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end_s - self.start_s

    def to_json(self) -> dict[str, Any]:
        """For a line of JSON; what has its default is left out."""
        blank = Span(kind=self.kind, name=self.name, start_s=0.0, end_s=0.0)
        always = ("kind", "name", "start_s", "end_s")
        return {key: value for key, value in asdict(self).items() if key in always or value != getattr(blank, key)}


class Recorder:
    """Notes spans of one iteration. `clock` gives seconds; where a device works on its own it has to wait for it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.spans: list[Span] = []
        self._start_s = 0.0

    def start(self) -> None:
        """A new iteration begins now; what was noted is forgotten."""
        self.spans = []
        self._start_s = self.clock()

    def now_s(self) -> float:
        """Seconds since the iteration began."""
        return self.clock() - self._start_s

    @contextmanager
    def span(self, kind: SpanKind, name: str, **fields: Any) -> Iterator[None]:
        """Notes what happens inside as one span."""
        start_s = self.now_s()
        try:
            yield
        finally:
            self.add(kind, name, start_s, **fields)

    def add(self, kind: SpanKind, name: str, start_s: float, **fields: Any) -> None:
        """Notes a span that ends now."""
        self.spans.append(Span(kind=kind, name=name, start_s=start_s, end_s=self.now_s(), **fields))


def collectives_inside(spans: Iterable[Span], start_s: float, end_s: float) -> float:
    """Return the seconds that collectives take between two times."""
    return sum(s.seconds for s in spans if s.kind == "collective" and s.start_s >= start_s and s.end_s <= end_s)


def shifted(spans: Sequence[Span], by_s: float) -> tuple[Span, ...]:
    """The same, `by_s` later."""
    return tuple(replace(span, start_s=span.start_s + by_s, end_s=span.end_s + by_s) for span in spans)
