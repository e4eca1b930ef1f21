"""The ends of a language model: embedding, vocabulary projection and loss."""

from __future__ import annotations

from estimator.layers.operators import lookup
from estimator.layers.parts import (
    Piece,
    activation_pass,
    all_reduce,
    dropout,
    enter,
    held,
    join,
    leave,
    linear,
    memory_pass,
    norm,
    of,
    refuse_tokens,
    whole_linear,
)
from estimator.layers.split import Split
from models_zoo.layers import Embedding, FeedForward, Head, Norm
from profiles.records import replace
from profiles.vocabulary import Infeasible


def refuse_embedding(layer: Embedding, split: Split) -> Infeasible | None:
    """Tokens that the degrees do not divide, or for which learned positions run out: no module can be built of these. A
    plan of them is misuse, which the layer graph tells its user."""
    if split.zoo and layer.positions and split.seq_len > layer.positions:
        return Infeasible(
            reason=f"embedding: {split.seq_len} tokens per sample exceed its {layer.positions} learned positions",
            lacking="support",
        )
    return refuse_tokens("embedding", split)


def embedding_piece(layer: Embedding, split: Split) -> Piece:
    """Token lookup over rows split by tp, positions, types, norm, dropout. Input: token ids, int64."""
    rows, local, width = split.rows, split.local_rows, split.width
    columns = layer.factor or layer.hidden
    table = padded_vocabulary(layer.vocab, split) // split.tp * columns
    pieces = [
        of(lookup("embedding.tokens", rows=rows, row_elements=columns, width=width), parameters=table),
        _dense_gradient("embedding.tokens", table, split),
    ]
    if split.tp > 1:
        pieces.append(memory_pass("embedding.mask", rows * columns, split, forward=2.0, backward=2.0, saved_bytes=rows))
        pieces.append(leave("embedding", columns, replace(split, keeps_narrow=False)))
    if layer.factor:
        pieces.append(whole_linear("embedding.project", rows=local, n=layer.hidden, k=layer.factor, split=split))
    elements = local * layer.hidden
    if layer.positions:
        table = layer.positions * layer.hidden
        pieces += [
            memory_pass("embedding.positions", elements, split, forward=3.0, backward=1.0),
            _dense_gradient("embedding.positions", table, split),
            held(table, split.outside_ranks),
        ]
    if layer.token_types:
        # The zoo looks the types up; a framework that fuses nothing here adds them as it does positions.
        ids = 8 * local if split.zoo else 0
        pieces.append(memory_pass("embedding.types", elements, split, forward=3.0, backward=1.0, saved_bytes=ids))
        pieces.append(held(layer.token_types * layer.hidden, split.outside_ranks))
    if layer.norm:
        pieces.append(
            norm(
                "embedding.norm",
                layer.norm,
                rows=local,
                size=layer.hidden,
                split=split,
                gradient_ranks=split.outside_ranks,
            )
        )
    if layer.dropout:
        pieces.append(dropout("embedding.dropout", elements, split))
    return replace(join(pieces), input_bytes=8 * rows, output_bytes=elements * width)


def _dense_gradient(name: str, elements: int, split: Split) -> Piece:
    """Zeros for a table's gradient, of which a batch fills a few rows; frameworks add to a buffer that is there."""
    if not split.zoo:
        return Piece()
    return memory_pass(f"{name}_gradient", elements, split, forward=0.0, backward=1.0, forward_kernels=0)


