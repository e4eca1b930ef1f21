"""Mixture of experts with static capacity inside the parallel region: shapes never depend on the routing."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models_zoo.layers import Experts, FeedForward
from models_zoo.torch_layers.basic import Linear, activate, weight
from models_zoo.torch_layers.feed_forward import DenseFeedForward
from models_zoo.torch_layers.parallel import Region


class ExpertFeedForward(nn.Module):  # type: ignore[misc]
    """`count` experts side by side: (count, slots, hidden) to the same."""

    def __init__(self, spec: FeedForward, count: int, hidden: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.activation = spec.activation

        def matrix(k: int, n: int) -> tuple[nn.Parameter, nn.Parameter | None]:
            bias = nn.Parameter(torch.zeros(count, 1, n, dtype=dtype)) if spec.bias else None
            return weight(count, k, n, dtype=dtype), bias

        self.gated = spec.gated
        if spec.gated:
            self.gate, self.gate_bias = matrix(hidden, spec.hidden)
        self.up, self.up_bias = matrix(hidden, spec.hidden)
        self.down, self.down_bias = matrix(spec.hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        inner = _product(x, self.up, self.up_bias)
        if self.gated:
            inner = activate(self.activation, _product(x, self.gate, self.gate_bias)) * inner
        else:
            inner = activate(self.activation, inner)
        return _product(inner, self.down, self.down_bias)


def _product(x: Tensor, matrices: Tensor, bias: Tensor | None) -> Tensor:
    return torch.bmm(x, matrices) if bias is None else torch.baddbmm(bias, x, matrices)


class MixtureOfExperts(nn.Module):  # type: ignore[misc]
    """(b, s, hidden) on every rank to a partial (b, s, hidden): what this rank's experts, and its part of the shared
    expert, add to each token.

    A token's k experts are those of the highest probability, which weighs their results. An expert takes its first
    `capacity` tokens and drops the others (GShard, section 2.2, without its random second choice and
    balancing loss). Every rank routes alike, but gets only its own experts' share of the router's gradient.
    """

    def __init__(self, spec: Experts, hidden: int, region: Region) -> None:
        super().__init__()
        self.spec, dtype, tp = spec, region.dtype, region.tp
        self.count = region.share(spec.count, "experts")
        self.first = tp.rank * self.count
        self.router = Linear(hidden, spec.count, dtype=dtype, partial_over=tp.degree)
        self.latent_down = self.latent_up = None
        if spec.latent:
            self.latent_down = Linear(hidden, spec.latent, dtype=dtype, partial_over=tp.degree)
            self.latent_up = Linear(spec.latent, hidden, dtype=dtype, partial_over=tp.degree)
        self.experts = ExpertFeedForward(spec.expert, self.count, spec.latent or hidden, dtype)
        self.shared = self.shared_gate = None
        if spec.shared_hidden:
            dense = FeedForward(hidden=spec.shared_hidden, gated=spec.expert.gated, activation=spec.expert.activation)
            self.shared = DenseFeedForward(dense, hidden, region)
            if spec.shared_gate:
                self.shared_gate = Linear(hidden, 1, dtype=dtype, partial_over=tp.degree)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        token, share = self._route(self.router(tokens))
        routed = tokens if self.latent_down is None else self.latent_down(tokens)
        mixed = self.experts(routed.index_select(0, token).unflatten(0, (self.count, -1))).flatten(0, 1)
        # Unlike index_add, scatter_add keeps nothing but the index for backward.
        rows = token[:, None].expand(-1, routed.shape[-1])
        weighed = mixed * share.to(x.dtype)[:, None]
        base = torch.zeros_like(tokens) if self.shared is None else self.shared(tokens)
        if self.shared_gate is not None:
            base = base * self.shared_gate(tokens).sigmoid()
        if self.latent_up is None:
            return base.scatter_add(0, rows, weighed).view_as(x)
        return (base + self.latent_up(torch.zeros_like(routed).scatter_add(0, rows, weighed))).view_as(x)

    def _route(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """From (tokens, experts): the token in each of this rank's slots and its weight there (0 for an empty slot)."""
        k, capacity = self.spec.top_k, self.spec.capacity(logits.shape[0])
        probabilities = logits.float().softmax(-1)
        with torch.no_grad():
            chosen = probabilities.topk(k, -1).indices
            expert, choice = chosen.flatten().sort(stable=True)
            start = torch.searchsorted(expert, torch.arange(self.spec.count, device=expert.device))
            place = torch.arange(expert.shape[0], device=expert.device) - start[expert]
            # One slot more than there are takes what is dropped.
            slots = self.spec.count * capacity
            slot = torch.where(place < capacity, expert * capacity + place, slots)
            source = torch.full((slots + 1,), -1, device=slot.device).scatter(0, slot, choice)
            choice_in_slot = source[self.first * capacity : (self.first + self.count) * capacity]
            filled, choice_in_slot = choice_in_slot >= 0, choice_in_slot.clamp(min=0)
        share = probabilities.gather(1, chosen).flatten().index_select(0, choice_in_slot) * filled
        return choice_in_slot // k, share
