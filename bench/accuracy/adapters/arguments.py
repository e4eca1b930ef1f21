"""Runs of Megatron-LM all of whose arguments are told: what an argument that is not there stands for, as columns."""

from __future__ import annotations

from typing import Any

from bench.accuracy.adapters.told import Told, flag
from planner.one_job.validation.columns import RunRow

ARGUMENT = "transformer_impl"
"""An argument that every such run has, and no other table."""


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
    if not flag(told, "swiglu"):
        columns["model_family"] = "gpt"
        columns["dropout"] = told.get("attention_dropout", "") != "0.0"
    if told[ARGUMENT] == "local" and row.flash_attn:
        columns["flash_attn"] = False
        assumed.append("attention: of the local implementation, which has no fused kernel (flash_attn)")
    return columns
