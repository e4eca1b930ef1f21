"""What a layer is put together from: matrix products, passes over memory, and tensor-parallel edges.

A rank's work has two kinds of place. Inside the tensor-parallel region (attention, feed-forward, vocabulary projection)
every rank sees all tokens and owns a slice of the weights; a weight that all ranks hold there gets only a partial
gradient. Outside it (norms, residuals, late biases) every rank holds all weights and sees all tokens, or under sequence
parallelism 1/tp of them (Korthikanti et al. 2022, section 4.2.2), and then its gradients are partial too. A partial
gradient is summed over the ranks once an iteration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from estimator.layers.operators import elementwise, gemm
from estimator.layers.split import Split
from models_zoo.layers import FeedForward, Norm
from profiles.records import dataclass, replace
from profiles.vocabulary import WIDENED_BYTES, Collective, CollectiveOp, Infeasible, Operator, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Part of a layer's work; `join` adds pieces up.

    `core` are the operators that selective recomputation runs again (attention's inner part) and `core_saved_bytes`
    what it then need not keep. `adapter_parameters`: what a LoRA adapter of the split's rank would add. `replicated`
    holds (ranks, parameters) pairs: which of the parameters other tp ranks hold too, and over how many consecutive ones
    their gradient must be summed (1: it is whole already). `vectors` counts biases and norms' weights. `input_bytes`
    and `output_bytes` are a whole layer's boundary activations, 0 of a part of one.
    """

    operators: tuple[Operator, ...] = ()
    core: tuple[Operator, ...] = ()
    collectives: tuple[Collective, ...] = ()
    parameters: int = 0
    expert_parameters: int = 0
    adapter_parameters: int = 0
    vectors: int = 0
    replicated: tuple[tuple[int, int], ...] = ()
    saved_bytes: int = 0
    core_saved_bytes: int = 0
    temporary_bytes: int = 0
    input_bytes: int = 0
    output_bytes: int = 0

    @property
    def partial_gradients(self) -> tuple[tuple[int, int], ...]:
        """(ranks, parameters) pairs: so many consecutive tp ranks each have a part of these parameters' gradients."""
        parameters_by_ranks: Counter[int] = Counter()
        for ranks, parameters in self.replicated:
            parameters_by_ranks[ranks] += parameters if ranks > 1 else 0
        return tuple(sorted((+parameters_by_ranks).items()))


def join(pieces: Iterable[Piece]) -> Piece:
    """One piece of several, in their order; temporary bytes are the largest piece's."""
    operators: list[Operator] = []
    core: list[Operator] = []
    collectives: list[Collective] = []
    replicated: list[tuple[int, int]] = []
    parameters = experts = adapters = vectors = saved = core_saved = temporary = 0
    for piece in pieces:
        operators += piece.operators
        core += piece.core
        collectives += piece.collectives
        replicated += piece.replicated
        parameters += piece.parameters
        experts += piece.expert_parameters
        adapters += piece.adapter_parameters
        vectors += piece.vectors
        saved += piece.saved_bytes
        core_saved += piece.core_saved_bytes
        temporary = max(temporary, piece.temporary_bytes)
    return Piece(
        operators=tuple(operators),
        core=tuple(core),
        collectives=tuple(collectives),
        parameters=parameters,
        expert_parameters=experts,
        adapter_parameters=adapters,
        vectors=vectors,
        replicated=tuple(replicated),
        saved_bytes=saved,
        core_saved_bytes=core_saved,
        temporary_bytes=temporary,
    )


def of(operator: Operator, *, parameters: int = 0, gradient_ranks: int | None = None, vectors: int = 0) -> Piece:
    """Return the piece that is `operator` alone, with what it keeps and its weights, held as `held` has it."""
    return Piece(
        operators=(operator,),
        parameters=parameters,
        vectors=vectors,
        replicated=_replicated(parameters, gradient_ranks),
        saved_bytes=operator.saved_bytes,
    )


def held(parameters: int, gradient_ranks: int | None) -> Piece:
    """Weights: this rank's alone, or (with `gradient_ranks`) held by all and their gradient summed over so many."""
    return Piece(parameters=parameters, vectors=1, replicated=_replicated(parameters, gradient_ranks))


def copied(parameters: int, ranks: int | None) -> Piece:
    """Say of so many parameters of a product beside it that so many ranks hold them, each with a part of the
    gradient (None: nothing)."""
    return Piece(replicated=_replicated(parameters, ranks))


def _replicated(parameters: int, gradient_ranks: int | None) -> tuple[tuple[int, int], ...]:
    return () if gradient_ranks is None else ((gradient_ranks, parameters),)


