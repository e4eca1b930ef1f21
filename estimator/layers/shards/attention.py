"""Attention inside the parallel region: grouped-query and latent, self and cross, fused kernel or plain products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from estimator.layers.operators import batched_gemm, elementwise, flash_attention, gemm
from estimator.layers.shards.parts import Part, Tokens, dropout, gradient_sum, indivisible, join, linear, norm
from models_zoo.layers import Attention, LatentAttention, TransformerBlock
from profiles.vocabulary import AttentionKernel, Infeasible, Operator, Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heads:
    """One rank's heads. `v_saved_bytes`: what the fused kernel keeps by keeping its values."""

    count: int
    kv_count: int
    qk_dim: int
    v_dim: int
    v_saved_bytes: int


def attention_degree(name: str, spec: Attention, shard: Shard) -> Infeasible | None:
    """Why tp cannot split these heads: queries by tp, keys and values by tp or replicated a whole number of times."""
    if spec.latent is None and shard.tp % spec.kv_heads and spec.kv_heads % shard.tp:
        return Infeasible(
            reason=f"{name}: tp={shard.tp} neither divides nor is a multiple of {spec.kv_heads} key-value heads",
            lacking="divisibility",
        )
    return indivisible(name, shard, ("heads", spec.heads))


def attention(
    tokens: Tokens, name: str, block: TransformerBlock, spec: Attention, kernel: AttentionKernel, *, cross: bool = False
) -> Part:
    """The layer from its (gathered) input to its partial output; with `cross`, keys and values from encoder memory."""
    rows, width = tokens.rows, tokens.width
    count = spec.heads // tokens.tp
    if spec.latent is None:
        kv_count = max(1, spec.kv_heads // tokens.tp)
        heads = _Heads(
            count=count,
            kv_count=kv_count,
            qk_dim=spec.head_dim,
            v_dim=spec.head_dim,
            v_saved_bytes=rows * kv_count * spec.head_dim * width,
        )
        projections = _projections(tokens, name, block, spec, heads, cross=cross)
    else:
        latent = spec.latent
        heads = _Heads(
            count=count,
            kv_count=count,
            qk_dim=latent.nope_dim + latent.rope_dim,
            v_dim=latent.value_dim,
            # Values are a view of one product that also holds the keys' part, so all of it stays.
            v_saved_bytes=rows * count * (latent.nope_dim + latent.value_dim) * width,
        )
        projections = _latent_projections(tokens, name, block, spec, latent, heads)
    if kernel == "flash":
        core = _flash(tokens, name, spec, heads)
    else:
        core = _math(tokens, name, spec, heads, dropped=block.dropout)
    inner = count * heads.v_dim
    output = gemm(
        f"{name}.output",
        m=rows,
        n=block.hidden,
        k=inner,
        width=width,
        bias=spec.output_bias and tokens.tp == 1,
        saves_input=kernel == "math",
    )
    return join((projections, Part(operators=(*core, output), split=inner * block.hidden)))


def _projections(
    tokens: Tokens, name: str, block: TransformerBlock, spec: Attention, heads: _Heads, *, cross: bool
) -> Part:
    """Queries, keys, values, their norms and rotary embedding. Key-value weights are held by `copies` ranks alike.

    Encoder memory that is not gathered is one tensor for all decoder layers, and kept by none of them.
    """
    rows, width, hidden, dim = tokens.rows, tokens.width, block.hidden, spec.head_dim
    copies = max(1, tokens.tp // spec.kv_heads)
    kv_ranks = copies if copies > 1 else None
    memory_saved = cross and tokens.sequence_parallel

    def project(part: str, n: int, *, saves_input: bool, ranks: int | None) -> Part:
        return linear(
            f"{name}.{part}",
            rows=rows,
            n=n,
            k=hidden,
            width=width,
            bias=spec.qkv_bias,
            saves_input=saves_input,
            gradient_ranks=ranks,
        )

    parts = [
        project("query", heads.count * dim, saves_input=True, ranks=None),
        project("key", heads.kv_count * dim, saves_input=memory_saved, ranks=kv_ranks),
        project("value", heads.kv_count * dim, saves_input=False, ranks=kv_ranks),
        gradient_sum(f"{name}.input", elements=rows * hidden, width=width, consumers=2 if cross else 3),
    ]
    for part, count, ranks in (("query", heads.count, None), ("key", heads.kv_count, kv_ranks)):
        if spec.query_key_norm != "none":
            whole = spec.query_key_norm == "full"
            parts.append(
                norm(
                    f"{name}.{part}_norm",
                    block.norm,
                    rows=rows if whole else rows * count,
                    size=count * dim if whole else dim,
                    width=width,
                    bias=block.norm_bias,
                    gradient_ranks=ranks if whole else tokens.tp,
                )
            )
        if spec.rotary_dim:
            parts.append(_rotary(f"{name}.{part}_rotary", rows * count, spec.rotary_dim, dim, width))
    return join(parts)


def _latent_projections(
    tokens: Tokens, name: str, block: TransformerBlock, spec: Attention, latent: LatentAttention, heads: _Heads
) -> Part:
    """DeepSeek-V2, section 2.1: down to a rank (whole on every tp rank), a norm, and up to this rank's heads."""
    rows, width, tp = tokens.rows, tokens.width, tokens.tp

    def product(part: str, n: int, k: int, **options: Any) -> Part:
        return linear(f"{name}.{part}", rows=rows, n=n, k=k, width=width, **options)

    def down(part: str, rank: int, extra: int, *, saves_input: bool) -> Part:
        size = rank + extra
        narrow = product(
            f"{part}_down", size, block.hidden, bias=spec.qkv_bias, saves_input=saves_input, gradient_ranks=tp
        )
        # The norm keeps its input, a view of the whole product.
        normed = norm(
            f"{name}.{part}_norm",
            block.norm,
            rows=rows,
            size=rank,
            width=width,
            bias=block.norm_bias,
            gradient_ranks=tp,
            saved_input_bytes=rows * size * width,
        )
        return join((narrow, normed))

    query_rank, kv_rank, rope_dim = latent.query_rank, latent.key_value_rank, latent.rope_dim
    queries = rows * heads.count
    joined = elementwise(
        f"{name}.join_rotary",
        elements=2 * queries * heads.qk_dim,
        width=width,
        forward_passes=2,
        backward_passes=2,
        forward_kernels=2,
        backward_kernels=4,
    )
    return join(
        (
            *(() if query_rank is None else (down("query", query_rank, 0, saves_input=True),)),
            product("query", heads.count * heads.qk_dim, query_rank or block.hidden),
            down("key_value", kv_rank, rope_dim, saves_input=False),
            product("key_value_up", heads.count * (latent.nope_dim + latent.value_dim), kv_rank),
            gradient_sum(f"{name}.input", elements=rows * block.hidden, width=width, consumers=2),
            _rotary(f"{name}.query_rotary", queries, rope_dim, rope_dim, width),
            _rotary(f"{name}.key_rotary", rows, rope_dim, rope_dim, width),
            Part(operators=(joined,)),
        )
    )


def _rotary(name: str, vectors: int, rotary_dim: int, dim: int, width: int) -> Part:
    """Rotates `rotary_dim` of each vector: negate half, concatenate, multiply, multiply-add. Keeps only tables."""
    partial = dim > rotary_dim
    turned = elementwise(
        name,
        elements=vectors * rotary_dim,
        width=width,
        forward_passes=8,
        backward_passes=10,
        forward_kernels=4,
        backward_kernels=6,
    )
    if not partial:
        return Part(operators=(turned,))
    rejoined = elementwise(f"{name}_join", elements=vectors * dim, width=width, forward_passes=2, backward_passes=2)
    return Part(operators=(turned, rejoined))


def _flash(tokens: Tokens, name: str, spec: Attention, heads: _Heads) -> tuple[Operator, ...]:
    """The fused kernel: keeps queries, keys, values, its result, and an fp32 log-sum-exp per row; no dropout mask."""
    query, key = heads.count * heads.qk_dim, heads.kv_count * heads.qk_dim
    out = heads.count * heads.v_dim
    return (
        flash_attention(
            f"{name}.flash",
            batch=tokens.batch,
            heads=heads.count,
            kv_heads=heads.kv_count,
            q_len=tokens.seq_len,
            kv_len=tokens.seq_len,
            qk_dim=heads.qk_dim,
            v_dim=heads.v_dim,
            causal=spec.causal,
            width=tokens.width,
            saved_bytes=tokens.rows * ((query + key + out) * tokens.width + 4 * heads.count) + heads.v_saved_bytes,
        ),
    )


def _math(tokens: Tokens, name: str, spec: Attention, heads: _Heads, *, dropped: bool) -> tuple[Operator, ...]:
    """Scores, softmax and values as separate kernels, each key-value head serving its queries in one product."""
    width, seq = tokens.width, tokens.seq_len
    groups, m = tokens.batch * heads.kv_count, heads.count // heads.kv_count * seq
    query, key = heads.count * heads.qk_dim, heads.kv_count * heads.qk_dim
    value, out = heads.kv_count * heads.v_dim, heads.count * heads.v_dim
    scores = groups * m * seq
    operators = [
        elementwise(
            f"{name}.by_heads",
            elements=tokens.rows * (query + key + value + out),
            width=width,
            forward_passes=2,
            backward_passes=2,
            forward_kernels=4,
            backward_kernels=4,
        ),
        batched_gemm(
            f"{name}.scores",
            groups=groups,
            m=m,
            n=seq,
            k=heads.qk_dim,
            width=width,
            saved_bytes=tokens.rows * (query + key) * width,
        ),
        elementwise(
            f"{name}.softmax",
            elements=scores,
            width=width,
            forward_passes=4 if spec.causal else 2,
            backward_passes=3,
            saved_bytes=scores * width,
            forward_kernels=2 if spec.causal else 1,
        ),
    ]
    if dropped:
        operators.append(dropout(f"{name}.dropout", elements=scores, width=width))
    dropped_scores = scores if dropped else 0
    operators.append(
        batched_gemm(
            f"{name}.values",
            groups=groups,
            m=m,
            n=heads.v_dim,
            k=seq,
            width=width,
            saved_bytes=(tokens.rows * value + dropped_scores) * width,
        )
    )
    return tuple(operators)
