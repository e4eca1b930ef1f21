"""A user's own torch module or JAX function: what was traced, carried over to the micro-batch and dtype asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from estimator.layers.operators import batched_gemm, elementwise
from estimator.layers.parts import Piece, refuse_tokenless
from estimator.layers.split import Split
from models_zoo.layers import TracedLayer
from profiles.vocabulary import Infeasible, LocalLayer, Operator

if TYPE_CHECKING:
    from fractions import Fraction


def refuse_traced(layer: TracedLayer, split: Split) -> Infeasible | None:
    """A degree that the model brings no plan for, or cannot have."""
    if split.tp in {shard.tp for shard in layer.shards}:
        return refuse_tokenless("a traced layer", split)
    reason = dict(layer.refused).get(split.tp)
    if reason is not None:
        return Infeasible(reason=reason, lacking="divisibility")
    traced_at = ", ".join(str(shard.tp) for shard in layer.shards)
    planned = len(layer.shards) + len(layer.refused) > 1
    reason = f"its plan was traced at tp = {traced_at}" if planned else "the model brings no tensor-parallel plan"
    return Infeasible(reason=f"tp = {split.tp}: {reason}", lacking="support")


def traced_piece(layer: TracedLayer, split: Split) -> Piece:
    """What was traced at the split's tp.

    Every figure is linear in the micro-batch and in the bytes per element, so the four traced corners give it exactly;
    a module that sets samples of a batch against each other (a contrastive loss) is not linear, and is underestimated
    beyond its traced batches. Sequence parallelism is as the module's own plan has it. `math` attention splits each
    fused attention into its products.
    """
    from fractions import Fraction

    corners = next(shard.corners for shard in layer.shards if shard.tp == split.tp)
    batches = Fraction(split.samples, layer.batch) - 1
    wider = Fraction(split.width, 2) - 1
    weights = [b * w for b in (1 - batches, batches) for w in (1 - wider, wider)]
    local: LocalLayer = _blend(corners, weights)
    if split.attention != "flash":
        local = replace(local, operators=tuple(part for op in local.operators for part in _unfused(op, split.width)))
    return Piece(
        operators=local.operators,
        collectives=local.collectives,
        parameters=local.parameters,
        replicated=((1, local.replicated_parameters),),
        saved_bytes=local.saved_bytes,
        input_bytes=local.input_bytes,
        output_bytes=local.output_bytes,
    )


def _blend(corners: Sequence[Any], weights: Sequence[Fraction]) -> Any:
    """The weighted sum of equally built records, number by number; what is no number is alike in all of them."""
    first = corners[0]
    if isinstance(first, int):
        return round(sum(weight * corner for weight, corner in zip(weights, corners, strict=True)))
    if isinstance(first, tuple):
        return tuple(_blend(parts, weights) for parts in zip(*corners, strict=True))
    if is_dataclass(first) and not isinstance(first, type):
        named = {item.name: _blend([getattr(c, item.name) for c in corners], weights) for item in fields(first)}
        return type(first)(**named)
    return first


def _unfused(op: Operator, width: int) -> Iterator[Operator]:
    """Attention as scores, softmax and values, which keeps the scores besides what the fused kernel does."""
    if op.kind != "attention":
        yield op
        return
    batch, heads, kv_heads, q_len, kv_len, qk_dim, v_dim, _ = op.shape
    groups, rows = batch * kv_heads, heads // kv_heads * q_len
    scores = groups * rows * kv_len
    products = {"groups": groups, "m": rows, "width": width}
    yield batched_gemm(f"{op.name}.scores", n=kv_len, k=qk_dim, saved_bytes=op.saved_bytes, **products)
    yield elementwise(
        f"{op.name}.softmax",
        elements=scores,
        width=width,
        forward_passes=2,
        backward_passes=3,
        saved_bytes=scores * width,
    )
    yield batched_gemm(f"{op.name}.values", n=v_dim, k=kv_len, saved_bytes=0, **products)
