"""What a device is called and what it can do with JAX: rates for the operator model of what is not measured."""

from __future__ import annotations

import platform
from collections.abc import Callable
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp

from estimator.host.cpu import cpu_name
from estimator.profiling.device_jax import check_device, start_jax
from estimator.profiling.device_name import catalogue_name
from estimator.profiling.host_memory import host_memory_bytes
from estimator.profiling.setting import DeviceIdentity, Setting, low_quantile
from models_zoo.jax_layers.parallel import dtype_of
from profiles.errors import InputError
from profiles.measurements import DeviceRates
from profiles.vocabulary import DType, Shard

_COPIED_BYTES = {"cpu": 2**28}
_COPIED_ON_ACCELERATOR = 2**31
_LONG_ENOUGH_S = {"cpu": 0.02}
_LONG_ENOUGH_ON_ACCELERATOR_S = 0.002
_LARGEST_GEMM = 16384
_RATE_REPEATS = 5


def identify_device(setting: Setting) -> DeviceIdentity:
    """Return the device of `setting` as a measurement's key names it. Raise InputError if JAX has none such.

    A GPU that the catalogue knows has its name there.
    """
    software = f"jax {jax.__version__}, python {platform.python_version()}"
    if setting.device == "cpu":
        return DeviceIdentity(device="cpu", hardware=cpu_name(), software=software, threads=setting.threads)
    hardware = check_device(setting.device).device_kind
    return DeviceIdentity(device=catalogue_name(hardware), hardware=hardware, software=software, threads=0)


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
    """FLOP/s of a square product, of the smallest power of two that keeps the device busy for long enough."""
    try:
        kind = dtype_of(Shard(dtype=dtype))
    except ValueError as error:
        raise InputError(
            where="profile", key="--dtype", found=dtype, expected=f"fp32, bf16 or fp16 ({error})"
        ) from None
    product = jax.jit(jnp.matmul)
    n = 512
    while True:
        a, b = jax.random.normal(jax.random.key(0), (2, n, n), kind)
        seconds = _best_s(product, a, b)
        if seconds >= _LONG_ENOUGH_S.get(device.platform, _LONG_ENOUGH_ON_ACCELERATOR_S) or n >= _LARGEST_GEMM:
            return float(2 * n**3 / seconds)
        n *= 2


def _copy_rate(device: jax.Device) -> float:
    size = _COPIED_BYTES.get(device.platform, _COPIED_ON_ACCELERATOR)
    # A sum with one number that is not known beforehand: a plain copy may be compiled away.
    return 2 * size / _best_s(jax.jit(jnp.add), jnp.ones(size // 4, jnp.float32), jnp.float32(1))


def _best_s(program: Callable[..., Any], *arguments: Any) -> float:
    """Low quantile of a few runs, after one to compile and warm up."""
    samples = []
    for _ in range(_RATE_REPEATS + 1):
        start = perf_counter()
        jax.block_until_ready(program(*arguments))
        samples.append(perf_counter() - start)
    return low_quantile(samples[1:])
