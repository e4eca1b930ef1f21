"""What an iteration time means: samples, tokens and FLOPs per second, and the share of the device's peak."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.layers.graph import build_graph
from models_zoo.model import Model
from profiles.vocabulary import Shard


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


def count_model_flops(model: Model, seq_len: int) -> ModelFlops:
    """Return the FLOPs per sample of `model` with so many tokens, independent of any plan.

    Counted with the fused kernel, whose operator knows whether it is causal; forward FLOPs are the same without it.
    """
    graph = build_graph(model, shard=Shard(seq_len=seq_len, attention="flash"), degrees=())
    return ModelFlops(
        model=graph.model_flops,
        causal=graph.model_flops - 3 * graph.causal_half_flops,
        forward_by_layer=tuple(node.forward_flops for node in graph.nodes),
    )
