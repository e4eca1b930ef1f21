"""Operators that move memory, as torch runs them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.gpu.case import Case
from bench.gpu.timing_torch import Maker, Step, backward_of

DTYPE = torch.bfloat16

Forward = Callable[..., Tensor]


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def _layernorm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, weight.shape, weight, bias)


def _rmsnorm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, weight.shape, weight)


def _dropout(x: Tensor) -> Tensor:
    return torch.native_dropout(x, 0.1, True)[0]


FORWARDS: dict[str, tuple[Forward, int, int]] = {
    # name: (forward, its activations, its weights)
    "layernorm": (_layernorm, 1, 2),
    "rmsnorm": (_rmsnorm, 1, 1),
    "gelu": (F.gelu, 1, 0),
    "swiglu": (_swiglu, 2, 0),
    "softmax": (partial(F.softmax, dim=-1), 1, 0),
    "dropout": (_dropout, 1, 0),
    "add": (torch.add, 2, 0),
    "cast": (Tensor.float, 1, 0),
    "copy": (Tensor.clone, 1, 0),
}


def _make_elementwise(case: Case, device: torch.device) -> Step:
    tokens, width = case.shape.values()
    forward, activations, weights = FORWARDS[case.kind]
    backward = case.direction == "backward"
    shapes: list[tuple[int, ...]] = [(tokens, width)] * activations + [(width,)] * weights
    inputs = [torch.randn(shape, device=device, dtype=DTYPE, requires_grad=backward) for shape in shapes]
    return backward_of(forward, *inputs) if backward else partial(forward, *inputs)


def _make_embedding(case: Case, device: torch.device) -> Step:
    tokens, vocab, hidden = case.shape.values()
    backward = case.direction == "backward"
    table = torch.randn(vocab, hidden, device=device, dtype=DTYPE, requires_grad=backward)
    forward = partial(F.embedding, torch.randint(vocab, (tokens,), device=device))
    return backward_of(forward, table) if backward else partial(forward, table)


def _make_cross_entropy(case: Case, device: torch.device) -> Step:
    tokens, vocab = case.shape.values()
    backward = case.direction == "backward"
    logits = torch.randn(tokens, vocab, device=device, dtype=DTYPE, requires_grad=backward)
    targets = torch.randint(vocab, (tokens,), device=device)

    def forward(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits.float(), targets)

    return backward_of(forward, logits) if backward else partial(forward, logits)


def _make_adamw(case: Case, device: torch.device) -> Step:
    parameters, tensors = case.shape.values()
    weights = [torch.randn(parameters // tensors, device=device, requires_grad=True) for _ in range(tensors)]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    return torch.optim.AdamW(weights, fused=case.variant == "fused", foreach=case.variant == "foreach").step  # type: ignore[no-any-return]


def _make_chain(case: Case, device: torch.device) -> Step:
    kernels, elements = case.shape.values()
    x = torch.zeros(elements, device=device)

    def launch() -> None:
        for _ in range(kernels):
            x.add_(1)

    if case.variant == "eager":
        return launch
    launch()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    return partial(_replay, graph, x)


def _replay(graph: torch.cuda.CUDAGraph, kept: Tensor) -> None:
    """The graph writes to `kept` and does not keep it."""
    del kept
    graph.replay()


MEMORY_MAKERS: dict[str, Maker] = {
    **dict.fromkeys(FORWARDS, _make_elementwise),
    "embedding": _make_embedding,
    "cross_entropy": _make_cross_entropy,
    "adamw": _make_adamw,
    "launch": _make_chain,
}
