"""What a device is called and what it can do: rates for the operator model of what is not measured."""

from __future__ import annotations

from functools import partial

import torch

from estimator.host.memory import host_memory_bytes
from estimator.profiling.measure_torch import check_device, time_steps, torch_settings
from estimator.profiling.sampling import best_s, identity_of, product_rate, rate_dtype
from estimator.profiling.setting import DeviceIdentity, Setting
from models_zoo.torch_layers.parallel import dtype_of
from profiles.measurements import DeviceRates
from profiles.vocabulary import DType

_COPIED_BYTES = {"cpu": 2**28, "cuda": 2**31}
_LONG_ENOUGH_S = {"cpu": 0.02, "cuda": 0.002}


def identify_device(setting: Setting) -> DeviceIdentity:
    """Return the device of `setting` as a measurement's key names it. Raise InputError if torch has none such."""
    device = check_device(setting.device)
    hardware = None if device.type == "cpu" else torch.cuda.get_device_name(device)
    return identity_of(setting, f"torch {torch.__version__}", hardware)


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
    kind = rate_dtype(dtype, dtype_of)

    def product_s(n: int) -> float:
        a, b = (torch.randn(n, n, device=device, dtype=kind) for _ in range(2))
        return best_s(lambda: time_steps((partial(torch.mm, a, b),), device)[0])

    return product_rate(product_s, long_enough_s=_LONG_ENOUGH_S[device.type])


def _copy_rate(device: torch.device) -> float:
    size = _COPIED_BYTES[device.type]
    source = torch.ones(size // 4, device=device, dtype=torch.float32)
    target = torch.empty_like(source)
    return 2 * size / best_s(lambda: time_steps((partial(target.copy_, source),), device)[0])


def _memory_bytes(device: torch.device) -> int:
    if device.type == "cpu":
        return host_memory_bytes()
    return int(torch.cuda.get_device_properties(device).total_memory)


def _has_fused_attention(device: torch.device) -> bool:
    """torch's CPU kernels have one; NVIDIA's for training need compute capability 8 (Ampere)."""
    return device.type == "cpu" or bool(torch.cuda.get_device_capability(device)[0] >= 8)
