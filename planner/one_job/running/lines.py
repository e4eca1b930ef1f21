"""What the workers of a run report, line by line, put together to its record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from planner.one_job.running.record import RankIteration, RunRecord
from planner.one_job.running.spans import Span
from profiles.errors import InputError, MachineError

Progress = Callable[[int, int, str], None]
"""Called with iterations done, iterations in all, and what is done next."""


class Lines:
    """What is known so far of `ranks` ranks and `steps` iterations. A worker speaks for the rank of its own number."""

    def __init__(self, ranks: int, steps: int, progress: Progress | None) -> None:
        self.steps, self.progress = steps, progress
        self.iterations: list[list[RankIteration]] = [[] for _ in range(ranks)]
        self.peaks = [0] * ranks
        self.process_peaks = [0] * ranks
        self.software = ""
        self.reported = (0, "")
        self.refusal: InputError | None = None

    def take(self, rank: int, value: dict[str, Any]) -> None:
        """One line of a worker, which is a rank."""
        match value["event"]:
            case "compiling":
                self._report("compiling")
            case "ready" if rank == 0:
                self.software = value["software"]
                self._report("training")
            case "step":
                self.iterations[rank].append(
                    RankIteration(
                        seconds=value["seconds"],
                        loss=value["loss"],
                        spans=tuple(Span(**span) for span in value["spans"]),
                        cpu_seconds=value.get("cpu_seconds"),
                    )
                )
                self._report("training")
            case "done":
                self.peaks[rank] = value["peak_memory_bytes"]
                self.process_peaks[rank] = value.get("process_peak_bytes", 0)
            case "refused":
                self.refusal = InputError(**{key: value[key] for key in ("where", "key", "found", "expected")})

    def _report(self, what: str) -> None:
        state = (min(map(len, self.iterations)), what)
        if self.progress is not None and state != self.reported:
            self.progress(state[0], self.steps, what)
        self.reported = state

    def record(self, warm_ups: int) -> RunRecord:
        """All of it. Raises the InputError of a worker that refused, MachineError where iterations are missing."""
        if self.refusal is not None:
            raise self.refusal
        if any(len(of_rank) != self.steps for of_rank in self.iterations):
            raise MachineError(f"run: found {[len(of_rank) for of_rank in self.iterations]} iterations of {self.steps}")
        return RunRecord(
            warm_ups=warm_ups,
            iterations=tuple(zip(*self.iterations, strict=True)),
            peak_memory_bytes=tuple(self.peaks),
            process_peak_bytes=tuple(self.process_peaks),
            software=self.software,
        )
