"""A rank's work in a layer as training frameworks run it: Megatron's and Transformer Engine's kernels, or eager ones.

What a transformer block keeps for backward follows Korthikanti et al. 2022 (section 4, equations 1 to 4): without
parallelism s b h (34 + 5 a s / h) bytes in 16 bits, of which 24 are split by tp and the other 10 by sequence
parallelism; `selective` recomputation drops the quadratic part (section 5). Norms, biases, activations, dropout and
residuals are single passes over memory where `kernels` is fused, one kernel each where it is eager.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from estimator.explicit.context_parallel import context_parallel_collectives
from estimator.explicit.split import Split, Work
from estimator.explicit.work_experts import experts_part
from estimator.explicit.work_latent import latent_projections
from estimator.explicit.work_parts import (
    Piece,
    all_reduce,
    enter,
    join,
    leave,
    linear,
    memory_pass,
    norm,
    whole_linear,
)
from estimator.operators import batched_gemm, flash_attention, lookup
from estimator.shards import shard_layer
from models_zoo.layers import Attention, Embedding, Experts, FeedForward, Head, Layer, TransformerBlock
from profiles.vocabulary import Infeasible, Shard

WINDOW_BLOCK = 128
"""Rows of queries that a fused kernel handles together, and so how far beyond a window its keys reach."""


@lru_cache(maxsize=16384)
def layer_work(layer: Layer, split: Split) -> Work | Infeasible:
    """The work of `layer` for one micro-batch on one rank; Infeasible where a degree does not divide a size.

    Layers that are no transformer's (convolutions, traced modules) run as `estimator.shards` has them, whatever the
    kernels; they know neither context nor expert parallelism.
    """
    match layer:
        case TransformerBlock():
            return _refuse(layer, split) or _finish(_block(layer, split), layer, split)
        case Embedding():
            return _finish(_embedding(layer, split), layer, split)
        case Head():
            return _finish(_head(layer, split), layer, split)
        case _:
            return _other(layer, split)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heads:
    queries: int
    kv: int
    qk_dim: int
    v_dim: int


def _refuse(layer: TransformerBlock, split: Split) -> Infeasible | None:
    attention, mlp = layer.attention, layer.feed_forward
    sizes = [("heads", attention.heads, split.tp)]
    if attention.latent is None and attention.kv_heads > split.tp:
        sizes.append(("key-value heads", attention.kv_heads, split.tp))
    if isinstance(mlp, Experts):
        sizes += [("experts", mlp.count, split.ep), ("columns of an expert", mlp.expert.hidden, split.etp)]
    else:
        sizes.append(("feed-forward columns", mlp.hidden, split.tp))
    if split.cp > 1:
        sizes.append(("tokens per sample under context parallelism (two parts a rank)", split.seq_len, 2 * split.cp))
    if split.sequence_parallel:
        sizes.append(("tokens per sample under sequence parallelism", split.seq_len, split.tp * split.cp))
    for name, size, degree in sizes:
        if size % degree:
            return Infeasible(reason=f"{degree} does not divide {size} {name}", lacking="divisibility")
    return None


def _finish(piece: Piece, layer: Layer, split: Split) -> Work:
    """The layer's pieces as one rank's work under the split's recomputation and training of weights."""
    hidden = layer.hidden if isinstance(layer, TransformerBlock | Embedding | Head) else 0
    boundary = split.local_rows * hidden * split.width
    full = split.recompute == "full" and isinstance(layer, TransformerBlock)
    again = piece.operators if full else piece.core if split.recompute == "selective" else ()
    forward = tuple(one for one in piece.collectives if one.phase == "forward")
    saved = piece.saved_bytes
    if full:
        saved = boundary
    elif split.recompute == "selective":
        saved -= piece.core_saved_bytes
    learning = 0 if split.frozen else piece.parameters
    learning_experts = 0 if split.frozen else piece.expert_parameters
    if split.lora_rank:
        learning, learning_experts = piece.adapter_parameters, 0
    return Work(
        operators=piece.operators,
        again=again,
        collectives=piece.collectives,
        again_collectives=forward if full else (),
        parameters=piece.parameters + (piece.adapter_parameters if split.lora_rank else 0),
        expert_parameters=piece.expert_parameters,
        trainable_parameters=learning,
        trainable_expert_parameters=learning_experts,
        saved_bytes=saved,
        temporary_bytes=piece.temporary_bytes + (piece.saved_bytes if full else piece.core_saved_bytes if again else 0),
        input_bytes=8 * split.rows if isinstance(layer, Embedding) else boundary,
        output_bytes=4 if isinstance(layer, Head) else boundary,
    )


