"""A plan run with JAX on this machine: one process drives all devices, forced host devices or the visible GPUs."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from estimator.worker_processes import Limits, WorkerSpec, python_worker, run_workers
from planner.running.program import Program
from planner.running.record import Orders, RankIteration, RunRecord
from planner.running.spans import Span
from profiles.errors import InputError, MachineError

WORKER = python_worker("planner.running.jax_worker")
GPU_BACKENDS = ("nccl", "cuda", "gpu")
"""Of `Orders.backend`: those that ask for GPUs. Others run on forced host devices."""

Progress = Callable[[int, int, str], None]
"""Called with iterations done, iterations in all, and what is done next."""


def run_here_jax(program: Program, orders: Orders, *, progress: Progress | None = None) -> RunRecord:
    """Rank r on device r: of as many host devices as the plan has ranks, or, where `orders.backend` asks for them, of
    the visible GPUs.

    Iterations are measured undisturbed, and all ranks take as long. Spans come from one more iteration after them and
    stand in all measured ones (see `planner.running.jax_timeline`). On a host the peak of memory is the process's,
    divided evenly. InputError for a plan that JAX cannot run and for too few GPUs; MachineError where the process dies
    or does not get on for `orders.timeout_s`.
    """
    lines = _Lines(program.ranks, orders.warm_ups + orders.steps, progress)
    spec = WorkerSpec(
        command=WORKER, request={"orders": asdict(orders)}, environment=_environment(program.ranks, orders)
    )
    run_workers([spec], what="run", limits=Limits(silent_s=orders.timeout_s), on_line=lines.take)
    return lines.record(orders.warm_ups)


def _environment(ranks: int, orders: Orders) -> dict[str, str]:
    if orders.backend in GPU_BACKENDS:
        return {"JAX_PLATFORMS": ""}  # Whichever kind of GPU there is.
    # The last of flags that contradict each other counts.
    flags = (
        os.environ.get("XLA_FLAGS", ""),
        f"--xla_force_host_platform_device_count={ranks}",
        "--xla_cpu_multi_thread_eigen=false" if orders.threads == 1 else "",
        # Where many ranks share few cores they may be late for each other; XLA would give up sooner than we do.
        f"--xla_cpu_collective_call_terminate_timeout_seconds={_patience_s(orders)}",
    )
    return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": " ".join(filter(None, flags))}


def _patience_s(orders: Orders) -> int:
    return int(min(max(60, orders.timeout_s), 24 * 3600))


class _Lines:
    """What the process reports, put together."""

    def __init__(self, ranks: int, steps: int, progress: Progress | None) -> None:
        self.steps, self.progress = steps, progress
        self.iterations: list[list[RankIteration]] = [[] for _ in range(ranks)]
        self.spans: list[tuple[Span, ...]] = [()] * ranks
        self.peaks = [0] * ranks
        self.software = ""
        self.reported = (0, "")
        self.refusal: InputError | None = None

    def take(self, worker: int, value: dict[str, Any]) -> None:
        del worker
        match value["event"]:
            case "compiling":
                self._report("compiling")
            case "ready":
                self.software = value["software"]
                self._report("training")
            case "step":
                own = RankIteration(seconds=value["seconds"], loss=value["loss"], spans=())
                self.iterations[value["rank"]].append(own)
                self._report("training")
            case "spans":
                self.spans[value["rank"]] = tuple(Span(**span) for span in value["spans"])
            case "done":
                self.peaks[value["rank"]] = value["peak_memory_bytes"]
            case "refused":
                self.refusal = InputError(**{key: value[key] for key in ("where", "key", "found", "expected")})

    def _report(self, what: str) -> None:
        state = (min(map(len, self.iterations)), what)
        if self.progress is not None and state != self.reported:
            self.progress(state[0], self.steps, what)
        self.reported = state

    def record(self, warm_ups: int) -> RunRecord:
        if self.refusal is not None:
            raise self.refusal
        if any(len(own) != self.steps for own in self.iterations):
            raise MachineError(f"run: found {[len(own) for own in self.iterations]} iterations of {self.steps}")
        ranks = [
            [one if step < warm_ups else replace(one, spans=spans) for step, one in enumerate(own)]
            for own, spans in zip(self.iterations, self.spans, strict=True)
        ]
        return RunRecord(
            warm_ups=warm_ups,
            iterations=tuple(zip(*ranks, strict=True)),
            peak_memory_bytes=tuple(self.peaks),
            software=self.software,
        )
