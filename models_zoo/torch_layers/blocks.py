"""Embedding, transformer block and head as one rank holds them. Activations are (batch, tokens, hidden)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models_zoo.layers import (
    Attention,
    Embedding,
    Experts,
    FeedForward,
    Head,
    LinearAttention,
    Prediction,
    TransformerBlock,
)
from models_zoo.torch_layers.attention import AttentionHeads
from models_zoo.torch_layers.basic import LateBias, Linear, Normalize, Table, dropout
from models_zoo.torch_layers.experts import MixtureOfExperts
from models_zoo.torch_layers.feed_forward import DenseFeedForward
from models_zoo.torch_layers.linear_attention import LinearAttentionHeads
from models_zoo.torch_layers.parallel import Region, TensorParallel, reduce_from


class EmbeddingShard(nn.Module):  # type: ignore[misc]
    """Token ids (b, s) to activations. Each rank looks up the tokens whose rows it owns; the others are zero there."""

    def __init__(self, layer: Embedding, region: Region) -> None:
        super().__init__()
        self.region, self.drops = region, layer.dropout
        dtype, ranks, hidden = region.dtype, region.outside_ranks, layer.hidden
        columns = layer.factor or hidden
        self.rows = region.padded_share(layer.vocab)
        self.tokens = Table(self.rows, columns, dtype=dtype)
        self.project = Linear(columns, hidden, dtype=dtype, partial_over=ranks) if layer.factor else nn.Identity()
        self.positions = Table(layer.positions, hidden, dtype=dtype, partial_over=ranks) if layer.positions else None
        self.types = Table(layer.token_types, hidden, dtype=dtype, partial_over=ranks) if layer.token_types else None
        self.norm = Normalize(layer.norm, hidden, dtype=dtype, partial_over=ranks) if layer.norm else nn.Identity()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.project(self.region.leave(own_rows(self.tokens.weight, ids, self.rows, self.region)))
        length = x.shape[1]
        if self.positions is not None:
            first = self.region.tp.rank * length if self.region.sequence_parallel else 0
            x = x + self.positions.weight[first : first + length]
        if self.types is not None:
            # All tokens of type 0, as for a single segment.
            x = x + self.types(torch.zeros(x.shape[:2], dtype=torch.int64, device=x.device))
        x = self.norm(x)
        return dropout(x, training=self.training) if self.drops else x


def own_rows(table: Tensor, ids: Tensor, rows: int, region: Region) -> Tensor:
    """The embeddings of those `ids` that this rank's `rows` of the table hold; zeros for the others."""
    if region.tp.degree == 1:
        return F.embedding(ids, table)
    index, elsewhere = own_index(ids, rows, region)
    return F.embedding(index, table).masked_fill(elsewhere[..., None], 0)


def own_index(ids: Tensor, rows: int, region: Region) -> tuple[Tensor, Tensor]:
    """Where this rank's `rows` hold `ids`, and which ids they do not hold (index 0 there)."""
    index = ids - region.tp.rank * rows
    elsewhere = (index < 0) | (index >= rows)
    return index.masked_fill(elsewhere, 0), elsewhere


def block_norm(layer: TransformerBlock, region: Region) -> Normalize:
    return Normalize(
        layer.norm, layer.hidden, dtype=region.dtype, bias=layer.norm_bias, partial_over=region.outside_ranks
    )


Part = Attention | LinearAttention | FeedForward | Experts


def build_part(layer: TransformerBlock, part: Part, region: Region) -> nn.Module:
    """What stands between a norm and a residual: (b, s, hidden) to a partial (b, s, hidden)."""
    match part:
        case Attention():
            return AttentionHeads(layer, part, region)
        case LinearAttention():
            return LinearAttentionHeads(layer.hidden, part, region)
        case FeedForward():
            return DenseFeedForward(part, layer.hidden, region)
        case Experts():
            return MixtureOfExperts(part, layer.hidden, region)


def late_bias(layer: TransformerBlock, part: Part, region: Region) -> nn.Module:
    """The output bias of `part`, where the product itself does not add it."""
    biased = (isinstance(part, Attention) and part.output_bias) or (isinstance(part, FeedForward) and part.bias)
    if not biased or region.tp.degree == 1:
        return nn.Identity()
    return LateBias(layer.hidden, dtype=region.dtype, partial_over=region.outside_ranks)


