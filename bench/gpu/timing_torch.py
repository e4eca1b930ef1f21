"""One operator at a time on one device: what a case is, how long it takes, and a list of cases until the time is up."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from bench.gpu.record import Deadline, Log, ResultFile
from estimator.profiling.rates_torch import catalogue_name
from profiles.errors import InputError
from profiles.hardware import load_device
from profiles.vocabulary import Device

Step = Callable[[], object]

FLUSHED_BYTES = 2**29
"""Written before each sample: several times any cache, and long enough for the host to run ahead of the device."""
SAMPLED_S = 0.03
FEWEST, MOST = 5, 25
FAILURES_IN_A_ROW = 25
"""So many say that the device, not the operator, has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An operator to time. `make` builds its tensors on a device and returns the step to time.

    `flops` as in `profiles.vocabulary.Operator`; `bytes` is the least traffic of the kernels that torch runs eagerly,
    each reading its inputs and writing its outputs once. Cases of a lower `priority` number are measured first.
    """

    kind: str
    dtype: str
    direction: str
    shape: dict[str, int]
    make: Callable[[torch.device], Step]
    flops: int = 0
    bytes: int = 0
    variant: str = ""
    priority: int = 0

    @property
    def label(self) -> str:
        sizes = " ".join(f"{name}={size}" for name, size in self.shape.items())
        return " ".join(part for part in (self.kind, self.variant, self.dtype, self.direction, sizes) if part)


def run_cases(cases: Sequence[Case], file: ResultFile, deadline: Deadline, *, device: torch.device, log: Log) -> None:
    """Measures those of `cases`, which `file` plans, that it does not have yet, in order until `deadline`. A failure is
    noted, and the next one tried."""
    flushed = torch.empty(FLUSHED_BYTES if device.type == "cuda" else 1, dtype=torch.int8, device=device)
    peak = catalogue_device(device)
    failed = 0
    for case in cases[file.done :]:
        if deadline.left_s <= 0 or failed >= FAILURES_IN_A_ROW:
            break
        try:
            with matmul_precision(case.dtype):
                file.add(to_row(case, time_step(case.make(device), device, flushed), peak))
            failed = 0
        except Exception as error:  # whatever torch says of one operator, the next one is tried
            failed += 1
            log.write(f"failed: {case.label}: {file.fail(error)['error']}")
        if failed:  # not above, where the error still holds the tensors
            free_memory(device)
    if failed >= FAILURES_IN_A_ROW:
        log.write(f"stopped: {failed} operators failed in a row")
    file.save()


def time_step(step: Step, device: torch.device, flushed: Tensor) -> list[float]:
    """Seconds of each of a few runs with cold caches; on a GPU between events, all queued before any is waited for."""
    step()
    synchronize(device)
    start = perf_counter()
    step()
    synchronize(device)
    repeats = max(FEWEST, min(MOST, int(SAMPLED_S / (perf_counter() - start))))
    if device.type != "cuda":
        return [_wall_s(step) for _ in range(FEWEST)]
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for begin, end in events:
        flushed.zero_()
        begin.record()
        step()
        end.record()
    synchronize(device)
    return [begin.elapsed_time(end) / 1e3 for begin, end in events]


def _wall_s(step: Step) -> float:
    start = perf_counter()
    step()
    return perf_counter() - start


def to_row(case: Case, samples_s: Sequence[float], device: Device | None) -> dict[str, Any]:
    """The row of a case; `efficiency` is of the catalogue's peak: FLOP/s where it has FLOPs, else bytes/s."""
    best_s = min(samples_s)
    row: dict[str, Any] = {"kind": case.kind, "dtype": case.dtype, "shape": case.shape, "direction": case.direction}
    row |= {"variant": case.variant, "seconds": best_s, "median_s": median(samples_s), "samples": len(samples_s)}
    row |= {"flops": case.flops, "bytes": case.bytes}
    if not best_s:
        return row
    rate, peak = case.bytes / best_s, device.memory_bandwidth_bytes_per_s if device else None
    if case.flops:
        rate, peak = case.flops / best_s, dict(device.peak_flops_per_s).get(case.dtype) if device else None
    row |= {"tflops" if case.flops else "gb_per_s": rate / (1e12 if case.flops else 1e9)}
    return row | {"efficiency": rate / peak if peak else None}


@contextmanager
def matmul_precision(dtype: str) -> Iterator[None]:
    """fp32 products in full precision, but for `tf32`."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def catalogue_device(device: torch.device) -> Device | None:
    """The catalogue's entry of a GPU, if it has one."""
    if device.type != "cuda":
        return None
    try:
        return load_device(catalogue_name(torch.cuda.get_device_name(device)))
    except InputError:
        return None


def backward_of(forward: Callable[..., Tensor], *inputs: Tensor) -> Step:
    """The backward of `forward` alone, with real gradients, as often as wanted."""
    output = forward(*inputs)
    gradient = torch.randn_like(output)
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    return lambda: torch.autograd.grad(output, wanted, gradient, retain_graph=True)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free_memory(device: torch.device) -> None:
    """Gives back what a failed piece of work has left; fails quietly where the device itself has failed."""
    gc.collect()
    if device.type == "cuda":
        try:
            torch.cuda.empty_cache()
        except RuntimeError:
            return
