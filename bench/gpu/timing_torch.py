"""How long one step takes with torch on one device."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

import torch
from torch import Tensor

from bench.gpu.case import Case

Step = Callable[[], object]
Maker = Callable[[Case, torch.device], Step]

FLUSHED_BYTES = 2**29
"""Written before each sample: several times any cache, and long enough for the host to run ahead of the device."""
SAMPLED_S = 0.03
FEWEST, MOST = 5, 25


def flushed_memory(device: torch.device) -> Tensor:
    """What `time_step` writes to."""
    return torch.empty(FLUSHED_BYTES if device.type == "cuda" else 1, dtype=torch.int8, device=device)


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


@contextmanager
def matmul_precision(dtype: str) -> Iterator[None]:
    """fp32 products in full precision, but for `tf32`."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


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
