"""Local shards of the transformer family: embedding, block and head, split as Megatron-LM splits them.

Shoeybi et al. 2019 (section 3) for heads, columns, rows and the vocabulary; Korthikanti et al. 2022 (section 4.2) for
sequence parallelism. Counts are those of the modules in `models_zoo.torch_layers` in eager torch with its fused norm
and attention kernels: queries, keys and values are separate products, element-wise steps separate kernels, and under
sequence parallelism the gathered tensor is kept (Megatron keeps its slice and gathers once more in backward).
`shard.recompute` changes none of it. `parameters` of a tied layer include the shared table.
"""

from __future__ import annotations

from collections.abc import Iterator

from estimator.layers.operators import elementwise, lookup
from estimator.layers.shards.attention import attention, attention_degree
from estimator.layers.shards.experts import experts
from estimator.layers.shards.parts import (
    Part,
    Tokens,
    all_reduce,
    dropout,
    enter,
    feed_forward,
    gradient_sum,
    indivisible,
    join,
    late_bias,
    leave,
    linear,
    local_layer,
    norm,
    tokens_of,
)
from models_zoo.layers import Embedding, Experts, Head, TransformerBlock
from profiles.vocabulary import Infeasible, LocalLayer, Operator, Shard


def shard_embedding(layer: Embedding, shard: Shard) -> LocalLayer | Infeasible:
    """Rows of the token table split over ranks (padded to a multiple of tp); positions, types and norm on every rank.

    Input: token ids, int64. `Infeasible` where tp does not divide the sequence or learned positions run out.
    """
    if refusal := indivisible("embedding", shard):
        return refusal
    if layer.positions and shard.seq_len > layer.positions:
        return Infeasible(
            reason=f"embedding: {shard.seq_len} tokens per sample exceed its {layer.positions} learned positions",
            lacking="support",
        )
    tokens = tokens_of(shard)
    return local_layer(
        join(_embedding_parts(layer, tokens)),
        tokens=tokens,
        input_bytes=8 * tokens.rows,
        output_bytes=tokens.local_rows * layer.hidden * tokens.width,
    )


def _embedding_parts(layer: Embedding, tokens: Tokens) -> Iterator[Part]:
    rows, local, width, ranks = tokens.rows, tokens.local_rows, tokens.width, tokens.outside_ranks
    columns = layer.factor or layer.hidden
    table = _padded(layer.vocab, tokens.tp) * columns
    found = lookup("embedding.tokens", rows=rows, row_elements=columns, width=width)
    yield Part(operators=(found, _dense_gradient("embedding.tokens", table, width)), split=table)
    if tokens.tp > 1:
        yield Part(
            operators=(
                # Rows of other ranks' tokens are zeroed; the mask is one byte a token.
                elementwise(
                    "embedding.mask",
                    elements=rows * columns,
                    width=width,
                    forward_passes=2,
                    backward_passes=2,
                    saved_bytes=rows,
                ),
            )
        )
    yield leave(tokens, "embedding", columns)
    if layer.factor:
        yield linear("embedding.project", rows=local, n=layer.hidden, k=layer.factor, width=width, gradient_ranks=ranks)
    elements = local * layer.hidden
    if layer.positions:
        add = elementwise("embedding.positions", elements=elements, width=width, forward_passes=2, backward_passes=1)
        table = layer.positions * layer.hidden
        yield Part(operators=(add, _dense_gradient("embedding.positions", table, width)), replicated=((ranks, table),))
    if layer.token_types:
        types = lookup("embedding.token_types", rows=local, row_elements=layer.hidden, width=width)
        add = elementwise("embedding.add_types", elements=elements, width=width, forward_passes=3, backward_passes=0)
        yield Part(operators=(types, add), replicated=((ranks, layer.token_types * layer.hidden),))
    if layer.norm:
        yield norm("embedding.norm", layer.norm, rows=local, size=layer.hidden, width=width, gradient_ranks=ranks)
    if layer.dropout:
        yield Part(operators=(dropout("embedding.dropout", elements=elements, width=width),))


