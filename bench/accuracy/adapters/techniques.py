"""Ways of saving memory that torchtune's tables tell by name, each row with all of those before it, as columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.accuracy.adapters.told import Told
from planner.one_job.validation.columns import RunRow

CHUNKED, STEP, OFFLOADING = "chunked cross entropy", "optimizer step in backward", "activation offloading"
IN_TURN = ("compile", CHUNKED, "activation checkpointing", STEP, OFFLOADING, "8-bit adamw", "lora", "qlora")
"""The techniques in the order in which the table adds them; adapters have neither the fused step nor 8-bit states."""


def technique_columns(row: RunRow, told: Told, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the techniques of `row` mean, over what `columns` have of it: a chunked loss has no fp32 copy of all
    logits, a step in backward holds no gradients, a paged optimizer's states are in host memory."""
    words = row.optimizer_notes.lower()
    used = _techniques(told)
    if "step fused into backward" in words:
        # Whole fine-tunings of torchtune's README: the configurations of that time have the chunked loss too.
        used |= {STEP, CHUNKED}
    features = ["step_in_backward=yes"] * (STEP in used) + ["paged_states=yes"] * ("paged" in words)
    changed: dict[str, Any] = {}
    if CHUNKED in used:
        changed["fused_cross_entropy"] = True
    if features:
        changed["features"] = "; ".join(filter(None, (columns.get("features", ""), *features)))
    if OFFLOADING in used:
        changed["offload"] = "activations"
    return changed


def _techniques(told: Told) -> set[str]:
    """All that the row has: the one told and those before it."""
    last = told.get("technique", "").removeprefix("+ ")
    if last not in IN_TURN:
        return set()
    used = set(IN_TURN[: IN_TURN.index(last) + 1])
    return used - {STEP, "8-bit adamw"} if "lora" in last else used
