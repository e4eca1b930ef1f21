"""Attention inside the parallel region: (b, s, hidden) to a partial (b, s, hidden). Letters: b batch, s tokens, h this
rank's heads, d head dimension."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from models_zoo.layers import Attention, LatentAttention, TransformerBlock
from models_zoo.torch_layers.basic import DROPOUT, Linear, Normalize, dropout
from models_zoo.torch_layers.parallel import Region

_ROTARY_BASE = 10_000.0


class Rotary(nn.Module):  # type: ignore[misc]
    """Rotary position embedding of the last dimension's first `dim` elements (Su et al. 2021, equation 34)."""

    def __init__(self, dim: int, region: Region) -> None:
        super().__init__()
        self.dim = dim
        frequency = _ROTARY_BASE ** (-torch.arange(0, dim, 2) / dim)
        angle = torch.outer(torch.arange(region.seq_len), frequency).repeat(1, 2)[:, None, :]
        self.register_buffer("cosine", angle.cos().to(region.dtype), persistent=False)
        self.register_buffer("sine", angle.sin().to(region.dtype), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """(b, s, h, d) to the same."""
        turned, rest = (x, None) if x.shape[-1] == self.dim else x.tensor_split([self.dim], -1)
        left, right = turned.chunk(2, -1)
        turned = torch.addcmul(turned * self.cosine, torch.cat((-right, left), -1), self.sine)
        return turned if rest is None else torch.cat((turned, rest), -1)


class Projections(nn.Module):  # type: ignore[misc]
    """Queries of `x`, keys and values of `source`, all (b, s, heads, d).

    With more ranks than key-value heads each head is held by tp / kv_heads consecutive ranks, each for its own queries.
    """

    def __init__(self, block: TransformerBlock, spec: Attention, region: Region) -> None:
        super().__init__()
        tp, self.head_dim = region.tp.degree, spec.head_dim
        heads = region.share(spec.heads, "heads")
        if tp % spec.kv_heads and spec.kv_heads % tp:
            raise ValueError(f"found {spec.kv_heads} key-value heads, expected a multiple or a divisor of tp={tp}")
        kv_heads, copies = max(1, spec.kv_heads // tp), max(1, tp // spec.kv_heads)
        self.query = self._linear(block, spec, region, heads, copies=1)
        self.key = self._linear(block, spec, region, kv_heads, copies=copies)
        self.value = self._linear(block, spec, region, kv_heads, copies=copies)
        self.norm_by_head = spec.query_key_norm == "head"
        self.query_norm = self._norm(block, spec, region, heads, copies=1)
        self.key_norm = self._norm(block, spec, region, kv_heads, copies=copies)
        self.rotary = Rotary(spec.rotary_dim, region) if spec.rotary_dim else nn.Identity()

    @staticmethod
    def _linear(block: TransformerBlock, spec: Attention, region: Region, heads: int, *, copies: int) -> Linear:
        size = heads * spec.head_dim
        return Linear(block.hidden, size, dtype=region.dtype, bias=spec.qkv_bias, partial_over=copies)

    @staticmethod
    def _norm(block: TransformerBlock, spec: Attention, region: Region, heads: int, *, copies: int) -> nn.Module:
        if spec.query_key_norm == "none":
            return nn.Identity()
        by_head = spec.query_key_norm == "head"
        return Normalize(
            block.norm,
            spec.head_dim if by_head else heads * spec.head_dim,
            dtype=region.dtype,
            bias=block.norm_bias,
            partial_over=region.tp.degree if by_head else copies,
        )

    def _finish(self, flat: Tensor, norm: nn.Module) -> Tensor:
        by_head = (-1, (-1, self.head_dim))
        normed = norm(flat.unflatten(*by_head)) if self.norm_by_head else norm(flat).unflatten(*by_head)
        return self.rotary(normed)

    def forward(self, x: Tensor, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query = self._finish(self.query(x), self.query_norm)
        key = self._finish(self.key(source), self.key_norm)
        return query, key, self.value(source).unflatten(-1, (-1, self.head_dim))


class LatentProjections(nn.Module):  # type: ignore[misc]
    """Queries, keys and values through low ranks (DeepSeek-V2, section 2.1). The products down to a rank and their
    norms are whole on every tp rank; each sees only its own heads' gradients."""

    def __init__(self, block: TransformerBlock, spec: Attention, latent: LatentAttention, region: Region) -> None:
        super().__init__()
        self.latent, dtype, tp = latent, region.dtype, region.tp.degree
        self.heads = region.share(spec.heads, "heads")
        query_size = self.heads * (latent.nope_dim + latent.rope_dim)

        def down(rank: int, extra: int) -> tuple[Linear, Normalize]:
            return (
                Linear(block.hidden, rank + extra, dtype=dtype, bias=spec.qkv_bias, partial_over=tp),
                Normalize(block.norm, rank, dtype=dtype, bias=block.norm_bias, partial_over=tp),
            )

        if latent.query_rank is None:
            self.query = Linear(block.hidden, query_size, dtype=dtype)
        else:
            up = Linear(latent.query_rank, query_size, dtype=dtype)
            self.query = nn.Sequential(*down(latent.query_rank, 0), up)
        self.down, self.norm = down(latent.key_value_rank, latent.rope_dim)
        self.up = Linear(latent.key_value_rank, self.heads * (latent.nope_dim + latent.value_dim), dtype=dtype)
        self.rotary = Rotary(latent.rope_dim, region)

    def forward(self, x: Tensor, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        sizes = self.latent
        by_head = (-1, (self.heads, -1))
        query_plain, query_turned = self.query(x).unflatten(*by_head).split([sizes.nope_dim, sizes.rope_dim], -1)
        compressed, key_turned = self.down(source).split([sizes.key_value_rank, sizes.rope_dim], -1)
        key_value = self.up(self.norm(compressed)).unflatten(*by_head)
        key_plain, value = key_value.split([sizes.nope_dim, sizes.value_dim], -1)
        # One rotated key serves all heads.
        key_turned = self.rotary(key_turned.unsqueeze(2)).expand(-1, -1, self.heads, -1)
        query = torch.cat((query_plain, self.rotary(query_turned)), -1)
        return query, torch.cat((key_plain, key_turned), -1), value


class AttentionHeads(nn.Module):  # type: ignore[misc]
    """This rank's heads from their input to a partial output; in cross-attention keys and values come from `memory`.

    A window is not applied: these kernels compute the full square. `recomputes` (selective recomputation) keeps
    queries, keys and values alone, and runs the kernel again in backward.
    """

    recomputes = False

    def __init__(self, block: TransformerBlock, spec: Attention, region: Region) -> None:
        super().__init__()
        self.causal, self.fused = spec.causal, region.attention == "flash"
        self.dropout = DROPOUT if block.dropout else 0.0
        latent = spec.latent
        self.projections = (
            Projections(block, spec, region) if latent is None else LatentProjections(block, spec, latent, region)
        )
        value_dim = spec.head_dim if latent is None else latent.value_dim
        inner = region.share(spec.heads, "heads") * value_dim
        alone = region.tp.degree == 1
        self.gate = Linear(block.hidden, inner, dtype=region.dtype, bias=spec.qkv_bias) if spec.output_gate else None
        self.output = Linear(inner, block.hidden, dtype=region.dtype, bias=spec.output_bias and alone)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        query, key, value = self.projections(x, x if memory is None else memory)
        kernel = self._fused if self.fused else self._plain
        if self.recomputes:
            mixed = checkpoint(kernel, query, key, value, use_reentrant=False)
        else:
            mixed = kernel(query, key, value)
        mixed = mixed.flatten(2)
        return self.output(mixed if self.gate is None else mixed * self.gate(x).sigmoid())

    def _fused(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(b, s, h, d) each to (b, s, h, value_dim), by whichever fused kernel the device has."""
        mixed = F.scaled_dot_product_attention(
            query.transpose(1, 2),
            key.transpose(1, 2),
            value.transpose(1, 2),
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.causal,
            enable_gqa=query.shape[2] != key.shape[2],
        )
        return mixed.transpose(1, 2)

    def _plain(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The same in separate kernels; the queries of one key-value head stand one under another in one product."""
        b, q_len, heads, dim = query.shape
        _, kv_len, kv_heads, _ = key.shape
        rows = heads // kv_heads * q_len
        q = query.transpose(1, 2).reshape(b * kv_heads, rows, dim)
        k = key.transpose(1, 2).reshape(b * kv_heads, kv_len, dim)
        # Contiguous, so that a slice of a larger product does not keep all of it for backward.
        v = value.transpose(1, 2).reshape(b * kv_heads, kv_len, -1).contiguous()
        mask = q.new_zeros(())
        if self.causal:
            future = torch.full((q_len, kv_len), float("-inf"), dtype=q.dtype, device=q.device).triu(1)
            mask = future.repeat(heads // kv_heads, 1)
        scores = torch.baddbmm(mask, q, k.transpose(1, 2), beta=int(self.causal), alpha=dim**-0.5)
        weights = scores.softmax(-1)
        if self.dropout:
            weights = dropout(weights, training=self.training)
        return torch.bmm(weights, v).view(b, heads, q_len, -1).transpose(1, 2)
