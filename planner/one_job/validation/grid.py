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
    cp, pp = row.degree("cp") or 1, row.degree("pp") or 1
    tp = _tensor_ranks(row, devices // (pp * cp) if devices % (pp * cp) == 0 else 0, assumed)
    dp = _data_ranks(row, devices, tp * pp * cp, assumed)
    if isinstance(dp, Skipped):
        return dp
    batch = _batch(row, dp, model, assumed)
    if isinstance(batch, Skipped):
        return batch
    global_batch, micro_batch = batch
    ep, etp = _expert_ranks(row, model, tp * cp * dp if shards_weights else None, assumed)
    vpp = (row.degree("vpp") or 1) if pp > 1 else 1
    return RunGrid(
        degrees=PipelineDegrees(tp=tp, pp=pp, dp=dp, cp=cp, ep=ep, etp=etp, vpp=vpp),
        global_batch=global_batch,
        micro_batch=micro_batch,
    )


def expert_count(model: Model) -> int:
    """Return the routed experts of a block, 0 for a dense model."""
    blocks = (layer for layer in model.layers if isinstance(layer, TransformerBlock))
    return max((block.feed_forward.count for block in blocks if isinstance(block.feed_forward, Experts)), default=0)


def _tensor_ranks(row: RunRow, left: int, assumed: list[str]) -> int:
    """tp, where blank what dp leaves of the `left` devices of a pipeline stage."""
    tp, dp = row.degree("tp"), row.degree("dp")
    if tp is not None or dp is None or not left or left % dp:
        return tp or 1
    if left > dp:
        assumed.append("tp: not stated; what gpus_total leaves after pp, cp and dp")
    return left // dp


def _data_ranks(row: RunRow, devices: int, beside: int, assumed: list[str]) -> int | Skipped:
    """dp, where blank what tp, pp and cp, `beside` together, leave of the devices."""
    dp = row.degree("dp")
    if dp is None:
        if devices % beside:
            return Skipped(reason="gpus_total is no multiple of tp * pp * cp")
        dp = devices // beside
        if dp > 1:
            assumed.append("dp: not stated; gpus_total / (tp * pp * cp)")
    return dp if beside * dp == devices else Skipped(reason="tp * pp * dp * cp contradicts gpus_total")


def _expert_ranks(row: RunRow, model: Model, most: int | None, assumed: list[str]) -> tuple[int, int]:
    """ep and etp. A blank ep is 1; where up to `most` ranks are to share the experts, as many as can evenly."""
    experts = expert_count(model)
    if not experts:
        return 1, 1
    ep = row.degree("ep") or 1
    if row.degree("ep") is None and most is not None:
        # A layer with all experts' weights gathered would not fit on most devices.
        ep = gcd(experts, most)
        assumed.append("ep: not stated; as many ranks as can share the experts evenly")
    return ep, row.degree("etp") or 1


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
