"""Operators that move memory: norms, activations, losses, tables, the optimizer; and what launching a kernel costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.gpu.timing_torch import Case, Step, backward_of

DTYPE, WIDTH = torch.bfloat16, 2
CHAIN = 1000
TENSORS = 64
"""Parameter tensors that an optimizer step is over."""

Forward = Callable[..., Tensor]


def memory_cases(*, tiny: bool, on_gpu: bool) -> Iterator[Case]:
    yield from elementwise_cases(tiny=tiny)
    yield from vocabulary_cases(tiny=tiny)
    yield from optimizer_cases(tiny=tiny)
    yield from launch_cases(tiny=tiny, on_gpu=on_gpu)


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def _layernorm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, weight.shape, weight, bias)


def _rmsnorm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, weight.shape, weight)


def _dropout(x: Tensor) -> Tensor:
    return torch.native_dropout(x, 0.1, True)[0]


ELEMENTWISE: dict[str, tuple[Forward, tuple[int, int], int, int | None]] = {
    # name: (forward, its activations and its weights, bytes per element forward, backward (None: nothing to run))
    "layernorm": (_layernorm, (1, 2), 2 * WIDTH, 3 * WIDTH),
    "rmsnorm": (_rmsnorm, (1, 1), 2 * WIDTH, 3 * WIDTH),
    "gelu": (F.gelu, (1, 0), 2 * WIDTH, 3 * WIDTH),
    # silu, then the product; backward the gradients of both factors, then silu's.
    "swiglu": (_swiglu, (2, 0), 5 * WIDTH, 9 * WIDTH),
    "softmax": (partial(F.softmax, dim=-1), (1, 0), 2 * WIDTH, 3 * WIDTH),
    # A byte of mask an element.
    "dropout": (_dropout, (1, 0), 2 * WIDTH + 1, 2 * WIDTH + 1),
    "add": (torch.add, (2, 0), 3 * WIDTH, None),
    "cast": (Tensor.float, (1, 0), WIDTH + 4, WIDTH + 4),
    "copy": (Tensor.clone, (1, 0), 2 * WIDTH, None),
}


def elementwise_cases(*, tiny: bool) -> Iterator[Case]:
    """(tokens, width) activations in bf16; `bytes` of a norm leave out its weights and statistics."""
    sizes = [(8, 16)] if tiny else list(product((4096, 1024, 16384, 512, 32768), (4096, 1024, 8192, 14336)))
    for number, (tokens, width) in enumerate(sizes):
        for name, (forward, inputs, moved, moved_back) in ELEMENTWISE.items():
            for direction, per_element in (("forward", moved), ("backward", moved_back)):
                if per_element is None:
                    continue
                yield Case(
                    kind=name,
                    dtype="bf16",
                    direction=direction,
                    shape={"tokens": tokens, "width": width},
                    make=partial(_make_elementwise, forward, inputs, (tokens, width), direction == "backward"),
                    bytes=per_element * tokens * width,
                    priority=1 if number < 12 else 5,
                )


def _make_elementwise(
    forward: Forward, counts: tuple[int, int], shape: tuple[int, int], backward: bool, device: torch.device
) -> Step:
    shapes = [shape] * counts[0] + [shape[1:]] * counts[1]
    inputs = [torch.randn(sizes, device=device, dtype=DTYPE, requires_grad=backward) for sizes in shapes]
    return backward_of(forward, *inputs) if backward else partial(forward, *inputs)


def vocabulary_cases(*, tiny: bool) -> Iterator[Case]:
    """Embedding (backward fills the whole table's gradient) and cross-entropy from bf16 logits through fp32."""
    sizes = [(8, 32, 16)] if tiny else list(product((4096, 1024, 16384), (50257, 128256), (4096,)))
    for tokens, vocab, hidden in sizes:
        rows, table, logits = tokens * hidden * WIDTH, vocab * hidden * WIDTH, tokens * vocab
        for name, make, direction, moved in (
            ("embedding", _make_embedding, "forward", 2 * rows),
            ("embedding", _make_embedding, "backward", table + 2 * rows),
            # Cast, log-softmax; backward zeros for the loss's gradient, log-softmax's, cast.
            ("cross_entropy", _make_cross_entropy, "forward", (WIDTH + 4 + 8) * logits),
            ("cross_entropy", _make_cross_entropy, "backward", (4 + 12 + 4 + WIDTH) * logits),
        ):
            shape = {"tokens": tokens, "vocab": vocab} | ({"hidden": hidden} if name == "embedding" else {})
            yield Case(
                kind=name,
                dtype="bf16",
                direction=direction,
                shape=shape,
                make=partial(make, tokens, vocab, hidden, direction == "backward"),
                bytes=moved,
                priority=2,
            )


def _make_embedding(tokens: int, vocab: int, hidden: int, backward: bool, device: torch.device) -> Step:
    table = torch.randn(vocab, hidden, device=device, dtype=DTYPE, requires_grad=backward)
    forward = partial(F.embedding, torch.randint(vocab, (tokens,), device=device))
    return backward_of(forward, table) if backward else partial(forward, table)


def _make_cross_entropy(tokens: int, vocab: int, hidden: int, backward: bool, device: torch.device) -> Step:
    del hidden
    logits = torch.randn(tokens, vocab, device=device, dtype=DTYPE, requires_grad=backward)
    targets = torch.randint(vocab, (tokens,), device=device)

    def forward(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits.float(), targets)

    return backward_of(forward, logits) if backward else partial(forward, logits)


def optimizer_cases(*, tiny: bool) -> Iterator[Case]:
    """AdamW over fp32 weights: reads weight, gradient and both states, writes all but the gradient."""
    for parameters, variant in product(
        (2**10,) if tiny else (2**20, 2**24, 2**27, 2**30), ("fused", "foreach", "plain")
    ):
        yield Case(
            kind="adamw",
            dtype="fp32",
            direction="step",
            shape={"parameters": parameters, "tensors": TENSORS},
            make=partial(_make_adamw, parameters, variant),
            bytes=7 * 4 * parameters,
            variant=variant,
            priority=2,
        )


def _make_adamw(parameters: int, variant: str, device: torch.device) -> Step:
    weights = [torch.randn(parameters // TENSORS, device=device, requires_grad=True) for _ in range(TENSORS)]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    return torch.optim.AdamW(weights, fused=variant == "fused", foreach=variant == "foreach").step  # type: ignore[no-any-return]


def launch_cases(*, tiny: bool, on_gpu: bool) -> Iterator[Case]:
    """A chain of kernels that do next to nothing: seconds of the whole chain, launched one by one and as a graph."""
    chain = 10 if tiny else CHAIN
    for variant, elements in product(("eager", "graph") if on_gpu else ("eager",), (1, 2**20)):
        yield Case(
            kind="launch",
            dtype="fp32",
            direction="forward",
            shape={"kernels": chain, "elements": elements},
            make=partial(_make_chain, chain, elements, variant),
            bytes=8 * elements * chain,
            variant=variant,
            priority=1,
        )


def _make_chain(chain: int, elements: int, variant: str, device: torch.device) -> Step:
    x = torch.zeros(elements, device=device)

    def launch() -> None:
        for _ in range(chain):
            x.add_(1)

    if variant == "eager":
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
