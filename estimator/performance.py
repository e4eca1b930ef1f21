"""What an iteration time means: samples, tokens and FLOPs per second, and the share of the device's peak."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.cells.job import Job
from estimator.layers.graph import build_graph
from profiles.vocabulary import Device, Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFlops:
    """FLOPs of one sample's forward and backward, three times forward's matrix products (PaLM, appendix B).

    `model` counts attention in full, `causal` causal attention half; `forward_by_layer` is one forward pass, in full.
    """

    model: int
    causal: int
    forward_by_layer: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Performance:
    """Rates of a plan. None: tokens of a model without tokens, `mfu` of a device without a datasheet peak."""

    samples_per_s: float
    tokens_per_s_per_device: float | None
    tflops_per_device: float
    causal_tflops_per_device: float
    hardware_tflops_per_device: float
    mfu: float | None


def count_model_flops(job: Job) -> ModelFlops:
    """FLOPs per sample of `job`'s model, independent of any plan.

    Counted with the fused kernel, whose operator knows whether it is causal; forward FLOPs are the same without it.
    """
    shard = Shard(seq_len=job.seq_len, dtype=job.dtype, attention="flash")
    graph = build_graph(job.model, shard=shard, degrees=())
    return ModelFlops(
        model=graph.model_flops,
        causal=graph.model_flops - 3 * graph.causal_half_flops,
        forward_by_layer=tuple(node.forward_flops for node in graph.nodes),
    )


def rate_iteration(
    job: Job, *, iteration_time_s: float, devices: int, device: Device, flops: ModelFlops, recomputed_flops: int
) -> Performance:
    """Rates of an iteration of `job` on `devices` devices; `recomputed_flops` of a sample's forward run twice."""
    per_device = job.global_batch / (iteration_time_s * devices)
    peak = device.peak(job.dtype) if device.peak_basis == "datasheet" else None
    model_flops_per_s = flops.model * per_device
    return Performance(
        samples_per_s=job.global_batch / iteration_time_s,
        tokens_per_s_per_device=job.seq_len * per_device if job.seq_len else None,
        tflops_per_device=model_flops_per_s / 1e12,
        causal_tflops_per_device=flops.causal * per_device / 1e12,
        hardware_tflops_per_device=(flops.model + recomputed_flops) * per_device / 1e12,
        mfu=model_flops_per_s / peak if peak else None,
    )
