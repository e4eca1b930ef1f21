"""Mixture of experts with static capacity inside the parallel region: tokens are on every rank, experts split."""

from __future__ import annotations

from estimator.layers.operators import elementwise, grouped_gemm, lookup
from estimator.layers.shards.parts import Part, Tokens, activation, feed_forward, gradient_sum, join, linear
from models_zoo.layers import Experts, FeedForward
from profiles.vocabulary import Operator


def experts(tokens: Tokens, name: str, spec: Experts, hidden: int, *, saves_input: bool = True) -> Part:
    """Route all tokens, gather those of this rank's experts, compute, and add the weighted results up.

    Each rank's router sees only its own experts' gradients, so those of its weight are summed over the ranks.
    """
    rows, width = tokens.rows, tokens.width
    count = spec.count // tokens.tp
    slots = count * spec.capacity(rows)
    router = linear(
        f"{name}.router",
        rows=rows,
        n=spec.count,
        k=hidden,
        width=width,
        saves_input=saves_input,
        gradient_ranks=tokens.tp,
    )
    dispatch = lookup(f"{name}.dispatch", rows=slots, row_elements=hidden, width=width)
    weighted = elementwise(
        f"{name}.weighted",
        elements=slots * hidden,
        width=width,
        forward_passes=2,
        backward_passes=5,
        saved_bytes=slots * (hidden + 1) * width,
        backward_kernels=3,
    )
    parts = [
        router,
        Part(operators=(_routing(tokens, name, spec, slots), dispatch)),
        _expert_products(name, spec.expert, count=count, capacity=spec.capacity(rows), hidden=hidden, width=width),
        Part(operators=(weighted,)),
        _shared(tokens, name, spec, hidden),
        Part(operators=(_combine(name, rows=rows, slots=slots, hidden=hidden, width=width),)),
    ]
    consumers = 2 + int(spec.shared_hidden > 0) + int(spec.shared_gate)
    parts.append(gradient_sum(f"{name}.input", elements=rows * hidden, width=width, consumers=consumers))
    return join(parts)


def _routing(tokens: Tokens, name: str, spec: Experts, slots: int) -> Operator:
    """Softmax in fp32, top-k, sort by expert, and which (token, choice) fills which slot.

    Kept: probabilities (fp32) and chosen experts (int64) of all tokens; source (int64) and validity of own slots.
    """
    probabilities, choices = tokens.rows * spec.count, tokens.rows * spec.top_k
    # Softmax and top-k read and write fp32 probabilities; sorting moves int64 keys and values a few times.
    forward = 4 * 4 * probabilities + 12 * 8 * choices + 4 * 8 * slots
    backward = 4 * 4 * probabilities + 3 * 8 * choices + 2 * 8 * slots
    return Operator(
        name=f"{name}.routing",
        kind="memory",
        shape=(probabilities,),
        forward_bytes=forward,
        backward_bytes=backward,
        saved_bytes=4 * probabilities + 8 * choices + 9 * slots,
        forward_kernels=14,
        backward_kernels=6,
    )


def _expert_products(name: str, spec: FeedForward, *, count: int, capacity: int, hidden: int, width: int) -> Part:
    """The experts' own feed-forward, one product for all experts of this rank at a time."""
    operators: list[Operator] = []
    first = ("gate", "up") if spec.gated else ("up",)
    for i, part in enumerate(first):
        operators.append(
            grouped_gemm(
                f"{name}.{part}",
                groups=count,
                m=capacity,
                n=spec.hidden,
                k=hidden,
                width=width,
                bias=spec.bias,
                saves_input=i == 0,
            )
        )
    slots = count * capacity
    sums = gradient_sum(f"{name}.dispatched", elements=slots * hidden, width=width, consumers=len(first))
    operators += sums.operators
    operators += activation(name, spec, elements=slots * spec.hidden, width=width)
    operators.append(
        grouped_gemm(f"{name}.down", groups=count, m=capacity, n=hidden, k=spec.hidden, width=width, bias=spec.bias)
    )
    weights = (len(first) + 1) * hidden * spec.hidden
    biases = len(first) * spec.hidden + hidden if spec.bias else 0
    return Part(operators=tuple(operators), split=count * (weights + biases))


def _shared(tokens: Tokens, name: str, spec: Experts, hidden: int) -> Part:
    """The expert that every token visits, split by columns and rows; its gate weighs the partial result."""
    if not spec.shared_hidden:
        return Part()
    dense = FeedForward(hidden=spec.shared_hidden, gated=spec.expert.gated, activation=spec.expert.activation)
    rows, width = tokens.rows, tokens.width
    parts = [feed_forward(tokens, f"{name}.shared", dense, hidden, saves_input=False)]
    if spec.shared_gate:
        gated = elementwise(
            f"{name}.shared_gate",
            elements=rows * hidden,
            width=width,
            forward_passes=2,
            backward_passes=5,
            saved_bytes=rows * (hidden + 1) * width,
            forward_kernels=2,
            backward_kernels=4,
        )
        logit = linear(
            f"{name}.shared_gate_logit",
            rows=rows,
            n=1,
            k=hidden,
            width=width,
            saves_input=False,
            gradient_ranks=tokens.tp,
        )
        parts += [logit, Part(operators=(gated,))]
    return join(parts)


def _combine(name: str, *, rows: int, slots: int, hidden: int, width: int) -> Operator:
    """Adds each slot's row to its token's, in a copy of the shared expert's result or in zeros."""
    return Operator(
        name=f"{name}.combine",
        kind="gather",
        shape=(slots, hidden),
        forward_bytes=(2 * rows + 3 * slots) * hidden * width,
        backward_bytes=2 * slots * hidden * width,
        forward_kernels=2,
    )