def padded_vocabulary(vocab: int, split: Split) -> int:
    """The vocabulary padded to a multiple of `vocabulary_multiple` times tp (Megatron's
    make-vocab-size-divisible-by)."""
    multiple = split.vocabulary_multiple * split.tp
    return -(-vocab // multiple) * multiple


def refuse_head(_layer: Head, split: Split) -> Infeasible | None:
    """Tokens that the degrees do not divide."""
    return refuse_tokens("head", split)


def head_piece(layer: Head, split: Split) -> Piece:
    """Final norm, BERT's parts, the projection to this rank's columns of the vocabulary, and the loss (a scalar)."""
    boundary = split.local_rows * layer.hidden * split.width
    # Adapters stand in blocks, and the projection's operands stay in 16 bits.
    split = replace(split, lora_rank=0, keeps_narrow=False)
    if layer.predicted and not split.zoo:
        # Only the positions to predict pass on: the rest of the head sees samples of so many tokens.
        split = replace(split, seq_len=layer.predicted, sequence_parallel=False, cp=1)
    pieces: list[Piece] = []
    if layer.norm:
        pieces.append(_norm("head.norm", layer.norm, layer, split, bias=layer.norm_bias))
    if layer.pooler:
        pieces.append(_pooler(layer, split))
    if layer.vocab:
        pieces += _vocabulary(layer, split)
    elif split.zoo and not layer.pooler:
        pieces.append(_bare_loss(split.local_rows * layer.hidden, split))
    return replace(join(pieces), input_bytes=boundary, output_bytes=4)


def _norm(name: str, kind: Norm, layer: Head, split: Split, *, bias: bool = True) -> Piece:
    return norm(
        name,
        kind,
        rows=split.local_rows,
        size=layer.hidden,
        split=split,
        gradient_ranks=split.outside_ranks,
        bias=bias,
    )


def _vocabulary(layer: Head, split: Split) -> list[Piece]:
    """BERT's transform, and the projection with its loss."""
    local, hidden = split.local_rows, layer.hidden
    pieces: list[Piece] = []
    if layer.transform:
        gelu = FeedForward(hidden=hidden, activation="gelu")
        pieces += [
            whole_linear("head.transform", rows=local, n=hidden, k=hidden, split=split, bias=True),
            activation_pass("head.gelu", gelu, local * hidden, split),
            _norm("head.transform_norm", "layernorm", layer, split),
        ]
    if layer.factor:
        pieces.append(whole_linear("head.project", rows=local, n=layer.factor, k=hidden, split=split))
    return [*pieces, *projection_pieces(layer, split)]


def projection_pieces(layer: Head, split: Split) -> list[Piece]:
    """The way into the tensor-parallel region, the product with this rank's columns of the vocabulary, and the loss."""
    columns = layer.factor or layer.hidden
    vocab = padded_vocabulary(layer.vocab, split) // split.tp
    product = linear(
        "head.vocabulary", rows=split.rows, n=vocab, k=columns, split=split, bias=layer.bias, input_outside=True
    )
    return [enter("head.enter", columns, split), product, _cross_entropy(split, vocab)]


def _pooler(layer: Head, split: Split) -> Piece:
    """BERT's pooled first token.

    In the zoo the rank that holds it passes it on under sequence parallelism, and the mean square of the pooled vector
    stands in for the next-sentence classifier. The first tokens are a view of all, which the projection keeps.
    """
    hidden, samples = layer.hidden, split.samples
    if not split.zoo:
        return whole_linear("head.pooler", rows=samples, n=hidden, k=hidden, split=split, bias=True, gradient_ranks=1)
    apart, elements = split.sequence_parallel, samples * hidden
    dense = whole_linear(
        "head.pooler",
        rows=samples,
        n=hidden,
        k=hidden,
        split=split,
        bias=True,
        saves_input=apart,
        gradient_ranks=1,
    )
    viewed = 0 if apart or layer.vocab else split.rows * hidden * split.width
    pooled = memory_pass(
        "head.pooled",
        elements,
        split,
        forward=5.0,
        backward=8.0,
        saved_bytes=viewed + elements * (4 if split.width == 4 else split.width + 4),
        forward_kernels=4,
        backward_kernels=5,
    )
    first = all_reduce("head.first_token", elements * split.width, split) if apart else Piece()
    return join((first, dense, pooled))


def _bare_loss(elements: int, split: Split) -> Piece:
    """A bare encoder's stand-in for a loss in the zoo: the mean square of its output, in fp32."""
    scale = 4 / split.width
    square = memory_pass(
        "head.mean_square",
        elements,
        split,
        forward=1.0 + 4.0 * scale,
        backward=1.0 + 5.0 * scale,
        saved_bytes=4 * elements,
        forward_kernels=3,
        backward_kernels=4,
    )
    return join((square, all_reduce("head.loss", 4, split) if split.sequence_parallel else Piece()))


def _cross_entropy(split: Split, vocab: int) -> Piece:
    """The loss over this rank's columns. Fused: one pass over 16-bit logits each way, the gradient written in place.
    Else an fp32 copy, its maximum, exponentials, sum and target (Megatron's vocabulary-parallel loss); in the zoo
    torch's own loss where a rank has all columns."""
    logits = split.rows * vocab
    exchanged = [all_reduce(f"head.{part}", 4 * split.rows, split) for part in ("maximum", "sum", "target")]
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
        return join((loss, *exchanged))
    # In passes of the 16-bit width: cast (1 + 2), max (2), subtract (4), exp (4), sum (2), divide (4).
    alone, scale = split.zoo and split.tp == 1, 4 / split.width
    # The zoo's loss also keeps each token's target, and over several ranks whether it is here.
    targets = (8 if alone else 9) * split.rows if split.zoo else 0
    loss = memory_pass(
        "head.cross_entropy",
        logits,
        split,
        forward=1.0 + (3.0 if alone else 9.0) * scale,
        backward=1.0 + (6.0 if alone else 5.0) * scale,
        saved_bytes=4 * logits + targets,
        # In place: beside the fp32 copy the 16-bit logits, or their gradient; else exponentials and gradients apart.
        temporary_bytes=(split.width if split.loss_in_place else 8) * logits,
        forward_kernels=3 if alone else 12,
        backward_kernels=3 if alone else 6,
    )
    return join((loss, *exchanged))
