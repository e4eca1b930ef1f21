"""A plan run with JAX on this machine: one process drives all devices, forced host devices or the visible GPUs."""

from __future__ import annotations

from dataclasses import asdict

from estimator.host.worker_processes import Limits, WorkerSpec, host_devices, python_worker, run_workers
from planner.one_job.running.lines import Lines, Progress
from planner.one_job.running.program import Program
from planner.one_job.running.record import Orders, RunRecord

WORKER = python_worker("planner.one_job.running.jax_worker")
GPU_BACKENDS = ("nccl", "cuda", "gpu")
"""Of `Orders.backend`: those that ask for GPUs. Others run on forced host devices."""


def run_here_jax(program: Program, orders: Orders, *, progress: Progress | None = None) -> RunRecord:
    """Rank r on device r: of as many host devices as the plan has ranks, or, where `orders.backend` asks for them, of
    the visible GPUs.

    Iterations are measured undisturbed, and all ranks take as long. Spans come from one more iteration after them and
    stand in all measured ones (see `planner.one_job.running.jax_timeline`). On a host the peak of memory is the
    process's, divided evenly. InputError for a plan that JAX cannot run and for too few GPUs; MachineError where the
    process dies or does not get on for `orders.timeout_s`, at the start for `worker_processes.START_S` if that is more.
    """
    lines = Lines(program.ranks, orders.warm_ups + orders.steps, progress)
    spec = WorkerSpec(
        command=WORKER, request={"orders": asdict(orders)}, environment=_environment(program.ranks, orders)
    )
    run_workers([spec], what="run", limits=Limits(silent_s=orders.timeout_s), on_line=lines.take)
    return lines.record(orders.warm_ups)


def _environment(ranks: int, orders: Orders) -> dict[str, str]:
    if orders.backend in GPU_BACKENDS:
        return {"JAX_PLATFORMS": ""}  # Whichever kind of GPU there is.
    # Where many ranks share few cores they may be late for each other; XLA would give up sooner than we do.
    patience = f"--xla_cpu_collective_call_terminate_timeout_seconds={_patience_s(orders)}"
    return host_devices(ranks, patience, threads=orders.threads)


def _patience_s(orders: Orders) -> int:
    return int(min(max(60, orders.timeout_s), 24 * 3600))