def _dense_gradient(name: str, elements: int, width: int) -> Operator:
    """Zeros for a table's gradient, of which a batch fills a few rows."""
    return elementwise(
        f"{name}_gradient",
        elements=elements,
        width=width,
        forward_passes=0,
        backward_passes=1,
        forward_kernels=0,
    )


def shard_block(layer: TransformerBlock, shard: Shard) -> LocalLayer | Infeasible:
    """Heads and feed-forward columns, or experts, split over ranks.

    Input and output: activations (batch, seq_len, hidden), seq_len / tp long under sequence parallelism; a decoder's
    encoder memory, of the same shape, is not in `input_bytes`. `Infeasible` where tp does not divide heads, key-value
    heads (nor is a multiple of them), feed-forward columns, experts or the sequence, or for a parallel residual that
    is post-norm, sandwich-norm or has cross-attention.
    """
    if refusal := _block_degree(layer, shard):
        return refusal
    tokens = tokens_of(shard)
    size = tokens.local_rows * layer.hidden * tokens.width
    parts = _parallel_parts(layer, shard, tokens) if layer.parallel else _block_parts(layer, shard, tokens)
    return local_layer(join(parts), tokens=tokens, input_bytes=size, output_bytes=size)


def _block_degree(layer: TransformerBlock, shard: Shard) -> Infeasible | None:
    if layer.parallel and (layer.placement != "pre" or layer.cross_attention):
        return Infeasible(
            reason=f"block: a parallel residual with placement={layer.placement!r} and"
            f" cross_attention={layer.cross_attention is not None}; only pre-norm self-attention is supported",
            lacking="support",
        )
    for name, spec in (("attention", layer.attention), ("cross-attention", layer.cross_attention)):
        if spec and (refusal := attention_degree(name, spec, shard)):
            return refusal
    mlp = layer.feed_forward
    if isinstance(mlp, Experts):
        return indivisible(
            "experts", shard, ("experts", mlp.count), ("columns of the shared expert", mlp.shared_hidden)
        )
    return indivisible("feed-forward", shard, ("columns", mlp.hidden))


def _block_norm(layer: TransformerBlock, tokens: Tokens, name: str, *, saves_input: bool = True) -> Part:
    rows = tokens.local_rows
    return norm(
        name,
        layer.norm,
        rows=rows,
        size=layer.hidden,
        width=tokens.width,
        bias=layer.norm_bias,
        gradient_ranks=tokens.outside_ranks,
        saved_input_bytes=None if saves_input else 0,
    )


def _feed_forward(layer: TransformerBlock, tokens: Tokens, *, saves_input: bool = True) -> Part:
    if isinstance(layer.feed_forward, Experts):
        return experts(tokens, "experts", layer.feed_forward, layer.hidden, saves_input=saves_input)
    return feed_forward(tokens, "mlp", layer.feed_forward, layer.hidden, saves_input=saves_input)


def _dense_bias(layer: TransformerBlock) -> bool:
    return not isinstance(layer.feed_forward, Experts) and layer.feed_forward.bias


def _block_parts(layer: TransformerBlock, shard: Shard, tokens: Tokens) -> Iterator[Part]:
    """Attention, cross-attention and feed-forward one after the other, each with its own norm(s) and residual."""
    hidden = layer.hidden
    inner = [
        (
            "attention",
            attention(tokens, "attention", layer, layer.attention, shard.attention),
            layer.attention.output_bias,
        )
    ]
    if cross := layer.cross_attention:
        memory = enter(tokens, "cross_attention.memory", hidden)
        part = attention(tokens, "cross_attention", layer, cross, shard.attention, cross=True)
        inner.append(("cross_attention", join((memory, part)), cross.output_bias))
    inner.append(("mlp", _feed_forward(layer, tokens), _dense_bias(layer)))
    for name, part, bias in inner:
        if layer.placement != "post":
            yield _block_norm(layer, tokens, f"{name}.norm")
        yield enter(tokens, name, hidden)
        yield part
        yield leave(tokens, name, hidden)
        if bias:
            yield late_bias(tokens, f"{name}.bias", hidden)
        if layer.placement == "sandwich":
            yield _block_norm(layer, tokens, f"{name}.post_norm")
        yield _residual(layer, tokens, name)
        if layer.placement == "post":
            yield _block_norm(layer, tokens, f"{name}.norm")


