"""What a device is called and what it can do with JAX: rates for the operator model of what is not measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from estimator.host.memory import host_memory_bytes
from estimator.profiling.device_jax import check_device, start_jax
from estimator.profiling.sampling import best_s, identity_of, product_rate, rate_dtype, time_in_turn
from estimator.profiling.setting import DeviceIdentity, Setting
from models_zoo.jax_layers.parallel import dtype_of
from profiles.measurements import DeviceRates
from profiles.vocabulary import DType

_COPIED_BYTES = {"cpu": 2**28}
_COPIED_ON_ACCELERATOR = 2**31
_LONG_ENOUGH_S = {"cpu": 0.02}
_LONG_ENOUGH_ON_ACCELERATOR_S = 0.002


def identify_device(setting: Setting) -> DeviceIdentity:
    """Return the device of `setting` as a measurement's key names it. Raise InputError if JAX has none such."""
    hardware = None if setting.device == "cpu" else check_device(setting.device).device_kind
    return identity_of(setting, f"jax {jax.__version__}", hardware)


def measure_rates(setting: Setting, dtype: DType) -> DeviceRates:
    """Measure the achievable FLOP/s of a large matrix product in `dtype`, and bytes/s read and written by a copy.

    Takes a second or two. Raise InputError for a device or dtype that JAX cannot use; MachineError as `start_jax`.
    """
    device, identity = start_jax(setting), identify_device(setting)
    with jax.default_device(device):
        return DeviceRates(
            device=identity.device,
            hardware=identity.hardware,
            software=identity.software,
            threads=identity.threads,
            memory_bytes=memory_bytes(device),
            memory_bandwidth_bytes_per_s=_copy_rate(device),
            flops_per_s=((dtype, _gemm_rate(device, dtype)),),
            flash_attention=True,  # rates are shared with torch, which has a fused kernel on CPUs too
        )


def memory_bytes(device: jax.Device) -> int:
    """What the device has: the host's memory, or what XLA may take of an accelerator's."""
    if device.platform == "cpu":
        return host_memory_bytes()
    return int(device.memory_stats()["bytes_limit"])


def _gemm_rate(device: jax.Device, dtype: DType) -> float:
    kind, product = rate_dtype(dtype, dtype_of), jax.jit(jnp.matmul)

    def product_s(n: int) -> float:
        return _best_s(product, *jax.random.normal(jax.random.key(0), (2, n, n), kind))

    long_enough_s = _LONG_ENOUGH_S.get(device.platform, _LONG_ENOUGH_ON_ACCELERATOR_S)
    return product_rate(product_s, long_enough_s=long_enough_s)


def _copy_rate(device: jax.Device) -> float:
    size = _COPIED_BYTES.get(device.platform, _COPIED_ON_ACCELERATOR)
    # A sum with one number that is not known beforehand: a plain copy may be compiled away.
    return 2 * size / _best_s(jax.jit(jnp.add), jnp.ones(size // 4, jnp.float32), jnp.float32(1))


def _best_s(program: Callable[..., Any], *arguments: Any) -> float:
    return best_s(lambda: time_in_turn((lambda: jax.block_until_ready(program(*arguments)),))[0])
