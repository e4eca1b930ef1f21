"""Operators that move memory: norms, activations, losses, tables, the optimizer; and what launching a kernel costs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from bench.gpu.case import Case, Framework, sizes

WIDTH = 2  # bf16
CHAIN = 1000
TENSORS = 64
"""Parameter tensors that an optimizer step is over."""

ELEMENTWISE: dict[str, tuple[int, int | None]] = {
    # name: bytes per element forward, backward (None: nothing to run)
    "layernorm": (2 * WIDTH, 3 * WIDTH),
    "rmsnorm": (2 * WIDTH, 3 * WIDTH),
    "gelu": (2 * WIDTH, 3 * WIDTH),
    # silu, then the product; backward the gradients of both factors, then silu's.
    "swiglu": (5 * WIDTH, 9 * WIDTH),
    "softmax": (2 * WIDTH, 3 * WIDTH),
    # A byte of mask an element.
    "dropout": (2 * WIDTH + 1, 2 * WIDTH + 1),
    "add": (3 * WIDTH, None),
    "cast": (WIDTH + 4, WIDTH + 4),
    "copy": (2 * WIDTH, None),
}

OPTIMIZER_VARIANTS: dict[Framework, tuple[tuple[str, int], ...]] = {
    # How it is run, over how many tensors. JAX's fused step is one program.
    "torch": (("fused", TENSORS), ("foreach", TENSORS), ("plain", TENSORS)),
    "jax": (("fused", TENSORS), ("flat", 1)),
}


def memory_cases(framework: Framework, *, tiny: bool, on_gpu: bool) -> Iterator[Case]:
    yield from elementwise_cases(tiny=tiny)
    yield from vocabulary_cases(tiny=tiny)
    yield from optimizer_cases(framework, tiny=tiny)
    yield from launch_cases(tiny=tiny, with_graph=on_gpu or framework == "jax")


def elementwise_cases(*, tiny: bool) -> Iterator[Case]:
    """(tokens, width) activations in bf16; `bytes` of a norm leave out its weights and statistics."""
    shapes = [(8, 16)] if tiny else list(product((4096, 1024, 16384, 512, 32768), (4096, 1024, 8192, 14336)))
    for number, (tokens, width) in enumerate(shapes):
        for name, (forward, backward) in ELEMENTWISE.items():
            for direction, per_element in (("forward", forward), ("backward", backward)):
                if per_element is None:
                    continue
                yield Case(
                    kind=name,
                    dtype="bf16",
                    direction=direction,
                    sizes=sizes(tokens=tokens, width=width),
                    bytes=per_element * tokens * width,
                    priority=1 if number < 12 else 5,
                )


def vocabulary_cases(*, tiny: bool) -> Iterator[Case]:
    """Embedding (backward fills the whole table's gradient) and cross-entropy from bf16 logits through fp32."""
    shapes = [(8, 32, 16)] if tiny else list(product((4096, 1024, 16384), (50257, 128256), (4096,)))
    for tokens, vocab, hidden in shapes:
        rows, table, logits = tokens * hidden * WIDTH, vocab * hidden * WIDTH, tokens * vocab
        looked_up = sizes(tokens=tokens, vocab=vocab, hidden=hidden)
        scored = sizes(tokens=tokens, vocab=vocab)
        for name, shape, direction, moved in (
            ("embedding", looked_up, "forward", 2 * rows),
            ("embedding", looked_up, "backward", table + 2 * rows),
            # Cast, log-softmax; backward zeros for the loss's gradient, log-softmax's, cast.
            ("cross_entropy", scored, "forward", (WIDTH + 4 + 8) * logits),
            ("cross_entropy", scored, "backward", (4 + 12 + 4 + WIDTH) * logits),
        ):
            yield Case(kind=name, dtype="bf16", direction=direction, sizes=shape, bytes=moved, priority=2)


def optimizer_cases(framework: Framework, *, tiny: bool) -> Iterator[Case]:
    """AdamW over fp32 weights: reads weight, gradient and both states, writes all but the gradient."""
    counts = (2**10,) if tiny else (2**20, 2**24, 2**27, 2**30)
    for parameters, (variant, usual_tensors) in product(counts, OPTIMIZER_VARIANTS[framework]):
        tensors = min(usual_tensors, 4) if tiny else usual_tensors
        yield Case(
            kind="adamw",
            dtype="fp32",
            direction="step",
            sizes=sizes(parameters=parameters, tensors=tensors),
            bytes=7 * 4 * parameters,
            variant=variant,
            priority=2,
        )


def launch_cases(*, tiny: bool, with_graph: bool) -> Iterator[Case]:
    """A chain of kernels that do next to nothing: seconds of the whole chain, launched one by one and as a graph (in
    JAX one program that loops)."""
    chain = 10 if tiny else CHAIN
    for variant, elements in product(("eager", "graph") if with_graph else ("eager",), (1, 2**20)):
        yield Case(
            kind="launch",
            dtype="fp32",
            direction="forward",
            sizes=sizes(kernels=chain, elements=elements),
            bytes=8 * elements * chain,
            variant=variant,
            priority=1,
        )
