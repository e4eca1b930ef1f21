"""The operator model: time of a local shard on a device that nobody has profiled.

A roofline with efficiencies. Each operator takes the longest of its arithmetic, its memory traffic and the least time
of its kernels; operators of a layer run one after another. Everything computed here is `modelled`.
"""

from __future__ import annotations

from profiles.efficiencies import Efficiencies
from profiles.vocabulary import Device, DType, Infeasible, LayerTime, LocalLayer, Operator


def model_layer_time(
    local: LocalLayer,
    *,
    device: Device,
    dtype: DType,
    efficiencies: Efficiencies,
    optimizer_bytes_per_parameter: float,
) -> LayerTime | Infeasible:
    """Seconds of one micro-batch through `local`; Infeasible if the device has no unit for `dtype`.

    `optimizer_bytes_per_parameter` is the optimizer step's memory traffic.
    """
    peak = device.peak(dtype)
    if peak is None:
        known = ", ".join(name for name, _ in device.peak_flops_per_s)
        return Infeasible(
            reason=f"{device.name} has no {dtype} rate in the catalogue (it has {known})", lacking="support"
        )
    bandwidth = device.memory_bandwidth_bytes_per_s * efficiencies.memory

    def time_pass(op: Operator, *, backward: bool) -> float:
        moved = op.backward_bytes if backward else op.forward_bytes
        kernels = op.backward_kernels if backward else op.forward_kernels
        return max(
            _arithmetic_s(op, peak, efficiencies, backward=backward), moved / bandwidth, kernels * efficiencies.kernel_s
        )

    return LayerTime(
        forward_s=sum(time_pass(op, backward=False) for op in local.operators),
        backward_s=sum(time_pass(op, backward=True) for op in local.operators),
        optimizer_s=local.parameters * optimizer_bytes_per_parameter / bandwidth,
        provenance="modelled",
    )


def gemm_efficiency(m: int, n: int, k: int, efficiencies: Efficiencies, groups: int = 1) -> float:
    """Share of the peak that an (m, k) x (k, n) product reaches.

    gemm_max * m/(m + h) * n/(n + h) * k/(k + h_k): tiles that are not full, and a pipeline that has to fill. `groups`
    equal products run side by side fill the device together, which divides h.
    """
    half = efficiencies.gemm_half_mn / groups
    return efficiencies.gemm_max * m / (m + half) * n / (n + half) * k / (k + efficiencies.gemm_half_k)


def _arithmetic_s(op: Operator, peak: float, efficiencies: Efficiencies, *, backward: bool) -> float:
    flops = op.backward_flops if backward else op.forward_flops
    if not flops:
        return 0.0
    match op.kind:
        case "gemm" | "grouped_gemm" | "batched_gemm":
            groups = 1 if op.kind == "gemm" else op.shape[0]
            m, n, k = op.shape[-3:]
            if not backward:
                return flops / (peak * gemm_efficiency(m, n, k, efficiencies, groups))
            once = 2 * groups * m * n * k
            # The weight's gradient is (k, m) x (m, n); the input's, where wanted, (m, n) x (n, k).
            weight_s = once / (peak * gemm_efficiency(k, n, m, efficiencies, groups))
            return weight_s + (flops - once) / (peak * gemm_efficiency(m, k, n, efficiencies, groups))
        case "attention":
            share = efficiencies.attention_backward if backward else efficiencies.attention_forward
            causal = op.shape[-1]
            return flops / (2 if causal else 1) / (peak * share)
        case "conv":
            return flops / (peak * efficiencies.conv)
        case "memory" | "gather":
            raise ValueError(f"operator {op.name}: kind {op.kind} with {flops} FLOPs, expected 0")