def _parallel_parts(layer: TransformerBlock, shard: Shard, tokens: Tokens) -> Iterator[Part]:
    """Both branches from the same input (PaLM, section 2): their partial sums are added before one leave.

    With a shared norm they also share one entry; otherwise each branch has a norm and an entry of its own.
    """
    hidden, elements = layer.hidden, tokens.rows * layer.hidden
    yield _block_norm(layer, tokens, "attention.norm")
    yield enter(tokens, "attention", hidden)
    yield attention(tokens, "attention", layer, layer.attention, shard.attention)
    if layer.shared_norm:
        yield gradient_sum("block.normed", elements=elements, width=tokens.width, consumers=2)
    else:
        yield _block_norm(layer, tokens, "mlp.norm", saves_input=False)
        yield enter(tokens, "mlp", hidden)
        yield gradient_sum("block.input", elements=tokens.local_rows * hidden, width=tokens.width, consumers=2)
    yield _feed_forward(layer, tokens, saves_input=not layer.shared_norm)
    branches = elementwise("block.branches", elements=elements, width=tokens.width, forward_passes=3, backward_passes=0)
    yield Part(operators=(branches,))
    yield leave(tokens, "block", hidden)
    for name, bias in (("attention", layer.attention.output_bias), ("mlp", _dense_bias(layer))):
        if bias:
            yield late_bias(tokens, f"{name}.bias", hidden)
    yield _residual(layer, tokens, "block")


def _residual(layer: TransformerBlock, tokens: Tokens, name: str) -> Part:
    """Hidden dropout and the addition; in backward the gradients of the two branches are added."""
    elements = tokens.local_rows * layer.hidden
    add = elementwise(f"{name}.residual", elements=elements, width=tokens.width, forward_passes=3, backward_passes=3)
    if not layer.dropout:
        return Part(operators=(add,))
    return Part(operators=(dropout(f"{name}.dropout", elements=elements, width=tokens.width), add))


def shard_head(layer: Head, shard: Shard) -> LocalLayer | Infeasible:
    """The vocabulary's columns split over ranks (padded to a multiple of tp), and the loss over the split logits.

    Input: activations (batch, seq_len, hidden), seq_len / tp long under sequence parallelism; output: a scalar loss.
    `Infeasible` where tp does not divide the sequence under sequence parallelism.
    """
    if refusal := indivisible("head", shard):
        return refusal
    tokens = tokens_of(shard)
    return local_layer(
        join(_head_parts(layer, tokens)),
        tokens=tokens,
        input_bytes=tokens.local_rows * layer.hidden * tokens.width,
        output_bytes=4,
    )


def _head_parts(layer: Head, tokens: Tokens) -> Iterator[Part]:
    local, width, ranks, hidden = tokens.local_rows, tokens.width, tokens.outside_ranks, layer.hidden
    if layer.norm:
        yield norm(
            "head.norm", layer.norm, rows=local, size=hidden, width=width, bias=layer.norm_bias, gradient_ranks=ranks
        )
    if layer.pooler:
        yield _pooler(layer, tokens)
    if not layer.vocab:
        if not layer.pooler:
            yield _bare_loss(tokens, elements=local * hidden)
        return
    if layer.transform:
        yield linear("head.transform", rows=local, n=hidden, k=hidden, width=width, bias=True, gradient_ranks=ranks)
        gelu = elementwise(
            "head.gelu",
            elements=local * hidden,
            width=width,
            forward_passes=2,
            backward_passes=3,
            saved_bytes=local * hidden * width,
        )
        yield Part(operators=(gelu,))
        yield norm("head.transform_norm", "layernorm", rows=local, size=hidden, width=width, gradient_ranks=ranks)
    columns = layer.factor or hidden
    if layer.factor:
        yield linear("head.project", rows=local, n=layer.factor, k=hidden, width=width, gradient_ranks=ranks)
    yield enter(tokens, "head", columns)
    vocab = _padded(layer.vocab, tokens.tp)
    yield linear("head.vocabulary", rows=tokens.rows, n=vocab, k=columns, width=width, bias=layer.bias)
    yield _cross_entropy(tokens, vocab)


