"""Linear attention in chunks against its recurrence token by token, and its shards against the whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from models_zoo.torch_layers.linear_attention import convolve, delta_rule, state_space


def inputs(b: int, s: int, g: int, h: int, n: int, p: int, *, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

    return [draw(b, s, g, n), draw(b, s, g, n), draw(b, s, h, p), draw(b, s, h), draw(b, s, h), draw(h), draw(h)]


def naive(rule: str, query: Tensor, key: Tensor, value: Tensor, step: Tensor, other: Tensor, *heads: Tensor) -> Tensor:
    """Token by token: Dao & Gu 2024, equation 2; Yang et al. 2024, equation 10."""
    (b, s, h, p), (g, n) = value.shape, query.shape[2:]
    log_rate, step_bias = heads[:2]
    size = F.softplus(step + step_bias)
    keep = torch.exp(-log_rate.exp() * size)
    if rule == "delta":
        query, key = F.normalize(query, dim=-1) * n**-0.5, F.normalize(key, dim=-1)
    state, results = torch.zeros(b, h, n, p, dtype=value.dtype), []
    for t in range(s):
        q, k = (x[:, t].repeat_interleave(h // g, 1) for x in (query, key))
        state = state * keep[:, t, :, None, None]
        if rule == "delta":
            held = torch.einsum("bhnp,bhn->bhp", state, k)
            taken = (value[:, t] - held) * other[:, t].sigmoid()[..., None]
        else:
            taken = value[:, t] * size[:, t, :, None]
        state = state + torch.einsum("bhn,bhp->bhnp", k, taken)
        results.append(torch.einsum("bhnp,bhn->bhp", state, q))
    out = torch.stack(results, 1)
    return out if rule == "delta" else out + value * heads[2][:, None]


@pytest.mark.parametrize("rule", ["state_space", "delta"])
@pytest.mark.parametrize(
    ("s", "chunk", "g", "h"), [(12, 4, 2, 4), (10, 4, 1, 3), (5, 8, 2, 2), (16, 16, 4, 4), (7, 1, 1, 2)]
)
def test_the_scan_in_chunks_is_the_recurrence(rule: str, s: int, chunk: int, g: int, h: int) -> None:
    """Results and all gradients, also where the last chunk is not full, in one chunk, and in chunks of one token."""
    query, key, value, step, beta, log_rate, step_bias = inputs(2, s, g, h, 6, 5, seed=s * chunk)
    skip = torch.linspace(0.5, 2, h, dtype=torch.float64, requires_grad=True)
    if rule == "delta":
        given = (query, key, value, step, beta, log_rate, step_bias)
        chunked: Callable[..., Tensor] = delta_rule
        expected = naive(rule, *given)
    else:
        given = (query, key, value, step, log_rate, step_bias, skip)
        chunked = state_space
        expected = naive(rule, query, key, value, step, beta, log_rate, step_bias, skip)
    result = chunked(*given, chunk=chunk)
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-6)
    weights = torch.randn(result.shape, dtype=result.dtype, generator=torch.Generator().manual_seed(7))
    own = torch.autograd.grad((result * weights).sum(), given)
    theirs = torch.autograd.grad((expected * weights).sum(), given)
    for ours, reference in zip(own, theirs, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-5)


def test_the_convolution_is_torchs() -> None:
    x, weight, bias = torch.randn(2, 9, 6), torch.randn(6, 4), torch.randn(6)
    reference = F.conv1d(F.pad(x.mT, (3, 0)), weight[:, None], bias, groups=6).mT
    torch.testing.assert_close(convolve(x, weight, bias), F.silu(reference))