class Sublayer(nn.Module):  # type: ignore[misc]
    """A mixer of tokens, cross-attention or feed-forward with its norm(s), dropout and residual."""

    def __init__(self, layer: TransformerBlock, part: Part, region: Region) -> None:
        super().__init__()
        self.region, self.placement, self.drops = region, layer.placement, layer.dropout
        self.norm = block_norm(layer, region)
        self.body = build_part(layer, part, region)
        self.bias = late_bias(layer, part, region)
        self.post_norm = block_norm(layer, region) if layer.placement == "sandwich" else nn.Identity()

    def forward(self, x: Tensor, *memory: Tensor) -> Tensor:
        normed = x if self.placement == "post" else self.norm(x)
        partial = self.body(self.region.enter(normed), *(self.region.enter(m) for m in memory))
        added = self.post_norm(self.bias(self.region.leave(partial)))
        if self.drops:
            added = dropout(added, training=self.training)
        return self.norm(x + added) if self.placement == "post" else x + added


class Block(nn.Module):  # type: ignore[misc]
    """One transformer layer; `memory` is the encoder's output where the layer has cross-attention."""

    def __init__(self, layer: TransformerBlock, region: Region) -> None:
        super().__init__()
        self.attention = Sublayer(layer, layer.attention, region) if layer.attention else None
        self.cross = Sublayer(layer, layer.cross_attention, region) if layer.cross_attention else None
        self.mlp = Sublayer(layer, layer.feed_forward, region) if layer.feed_forward else None

    def forward(self, x: Tensor, *memory: Tensor) -> Tensor:
        if self.attention is not None:
            x = self.attention(x)
        if self.cross is not None:
            x = self.cross(x, *memory)
        return x if self.mlp is None else self.mlp(x)


class ParallelBlock(nn.Module):  # type: ignore[misc]
    """Attention and feed-forward of the same input, added up before they leave the parallel region together (PaLM,
    section 2). One dropout serves the sum."""

    def __init__(self, layer: TransformerBlock, region: Region) -> None:
        super().__init__()
        mixer, mlp = layer.attention, layer.feed_forward
        if layer.placement != "pre" or layer.cross_attention or mixer is None or mlp is None:
            raise ValueError(
                f"found a parallel residual with placement={layer.placement!r} and"
                f" cross_attention={layer.cross_attention is not None}, expected pre-norm self-attention and a"
                " feed-forward"
            )
        self.region, self.drops = region, layer.dropout
        self.norm = block_norm(layer, region)
        self.mlp_norm = None if layer.shared_norm else block_norm(layer, region)
        self.attention = build_part(layer, mixer, region)
        self.mlp = build_part(layer, mlp, region)
        self.biases = nn.Sequential(late_bias(layer, mixer, region), late_bias(layer, mlp, region))

    def forward(self, x: Tensor) -> Tensor:
        normed = self.region.enter(self.norm(x))
        other = normed if self.mlp_norm is None else self.region.enter(self.mlp_norm(x))
        added = self.biases(self.region.leave(self.attention(normed) + self.mlp(other)))
        return x + (dropout(added, training=self.training) if self.drops else added)


PREDICTION_WEIGHT = 0.3
"""Of the further tokens' mean loss (DeepSeek-V3, section 4.2: of the first ten trillion tokens)."""


class PredictionModule(nn.Module):  # type: ignore[misc]
    """One further token's state (b, s, hidden) from the state before it and the next token's embedding."""

    def __init__(self, spec: Prediction, hidden: int, region: Region) -> None:
        super().__init__()
        first, dtype, ranks = spec.blocks[0], region.dtype, region.outside_ranks
        self.state_norm, self.token_norm = block_norm(first, region), block_norm(first, region)
        self.join = Linear(2 * hidden, hidden, dtype=dtype, partial_over=ranks)
        self.blocks = nn.Sequential(*((ParallelBlock if b.parallel else Block)(b, region) for b in spec.blocks))
        self.norm = block_norm(first, region)

    def forward(self, state: Tensor, tokens: Tensor) -> Tensor:
        joined = torch.cat((self.state_norm(state), self.token_norm(tokens)), -1)
        mixed: Tensor = self.blocks(self.join(joined))
        return mixed


