"""JAX on one device."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from time import monotonic
from typing import Any

import jax

from bench.gpu.case import Case
from bench.gpu.operators import catalogue_device
from bench.gpu.shelf import Shelf
from bench.gpu.workloads import TrainingStep
from estimator.profiling.device_jax import start_jax
from estimator.profiling.plan import ProfileTask
from estimator.profiling.rates_jax import identify_device, measure_rates
from estimator.profiling.run import ProfileReport, run_profile
from estimator.profiling.setting import DeviceIdentity, Repeats, Setting, layer_key
from profiles.measurements import Measurement
from profiles.vocabulary import AttentionKernel, DType, Infeasible


class JaxBackend:
    """See `bench.gpu.backend.Backend`."""

    def __init__(self, device: str) -> None:
        """InputError where JAX sees no such device."""
        self._setting = Setting(device=device)
        self._device = start_jax(self._setting)
        self._identity = identify_device(self._setting)
        jax.config.update("jax_default_device", self._device)
        self.check_alive()

    def describe(self) -> dict[str, Any]:
        return {
            "jax": jax.__version__,
            "jaxlib": version("jaxlib"),
            "platform": self._device.client.platform_version,
        }

    def identity(self) -> DeviceIdentity:
        return self._identity

    def attention(self) -> AttentionKernel:
        """On a CPU JAX has no fused kernel and computes plainly; estimates for one call it flash all the same."""
        return "flash"

    def time_case(self, case: Case) -> Sequence[float]:
        from bench.gpu.operators_jax import make_program
        from bench.gpu.timing_jax import time_program

        return time_program(make_program(case, self._device))

    def other_variant(self, case: Case) -> Case | None:
        from bench.gpu.operators_jax import other_variant

        return other_variant(case)

    def profile(self, shelf: Shelf, tasks: Sequence[ProfileTask], repeats: Repeats, budget_s: float) -> ProfileReport:
        from estimator.profiling.measure_jax import measure_layer

        start_s = monotonic()
        self._ensure_rates(shelf, tasks[0].shard.dtype)

        def measure(task: ProfileTask, limit_s: float) -> Measurement | Infeasible:
            limited = replace(repeats, limit_s=min(repeats.limit_s, limit_s))
            return measure_layer(task, replace(self._setting, repeats=limited))

        return run_profile(
            shelf,
            tasks,
            key_of=lambda task: layer_key(task.layer, task.shard, self._identity, optimizer=self._setting.optimizer),
            measure=measure,
            budget_s=budget_s - (monotonic() - start_s),
        )

    def _ensure_rates(self, shelf: Shelf, dtype: DType) -> None:
        """Those of a device that the catalogue does not know, from which estimates take what is not profiled."""
        known = shelf.rates(self._identity.device)
        if catalogue_device(self._identity.device) is not None or (known and dtype in dict(known.flops_per_s)):
            return
        found = measure_rates(self._setting, dtype)
        rates = dict(known.flops_per_s if known else ()) | dict(found.flops_per_s)
        shelf.put_rates(replace(known or found, flops_per_s=tuple(sorted(rates.items()))))

    def time_training(self, step: TrainingStep) -> dict[str, Any]:
        from bench.gpu.steps_jax import measure_step

        return measure_step(step, self._device)

    def free_memory(self) -> None:
        gc.collect()

    def check_alive(self) -> None:
        jax.block_until_ready(jax.device_put(1.0, self._device) + 1)
