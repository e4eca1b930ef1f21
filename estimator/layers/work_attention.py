"""Attention as training frameworks run it, inside the tensor-parallel region: fused kernel or plain products."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.layers.operators import batched_gemm, flash_attention
from estimator.layers.split import Split
from estimator.layers.work_latent import latent_projections
from estimator.layers.work_parts import Piece, join, linear, memory_pass, norm
from estimator.pricing.context_parallel import context_parallel_collectives
from models_zoo.layers import Attention, TransformerBlock

WINDOW_BLOCK = 128
"""Rows of queries that a fused kernel handles together, and so how far beyond a window its keys reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heads:
    queries: int
    kv: int
    qk_dim: int
    v_dim: int


def attention_part(layer: TransformerBlock, spec: Attention, split: Split) -> Piece:
    """Projections, norms of queries and keys, rotary embedding, the attention itself, and the output projection."""
    rows, tp = split.rows, split.tp
    queries = spec.heads // tp
    if spec.latent is None:
        heads = _Heads(queries=queries, kv=max(1, spec.kv_heads // tp), qk_dim=spec.head_dim, v_dim=spec.head_dim)
        columns = (heads.queries + 2 * heads.kv) * spec.head_dim
        projections = linear(
            "attention.qkv", rows=rows, n=columns, k=layer.hidden, split=split, bias=spec.qkv_bias, input_outside=True
        )
    else:
        latent = spec.latent
        heads = _Heads(queries=queries, kv=queries, qk_dim=latent.nope_dim + latent.rope_dim, v_dim=latent.value_dim)
        projections = latent_projections(layer, spec, split)
    pieces = [projections]
    if spec.query_key_norm != "none":
        whole = spec.query_key_norm == "full"
        for name, count in (("query", heads.queries), ("key", heads.kv)):
            pieces.append(
                norm(
                    f"attention.{name}_norm",
                    layer.norm,
                    rows=rows if whole else rows * count,
                    size=heads.qk_dim * (count if whole else 1),
                    split=split,
                    bias=layer.norm_bias,
                )
            )
    if spec.rotary_dim:
        turned = rows * (heads.queries + heads.kv) * spec.rotary_dim
        fused = split.kernels == "fused"
        pieces.append(
            memory_pass(
                "attention.rotary",
                turned,
                split,
                forward=2.0 if fused else 8.0,
                backward=2.0 if fused else 10.0,
                forward_kernels=2 if fused else 8,
                backward_kernels=2 if fused else 12,
            )
        )
    pieces.append(_flash(spec, heads, split) if split.attention == "flash" else _math(layer, spec, heads, split))
    pieces.append(
        context_parallel_collectives(
            split, kv_heads=heads.kv, qk_dim=heads.qk_dim, v_dim=heads.v_dim, queries=heads.queries
        )
    )
    inner = heads.queries * heads.v_dim
    # With a fused kernel the projection's input is the kernel's own saved result.
    pieces.append(
        linear(
            "attention.output",
            rows=rows,
            n=layer.hidden,
            k=inner,
            split=split,
            saves_input=split.attention == "math",
        )
    )
    return join(pieces)


def _flash(spec: Attention, heads: _Heads, split: Split) -> Piece:
    """The fused kernel keeps queries, keys, values, its result and a log-sum-exp a row. A context-parallel rank's
    queries meet all keys; causal work is balanced over ranks, so it is 1/cp of the triangle. Under a window a block of
    queries meets the window's keys and the block's own."""
    rows, width = split.rows, split.width
    kept = rows * (
        (heads.queries * (heads.qk_dim + heads.v_dim) + heads.kv * (heads.qk_dim + heads.v_dim)) * width
        + 4 * heads.queries
    )
    queries, keys, causal = split.seq_len // split.cp, split.seq_len, spec.causal
    if split.cp > 1 and causal:
        # A rank's first and last part of the sequence see (1 + 1/cp) / 2 of the keys on average.
        keys, causal = (split.seq_len + queries) // 2, False
    if spec.window is not None and spec.window + WINDOW_BLOCK < split.seq_len // 2:
        keys, causal = spec.window + WINDOW_BLOCK, False
    operator = flash_attention(
        "attention.flash",
        batch=split.samples,
        heads=heads.queries,
        kv_heads=heads.kv,
        q_len=queries,
        kv_len=keys,
        qk_dim=heads.qk_dim,
        v_dim=heads.v_dim,
        causal=causal,
        width=width,
        saved_bytes=kept,
    )
    return Piece(operators=(operator,), core=(operator,), saved_bytes=kept, core_saved_bytes=0)


def _math(layer: TransformerBlock, spec: Attention, heads: _Heads, split: Split) -> Piece:
    """Scores, softmax, dropout and values as Megatron's unfused attention runs them: 5 a s^2 b bytes in 16 bits."""
    rows, width = split.rows, split.width
    groups, m = split.samples * heads.queries, split.seq_len // split.cp
    scores = groups * m * split.seq_len
    fused, dropped = split.kernels == "fused", layer.dropout
    qk = rows * (heads.queries + heads.kv) * heads.qk_dim * width
    values = rows * heads.kv * heads.v_dim * width
    core = [
        batched_gemm(
            "attention.scores", groups=groups, m=m, n=split.seq_len, k=heads.qk_dim, width=width, saved_bytes=qk
        ),
        # Fused: scale, mask and softmax in one pass; where causal it reads the triangle alone and writes all.
        *memory_pass(
            "attention.softmax",
            scores,
            split,
            forward=(1.5 if spec.causal else 2.0) if fused else 6.0,
            backward=(2.0 if spec.causal else 3.0) if fused else 5.0,
            saved_bytes=scores * width,
            forward_kernels=1 if fused else 3,
            backward_kernels=1 if fused else 2,
        ).operators,
    ]
    core_saved = scores * width
    if dropped:
        core += memory_pass(
            "attention.dropout", scores, split, forward=2.0, backward=2.0, extra_bytes=scores, saved_bytes=scores
        ).operators
        core_saved += scores * (1 + width)
    core.append(
        batched_gemm(
            "attention.values", groups=groups, m=m, n=heads.v_dim, k=split.seq_len, width=width, saved_bytes=values
        )
    )
    context = memory_pass("attention.by_tokens", rows * heads.queries * heads.v_dim, split, forward=2.0, backward=2.0)
    operators = tuple(core)
    return join(
        (
            Piece(
                operators=operators, core=operators, saved_bytes=qk + values + core_saved, core_saved_bytes=core_saved
            ),
            context,
        )
    )
