"""The ends of a language model as training frameworks run them: embedding, vocabulary projection and loss."""

from __future__ import annotations

from dataclasses import replace

from estimator.layers.operators import lookup
from estimator.layers.split import Split
from estimator.layers.work_parts import (
    Piece,
    activation_pass,
    all_reduce,
    enter,
    join,
    leave,
    linear,
    memory_pass,
    norm,
    whole_linear,
)
from models_zoo.layers import Embedding, FeedForward, Head


def embedding_part(layer: Embedding, split: Split) -> Piece:
    """Token lookup over rows split by tp, positions, types, norm, dropout."""
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


def head_part(layer: Head, split: Split) -> Piece:
    """Final norm, BERT's parts, the projection to this rank's columns of the vocabulary, and the loss."""
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
