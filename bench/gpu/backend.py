"""What the run asks of a framework. A method imports what it needs, so that what is lacking stops one section alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from bench.gpu.case import Case, Framework
from bench.gpu.shelf import Shelf
from bench.gpu.workloads import TrainingStep
from estimator.profiling.plan import ProfileTask
from estimator.profiling.run import ProfileReport
from estimator.profiling.setting import DeviceIdentity, Repeats
from profiles.vocabulary import AttentionKernel


class Backend(Protocol):
    """A framework on one device."""

    def describe(self) -> dict[str, Any]:
        """Versions of what is measured with."""

    def identity(self) -> DeviceIdentity:
        """The device as a measurement's key names it."""

    def attention(self) -> AttentionKernel:
        """The kernel that layers have on the device, as an estimate takes it."""

    def time_case(self, case: Case) -> Sequence[float]:
        """Seconds of each of a few runs of an operator."""

    def other_variant(self, case: Case) -> Case | None:
        """What to time where `case` cannot run; None for nothing."""

    def profile(self, shelf: Shelf, tasks: Sequence[ProfileTask], repeats: Repeats, budget_s: float) -> ProfileReport:
        """Measures the layer shards that `shelf` does not have yet, in order, as far as the budget goes."""

    def time_training(self, step: TrainingStep) -> dict[str, Any]:
        """Times, parameters and memory of a whole step: see `bench.gpu.steps_torch.measure_step`."""

    def free_memory(self) -> None:
        """Gives back what a piece of work has left."""

    def check_alive(self) -> None:
        """Any exception, if the device cannot be used any more."""


def _torch(device: str) -> Backend:
    from bench.gpu.backend_torch import TorchBackend

    return TorchBackend(device)


def _jax(device: str) -> Backend:
    from bench.gpu.backend_jax import JaxBackend

    return JaxBackend(device)


BACKENDS: dict[Framework, Callable[[str], Backend]] = {"torch": _torch, "jax": _jax}
"""Each raises where its framework is not installed or has no such device (`cpu`, `cuda:0`)."""
