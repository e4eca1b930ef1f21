"""What torch and JAX profile with, behind one record; each is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from estimator.profiling.plan import ProfileTask
from estimator.profiling.setting import DeviceIdentity, Framework, Setting
from models_zoo.layers import TracedLayer
from models_zoo.model import Model
from profiles.errors import InputError
from profiles.measurements import DeviceRates, Measurement
from profiles.records import dataclass
from profiles.vocabulary import DType, Infeasible


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiler:
    """One framework: what it calls a device, starting it (what is loaded on first use is no cost of a first task), a
    device's rates, and one layer's measurement."""

    identify_device: Callable[[Setting], DeviceIdentity]
    start: Callable[[Setting], object]
    measure_rates: Callable[[Setting, DType], DeviceRates]
    measure_layer: Callable[[ProfileTask, Setting], Measurement | Infeasible]


def load_profiler(framework: Framework) -> Profiler:
    """Return the profiler of `framework`. Raise InputError where it is not installed."""
    if find_spec(framework) is None:
        raise InputError(
            where="profile",
            key="--framework",
            found=f"{framework}, which is not installed",
            expected=f"an installed framework: `pip install {framework}`",
        )
    if framework == "jax":
        from estimator.profiling import measure_jax, rates_jax

        return Profiler(
            identify_device=rates_jax.identify_device,
            start=measure_jax.start_jax,
            measure_rates=rates_jax.measure_rates,
            measure_layer=measure_jax.measure_layer,
        )
    from estimator.profiling import measure_torch, rates_torch

    return Profiler(
        identify_device=rates_torch.identify_device,
        start=measure_torch.start_torch,
        measure_rates=rates_torch.measure_rates,
        measure_layer=measure_torch.measure_layer,
    )


def choose_framework(model: Model, wanted: Framework | None) -> Framework:
    """Return what is to run `model`: `wanted`, or torch; a factory's model runs in its own alone. Raise InputError
    where that is another."""
    first = model.layers[0]
    if not isinstance(first, TracedLayer):
        return wanted or "torch"
    if wanted not in (None, first.framework):
        expected = f"{first.framework}, in which {model.name} is"
        raise InputError(where="profile", key="--framework", found=wanted, expected=expected)
    return first.framework


def framework_of(software: str) -> str:
    """The framework in the software of a measurement's key.

    >>> framework_of("jax 0.10.2, python 3.11.7")
    'jax'
    """
    return software.split(" ", 1)[0]
