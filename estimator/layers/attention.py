"""Attention inside the tensor-parallel region: grouped-query and latent, self and cross, fused kernel or products."""

from __future__ import annotations

from estimator.layers.context_parallel import context_parallel_collectives
from estimator.layers.kind import Branch, BranchKind, Place
from estimator.layers.latent import latent_projections
from estimator.layers.operators import batched_gemm, flash_attention
from estimator.layers.parts import Piece, copied, enter, gradient_sum, join, linear, memory_pass, norm, refuse_sizes
from estimator.layers.split import Split
from models_zoo.layers import Attention, TransformerBlock
from profiles.records import dataclass
from profiles.vocabulary import Infeasible

WINDOW_BLOCK = 128
"""Rows of queries that a fused kernel handles together, and so how far beyond a window its keys reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heads:
    """One rank's heads. `kept_v_dim`: what the fused kernel keeps of a head by keeping its values."""

    queries: int
    kv: int
    qk_dim: int
    v_dim: int
    kept_v_dim: int


def _refuse(spec: Attention, split: Split, place: Place) -> Infeasible | None:
    """Queries split by tp; keys and values too, or they are replicated a whole number of times."""
    if spec.latent is None and spec.kv_heads % split.tp and split.tp % spec.kv_heads:
        return Infeasible(
            reason=f"{place.name}: tp={split.tp} neither divides nor is a multiple of {spec.kv_heads} key-value heads",
            lacking="divisibility",
        )
    return refuse_sizes(place.name, ("heads", spec.heads, "tp", split.tp))


def _branch(block: TransformerBlock, spec: Attention, split: Split, place: Place) -> Branch:
    """Projections, norms of queries and keys, rotary embedding, the attention itself, and the output projection.

    Latent attention as frameworks run it gathers its narrow latents itself.
    """
    heads, name = _rank_heads(spec, split), place.name
    kernel = _flash if split.attention == "flash" else _math
    ring = context_parallel_collectives(
        split, kv_heads=heads.kv, qk_dim=heads.qk_dim, v_dim=heads.v_dim, queries=heads.queries
    )
    # With a fused kernel the projection's input is the kernel's own saved result, but for a narrow copy of it.
    apart = split.kept_width < split.width and not split.frozen
    output = linear(
        f"{name}.output",
        rows=split.rows,
        n=block.hidden,
        k=heads.queries * heads.v_dim,
        split=split,
        bias=spec.output_bias and split.bias_in_product,
        saves_input=split.attention == "math" or spec.output_gate or apart,
    )
    gate = _gate(name, block.hidden, spec, heads, split) if spec.output_gate else Piece()
    projections = _projections(block, spec, heads, split, name=name, memory=place.memory)
    return Branch(
        piece=join((*projections, kernel(block, spec, heads, split, name), ring, gate, output)),
        enters=spec.latent is None or split.zoo,
        biased=spec.output_bias and not split.bias_in_product,
    )


ATTENTION = BranchKind(refuse=_refuse, branch=_branch)


