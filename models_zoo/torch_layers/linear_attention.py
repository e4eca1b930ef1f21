"""Linear attention inside the parallel region, in chunks as matrix products: Mamba-2 and the gated delta rule.

Letters: b batch, s tokens, c chunks of q tokens, g groups of queries and keys, h this rank's heads, n key_dim, p
value_dim. Decays are fp32, products in the layer's dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models_zoo.layers import LinearAttention
from models_zoo.torch_layers.basic import NORM_EPS, Linear
from models_zoo.torch_layers.parallel import Region


class Recomputed(torch.autograd.Function):  # type: ignore[misc]
    """A function of tensors that keeps its inputs alone and runs again in backward, as fused kernels do."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(*inputs)
        return function(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs = [x.detach().requires_grad_() for x in ctx.saved_tensors]
        with torch.enable_grad():
            result = ctx.function(*inputs)
        return None, *torch.autograd.grad(result, inputs, grad)


class Convolved(nn.Module):  # type: ignore[misc]
    """A projection, a causal convolution of each of its channels over `kernel` tokens, and SiLU."""

    def __init__(self, hidden: int, size: int, spec: LinearAttention, region: Region, *, partial_over: int) -> None:
        super().__init__()
        self.partial_over, dtype = partial_over, region.dtype
        spread = spec.kernel**-0.5
        self.weight = nn.Parameter(torch.empty(size, spec.kernel, dtype=dtype).uniform_(-spread, spread))
        self.bias = nn.Parameter(torch.zeros(size, dtype=dtype)) if spec.convolution_bias else None
        self.project = Linear(hidden, size, dtype=dtype, partial_over=partial_over)

    def forward(self, x: Tensor) -> Tensor:
        biases = () if self.bias is None else (self.bias,)
        mixed: Tensor = Recomputed.apply(convolve, self.project(x), self.weight, *biases)
        return mixed


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """(b, s, channels) with (channels, kernel): each token and the kernel - 1 before it, then SiLU."""
    kernel = weight.shape[1]
    padded = F.pad(x, (0, 0, kernel - 1, 0))
    total = padded[:, : x.shape[1]] * weight[:, 0]
    for i in range(1, kernel):
        total = total + padded[:, i : i + x.shape[1]] * weight[:, i]
    return F.silu(total if bias is None else total + bias)


class GatedNorm(nn.Module):  # type: ignore[misc]
    """RMS norm of (b, s, h p) and the gate: first the norm (delta rule), or first the gate (Mamba-2)."""

    def __init__(self, spec: LinearAttention, region: Region) -> None:
        super().__init__()
        self.by_head, self.size = spec.rule == "delta", spec.norm_size
        elements = spec.value_dim if self.by_head else spec.heads * spec.value_dim // region.tp.degree
        self.partial_over = region.tp.degree if self.by_head else 1
        self.weight = nn.Parameter(torch.ones(elements, dtype=region.dtype))

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        normed: Tensor = Recomputed.apply(self._normed, x, gate, self.weight)
        return normed

    def _normed(self, x: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
        scale = F.silu(gate)
        groups = (x if self.by_head else x * scale).unflatten(-1, (-1, self.size))
        normed = groups * (groups.float().square().mean(-1, keepdim=True) + NORM_EPS).rsqrt().to(x.dtype)
        if self.by_head:
            return (normed.unflatten(-1, (-1, weight.shape[0])) * weight).flatten(2) * scale
        return normed.flatten(2) * weight


class LinearAttentionHeads(nn.Module):  # type: ignore[misc]
    """This rank's heads from their input to a partial output.

    With more ranks than groups each group is held by tp / groups consecutive ranks, each for its own heads.
    """

    def __init__(self, hidden: int, spec: LinearAttention, region: Region) -> None:
        super().__init__()
        tp = region.tp.degree
        if reason := spec.refuses(tp):
            raise ValueError(f"{reason}, expected a degree that can hold it")
        self.spec, dtype = spec, region.dtype
        heads, copies = spec.heads // tp, max(1, tp // spec.groups)
        self.groups = max(1, spec.groups // tp)
        self.log_rate = nn.Parameter(torch.zeros(heads, dtype=dtype))
        self.step_bias = nn.Parameter(torch.zeros(heads, dtype=dtype))
        self.skip = nn.Parameter(torch.ones(heads, dtype=dtype)) if spec.rule == "state_space" else None
        keys = self.groups * spec.key_dim
        self.query = Convolved(hidden, keys, spec, region, partial_over=copies)
        self.key = Convolved(hidden, keys, spec, region, partial_over=copies)
        self.value = Convolved(hidden, heads * spec.value_dim, spec, region, partial_over=1)
        self.gate = Linear(hidden, heads * spec.value_dim, dtype=dtype)
        self.rates = nn.ModuleDict({name: Linear(hidden, heads, dtype=dtype) for name in spec.rates})
        self.norm = GatedNorm(spec, region)
        self.output = Linear(heads * spec.value_dim, hidden, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        spec = self.spec
        inputs = [
            self.query(x).unflatten(-1, (self.groups, -1)),
            self.key(x).unflatten(-1, (self.groups, -1)),
            self.value(x).unflatten(-1, (-1, spec.value_dim)),
            *(rate(x) for rate in self.rates.values()),
            self.log_rate,
            self.step_bias,
        ]
        if self.skip is not None:
            inputs.append(self.skip)
        scan = partial(state_space if spec.rule == "state_space" else delta_rule, chunk=spec.chunk)
        mixed = Recomputed.apply(scan, *inputs)
        return self.output(self.norm(mixed.flatten(2), self.gate(x)))


def state_space(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    step: Tensor,
    log_rate: Tensor,
    step_bias: Tensor,
    skip: Tensor,
    *,
    chunk: int,
) -> Tensor:
    """Mamba-2's scan (Dao & Gu 2024, listing 1): (b, s, g, n) twice, (b, s, h, p) and (b, s, h) to (b, s, h, p)."""
    step, decay = _decay(step, log_rate, step_bias)
    taken = value * step.to(value.dtype)[..., None]
    q, k, v = (_chunked(x, chunk) for x in (query, key, taken))
    since, within = _within(_chunked(decay, chunk))
    heads, dtype = value.shape[2], value.dtype
    weights = _for_heads(q @ k.mT, heads) * within.to(dtype)
    mixed = weights @ v
    if mixed.shape[1] > 1:
        to_end = (since[..., -1:] - since)[:, :-1].exp().to(dtype)
        states = _for_heads(k[:, :-1].mT, heads) @ (v[:, :-1] * to_end[..., None])
        _, across = _within(since[:, :-1, :, -1].transpose(1, 2))
        entering = (across.to(dtype) @ states.transpose(1, 2).flatten(3)).view_as(states.transpose(1, 2))
        seen = _for_heads(q[:, 1:], heads) @ entering.transpose(1, 2)
        seen = seen * since[:, 1:].exp().to(dtype)[..., None]
        mixed = torch.cat((mixed[:, :1], mixed[:, 1:] + seen), 1)
    return _unchunked(mixed, value) + value * skip[:, None]


def delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    step: Tensor,
    beta: Tensor,
    log_rate: Tensor,
    step_bias: Tensor,
    *,
    chunk: int,
) -> Tensor:
    """The gated delta rule's scan (Yang et al. 2024, section 3.3): shapes as `state_space`'s, and beta as step.

    What a chunk's tokens write, each seeing those before it, solves one triangular system; states pass from chunk to
    chunk one after another.
    """
    _, decay = _decay(step, log_rate, step_bias)
    heads, dtype = value.shape[2], value.dtype
    q, k = (_chunked(F.normalize(x, dim=-1), chunk) for x in (query, key))
    q = q * query.shape[-1] ** -0.5
    v, written = _chunked(value, chunk), _chunked(beta.float().sigmoid(), chunk)
    since, within = _within(_chunked(decay, chunk))
    key_heads = _for_heads(k, heads)
    overlap = (_for_heads(k @ k.mT, heads) * within * written[..., None]).tril(-1)
    unit = torch.eye(overlap.shape[-1], dtype=overlap.dtype, device=overlap.device)
    inverse = torch.linalg.solve_triangular(overlap + unit, unit.expand_as(overlap), upper=False).to(dtype)
    sources = torch.cat((v, key_heads * since.exp().to(dtype)[..., None]), -1) * written.to(dtype)[..., None]
    new, erased = (inverse @ sources).split([v.shape[-1], k.shape[-1]], -1)
    held = key_heads * (since[..., -1:] - since).exp().to(dtype)[..., None]
    weights = _for_heads(q @ k.mT, heads) * within.to(dtype)
    news, states = [new[:, 0]], list[Tensor]()
    for i in range(1, new.shape[1]):
        state = held[:, i - 1].mT @ news[-1]
        if states:
            state = state + states[-1] * since[:, i - 1, :, -1].exp().to(dtype)[..., None, None]
        states.append(state)
        news.append(new[:, i] - erased[:, i] @ state)
    mixed = weights @ torch.stack(news, 1)
    if states:
        seen = (_for_heads(q[:, 1:], heads) * since[:, 1:].exp().to(dtype)[..., None]) @ torch.stack(states, 1)
        mixed = torch.cat((mixed[:, :1], mixed[:, 1:] + seen), 1)
    return _unchunked(mixed, value)


def _decay(step: Tensor, log_rate: Tensor, step_bias: Tensor) -> tuple[Tensor, Tensor]:
    """Step sizes and logarithms of what a state keeps over a token, (b, s, h) each."""
    step = F.softplus(step.float() + step_bias.float())
    return step, -log_rate.float().exp() * step


def _chunked(x: Tensor, chunk: int) -> Tensor:
    """(b, s, h, ...) to (b, c, h, q, ...), the last chunk filled up with zeros."""
    chunk = min(chunk, x.shape[1])
    missing = -x.shape[1] % chunk
    if missing:
        x = torch.cat((x, x.new_zeros(x.shape[0], missing, *x.shape[2:])), 1)
    return x.unflatten(1, (-1, chunk)).transpose(2, 3)


def _unchunked(mixed: Tensor, like: Tensor) -> Tensor:
    """(b, c, h, q, p) to (b, s, h, p)."""
    return mixed.transpose(2, 3).flatten(1, 2)[:, : like.shape[1]].contiguous()


def _within(decay: Tensor) -> tuple[Tensor, Tensor]:
    """Logarithms (..., q) of decays to their sums up to each place, and the decay (..., q, q) from column to row."""
    since = decay.cumsum(-1)
    later = torch.ones(since.shape[-1], since.shape[-1], dtype=torch.bool, device=since.device).triu(1)
    return since, (since[..., :, None] - since[..., None, :]).masked_fill(later, -torch.inf).exp()


def _for_heads(x: Tensor, heads: int) -> Tensor:
    """(b, c, g, ...) to (b, c, h, ...): each group's for the heads that it serves."""
    return x.repeat_interleave(heads // x.shape[2], 2) if heads != x.shape[2] else x
