"""Operators one at a time on one device, until the time is up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.gpu.backend import Backend
from bench.gpu.case import Case
from bench.gpu.record import Deadline, DeviceLostError, Log, Section, describe_error
from profiles.errors import InputError
from profiles.hardware import load_device
from profiles.vocabulary import Device

FAILURES_IN_A_ROW = 25
"""So many say that the device, not the operator, has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """What was timed of a case: itself, or (`instead_of`: which variant, and why not) what stands in for it."""

    case: Case
    samples_s: Sequence[float]
    instead_of: str | None = None


def run_cases(cases: Sequence[Case], section: Section, deadline: Deadline, *, backend: Backend, log: Log) -> None:
    """Measures those of `cases`, which `section` plans, that it does not have yet, in order until `deadline`. A failure
    is noted, and the next one tried; DeviceLostError where that is of no use any more."""
    peak = catalogue_device(backend.identity().device)
    failed = 0
    for case in cases[section.done :]:
        if deadline.left_s <= 0:
            break
        try:
            section.add(to_row(time_case(case, backend), peak))
            failed = 0
        except Exception as error:  # whatever is said of one operator, the next one is tried
            failed += 1
            log.write(f"failed: {case.label}: {section.fail(error)}")
        if failed:  # not above, where the error still holds the tensors
            backend.free_memory()
            check_alive(backend)
        if failed >= FAILURES_IN_A_ROW:
            raise DeviceLostError(f"{failed} operators failed in a row")


def time_case(case: Case, backend: Backend) -> Timed:
    """`case`, or the variant of it that can run."""
    try:
        return Timed(case=case, samples_s=backend.time_case(case))
    except Exception as error:
        other = backend.other_variant(case)
        if other is None:
            raise
        why = f"{case.variant}: {describe_error(error)}"
    backend.free_memory()
    return Timed(case=other, samples_s=backend.time_case(other), instead_of=why)


def check_alive(backend: Backend) -> None:
    """DeviceLostError where the device answers nothing any more, as after an illegal memory access."""
    try:
        backend.check_alive()
    except Exception as error:
        raise DeviceLostError(describe_error(error)) from error


def to_row(timed: Timed, device: Device | None) -> dict[str, Any]:
    """The row of a case; `efficiency` is of the catalogue's peak: FLOP/s where it has FLOPs, else bytes/s."""
    case, best_s = timed.case, min(timed.samples_s)
    row: dict[str, Any] = {"kind": case.kind, "dtype": case.dtype, "shape": case.shape, "direction": case.direction}
    row |= {"variant": case.variant, "seconds": best_s, "median_s": median(timed.samples_s)}
    row |= {"samples": len(timed.samples_s), "flops": case.flops, "bytes": case.bytes}
    if timed.instead_of is not None:
        row |= {"instead_of": timed.instead_of}
    if not best_s:
        return row
    rate, peak = case.bytes / best_s, device.memory_bandwidth_bytes_per_s if device else None
    if case.flops:
        rate, peak = case.flops / best_s, dict(device.peak_flops_per_s).get(case.dtype) if device else None
    row |= {"tflops" if case.flops else "gb_per_s": rate / (1e12 if case.flops else 1e9)}
    return row | {"efficiency": rate / peak if peak else None}


def catalogue_device(name: str) -> Device | None:
    """The catalogue's entry of a device, if it has one."""
    try:
        return load_device(name)
    except InputError:
        return None