def _cross_entropy(tokens: Tokens, vocab: int) -> Part:
    """Loss in fp32 over this rank's `vocab` columns. Over several ranks: maximum, sum of exponentials, target logit.

    Kept: the fp32 softmax (or its logarithm) and each token's target; over several ranks also whether it is here.
    Passes over fp32 logits: cast, (log-)softmax in one kernel or in five, its gradient, cast.
    """
    rows, alone = tokens.rows, tokens.tp == 1
    logits, fp32_logits = rows * vocab * tokens.width, 4 * rows * vocab
    cast = 1 if tokens.width < 4 else 0
    operator = Operator(
        name="head.cross_entropy",
        kind="memory",
        shape=(rows * vocab,),
        forward_bytes=cast * (logits + fp32_logits) + (2 if alone else 8) * fp32_logits,
        backward_bytes=(5 if alone else 2) * fp32_logits + cast * (logits + fp32_logits),
        saved_bytes=fp32_logits + (8 if alone else 9) * rows,
        forward_kernels=2 + cast if alone else 15 + cast,
        backward_kernels=2 + cast if alone else 4 + cast,
    )
    exchanged = (all_reduce(tokens, f"head.{part}", bytes=4 * rows) for part in ("maximum", "sum", "target"))
    return join((Part(operators=(operator,)), *exchanged))


def _pooler(layer: Head, tokens: Tokens) -> Part:
    """BERT's pooled first token; under sequence parallelism the rank that holds it passes it on.

    Its loss term stands in for the next-sentence classifier: the mean square of the pooled vector.
    """
    hidden, width, apart = layer.hidden, tokens.width, tokens.sequence_parallel
    elements = tokens.batch * hidden
    first = all_reduce(tokens, "head.first_token", bytes=elements * width) if apart else Part()
    dense = linear(
        "head.pooler",
        rows=tokens.batch,
        n=hidden,
        k=hidden,
        width=width,
        bias=True,
        saves_input=apart,
        gradient_ranks=1,
    )
    # The first tokens are a view of all, which the projection keeps where there is one; their gradient is mostly zeros.
    viewed = 0 if apart or layer.vocab else tokens.rows * hidden * width
    pooled = elementwise(
        "head.pooled",
        elements=elements,
        width=width,
        forward_passes=5,
        backward_passes=8,
        saved_bytes=viewed + elements * (4 if width == 4 else width + 4),
        forward_kernels=4,
        backward_kernels=5,
    )
    scattered = elementwise(
        "head.first_token",
        elements=tokens.local_rows * hidden,
        width=width,
        forward_passes=0,
        backward_passes=4 if layer.vocab else 1,
        forward_kernels=0,
        backward_kernels=2 if layer.vocab else 1,
    )
    return join((first, dense, Part(operators=(pooled, scattered))))


def _bare_loss(tokens: Tokens, *, elements: int) -> Part:
    """A bare encoder's stand-in for a loss: the mean square of its output, in fp32."""
    square = Operator(
        name="head.mean_square",
        kind="memory",
        shape=(elements,),
        forward_bytes=elements * (tokens.width + 16),
        backward_bytes=elements * (tokens.width + 20),
        saved_bytes=4 * elements,
        forward_kernels=3,
        backward_kernels=4,
    )
    mean = all_reduce(tokens, "head.loss", bytes=4) if tokens.sequence_parallel else Part()
    return join((Part(operators=(square,)), mean))


def _padded(vocab: int, tp: int) -> int:
    """This rank's rows of a vocabulary padded to a multiple of tp."""
    return -(-vocab // tp)
