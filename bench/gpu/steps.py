"""Whole training steps of whole models on one device, each with our estimates of it beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from bench.gpu.backend import Backend
from bench.gpu.operators import check_alive
from bench.gpu.record import Deadline, Log, ResultFile, describe_error
from bench.gpu.shelf import Shelf
from bench.gpu.workloads import TrainingStep
from estimator.cells.cell import CellEstimate
from estimator.cells.estimate import estimate_cells
from estimator.cells.job import Job, cell_recipe
from estimator.pricing.layer_times import nothing_measured
from profiles.cluster_file import load_cluster
from profiles.measurements import device_from_rates
from profiles.vocabulary import Device


def measure_steps(
    steps: Sequence[TrainingStep], file: ResultFile, deadline: Deadline, *, backend: Backend, tiny: bool, log: Log
) -> None:
    """Each of `steps` in order that the time until `deadline` allows."""
    section = file.begin("steps", [step.label for step in steps])
    device = backend.identity().device
    for step in steps:
        if deadline.left_s < (0 if tiny else step.least_s):
            break
        failed = False
        try:
            row = describe_step(step) | backend.time_training(step)
            row["estimates"] = estimates_of(step, device, file.shelf)
            section.add(row)
            log.write(f"step {step.label}: {1e3 * row['iteration_s']:.2f} ms, {describe_ratios(row)}")
        except Exception as error:  # out of memory, say: the next step may fit
            failed = True
            log.write(f"failed: step {step.label}: {section.fail(error)}")
        backend.free_memory()
        if failed:
            check_alive(backend)
        file.save()


def describe_step(step: TrainingStep) -> dict[str, Any]:
    return {
        "model": step.model.name,
        "layers": len(step.model.layers),
        "seq_len": step.model.seq_len,
        "micro_batch": step.micro_batch,
        "dtype": step.dtype,
        "optimizer": "adamw fused" if step.fused else "adamw foreach",
        "mode": step.mode,
    }


def estimates_of(step: TrainingStep, device: str, shelf: Shelf) -> dict[str, Any]:
    """Our estimate by the operator model alone, and with what is profiled; `failure` where there is none."""
    found: dict[str, Any] = {}
    for basis in ("modelled", "measured"):
        try:
            found[basis] = estimate_step(step, device, shelf, basis == "measured")
        except Exception as error:  # the step itself is measured and stays
            found[basis] = {"failure": describe_error(error)}
    return found


def estimate_step(step: TrainingStep, device: str, shelf: Shelf, measured: bool) -> dict[str, Any]:
    """One Cell of one device. Its optimizer time is the profiler's where it is measured."""

    def local_device() -> Device | None:
        rates = shelf.rates("cpu")
        return device_from_rates(rates) if rates else None

    lookup = shelf.lookup() if measured else nothing_measured
    job = Job(
        model=step.model,
        recipe=cell_recipe(global_batch=step.micro_batch, seq_len=step.model.seq_len, dtype=step.dtype),
        recompute=("none", None),
        zero=(0,),
        micro_batches=1,
    )
    cluster = load_cluster("local:1x1" if device == "cpu" else f"{device}:1x1", local_device=local_device)
    (cell,) = estimate_cells(job, cluster, stages=(1,), lookup_for=lambda _: lookup)
    if not isinstance(cell, CellEstimate):
        return {"failure": cell.failure.reason}
    return {
        "iteration_s": cell.iteration_time_s,
        "breakdown": asdict(cell.evaluation.breakdown),
        "peak_memory_bytes": cell.evaluation.peak_memory_bytes,
        "provenance": cell.evaluation.compute_provenance,
    }


def describe_ratios(row: dict[str, Any]) -> str:
    """Each estimate over what was measured."""
    words = []
    for basis, estimate in row["estimates"].items():
        if "failure" in estimate:
            words.append(f"{basis}: {estimate['failure']}")
        else:
            ratio = estimate["iteration_s"] / row["iteration_s"]
            words.append(f"{basis} {ratio:.2f} of it ({estimate['provenance']})")
    return ", ".join(words)
