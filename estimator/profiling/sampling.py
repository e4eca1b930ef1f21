"""How passes are timed and rates are measured, whatever framework runs them."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from itertools import pairwise
from time import perf_counter
from typing import TypeVar

from estimator.host.cpu import cpu_name
from estimator.profiling.device_name import catalogue_name
from estimator.profiling.setting import DeviceIdentity, Repeats, Setting, low_quantile
from profiles.errors import InputError
from profiles.vocabulary import DType, Infeasible, Shard

LARGEST_PRODUCT = 16384
RATE_REPEATS = 5

Kind = TypeVar("Kind")


def identity_of(setting: Setting, framework: str, hardware: str | None) -> DeviceIdentity:
    """Return the device of `setting` as a measurement's key names it, with the `framework` and its version; `hardware`
    None: the host's CPU. A GPU that the catalogue knows has its name there."""
    software = f"{framework}, python {platform.python_version()}"
    if hardware is None:
        return DeviceIdentity(device="cpu", hardware=cpu_name(), software=software, threads=setting.threads)
    return DeviceIdentity(device=catalogue_name(hardware), hardware=hardware, software=software, threads=0)


def sample_passes(sample: Callable[[], tuple[float, ...]], repeats: Repeats) -> list[tuple[float, ...]]:
    """Return the seconds of an iteration's passes as often as `repeats` wants them, after some to warm up. The limit
    counts from the second on: what is compiled has been by then."""
    sample()
    start = perf_counter()
    for _ in range(repeats.warm_up - 1):
        if perf_counter() - start < repeats.limit_s:
            sample()
    samples: list[tuple[float, ...]] = []
    while not repeats.enough([sum(step_times_s) for step_times_s in samples], perf_counter() - start):
        samples.append(sample())
    return samples


def time_in_turn(steps: Sequence[Callable[[], object]]) -> tuple[float, ...]:
    """Return the seconds of each step, one after the other; each must wait for the device."""
    marks = [perf_counter()]
    for step in steps:
        step()
        marks.append(perf_counter())
    return tuple(end - begin for begin, end in pairwise(marks))


def explain(error: Exception, framework: str, *, out_of_memory: bool) -> Infeasible:
    """Return what the framework said, as a reason."""
    text = next(iter(str(error).strip().splitlines()), "")
    if out_of_memory or isinstance(error, MemoryError):
        return Infeasible(reason=f"out of memory: {text}", lacking="memory")
    return Infeasible(reason=f"{framework} cannot run it ({type(error).__name__}: {text})", lacking="support")


def rate_dtype(dtype: DType, dtype_of: Callable[[Shard], Kind]) -> Kind:
    """Return a framework's own type for `dtype`, by its `dtype_of`. Raise InputError where it has none."""
    try:
        return dtype_of(Shard(dtype=dtype))
    except ValueError as error:
        raise InputError(
            where="profile", key="--dtype", found=dtype, expected=f"fp32, bf16 or fp16 ({error})"
        ) from None


def product_rate(product_s: Callable[[int], float], *, long_enough_s: float) -> float:
    """Return FLOP/s of a square product, of the smallest power of two that keeps the device busy for long enough;
    `product_s` gives the seconds of one with so many rows."""
    n = 512
    while (seconds := product_s(n)) < long_enough_s and n < LARGEST_PRODUCT:
        n *= 2
    return 2 * n**3 / seconds


def best_s(timed: Callable[[], float]) -> float:
    """Return the low quantile of a few runs, after one to compile and warm up."""
    return low_quantile([timed() for _ in range(RATE_REPEATS + 1)][1:])