def linear(
    name: str,
    *,
    rows: int,
    n: int,
    k: int,
    split: Split,
    bias: bool = False,
    saves_input: bool = True,
    input_outside: bool = False,
    gradient_ranks: int | None = None,
) -> Piece:
    """A (k, n) weight of this rank's and its product with `rows` rows.

    `input_outside`: the input is the tensor outside the parallel region, kept as this rank's slice under sequence
    parallelism (and gathered once more in backward, Korthikanti et al. 2022, section 4.2.2); the zoo's modules keep
    what they gathered. `gradient_ranks` as `held` has it.
    """
    sliced = input_outside and split.sequence_parallel and not split.zoo
    # A frozen weight needs nothing of its input; an adapter beside it keeps that in 16 bits.
    width = split.width if split.lora_rank else split.kept_width
    kept = round((split.local_rows if sliced else rows) * k * width)
    product = gemm(
        name, m=rows, n=n, k=k, width=split.width, bias=bias, input_grad=split.passes_gradient, saves_input=saves_input
    )
    again: tuple[Collective, ...] = ()
    learns = bool(split.lora_rank) or not split.frozen
    if sliced and split.tp > 1 and learns:
        size = round(rows * k * split.gathered_width)
        again = (_collective("all_gather", f"{name}.input", size, "backward", split.tp),)
    if not learns or split.keeps_narrow:
        product = replace(product, saved_bytes=round(rows * k * width) if saves_input and learns else 0)
    parameters = n * (k + int(bias))
    piece = Piece(
        operators=(product,),
        collectives=again,
        parameters=parameters,
        vectors=int(bias),
        replicated=_replicated(parameters, gradient_ranks),
        saved_bytes=kept if saves_input and learns else 0,
    )
    widening = _widened(name, n=n, k=k, split=split)
    if widening is not None:
        piece = replace(piece, operators=(widening, product))
    return join((piece, _adapter(name, rows=rows, n=n, k=k, split=split))) if split.lora_rank else piece


def _widened(name: str, *, n: int, k: int, split: Split) -> Operator | None:
    """A frozen weight of 4 bits turned into 16 before its product, and before that of its input's gradient."""
    moved, kernels = WIDENED_BYTES[split.frozen_as if split.frozen else "held"]
    if not kernels:
        return None
    count = round(n * k * moved)
    return Operator(
        name=f"{name}.widen",
        kind="memory",
        shape=(n * k,),
        forward_bytes=count,
        backward_bytes=count,
        forward_kernels=kernels,
        backward_kernels=kernels,
    )


def _adapter(name: str, *, rows: int, n: int, k: int, split: Split) -> Piece:
    """A LoRA adapter beside a frozen weight: down to its rank and up again, added to the product (Hu et al. 2021)."""
    rank, width = split.lora_rank, split.width
    down = gemm(f"{name}.lora_down", m=rows, n=rank, k=k, width=width, saves_input=False)
    up = gemm(f"{name}.lora_up", m=rows, n=n, k=rank, width=width)
    add = memory_pass(f"{name}.lora_add", rows * n, split, forward=3.0, backward=1.0)
    piece = Piece(operators=(down, up), adapter_parameters=rank * (n + k), saved_bytes=rows * rank * width)
    return join((piece, add))


def whole_linear(
    name: str,
    *,
    rows: int,
    n: int,
    k: int,
    split: Split,
    bias: bool = False,
    saves_input: bool = True,
    gradient_ranks: int | None = None,
) -> Piece:
    """A weight that every tensor-parallel rank holds whole, applied outside the parallel region.

    `gradient_ranks` None: those of a weight that sees this rank's tokens there."""
    product = gemm(name, m=rows, n=n, k=k, width=split.width, bias=bias, saves_input=saves_input)
    parameters = n * (k + int(bias))
    return of(product, parameters=parameters, gradient_ranks=gradient_ranks or split.outside_ranks, vectors=int(bias))


def memory_pass(
    name: str,
    elements: int,
    split: Split,
    *,
    forward: float,
    backward: float,
    extra_bytes: int = 0,
    saved_bytes: int = 0,
    temporary_bytes: int = 0,
    forward_kernels: int = 1,
    backward_kernels: int = 1,
) -> Piece:
    """A memory-bound operator: `forward` and `backward` reads and writes of `elements` elements, and `extra_bytes`
    (a mask) each way."""
    operator = elementwise(
        name,
        elements=elements,
        width=split.width,
        forward_passes=forward,
        backward_passes=backward,
        extra_bytes=extra_bytes,
        saved_bytes=saved_bytes,
        forward_kernels=forward_kernels,
        backward_kernels=backward_kernels,
    )
    return Piece(operators=(operator,), saved_bytes=saved_bytes, temporary_bytes=temporary_bytes)


def norm(
    name: str,
    kind: Norm,
    *,
    rows: int,
    size: int,
    split: Split,
    gradient_ranks: int | None,
    bias: bool = True,
    input_bytes: int | None = None,
) -> Piece:
    """A norm over `size` elements of `rows` rows in one kernel; keeps its input and fp32 statistics.

    `gradient_ranks` as `held` has it. `input_bytes` differs from the input's size where that is kept elsewhere (0) or
    is a view of something larger.
    """
    layernorm = kind == "layernorm"
    kept = rows * size * split.width if input_bytes is None else input_bytes
    operator = elementwise(
        name,
        elements=rows * size,
        width=split.width,
        forward_passes=2,
        backward_passes=4,
        saved_bytes=kept + (8 if layernorm else 4) * rows,
        backward_kernels=2,
    )
    vectors = 1 + int(layernorm and bias)
    return of(operator, parameters=size * vectors, gradient_ranks=gradient_ranks, vectors=vectors)


