"""Degrees and batch of a row: what is stated, and what the device count leaves for the rest."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from estimator.pricing.build import PipelineDegrees
from estimator.pricing.software import Framework
from models_zoo.layers import Experts, TransformerBlock
from models_zoo.model import Model
from planner.one_job.validation.prepared import Skipped
from planner.shared.software_defaults import default_micro_batch
from profiles.records import dataclass

if TYPE_CHECKING:
    from planner.one_job.validation.columns import RunRow


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGrid:
    """Degrees of a row, all stated or derived, and its batch; `smaller` are micro-batches that may be taken instead
    where memory forces it, largest first, if the row leaves its own open."""

    degrees: PipelineDegrees
    global_batch: int
    micro_batch: int
    smaller: tuple[int, ...] = ()


def grid_of(
    row: RunRow, model: Model, *, devices: int, framework: Framework, island: int, assumed: list[str]
) -> RunGrid | Skipped:
    """Return degrees and batch of a run on `devices`, `island` of which are joined by the fastest link: those stated,
    the one left blank from the device count, then the batch. Under software that shards weights experts are spread over
    as many ranks as can share them; other blanks of the batch are what the software does by itself."""
    cp, pp = row.degree("cp") or 1, row.degree("pp") or 1
    tp = _tensor_ranks(row, devices // (pp * cp) if devices % (pp * cp) == 0 else 0, island, assumed)
    dp = _data_ranks(row, devices, tp * pp * cp, assumed)
    if isinstance(dp, Skipped):
        return dp
    batch = _batch(row, dp, model, framework, assumed)
    if isinstance(batch, Skipped):
        return batch
    global_batch, micro_batch, smaller = batch
    ep, etp = _expert_ranks(row, model, tp * cp * dp if framework.zero == 3 else None, assumed)
    vpp = (row.degree("vpp") or 1) if pp > 1 else 1
    return RunGrid(
        degrees=PipelineDegrees(tp=tp, pp=pp, dp=dp, cp=cp, ep=ep, etp=etp, vpp=vpp),
        global_batch=global_batch,
        micro_batch=micro_batch,
        smaller=smaller,
    )


def expert_count(model: Model) -> int:
    """Return the routed experts of a block, 0 for a dense model."""
    blocks = (layer for layer in model.layers if isinstance(layer, TransformerBlock))
    return max((block.feed_forward.count for block in blocks if isinstance(block.feed_forward, Experts)), default=0)


def _tensor_ranks(row: RunRow, left: int, island: int, assumed: list[str]) -> int:
    """tp, where blank what dp leaves of the `left` devices of a pipeline stage; where dp is blank too, as many ranks of
    an island as give each replica a sample of a batch that is smaller than the devices."""
    tp, dp = row.degree("tp"), row.degree("dp")
    if tp is None and dp is None and left and row.global_batch and row.global_batch < left:
        tp = next((n for n in range(1, island + 1) if left % n == 0 and row.global_batch % (left // n) == 0), None)
        if tp is not None and tp > 1:
            assumed.append(f"tp: not stated; {tp}, since there are fewer samples than devices (tp)")
        return tp or 1
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


def _batch(
    row: RunRow, dp: int, model: Model, framework: Framework, assumed: list[str]
) -> tuple[int, int, tuple[int, ...]] | Skipped:
    """Samples of an iteration, and of a rank's micro-batch; what is blank from the other, the accumulation and dp, and
    then what may be taken instead."""
    global_batch, micro_batch = row.global_batch, row.micro_batch
    if global_batch is None:
        if micro_batch is None or row.grad_accum is None:
            return Skipped(reason="global_batch: not stated")
        global_batch = micro_batch * row.grad_accum * dp
        assumed.append("global_batch: not stated; micro_batch * accumulation * dp")
    smaller: tuple[int, ...] = ()
    if micro_batch is None:
        micro_batch, smaller = _micro_batch(row, global_batch // dp, model, framework, assumed)
    whole = global_batch // (dp * micro_batch) * dp * micro_batch
    if not whole:
        return Skipped(reason="global_batch is smaller than dp * micro_batch")
    if whole < global_batch:
        assumed.append("global_batch: rounded down to whole micro-batches")
    return whole, micro_batch, smaller


def _micro_batch(
    row: RunRow, share: int, model: Model, framework: Framework, assumed: list[str]
) -> tuple[int, tuple[int, ...]]:
    """Samples of a micro-batch where a rank has `share` of them an iteration; and those that memory may force."""
    if row.grad_accum is not None and share % row.grad_accum == 0:
        return share // row.grad_accum, ()
    if not share:
        return 1, ()
    pp = row.degree("pp") or 1
    samples, why = default_micro_batch(framework, share=share, pp=pp, seq_len=model.seq_len)
    assumed.append(f"micro_batch: not stated; {why} (micro_batch)")
    return samples, tuple(n for n in range(samples - 1, 0, -1) if share % n == 0)
