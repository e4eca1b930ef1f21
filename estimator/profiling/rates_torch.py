"""What a device is called and what it can do: rates for the operator model of what is not measured."""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import partial

import torch

from estimator.host.cpu import cpu_name
from estimator.profiling.device_name import catalogue_name
from estimator.profiling.host_memory import host_memory_bytes
from estimator.profiling.measure_torch import check_device, time_steps, torch_settings
from estimator.profiling.setting import DeviceIdentity, Setting, low_quantile
from models_zoo.torch_layers.parallel import dtype_of
from profiles.errors import InputError
from profiles.measurements import DeviceRates
from profiles.vocabulary import DType, Shard

_COPIED_BYTES = {"cpu": 2**28, "cuda": 2**31}
_LONG_ENOUGH_S = {"cpu": 0.02, "cuda": 0.002}
_LARGEST_GEMM = 16384
_RATE_REPEATS = 5


def identify_device(setting: Setting) -> DeviceIdentity:
    """Return the device of `setting` as a measurement's key names it. Raise InputError if torch has none such.

    A GPU that the catalogue knows has its name there.
    """
    device = check_device(setting.device)
    software = f"torch {torch.__version__}, python {platform.python_version()}"
    if device.type == "cpu":
        return DeviceIdentity(device="cpu", hardware=cpu_name(), software=software, threads=setting.threads)
    hardware = torch.cuda.get_device_name(device)
    return DeviceIdentity(device=catalogue_name(hardware), hardware=hardware, software=software, threads=0)


def measure_rates(setting: Setting, dtype: DType) -> DeviceRates:
    """Measure the achievable FLOP/s of a large matrix product in `dtype`, and bytes/s read and written by a copy.

    Takes a second or two. Raise InputError for a device or dtype that torch cannot use.
    """
    device, identity = check_device(setting.device), identify_device(setting)
    with torch_settings(device, setting), torch.no_grad():
        return DeviceRates(
            device=identity.device,
            hardware=identity.hardware,
            software=identity.software,
            threads=identity.threads,
            memory_bytes=_memory_bytes(device),
            memory_bandwidth_bytes_per_s=_copy_rate(device),
            flops_per_s=((dtype, _gemm_rate(device, dtype)),),
            flash_attention=_has_fused_attention(device),
        )


def _gemm_rate(device: torch.device, dtype: DType) -> float:
    """FLOP/s of a square product, of the smallest power of two that keeps the device busy for long enough."""
    try:
        kind = dtype_of(Shard(dtype=dtype))
    except ValueError as error:
        raise InputError(
            where="profile", key="--dtype", found=dtype, expected=f"fp32, bf16 or fp16 ({error})"
        ) from None
    n = 512
    while True:
        a, b = (torch.randn(n, n, device=device, dtype=kind) for _ in range(2))
        seconds = _best_s(partial(torch.mm, a, b), device)
        if seconds >= _LONG_ENOUGH_S[device.type] or n >= _LARGEST_GEMM:
            return 2 * n**3 / seconds
        n *= 2


def _copy_rate(device: torch.device) -> float:
    size = _COPIED_BYTES[device.type]
    source = torch.ones(size // 4, device=device, dtype=torch.float32)
    target = torch.empty_like(source)
    return 2 * size / _best_s(partial(target.copy_, source), device)


def _best_s(step: Callable[[], object], device: torch.device) -> float:
    """Low quantile of a few runs, after one to warm up."""
    return low_quantile([time_steps((step,), device)[0] for _ in range(_RATE_REPEATS + 1)][1:])


def _memory_bytes(device: torch.device) -> int:
    if device.type == "cpu":
        return host_memory_bytes()
    return int(torch.cuda.get_device_properties(device).total_memory)


def _has_fused_attention(device: torch.device) -> bool:
    """torch's CPU kernels have one; NVIDIA's for training need compute capability 8 (Ampere)."""
    return device.type == "cpu" or bool(torch.cuda.get_device_capability(device)[0] >= 8)