def gradient_sum(name: str, elements: int, split: Split, *, consumers: int) -> Piece:
    """Autograd's additions where one tensor has several consumers: read two, write one. A framework's fused layers have
    one consumer each."""
    if consumers < 2 or not split.zoo:
        return Piece()
    return memory_pass(
        name,
        elements,
        split,
        forward=0.0,
        backward=3.0 * (consumers - 1),
        forward_kernels=0,
        backward_kernels=consumers - 1,
    )


def dropout(name: str, elements: int, split: Split) -> Piece:
    """Dropout by itself; keeps a mask of a byte an element."""
    return memory_pass(name, elements, split, forward=2.0, backward=2.0, extra_bytes=elements, saved_bytes=elements)


def _collective(op: CollectiveOp, name: str, size_bytes: int, phase: Phase, ranks: int) -> Collective:
    return Collective(op=op, bytes=size_bytes, phase=phase, axis="tp", ranks=ranks, name=name)


def all_reduce(name: str, size_bytes: int, split: Split, *, phase: Phase = "forward") -> Piece:
    """A sum or maximum over the tensor-parallel ranks; nothing where there is one."""
    if split.tp == 1:
        return Piece()
    return Piece(collectives=(_collective("all_reduce", name, size_bytes, phase, split.tp),))


def enter(name: str, hidden: int, split: Split) -> Piece:
    """Into the parallel region: the gradient is summed in backward, or tokens gathered forward, scattered backward."""
    elements = split.rows * hidden
    size = elements * split.width
    if split.tp == 1:
        return Piece()
    if split.sequence_parallel:
        return Piece(
            collectives=(
                _collective("all_gather", name, round(elements * split.gathered_width), "forward", split.tp),
                _collective("reduce_scatter", name, size, "backward", split.tp),
            ),
            temporary_bytes=size,
        )
    return all_reduce(name, size, split, phase="backward")


def leave(name: str, hidden: int, split: Split) -> Piece:
    """Out of the parallel region: partial sums added forward, or scattered forward and gathered backward."""
    elements = split.rows * hidden
    size = elements * split.width
    if split.tp == 1:
        return Piece()
    if split.sequence_parallel:
        return Piece(
            collectives=(
                _collective("reduce_scatter", name, size, "forward", split.tp),
                _collective("all_gather", name, round(elements * split.gathered_gradient_width), "backward", split.tp),
            ),
            temporary_bytes=size,
        )
    return all_reduce(name, size, split)


def activation_pass(name: str, spec: FeedForward, elements: int, split: Split) -> Piece:
    """The nonlinearity over `elements` outputs, with the bias before it where a framework's product adds none; keeps
    its input (twice as wide where gated), ReLU's its output's sign with the next product's input. A square after ReLU
    is one more kernel in the zoo."""
    inputs = 2 if spec.gated else 1
    fused, biased = split.kernels == "fused" and split.fused_gate, spec.bias and not split.zoo
    own_input = not (spec.activation == "relu" and (split.zoo or not spec.gated))
    saved = elements * (inputs - (0 if own_input else 1)) * (1 if split.narrow_activations else split.width)
    if fused or not spec.gated:
        forward, backward, kernels = inputs + 1.0, 2.0 * inputs + 1.0, 1
    else:
        # silu, then a product: the middle result is kept too.
        forward, backward, kernels = 5.0, 9.0, 2
        saved += elements * split.width
    return memory_pass(
        name,
        elements,
        split,
        forward=forward + (2.0 if biased and not fused else 0.0),
        backward=backward + (1.0 if biased else 0.0),
        saved_bytes=saved,
        forward_kernels=kernels,
        backward_kernels=kernels + int(biased),
    )


def refuse_sizes(name: str, *sizes: tuple[str, int, str, int]) -> Infeasible | None:
    """The first of `sizes` (what, how many, the degree's name, the degree) that its degree does not divide."""
    for what, size, axis, degree in sizes:
        if size % degree:
            return Infeasible(reason=f"{name}: {axis}={degree} does not divide {size} {what}", lacking="divisibility")
    return None


def refuse_tokens(name: str, split: Split) -> Infeasible | None:
    """Why the tokens of a sample cannot be shared as `split` has it."""
    sizes: list[tuple[str, int, str, int]] = []
    if split.cp > 1:
        what = "tokens per sample under context parallelism (two parts a rank)"
        sizes.append((what, split.seq_len, "2 * cp", 2 * split.cp))
    if split.sequence_parallel:
        axis = "tp" if split.cp == 1 else "tp * cp"
        sizes.append(("tokens per sample under sequence parallelism", split.seq_len, axis, split.tp * split.cp))
    return refuse_sizes(name, *sizes)


def refuse_tokenless(name: str, split: Split) -> Infeasible | None:
    """Why a layer without tokens or experts of its own cannot be held as `split` has it."""
    if split.cp > 1 or split.ep > 1:
        return Infeasible(reason=f"{name} knows no context or expert parallelism", lacking="support")
    return None
