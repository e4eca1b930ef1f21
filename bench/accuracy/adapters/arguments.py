"""Runs of Megatron-LM all of whose arguments are told: what an argument that is not there stands for, as columns."""

from __future__ import annotations

from typing import Any

from bench.accuracy.adapters.told import Told, flag
from planner.one_job.validation.columns import RunRow

ARGUMENT = "transformer_impl"
"""An argument that every such run has, and no other table."""

OVERLAPPING = ("overlap_grad_reduce", "tp_comm_overlap", "overlap_p2p_communication_warmup_flush")
"""Arguments that let communication run beside compute; without one, messages of interleaved stages alone do."""


def argument_columns(row: RunRow, told: Told, assumed: list[str]) -> dict[str, Any]:
    """Return what Megatron-LM does by default (megatron/training/arguments.py) where an argument is not given; nothing
    of a row whose arguments are not all told.

    Blocks are GPT's unless `--swiglu` is there; both dropouts are 0.1; the loss has an fp32 copy of the logits, fused
    into fewer kernels or not, but for `--cross-entropy-fusion-impl te`; layers of the local implementation have no
    flash attention.
    """
    if ARGUMENT not in told:
        return {}
    # Its tensorboard writer, whose figures these are, is on the last rank (megatron/training/global_vars.py).
    columns: dict[str, Any] = {
        "fused_cross_entropy": told.get("cross_entropy_fusion_impl") == "te",
        "memory_stage": "last",
    }
    if not any(flag(told, name) for name in OVERLAPPING):
        columns["overlap"] = "p2p" if (row.degree("vpp") or 1) > 1 else "none"
    if not flag(told, "swiglu"):
        columns["model_family"] = "gpt"
        columns["dropout"] = told.get("attention_dropout", "") != "0.0"
    if told[ARGUMENT] == "local" and row.flash_attn:
        columns["flash_attn"] = False
        assumed.append("attention: of the local implementation, which has no fused kernel (flash_attn)")
    return columns


def argument_features(row: RunRow, told: Told) -> list[str]:
    """Return features of the software as such a run's arguments have them: whose modules layers are made of,
    deterministic algorithms, and experts that are modules of their own unless their products are grouped."""
    if ARGUMENT not in told:
        return []
    features = [f"modules={'megatron_core' if told[ARGUMENT] == 'local' else 'transformer_engine'}"]
    if flag(told, "deterministic_mode"):
        features.append("deterministic=yes")
    if row.experts and not flag(told, "moe_grouped_gemm"):
        features.append("grouped_products=sequential")
    return features
