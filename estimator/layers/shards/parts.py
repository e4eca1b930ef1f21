"""What the transformer's shards are put together from: local token counts, parts, and the edges of the parallel region.

A rank's work has two kinds of place. Inside the parallel region (attention, feed-forward, vocabulary projection) every
rank sees all tokens and owns a slice of the weights; a weight that all ranks hold there gets only a partial gradient.
Outside it (norms, residuals, late biases) every rank holds all weights and sees all tokens, or under sequence
parallelism 1/tp of them (Korthikanti et al. 2022, section 4.2.2), and then its gradients are partial too. A partial
gradient is summed over the ranks once an iteration.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from estimator.layers.operators import elementwise, gemm
from models_zoo.layers import FeedForward, Norm
from profiles.vocabulary import Collective, Infeasible, LocalLayer, Operator, Phase, Shard, held_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The micro-batch as one rank sees it: `rows` tokens inside the parallel region, `local_rows` outside it.

    `width` is bytes per element of an activation. With fp8 only the operands of matrix products are fp8; what travels
    and what is kept stays bf16.
    """

    batch: int
    seq_len: int
    width: int
    tp: int
    sequence_parallel: bool

    @property
    def rows(self) -> int:
        return self.batch * self.seq_len

    @property
    def local_rows(self) -> int:
        return self.rows // self.tp if self.sequence_parallel else self.rows

    @property
    def outside_ranks(self) -> int:
        """Ranks over which the gradient of a weight outside the parallel region must be summed."""
        return self.tp if self.sequence_parallel else 1


def tokens_of(shard: Shard) -> Tokens:
    """The tokens of one micro-batch of `shard`."""
    return Tokens(
        batch=shard.micro_batch_per_rank,
        seq_len=shard.seq_len,
        width=held_bytes(shard.dtype),
        tp=shard.tp,
        sequence_parallel=shard.sequence_parallel and shard.tp > 1,
    )


