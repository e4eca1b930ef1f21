"""A mixture of experts with static capacity inside the tensor-parallel region, as the zoo's modules run it: tokens are
on every rank, experts split over tp."""

from __future__ import annotations

from dataclasses import replace

from estimator.layers.feed_forward import feed_forward_piece
from estimator.layers.operators import grouped_gemm, lookup
from estimator.layers.parts import Piece, activation_pass, gradient_sum, join, linear, memory_pass, of
from estimator.layers.split import Split
from models_zoo.layers import Experts, FeedForward
from profiles.vocabulary import Operator


def capacity_experts_piece(split: Split, spec: Experts, hidden: int, *, keeps_input: bool) -> Piece:
    """Route all tokens, gather those of this rank's experts, compute, and add the weighted results up.

    Each rank's router sees only its own experts' gradients, so those of its weight are summed over the ranks.
    """
    rows = split.rows
    slots = spec.count // split.tp * spec.capacity(rows)
    routed = spec.latent or hidden
    router = linear(
        "experts.router",
        rows=rows,
        n=spec.count,
        k=hidden,
        split=split,
        saves_input=keeps_input,
        gradient_ranks=split.tp,
    )
    weighted = memory_pass(
        "experts.weighted",
        slots * routed,
        split,
        forward=2.0,
        backward=5.0,
        saved_bytes=slots * (routed + 1) * split.width,
        backward_kernels=3,
    )
    consumers = 2 + int(spec.shared_hidden > 0) + int(spec.shared_gate)
    return join(
        (
            router,
            of(_routing(spec, rows, slots)),
            _latent("down", split, spec, n=routed, k=hidden),
            of(lookup("experts.dispatch", rows=slots, row_elements=routed, width=split.width)),
            _products(split, spec, routed),
            weighted,
            _shared(split, spec, hidden),
            of(_combine(rows, slots, routed, split.width)),
            _latent("up", split, spec, n=hidden, k=routed),
            gradient_sum("experts.input", rows * hidden, split, consumers=consumers),
        )
    )


def _latent(part: str, split: Split, spec: Experts, *, n: int, k: int) -> Piece:
    """To the width of the routed experts (of an input that the router keeps), or back and onto the other results."""
    if not spec.latent:
        return Piece()
    name, rows, up = f"experts.latent_{part}", split.rows, part == "up"
    product = linear(name, rows=rows, n=n, k=k, split=split, saves_input=up, gradient_ranks=split.tp)
    return join((product, memory_pass(f"{name}.sum", rows * n, split, forward=3.0, backward=0.0))) if up else product


def _routing(spec: Experts, rows: int, slots: int) -> Operator:
    """Softmax in fp32, top-k, sort by expert, and which (token, choice) fills which slot.

    Kept: probabilities (fp32) and chosen experts (int64) of all tokens; source (int64) and validity of own slots.
    """
    probabilities, choices = rows * spec.count, rows * spec.top_k
    # Softmax and top-k read and write fp32 probabilities; sorting moves int64 keys and values a few times.
    return Operator(
        name="experts.routing",
        kind="memory",
        shape=(probabilities,),
        forward_bytes=4 * 4 * probabilities + 12 * 8 * choices + 4 * 8 * slots,
        backward_bytes=4 * 4 * probabilities + 3 * 8 * choices + 2 * 8 * slots,
        saved_bytes=4 * probabilities + 8 * choices + 9 * slots,
        forward_kernels=14,
        backward_kernels=6,
    )


def _products(split: Split, spec: Experts, hidden: int) -> Piece:
    """The experts' feed-forward, one product for all experts of this rank at a time."""
    expert, count, capacity = spec.expert, spec.count // split.tp, spec.capacity(split.rows)
    first = ("gate", "up") if expert.gated else ("up",)

    def product(part: str, n: int, k: int, *, saves_input: bool = True) -> Piece:
        operator = grouped_gemm(
            f"experts.{part}",
            groups=count,
            m=capacity,
            n=n,
            k=k,
            width=split.width,
            bias=expert.bias,
            saves_input=saves_input,
        )
        return replace(of(operator), expert_parameters=count * n * (k + int(expert.bias)))

    slots = count * capacity
    return join(
        (
            *(product(part, expert.hidden, hidden, saves_input=not number) for number, part in enumerate(first)),
            gradient_sum("experts.dispatched", slots * hidden, split, consumers=len(first)),
            activation_pass("experts.activation", expert, slots * expert.hidden, split),
            product("down", hidden, expert.hidden),
        )
    )


def _shared(split: Split, spec: Experts, hidden: int) -> Piece:
    """The expert that every token visits, split by columns and rows; its gate weighs the partial result."""
    if not spec.shared_hidden:
        return Piece()
    dense = FeedForward(hidden=spec.shared_hidden, gated=spec.expert.gated, activation=spec.expert.activation)
    visited = feed_forward_piece("experts.shared", dense, hidden, split, keeps_input=False)
    if not spec.shared_gate:
        return visited
    rows = split.rows
    logit = linear(
        "experts.shared_gate_logit",
        rows=rows,
        n=1,
        k=hidden,
        split=split,
        saves_input=False,
        gradient_ranks=split.tp,
    )
    gated = memory_pass(
        "experts.shared_gate",
        rows * hidden,
        split,
        forward=2.0,
        backward=5.0,
        saved_bytes=rows * (hidden + 1) * split.width,
        forward_kernels=2,
        backward_kernels=4,
    )
    return join((visited, logit, gated))


def _combine(rows: int, slots: int, hidden: int, width: int) -> Operator:
    """Adds each slot's row to its token's, in a copy of the shared expert's result or in zeros."""
    return Operator(
        name="experts.combine",
        kind="gather",
        shape=(slots, hidden),
        forward_bytes=(2 * rows + 3 * slots) * hidden * width,
        backward_bytes=2 * slots * hidden * width,
        forward_kernels=2,
    )
