"""torch on one device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from bench.gpu.case import Case
from bench.gpu.shelf import Shelf
from bench.gpu.workloads import TrainingStep
from estimator.profiling.plan import ProfileTask
from estimator.profiling.rates_torch import identify_device
from estimator.profiling.run import ProfileReport, profile_layers
from estimator.profiling.setting import DeviceIdentity, Repeats, Setting
from profiles.vocabulary import AttentionKernel


class TorchBackend:
    """See `bench.gpu.backend.Backend`."""

    def __init__(self, device: str) -> None:
        """Makes `device` torch's current one; of a CPU one core is used, as the profiler does."""
        self._setting = Setting(device=device)
        self._identity = identify_device(self._setting)
        self._device = torch.device(device)
        self._flushed: torch.Tensor | None = None
        torch.manual_seed(0)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
            torch.zeros(1, device=self._device).add_(1).item()
        else:
            torch.set_num_threads(1)

    def describe(self) -> dict[str, Any]:
        cudnn = torch.backends.cudnn.version() if self._device.type == "cuda" else None
        return {
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": cudnn,
        }

    def identity(self) -> DeviceIdentity:
        return self._identity

    def attention(self) -> AttentionKernel:
        return "flash"

    def time_case(self, case: Case) -> Sequence[float]:
        from bench.gpu.operators_torch import make_step
        from bench.gpu.timing_torch import flushed_memory, matmul_precision, time_step

        if self._flushed is None:
            self._flushed = flushed_memory(self._device)
        with matmul_precision(case.dtype):
            return time_step(make_step(case, self._device), self._device, self._flushed)

    def other_variant(self, case: Case) -> Case | None:
        """torch is told which kernel to take, and has none in its place."""
        del case
        return None

    def profile(self, shelf: Shelf, tasks: Sequence[ProfileTask], repeats: Repeats, budget_s: float) -> ProfileReport:
        self._flushed = None
        return profile_layers(shelf, tasks, replace(self._setting, repeats=repeats), budget_s=budget_s)

    def time_training(self, step: TrainingStep) -> dict[str, Any]:
        from bench.gpu.steps_torch import measure_step

        self._flushed = None
        return measure_step(step, self._device)

    def free_memory(self) -> None:
        from bench.gpu.timing_torch import free_memory

        free_memory(self._device)

    def check_alive(self) -> None:
        from bench.gpu.timing_torch import synchronize

        synchronize(self._device)