def indivisible(layer: str, shard: Shard, *sizes: tuple[str, int]) -> Infeasible | None:
    """The first of `sizes` (name, count) that tp does not divide; under sequence parallelism also the sequence."""
    if shard.sequence_parallel:
        sizes = (*sizes, ("tokens per sample under sequence parallelism", shard.seq_len))
    for name, size in sizes:
        if size % shard.tp:
            return Infeasible(reason=f"{layer}: tp={shard.tp} does not divide {size} {name}", lacking="divisibility")
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A piece of a local shard.

    `split` counts parameters that this rank alone holds; `replicated` holds (ranks, parameters) pairs: weights that
    other ranks hold too, and over how many of them their gradient must be summed (1: it is whole already).
    """

    operators: tuple[Operator, ...] = ()
    collectives: tuple[Collective, ...] = ()
    split: int = 0
    replicated: tuple[tuple[int, int], ...] = ()


def join(parts: Iterable[Part]) -> Part:
    """One part of several, in their order."""
    parts = tuple(parts)
    return Part(
        operators=tuple(op for part in parts for op in part.operators),
        collectives=tuple(c for part in parts for c in part.collectives),
        split=sum(part.split for part in parts),
        replicated=tuple(pair for part in parts for pair in part.replicated),
    )


def local_layer(part: Part, *, tokens: Tokens, input_bytes: int, output_bytes: int) -> LocalLayer:
    """The finished shard: `part`, and one all-reduce a step for each group of ranks that hold partial gradients."""
    groups: dict[int, int] = {}
    for ranks, parameters in part.replicated:
        groups[ranks] = groups.get(ranks, 0) + parameters
    sums = tuple(
        Collective(op="all_reduce", bytes=n * tokens.width, phase="step", ranks=ranks, name="partial gradients")
        for ranks, n in sorted(groups.items())
        if ranks > 1
    )
    replicated = sum(groups.values()) if tokens.tp > 1 else 0
    return LocalLayer(
        operators=part.operators,
        collectives=part.collectives + sums,
        parameters=part.split + sum(groups.values()),
        replicated_parameters=replicated,
        input_bytes=input_bytes,
        output_bytes=output_bytes,
    )


def all_reduce(tokens: Tokens, name: str, *, bytes: int, phase: Phase = "forward") -> Part:
    """A sum or maximum over the tp ranks; nothing where there is one."""
    if tokens.tp == 1:
        return Part()
    return Part(collectives=(Collective(op="all_reduce", bytes=bytes, phase=phase, ranks=tokens.tp, name=name),))


def _along_sequence(tokens: Tokens, name: str, elements: int, *, gather: Phase, scatter: Phase) -> Part:
    size = elements * tokens.width
    return Part(
        collectives=(
            Collective(op="all_gather", bytes=size, phase=gather, ranks=tokens.tp, name=name),
            Collective(op="reduce_scatter", bytes=size, phase=scatter, ranks=tokens.tp, name=name),
        )
    )


def enter(tokens: Tokens, name: str, hidden: int) -> Part:
    """Into the parallel region: the gradient is summed backward, or tokens gathered forward and scattered backward."""
    elements = tokens.rows * hidden
    if tokens.sequence_parallel:
        return _along_sequence(tokens, name, elements, gather="forward", scatter="backward")
    return all_reduce(tokens, name, bytes=elements * tokens.width, phase="backward")


def leave(tokens: Tokens, name: str, hidden: int) -> Part:
    """Out of the parallel region: partial sums are added up forward, or scattered forward and gathered backward."""
    elements = tokens.rows * hidden
    if tokens.sequence_parallel:
        return _along_sequence(tokens, name, elements, gather="backward", scatter="forward")
    return all_reduce(tokens, name, bytes=elements * tokens.width)


def _holding(operator: Operator, parameters: int, gradient_ranks: int | None) -> Part:
    if gradient_ranks is None:
        return Part(operators=(operator,), split=parameters)
    return Part(operators=(operator,), replicated=((gradient_ranks, parameters),))


def linear(
    name: str,
    *,
    rows: int,
    n: int,
    k: int,
    width: int,
    bias: bool = False,
    saves_input: bool = True,
    gradient_ranks: int | None = None,
) -> Part:
    """A (k, n) weight and its product with `rows` rows; split over ranks unless `gradient_ranks` is given."""
    parameters = n * (k + int(bias))
    product = gemm(name, m=rows, n=n, k=k, width=width, bias=bias, saves_input=saves_input)
    return _holding(product, parameters, gradient_ranks)


def norm(
    name: str,
    kind: Norm,
    *,
    rows: int,
    size: int,
    width: int,
    gradient_ranks: int | None,
    bias: bool = True,
    saved_input_bytes: int | None = None,
) -> Part:
    """A norm over the last dimension of `rows` rows; keeps its input and fp32 statistics (torch's fused kernels).

    `saved_input_bytes` differs from the input's size where that is kept elsewhere (0) or is a view of something larger.
    """
    layernorm = kind == "layernorm"
    kept = rows * size * width if saved_input_bytes is None else saved_input_bytes
    operator = elementwise(
        name,
        elements=rows * size,
        width=width,
        forward_passes=2,
        backward_passes=5,
        saved_bytes=kept + (8 if layernorm else 4) * rows,
        backward_kernels=2,
    )
    return _holding(operator, size * (1 + int(layernorm and bias)), gradient_ranks)


def gradient_sum(name: str, *, elements: int, width: int, consumers: int) -> Part:
    """Autograd's additions where one tensor has several consumers: read two, write one."""
    if consumers < 2:
        return Part()
    return Part(
        operators=(
            elementwise(
                name,
                elements=elements,
                width=width,
                forward_passes=0,
                backward_passes=3 * (consumers - 1),
                forward_kernels=0,
                backward_kernels=consumers - 1,
            ),
        )
    )


def dropout(name: str, *, elements: int, width: int) -> Operator:
    """Keeps a one-byte mask, as torch's native_dropout does."""
    passes = 2 + 1 / width
    return elementwise(
        name, elements=elements, width=width, forward_passes=passes, backward_passes=passes, saved_bytes=elements
    )


def late_bias(tokens: Tokens, name: str, hidden: int) -> Part:
    """A row-split product's bias, added once the partial sums are; with tp=1 the product adds it itself."""
    if tokens.tp == 1:
        return Part(replicated=((1, hidden),))
    elements = tokens.local_rows * hidden
    add = elementwise(name, elements=elements, width=tokens.width, forward_passes=2, backward_passes=1)
    return Part(operators=(add,), replicated=((tokens.outside_ranks, hidden),))


def activation(name: str, spec: FeedForward, *, elements: int, width: int) -> tuple[Operator, ...]:
    """The nonlinearity, and the product with the gate's partner; the tensor handed on is kept by the next product.

    GELU and SiLU keep their input; ReLU its result, which the next operator keeps anyway.
    """
    size = elements * width
    own_input = 0 if spec.activation == "relu" else size
    act = elementwise(
        f"{name}.{spec.activation}",
        elements=elements,
        width=width,
        forward_passes=2,
        backward_passes=3,
        saved_bytes=own_input,
    )
    if not spec.gated:
        return (act,)
    gate = elementwise(
        f"{name}.gate",
        elements=elements,
        width=width,
        forward_passes=3,
        backward_passes=6,
        saved_bytes=2 * size,
        backward_kernels=2,
    )
    return (act, gate)


def feed_forward(tokens: Tokens, name: str, spec: FeedForward, hidden: int, *, saves_input: bool = True) -> Part:
    """The dense MLP inside the parallel region: columns of the first product(s), rows of the last.

    The last product's bias is added later (`late_bias`) unless tp=1.
    """
    inner, rows, width = spec.hidden // tokens.tp, tokens.rows, tokens.width
    names = ("gate", "up") if spec.gated else ("up",)
    first = [
        linear(
            f"{name}.{part}",
            rows=rows,
            n=inner,
            k=hidden,
            width=width,
            bias=spec.bias,
            saves_input=saves_input and i == 0,
        )
        for i, part in enumerate(names)
    ]
    sums = gradient_sum(f"{name}.input", elements=rows * hidden, width=width, consumers=len(names))
    acts = Part(operators=activation(name, spec, elements=rows * inner, width=width))
    last = gemm(f"{name}.down", m=rows, n=hidden, k=inner, width=width, bias=spec.bias and tokens.tp == 1)
    return join((*first, sums, acts, Part(operators=(last,), split=inner * hidden)))
