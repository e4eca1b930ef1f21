"""When things were ready: one thread for each stage waits for its results in turn, while devices work undisturbed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import jax

from planner.one_job.running.spans import Span, SpanKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    """Something dispatched: `inputs` come from other stages, `result` ends it. Neither may be given up to a program."""

    kind: SpanKind
    name: str
    inputs: Any
    result: Any
    fields: Mapping[str, Any] = field(default_factory=dict)
    source: int | None = None
    input_bytes: int = 0


Note = Callable[[int, Awaited], None]
"""Takes a stage and what was dispatched there."""


class Timeline:
    """Spans of each stage from when results are ready. A task is taken to begin once its stage is free and its input
    there; what lies between the two is a `wait` span. Collectives inside a compiled program cannot be told apart from
    its compute, so there are no `collective` and `layer` spans."""

    def __init__(self, stages: int) -> None:
        self.spans: list[list[Span]] = [[] for _ in range(stages)]
        self._queues: list[SimpleQueue[Awaited | None]] = [SimpleQueue() for _ in range(stages)]
        self._threads = [threading.Thread(target=self._follow, args=(stage,), daemon=True) for stage in range(stages)]
        self._errors: list[BaseException] = []
        self._start_s = time.perf_counter()
        for thread in self._threads:
            thread.start()

    def note(self, stage: int, awaited: Awaited) -> None:
        self._queues[stage].put(awaited)

    def finish(self) -> list[list[Span]]:
        """Each stage's spans, once all that was noted is ready."""
        for queue in self._queues:
            queue.put(None)
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]
        return self.spans

    def _follow(self, stage: int) -> None:
        try:
            free_s = 0.0
            while (awaited := self._queues[stage].get()) is not None:
                free_s = self._wait(self.spans[stage], awaited, free_s)
        except BaseException as error:
            self._errors.append(error)

    def _wait(self, spans: list[Span], awaited: Awaited, free_s: float) -> float:
        begin_s = free_s
        if awaited.source is not None:
            jax.block_until_ready(awaited.inputs)
            begin_s = max(free_s, self._now_s())
            name = f"{awaited.fields['phase']} from stage {awaited.source}"
            labels = {key: awaited.fields[key] for key in ("phase", "micro_batch")}
            spans.append(
                Span(
                    kind="wait",
                    name=name,
                    start_s=free_s,
                    end_s=begin_s,
                    axis="pp",
                    bytes=awaited.input_bytes,
                    **labels,
                )
            )
        jax.block_until_ready(awaited.result)
        end_s = max(begin_s, self._now_s())
        spans.append(Span(kind=awaited.kind, name=awaited.name, start_s=begin_s, end_s=end_s, **awaited.fields))
        return end_s

    def _now_s(self) -> float:
        return time.perf_counter() - self._start_s
