"""Degrees and batch of a row: what is stated, and what the device count leaves for the rest."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

from estimator.pricing.build import PipelineDegrees
from models_zoo.layers import Experts, TransformerBlock
from models_zoo.model import Model
from planner.one_job.validation.prepared import Skipped

if TYPE_CHECKING:
    from planner.one_job.validation.columns import RunRow

TOKENS_PER_MICRO_BATCH = 8192
"""Tokens of a micro-batch on a rank where neither micro_batch nor grad_accum is stated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGrid:
    """Degrees of a row, all stated or derived, and its batch."""

    degrees: PipelineDegrees
    global_batch: int
    micro_batch: int


def grid_of(row: RunRow, model: Model, *, devices: int, shards_weights: bool, assumed: list[str]) -> RunGrid | Skipped:
    """Return degrees and batch of a run on `devices`: those stated, the one left blank from the device count, then the
    batch. `shards_weights`: under ZeRO 3, where experts are spread over as many ranks as can share them."""
    stated = row.degrees
    cp, pp = stated.get("cp", 1), stated.get("pp", 1)
    tp = _tensor_ranks(row, devices // (pp * cp) if devices % (pp * cp) == 0 else 0, assumed)
    dp = stated.get("dp")
    if dp is None:
        if devices % (tp * pp * cp):
            return Skipped(reason="gpus_total is no multiple of tp * pp * cp")
        dp = devices // (tp * pp * cp)
        if dp > 1:
            assumed.append("dp: not stated; gpus_total / (tp * pp * cp)")
    if tp * pp * cp * dp != devices:
        return Skipped(reason="tp * pp * dp * cp contradicts gpus_total")
    batch = _batch(row, dp, model, assumed)
    if isinstance(batch, Skipped):
        return batch
    global_batch, micro_batch = batch
    experts = expert_count(model)
    ep = stated.get("ep", 1)
    if experts and "ep" not in stated and shards_weights:
        # A layer with all experts' weights gathered would not fit on most devices.
        ep = gcd(experts, tp * cp * dp)
        assumed.append("ep: not stated; as many ranks as can share the experts evenly")
    return RunGrid(
        degrees=PipelineDegrees(
            tp=tp,
            pp=pp,
            dp=dp,
            cp=cp,
            ep=ep if experts else 1,
            etp=stated.get("etp", 1) if experts else 1,
            vpp=stated.get("vpp", 1) if pp > 1 else 1,
        ),
        global_batch=global_batch,
        micro_batch=micro_batch,
    )


def expert_count(model: Model) -> int:
    """Return the routed experts of a block, 0 for a dense model."""
    blocks = (layer for layer in model.layers if isinstance(layer, TransformerBlock))
    return max((block.feed_forward.count for block in blocks if isinstance(block.feed_forward, Experts)), default=0)


def _tensor_ranks(row: RunRow, left: int, assumed: list[str]) -> int:
    """tp, where blank what dp leaves of the `left` devices of a pipeline stage."""
    tp, dp = row.degrees.get("tp"), row.degrees.get("dp")
    if tp is not None or dp is None or not left or left % dp:
        return tp or 1
    if left > dp:
        assumed.append("tp: not stated; what gpus_total leaves after pp, cp and dp")
    return left // dp


def _batch(row: RunRow, dp: int, model: Model, assumed: list[str]) -> tuple[int, int] | Skipped:
    """Samples of an iteration, and of a rank's micro-batch; what is blank from the other, the accumulation and dp."""
    global_batch, micro_batch = row.global_batch, row.micro_batch
    if global_batch is None:
        if micro_batch is None or row.grad_accum is None:
            return Skipped(reason="global_batch: not stated")
        global_batch = micro_batch * row.grad_accum * dp
        assumed.append("global_batch: not stated; micro_batch * accumulation * dp")
    if micro_batch is None:
        micro_batch = _micro_batch(row, global_batch // dp, model, assumed)
    whole = global_batch // (dp * micro_batch) * dp * micro_batch
    if not whole:
        return Skipped(reason="global_batch is smaller than dp * micro_batch")
    if whole < global_batch:
        assumed.append("global_batch: rounded down to whole micro-batches")
    return whole, micro_batch


def _micro_batch(row: RunRow, share: int, model: Model, assumed: list[str]) -> int:
    """Samples of a micro-batch where a rank has `share` of them an iteration."""
    if row.grad_accum is not None and share % row.grad_accum == 0:
        return share // row.grad_accum
    most = max(1, TOKENS_PER_MICRO_BATCH // model.seq_len) if model.seq_len else share
    assumed.append(
        f"micro_batch: not stated; the most that divides the batch within {TOKENS_PER_MICRO_BATCH} tokens (micro_batch)"
    )
    return max((n for n in range(1, most + 1) if share % n == 0), default=1)