def _block(layer: TransformerBlock, split: Split) -> Piece:
    """Attention and feed-forward, each with norm(s), tensor-parallel edges, and bias, dropout and residual in one."""
    hidden, rows = layer.hidden, split.local_rows
    mlp = layer.feed_forward
    branches = [("attention", _attention(layer, layer.attention, split), True)]
    if layer.cross_attention:
        branches.append(("cross_attention", _attention(layer, layer.cross_attention, split), True))
    if isinstance(mlp, Experts):
        # Megatron's experts dispatch from the sequence-parallel slice: no tensor-parallel edge around them.
        branches.append(("mlp", experts_part(split, mlp, hidden), False))
    else:
        branches.append(("mlp", _feed_forward(mlp, hidden, split), True))
    biased = {"attention": layer.attention.output_bias, "mlp": isinstance(mlp, FeedForward) and mlp.bias}
    norms = 2 if layer.placement == "sandwich" else 1
    pieces: list[Piece] = []
    for name, branch, splits_tp in branches:
        each = norm(f"{name}.norm", layer.norm, rows=rows, size=hidden, split=split, bias=layer.norm_bias)
        pieces += [each] * norms
        pieces += [enter(f"{name}.enter", hidden, split)] if splits_tp and not _gathers_latent(layer, name) else []
        pieces.append(branch)
        pieces += [leave(f"{name}.leave", hidden, split)] if splits_tp else []
        pieces.append(_residual(name, rows * hidden, split, biased=bool(biased.get(name)), dropped=layer.dropout))
        if biased.get(name):
            pieces.append(Piece(parameters=hidden))
    return join(pieces)


def _gathers_latent(layer: TransformerBlock, branch: str) -> bool:
    """Latent attention gathers its narrow latents itself, not the whole hidden activation."""
    return branch == "attention" and layer.attention.latent is not None


def _residual(name: str, elements: int, split: Split, *, biased: bool, dropped: bool) -> Piece:
    """Bias, dropout and residual in one kernel (fused), or one each; the mask is a byte an element."""
    mask = elements if dropped else 0
    if split.kernels == "fused":
        # Forward: read the branch and the residual, write the sum; backward: the branch's gradient by the mask, the
        # sum of both branches' gradients where the norm's backward adds to it.
        return memory_pass(
            f"{name}.residual",
            elements,
            split,
            forward=3.0,
            backward=(2.0 if dropped else 0.0) + 3.0,
            extra_bytes=mask,
            saved_bytes=mask,
            forward_kernels=1,
            backward_kernels=2 if dropped else 1,
        )
    kernels = 1 + int(biased) + int(dropped)
    return memory_pass(
        f"{name}.residual",
        elements,
        split,
        forward=3.0 + 2.0 * (kernels - 1),
        backward=3.0 + (2.0 if dropped else 0.0) + (1.0 if biased else 0.0),
        extra_bytes=mask,
        saved_bytes=mask,
        forward_kernels=kernels,
        backward_kernels=kernels + 1,
    )


