"""How much slower workers compute when all of a machine's are busy: measured once, with one block of reference.

A profile is of one worker alone. Cores of one CPU share its memory and its clock, so that the same work takes longer
beside busy neighbours: in turns each worker computes alone, then all of them together. How much longer depends on the
framework, whose kernels move more memory or less for the same work: it is measured with the one that runs.
"""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import mean, median
from typing import Any, Protocol

from estimator.host.capacity import process_limit
from estimator.host.worker_processes import (
    Limits,
    WorkerSpec,
    jax_environment,
    pinned_cores,
    python_worker,
    run_workers,
)
from estimator.profiling.frameworks import load_profiler
from estimator.profiling.setting import Framework, Setting, low_quantile
from models_zoo.layers import Attention, FeedForward, TransformerBlock
from profiles.errors import InputError
from profiles.store import ProfileStore
from profiles.vocabulary import DType

WORKERS = {
    "torch": python_worker("estimator.profiling.contention_torch"),
    "jax": python_worker("estimator.profiling.contention_jax"),
}
WORLD_TIMEOUT_S = 120.0
"""Within which workers have to find each other."""

ROUNDS = 3
ROUND_S = 0.3
"""Seconds that a turn takes at least."""

REFERENCE_BLOCK = TransformerBlock(
    hidden=512,
    attention=Attention(heads=8, kv_heads=8, head_dim=64, qkv_bias=True, output_bias=True),
    feed_forward=FeedForward(hidden=2048, bias=True),
)
REFERENCE_SAMPLES, REFERENCE_TOKENS = 2, 128


class InPasses(Protocol):
    """A module in training, of torch or JAX, whose passes can be timed."""

    def prepare(self) -> None: ...
    def forward(self) -> None: ...
    def backward(self) -> None: ...


def compute_for(training: InPasses, seconds: float) -> list[float]:
    """Return the seconds of each pass for so long; the last one, which others may have left alone, is not counted."""
    pass_times_s: list[float] = []
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s or len(pass_times_s) < 3:
        training.prepare()
        start_s = time.perf_counter()
        training.forward()
        training.backward()
        pass_times_s.append(time.perf_counter() - start_s)
    return pass_times_s[:-1]


def ensure_contention(store: ProfileStore, setting: Setting, workers: int, dtype: DType) -> float:
    """Return the slowdown of `workers` busy workers on this host's CPU; measured now, and stored with its rates, if it
    is not known. 1 on a GPU, whose workers have a device each."""
    from estimator.profiling.run import ensure_rate

    identity = load_profiler(setting.framework).identify_device(setting)
    if identity.device != "cpu" or workers < 2:
        return 1.0
    ensure_rate(store, setting, dtype)
    slowdowns = stored_contention(store, setting)
    if workers not in slowdowns:
        rates = store.rates(identity.device, hardware=identity.hardware, threads=identity.threads)
        assert rates is not None, "ensure_rate stored them"
        slowdowns[workers] = measure_contention(
            workers, threads=setting.threads, dtype=dtype, framework=setting.framework
        )
        store.put_rates(replace(rates, contention=tuple(sorted(slowdowns.items()))))
    return slowdowns[workers]


def stored_contention(store: ProfileStore, setting: Setting) -> dict[int, float]:
    """Return what `store` knows of the contention of the device of `setting`: slowdowns by how many workers are
    busy."""
    identity = load_profiler(setting.framework).identify_device(setting)
    rates = store.rates(identity.device, hardware=identity.hardware, threads=identity.threads)
    return {} if rates is None else dict(rates.contention)


def measure_contention(
    workers: int,
    *,
    threads: int = 1,
    dtype: DType = "fp32",
    framework: Framework = "torch",
    timeout_s: float = WORLD_TIMEOUT_S,
) -> float:
    """How many times as long one forward and backward of the reference block takes with all `workers` busy, at least 1:
    the median then, since an iteration sums over many passes, over the low quantile alone, which a profile gives.

    Each worker is a process, on cores of its own where there are enough. Raise InputError for fewer than two or more
    than this machine holds, MachineError where one dies or nothing comes in time.
    """
    if workers < 2:
        raise InputError(where="contention", key="workers", found=workers, expected="at least 2")
    process_limit(threads=threads).check(workers, where="contention", key="workers")
    request = {"rounds": ROUNDS, "round_s": ROUND_S, "threads": threads, "dtype": dtype}
    cores = pinned_cores(workers, threads)
    environment = jax_environment(threads=threads) if framework == "jax" else {}
    reports: list[dict[str, Any]] = []
    run_workers(
        [
            WorkerSpec(
                command=WORKERS[framework],
                request=request,
                cores=None if cores is None else cores[rank],
                environment=environment,
            )
            for rank in range(workers)
        ],
        what="contention",
        limits=Limits(total_s=timeout_s + 2 * ROUNDS * ROUND_S * (workers + 1)),
        on_line=lambda _, line: reports.append(line),
    )
    ratios = [float(median(report["busy_s"])) / low_quantile(report["alone_s"]) for report in reports]
    return max(1.0, mean(ratios))