class HeadShard(nn.Module):  # type: ignore[misc]
    """Activations and targets (b, s) to a scalar loss.

    Without a vocabulary the loss is the mean square of the output (pooled, where there is a pooler); with one, a pooler
    adds such a term, in place of the next-sentence classifier that BERT puts there.
    """

    def __init__(self, layer: Head, region: Region) -> None:
        super().__init__()
        self.region = region
        dtype, ranks, hidden = region.dtype, region.outside_ranks, layer.hidden
        self.norm = nn.Identity()
        if layer.norm:
            self.norm = Normalize(layer.norm, hidden, dtype=dtype, bias=layer.norm_bias, partial_over=ranks)
        self.pooler = Linear(hidden, hidden, dtype=dtype, bias=True) if layer.pooler else None
        self.has_vocabulary = layer.vocab > 0
        if layer.vocab:
            self.transform = nn.Sequential()
            if layer.transform:
                dense = Linear(hidden, hidden, dtype=dtype, bias=True, partial_over=ranks)
                self.transform.extend(
                    (dense, nn.GELU(), Normalize("layernorm", hidden, dtype=dtype, partial_over=ranks))
                )
            if layer.factor:
                self.transform.append(Linear(hidden, layer.factor, dtype=dtype, partial_over=ranks))
            self.vocab, self.rows = layer.vocab, region.padded_share(layer.vocab)
            self.vocabulary = Linear(layer.factor or hidden, self.rows, dtype=dtype, bias=layer.bias)
        self.predictions = nn.ModuleList()
        self.tokens = None
        if layer.prediction:
            spec = layer.prediction
            self.tokens = None if layer.tied else Table(self.rows, hidden, dtype=dtype)
            self.predictions.extend(PredictionModule(spec, hidden, region) for _ in range(spec.count))

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        state, x = x, self.norm(x)
        losses = []
        if self.pooler is not None:
            losses.append(self.pooler(self._first_token(x)).tanh().float().pow(2).mean())
        elif not self.has_vocabulary:
            losses.append(self._mean_square(x))
        if self.has_vocabulary:
            logits = self.vocabulary(self.region.enter(self.transform(x)))
            losses.append(self._cross_entropy(logits, targets))
        for module in self.predictions:
            table = (self.tokens or self.vocabulary).weight
            state = module(state, self.region.leave(own_rows(table, targets, self.rows, self.region)))
            # The last token's next one is the first: it sees nobody's future, and its loss is one of seq_len.
            targets = targets.roll(-1, 1)
            logits = self.vocabulary(self.region.enter(module.norm(state)))
            losses.append(self._cross_entropy(logits, targets) * (PREDICTION_WEIGHT / len(self.predictions)))
        return sum(losses[1:], losses[0])

    def _first_token(self, x: Tensor) -> Tensor:
        """(b, hidden). Under sequence parallelism rank 0 has them."""
        first = x[:, 0]
        if not self.region.sequence_parallel:
            return first
        return reduce_from(first * float(self.region.tp.rank == 0), self.region.tp)

    def _mean_square(self, x: Tensor) -> Tensor:
        mean = x.float().pow(2).mean()
        return reduce_from(mean / self.region.tp.degree, self.region.tp) if self.region.sequence_parallel else mean

    def _cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean over tokens, in fp32. Columns of padding do not count."""
        if self.region.tp.degree == 1:
            return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        index, elsewhere = own_index(targets, self.rows, self.region)
        padding = max(0, (self.region.tp.rank + 1) * self.rows - self.vocab)
        return SplitCrossEntropy.apply(logits, index, elsewhere, padding, self.region.tp).mean()


class SplitCrossEntropy(torch.autograd.Function):  # type: ignore[misc]
    """log sum exp(logits) - logits[target] per token (b, s), each rank holding some columns of the logits (b, s, v).

    `index` is the target's column on this rank; `elsewhere` marks tokens whose target another rank holds. The last
    `padding` columns are no tokens.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, index: Tensor, elsewhere: Tensor, padding: int, tp: TensorParallel) -> Tensor:
        shifted = logits.float()
        highest = tp.maximum(shifted.amax(-1), "forward")
        shifted = shifted - highest[..., None]
        if padding:
            shifted[..., -padding:] = -torch.inf
        picked = shifted.gather(-1, index[..., None])[..., 0].masked_fill(elsewhere, 0)
        target = tp.all_reduce(picked, "forward")
        softmax = shifted.exp_()
        total = tp.all_reduce(softmax.sum(-1), "forward")
        softmax.div_(total[..., None])
        ctx.save_for_backward(softmax, index, elsewhere)
        ctx.dtype = logits.dtype
        return total.log() - target

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        softmax, index, elsewhere = ctx.saved_tensors
        grads = softmax * grad[..., None]
        grads.scatter_add_(-1, index[..., None], -grad.masked_fill(elsewhere, 0)[..., None])
        return grads.to(ctx.dtype), None, None, None, None