def _attention(layer: TransformerBlock, spec: Attention, split: Split) -> Piece:
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
        for name, count in (("query", heads.queries), ("key", heads.kv)):
            pieces.append(
                norm(
                    f"attention.{name}_norm", layer.norm, rows=rows * count, size=heads.qk_dim, split=split, bias=False
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


def _feed_forward(spec: FeedForward, hidden: int, split: Split) -> Piece:
    """Column-split, activation with bias in one pass (fused), row-split; one product for gate and up."""
    inner, rows = spec.hidden // split.tp, split.rows
    columns = inner * (2 if spec.gated else 1)
    return join(
        (
            linear("mlp.up", rows=rows, n=columns, k=hidden, split=split, bias=spec.bias, input_outside=True),
            activation_pass("mlp.activation", spec, rows * inner, split),
            linear("mlp.down", rows=rows, n=hidden, k=inner, split=split),
        )
    )


def activation_pass(name: str, spec: FeedForward, elements: int, split: Split) -> Piece:
    """The nonlinearity over `elements` outputs; keeps its input (twice as wide where gated), ReLU's its output's sign
    with the next product's input."""
    inputs = 2 if spec.gated else 1
    fused = split.kernels == "fused"
    saved = 0 if spec.activation == "relu" and not spec.gated else elements * inputs * split.width
    if fused or not spec.gated:
        forward, backward, kernels = inputs + 1.0, 2.0 * inputs + 1.0, 1
    else:
        # silu, then a product: the middle result is kept too.
        forward, backward, kernels = 5.0, 9.0, 2
        saved += elements * split.width
    return memory_pass(
        name,
        elements,
        split,
        forward=forward + (2.0 if spec.bias and not fused else 0.0),
        backward=backward + (1.0 if spec.bias else 0.0),
        saved_bytes=saved,
        forward_kernels=kernels,
        backward_kernels=kernels + int(spec.bias),
    )


def _embedding(layer: Embedding, split: Split) -> Piece:
    rows, local, width = split.rows, split.local_rows, split.width
    columns = layer.factor or layer.hidden
    table = padded_vocabulary(layer.vocab, split) // split.tp * columns
    found = lookup("embedding.tokens", rows=rows, row_elements=columns, width=width)
    pieces = [Piece(operators=(found,), parameters=table, saved_bytes=8 * rows)]
    if split.tp > 1:
        pieces.append(memory_pass("embedding.mask", rows * columns, split, forward=2.0, backward=2.0, saved_bytes=rows))
        pieces.append(leave("embedding", columns, split))
    if layer.factor:
        pieces.append(whole_linear("embedding.project", rows=local, n=layer.hidden, k=layer.factor, split=split))
    elements = local * layer.hidden
    if layer.positions:
        pieces.append(memory_pass("embedding.positions", elements, split, forward=3.0, backward=1.0))
        pieces.append(Piece(parameters=layer.positions * layer.hidden))
    if layer.token_types:
        pieces.append(memory_pass("embedding.types", elements, split, forward=3.0, backward=1.0))
        pieces.append(Piece(parameters=layer.token_types * layer.hidden))
    if layer.norm:
        pieces.append(norm("embedding.norm", layer.norm, rows=local, size=layer.hidden, split=split))
    if layer.dropout:
        pieces.append(
            memory_pass(
                "embedding.dropout",
                elements,
                split,
                forward=2.0,
                backward=2.0,
                extra_bytes=elements,
                saved_bytes=elements,
            )
        )
    return join(pieces)


def padded_vocabulary(vocab: int, split: Split) -> int:
    """The vocabulary padded to a multiple of `vocabulary_multiple` times tp (Megatron's
    make-vocab-size-divisible-by)."""
    multiple = split.vocabulary_multiple * split.tp
    return -(-vocab // multiple) * multiple


def _head(layer: Head, split: Split) -> Piece:
    if layer.predicted:
        # Only the positions to predict pass on: the rest of the head sees samples of so many tokens.
        split = replace(split, seq_len=layer.predicted, sequence_parallel=False, cp=1)
    local, hidden = split.local_rows, layer.hidden
    pieces: list[Piece] = []
    if layer.norm:
        pieces.append(norm("head.norm", layer.norm, rows=local, size=hidden, split=split, bias=layer.norm_bias))
    if layer.pooler:
        pieces.append(whole_linear("head.pooler", rows=split.samples, n=hidden, k=hidden, split=split, bias=True))
    if not layer.vocab:
        return join(pieces)
    if layer.transform:
        pieces.append(whole_linear("head.transform", rows=local, n=hidden, k=hidden, split=split, bias=True))
        gelu = FeedForward(hidden=hidden, activation="gelu")
        pieces.append(activation_pass("head.gelu", gelu, local * hidden, split))
        pieces.append(norm("head.transform_norm", "layernorm", rows=local, size=hidden, split=split))
    columns = layer.factor or hidden
    if layer.factor:
        pieces.append(whole_linear("head.project", rows=local, n=layer.factor, k=hidden, split=split))
    vocab = padded_vocabulary(layer.vocab, split) // split.tp
    pieces.append(enter("head.enter", columns, split))
    pieces.append(
        linear("head.vocabulary", rows=split.rows, n=vocab, k=columns, split=split, bias=layer.bias, input_outside=True)
    )
    pieces.append(_cross_entropy(split, vocab))
    return join(pieces)


def _cross_entropy(split: Split, vocab: int) -> Piece:
    """The loss over this rank's columns. Fused: one pass over 16-bit logits each way, the gradient written in place.
    Else an fp32 copy, its maximum, exponentials, sum and target (Megatron's vocabulary-parallel loss)."""
    logits = split.rows * vocab
    if split.fused_cross_entropy:
        loss = memory_pass(
            "head.cross_entropy",
            logits,
            split,
            forward=3.0,
            backward=2.0,
            saved_bytes=logits * split.width,
            forward_kernels=3,
            backward_kernels=2,
        )
    else:
        # In passes of the 16-bit width: cast (1 + 2), max (2), subtract (4), exp (4), sum (2), divide (4).
        scale = 4 / split.width
        loss = memory_pass(
            "head.cross_entropy",
            logits,
            split,
            forward=1.0 + 9.0 * scale,
            backward=1.0 + 5.0 * scale,
            saved_bytes=4 * logits,
            temporary_bytes=8 * logits,
            forward_kernels=12,
            backward_kernels=6,
        )
    return join((loss, *(all_reduce(f"head.{part}", 4 * split.rows, split) for part in ("maximum", "sum", "target"))))


def _other(layer: Layer, split: Split) -> Work | Infeasible:
    if split.cp > 1 or split.ep > 1:
        return Infeasible(reason=f"{type(layer).__name__} knows no context or expert parallelism", lacking="support")
    shard = Shard(
        tp=split.tp,
        sequence_parallel=split.sequence_parallel,
        micro_batch_per_rank=split.samples,
        seq_len=split.seq_len,
        dtype=split.dtype,
        attention=split.attention,
    )
    local = shard_layer(layer, shard)
    if isinstance(local, Infeasible):
        return local
    full = split.recompute == "full"
    learning = 0 if split.frozen or split.lora_rank else local.parameters
    return Work(
        operators=local.operators,
        again=local.operators if full else (),
        collectives=tuple(one for one in local.collectives if one.phase != "step"),
        parameters=local.parameters,
        trainable_parameters=learning,
        saved_bytes=local.input_bytes if full else local.saved_bytes,
        temporary_bytes=local.saved_bytes if full else 0,
        input_bytes=local.input_bytes,
        output_bytes=local.output_bytes,
    )