def _rank_heads(spec: Attention, split: Split) -> _Heads:
    queries, latent = spec.heads // split.tp, spec.latent
    if latent is None:
        kv, dim = max(1, spec.kv_heads // split.tp), spec.head_dim
        return _Heads(queries=queries, kv=kv, qk_dim=dim, v_dim=dim, kept_v_dim=dim)
    return _Heads(
        queries=queries,
        kv=queries,
        qk_dim=latent.nope_dim + latent.rope_dim,
        v_dim=latent.value_dim,
        # In the zoo values are a view of one product that also holds the keys' part, so all of it stays.
        kept_v_dim=latent.value_dim + (latent.nope_dim if split.zoo else 0),
    )


def _projections(
    block: TransformerBlock, spec: Attention, heads: _Heads, split: Split, *, name: str, memory: bool
) -> list[Piece]:
    """From the branch's input to queries, keys and values as the attention takes them."""
    rows = split.rows
    if spec.latent is not None:
        projected = latent_projections(block, spec, split)
        if split.zoo:
            latent = spec.latent
            turned = _rotary(name, rows * (heads.queries + 1) * latent.rope_dim, split)
            return [projected, turned]
    elif split.zoo:
        projected = _apart(block, spec, heads, split, name=name, memory=memory)
    else:
        columns = (heads.queries * (2 if spec.output_gate else 1) + 2 * heads.kv) * spec.head_dim
        projected = linear(
            f"{name}.qkv", rows=rows, n=columns, k=block.hidden, split=split, bias=spec.qkv_bias, input_outside=True
        )
        key_value = 2 * heads.kv * spec.head_dim * (block.hidden + int(spec.qkv_bias))
        projected = join((projected, copied(key_value, _copies(spec, split))))
    pieces = [projected]
    if spec.query_key_norm != "none":
        pieces += _query_key_norms(block, spec, heads, split, name)
    if spec.rotary_dim:
        pieces.append(_rotary(name, rows * (heads.queries + heads.kv) * spec.rotary_dim, split))
        if split.zoo and spec.head_dim > spec.rotary_dim:
            elements = rows * (heads.queries + heads.kv) * spec.head_dim
            pieces.append(
                memory_pass(
                    f"{name}.rotary_join",
                    elements,
                    split,
                    forward=2.0,
                    backward=2.0,
                    forward_kernels=2,
                    backward_kernels=2,
                )
            )
    return pieces


def _apart(block: TransformerBlock, spec: Attention, heads: _Heads, split: Split, *, name: str, memory: bool) -> Piece:
    """Queries, keys and values as three products; `memory` is where keys and values come from. Encoder
    memory that is not gathered is one tensor for all decoder layers, and kept by none of them."""
    hidden, kv_ranks = block.hidden, _copies(spec, split)
    kept_memory = memory and split.sequence_parallel
    products = [
        linear(
            f"{name}.{part}",
            rows=split.rows,
            n=count * spec.head_dim,
            k=hidden,
            split=split,
            bias=spec.qkv_bias,
            saves_input=saves_input,
            gradient_ranks=ranks,
        )
        for part, count, saves_input, ranks in (
            ("query", heads.queries, True, None),
            ("key", heads.kv, kept_memory, kv_ranks),
            ("value", heads.kv, False, kv_ranks),
        )
    ]
    entry = enter(f"{name}.memory", hidden, split) if memory else Piece()
    consumers = (2 if memory else 3) + int(spec.output_gate)
    return join((entry, *products, gradient_sum(f"{name}.input", split.rows * hidden, split, consumers=consumers)))


def _copies(spec: Attention, split: Split) -> int | None:
    """Ranks that hold the same key-value heads, None where each has its own."""
    return split.tp // spec.kv_heads if split.tp > spec.kv_heads else None


def _gate(name: str, hidden: int, spec: Attention, heads: _Heads, split: Split) -> Piece:
    """The result times the sigmoid of a projection (frameworks have it in that of queries, keys and values); keeps the
    gate, and the result where the attention has not kept it."""
    inner, fused = heads.queries * heads.v_dim, split.kernels == "fused"
    gated = memory_pass(
        f"{name}.gating",
        split.rows * inner,
        split,
        forward=3.0 if fused else 5.0,
        backward=5.0 if fused else 9.0,
        saved_bytes=split.rows * inner * (2 if split.attention == "math" else 1) * split.width,
        forward_kernels=1 if fused else 2,
        backward_kernels=1 if fused else 3,
    )
    if not split.zoo:
        return gated
    product = linear(
        f"{name}.gate", rows=split.rows, n=inner, k=hidden, split=split, bias=spec.qkv_bias, saves_input=False
    )
    return join((product, gated))


def _query_key_norms(block: TransformerBlock, spec: Attention, heads: _Heads, split: Split, name: str) -> list[Piece]:
    """One weight for all heads, and so for all ranks, or one over all of this rank's heads."""
    whole = spec.query_key_norm == "full"
    return [
        norm(
            f"{name}.{part}_norm",
            block.norm,
            rows=split.rows if whole else split.rows * count,
            size=heads.qk_dim * (count if whole else 1),
            split=split,
            gradient_ranks=holders if whole else split.tp,
            bias=block.norm_bias,
        )
        for part, count, holders in (("query", heads.queries, None), ("key", heads.kv, _copies(spec, split)))
    ]


def _rotary(name: str, turned: int, split: Split) -> Piece:
    """Rotates `turned` elements: in one kernel each for queries and keys, or negate half, concatenate, multiply, add.
    Keeps only tables."""
    fused = split.kernels == "fused"
    return memory_pass(
        f"{name}.rotary",
        turned,
        split,
        forward=2.0 if fused else 8.0,
        backward=2.0 if fused else 10.0,
        forward_kernels=2 if fused else 8,
        backward_kernels=2 if fused else 12,
    )


def _flash(_block: TransformerBlock, spec: Attention, heads: _Heads, split: Split, name: str) -> Piece:
    """The fused kernel keeps queries, keys, values, its result and a log-sum-exp a row. A context-parallel rank's
    queries meet all keys, a rank's at a time; causal work is balanced over ranks, so it is 1/cp of the triangle. Under
    a window a block of queries meets the window's keys and the block's own."""
    rows, width = split.rows, split.width
    kept = rows * (
        (heads.queries * (heads.qk_dim + heads.v_dim) + heads.kv * (heads.qk_dim + heads.kept_v_dim)) * width
        + 4 * heads.queries
    )
    queries, keys, causal = split.seq_len // split.cp, split.seq_len, spec.causal
    if split.cp > 1 and causal:
        # A rank's first and last part of the sequence see (1 + 1/cp) / 2 of the keys on average.
        keys, causal = (split.seq_len + queries) // 2, False
    if spec.window is not None and not split.zoo and spec.window + WINDOW_BLOCK < split.seq_len // 2:
        keys, causal = spec.window + WINDOW_BLOCK, False
    operator = flash_attention(
        f"{name}.flash",
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
        steps=split.cp,
    )
    return Piece(operators=(operator,), core=(operator,), saved_bytes=kept, core_saved_bytes=0)


def _math(block: TransformerBlock, spec: Attention, heads: _Heads, split: Split, name: str) -> Piece:
    """Scores, softmax, dropout and values as Megatron's unfused attention runs them: 5 a s^2 b bytes in 16 bits."""
    rows, width = split.rows, split.width
    groups, m = split.samples * heads.queries, split.seq_len // split.cp
    scores = groups * m * split.seq_len
    fused, dropped = split.kernels == "fused" and split.fused_softmax, block.dropout
    qk = rows * (heads.queries + heads.kv) * heads.qk_dim * width
    values = rows * heads.kv * heads.v_dim * width
    core = [
        batched_gemm(
            f"{name}.scores", groups=groups, m=m, n=split.seq_len, k=heads.qk_dim, width=width, saved_bytes=qk
        ),
        # Fused: scale, mask and softmax in one pass; where causal it reads the triangle alone and writes all.
        *memory_pass(
            f"{name}.softmax",
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
            f"{name}.dropout", scores, split, forward=2.0, backward=2.0, extra_bytes=scores, saved_bytes=scores
        ).operators
        core_saved += scores * (1 + width)
    # What dropout hands on is kept by the product that reads it.
    passed_on = scores * width if dropped and split.zoo else 0
    core.append(
        batched_gemm(
            f"{name}.values",
            groups=groups,
            m=m,
            n=heads.v_dim,
            k=split.seq_len,
            width=width,
            saved_bytes=values + passed_on,
        )
    )
    context = memory_pass(f"{name}.by_tokens", rows * heads.queries * heads.v_dim, split, forward=2.0, backward=2.0)
    operators = tuple(core)
    return join(
        (
            Piece(
                operators=operators, core=operators, saved_bytes=qk + values + core_saved, core_saved_bytes=core_saved
            ),
            context,
        )
    )
