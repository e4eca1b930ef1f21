"""What a layer's work is put together from: matrix products, passes over memory, and tensor-parallel edges."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from estimator.layers.operators import gemm
from estimator.layers.split import Split
from models_zoo.layers import FeedForward, Norm
from profiles.vocabulary import Collective, CollectiveOp, Operator, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Part of a layer's work; `join` adds pieces up.

    `core` are the operators that selective recomputation runs again (attention's inner part) and `core_saved_bytes`
    what it then need not keep. `adapter_parameters`: what a LoRA adapter of the split's rank would add.
    """

    operators: tuple[Operator, ...] = ()
    core: tuple[Operator, ...] = ()
    collectives: tuple[Collective, ...] = ()
    parameters: int = 0
    expert_parameters: int = 0
    adapter_parameters: int = 0
    saved_bytes: int = 0
    core_saved_bytes: int = 0
    temporary_bytes: int = 0


def join(pieces: Iterable[Piece]) -> Piece:
    """One piece of several, in their order; temporary bytes are the largest piece's."""
    pieces = tuple(pieces)
    return Piece(
        operators=tuple(op for piece in pieces for op in piece.operators),
        core=tuple(op for piece in pieces for op in piece.core),
        collectives=tuple(one for piece in pieces for one in piece.collectives),
        parameters=sum(piece.parameters for piece in pieces),
        expert_parameters=sum(piece.expert_parameters for piece in pieces),
        adapter_parameters=sum(piece.adapter_parameters for piece in pieces),
        saved_bytes=sum(piece.saved_bytes for piece in pieces),
        core_saved_bytes=sum(piece.core_saved_bytes for piece in pieces),
        temporary_bytes=max((piece.temporary_bytes for piece in pieces), default=0),
    )


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
) -> Piece:
    """A (k, n) weight of this rank's and its product with `rows` rows.

    `input_outside`: the input is the tensor outside the parallel region, kept as this rank's slice under sequence
    parallelism (and gathered once more in backward, Korthikanti et al. 2022, section 4.2.2).
    """
    kept = (split.local_rows if input_outside and split.sequence_parallel else rows) * k * split.width
    product = gemm(
        name, m=rows, n=n, k=k, width=split.width, bias=bias, input_grad=split.passes_gradient, saves_input=saves_input
    )
    again: tuple[Collective, ...] = ()
    learns = bool(split.lora_rank) or not split.frozen
    if input_outside and split.sequence_parallel and split.tp > 1 and learns:
        again = (_collective("all_gather", f"{name}.input", rows * k * split.width, "backward", split.tp),)
    if not learns:
        product = replace(product, saved_bytes=0)
    piece = Piece(
        operators=(product,),
        collectives=again,
        parameters=n * (k + int(bias)),
        saved_bytes=kept if saves_input and learns else 0,
    )
    return join((piece, _adapter(name, rows=rows, n=n, k=k, split=split))) if split.lora_rank else piece


def _adapter(name: str, *, rows: int, n: int, k: int, split: Split) -> Piece:
    """A LoRA adapter beside a frozen weight: down to its rank and up again, added to the product (Hu et al. 2021)."""
    rank, width = split.lora_rank, split.width
    down = gemm(f"{name}.lora_down", m=rows, n=rank, k=k, width=width, saves_input=False)
    up = gemm(f"{name}.lora_up", m=rows, n=n, k=rank, width=width)
    add = memory_pass(f"{name}.lora_add", rows * n, split, forward=3.0, backward=1.0)
    piece = Piece(operators=(down, up), adapter_parameters=rank * (n + k), saved_bytes=rows * rank * width)
    return join((piece, add))


def whole_linear(name: str, *, rows: int, n: int, k: int, split: Split, bias: bool = False) -> Piece:
    """A weight that every tensor-parallel rank holds whole, applied outside the parallel region."""
    product = gemm(name, m=rows, n=n, k=k, width=split.width, bias=bias)
    return Piece(
        operators=(product,),
        parameters=n * (k + int(bias)),
        saved_bytes=rows * k * split.width,
    )


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
    operator = Operator(
        name=name,
        kind="memory",
        shape=(elements,),
        forward_bytes=round(forward * elements * split.width) + extra_bytes,
        backward_bytes=round(backward * elements * split.width) + extra_bytes,
        saved_bytes=saved_bytes,
        forward_kernels=forward_kernels,
        backward_kernels=backward_kernels,
    )
    return Piece(operators=(operator,), saved_bytes=saved_bytes, temporary_bytes=temporary_bytes)


def norm(name: str, kind: Norm, *, rows: int, size: int, split: Split, bias: bool = True) -> Piece:
    """A norm over `size` elements of `rows` rows in one kernel; keeps its input and fp32 statistics."""
    layernorm = kind == "layernorm"
    piece = memory_pass(
        name,
        rows * size,
        split,
        forward=2.0,
        backward=4.0,
        saved_bytes=rows * size * split.width + (8 if layernorm else 4) * rows,
        backward_kernels=2,
    )
    return join((piece, Piece(parameters=size * (1 + int(layernorm and bias)))))


def _collective(op: CollectiveOp, name: str, size_bytes: int, phase: Phase, ranks: int) -> Collective:
    return Collective(op=op, bytes=size_bytes, phase=phase, axis="tp", ranks=ranks, name=name)


def all_reduce(name: str, size_bytes: int, split: Split, *, phase: Phase = "forward") -> Piece:
    """A sum or maximum over the tensor-parallel ranks; nothing where there is one."""
    if split.tp == 1:
        return Piece()
    return Piece(collectives=(_collective("all_reduce", name, size_bytes, phase, split.tp),))


def enter(name: str, hidden: int, split: Split) -> Piece:
    """Into the parallel region: the gradient is summed in backward, or tokens gathered forward, scattered backward."""
    size = split.rows * hidden * split.width
    if split.tp == 1:
        return Piece()
    if split.sequence_parallel:
        return Piece(
            collectives=(
                _collective("all_gather", name, size, "forward", split.tp),
                _collective("reduce_scatter", name, size, "backward", split.tp),
            ),
            temporary_bytes=size,
        )
    return all_reduce(name, size, split, phase="backward")


def leave(name: str, hidden: int, split: Split) -> Piece:
    """Out of the parallel region: partial sums added forward, or scattered forward and gathered backward."""
    size = split.rows * hidden * split.width
    if split.tp == 1:
        return Piece()
    if split.sequence_parallel:
        return Piece(
            collectives=(
                _collective("reduce_scatter", name, size, "forward", split.tp),
                _collective("all_gather", name, size, "backward", split.tp),
            ),
            temporary_bytes=size,
        )
    return all_reduce(name, size, split)


def activation_pass(name: str, spec: FeedForward, elements: int, split: Split) -> Piece:
    """The nonlinearity over `elements` outputs; keeps its input (twice as wide where gated), ReLU's its output's sign
    with the next product's input."""
    inputs = 2 if spec.gated else 1
    fused = split.kernels == "fused"
    saved = 0 if spec.activation == "relu" and not spec.gated else elements * inputs * split.width
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
        forward=forward + (2.0 if spec.bias and not fused else 0.0),
        backward=backward + (1.0 if spec.bias else 0.0),
        saved_bytes=saved,
        forward_kernels=kernels,
        backward_kernels=kernels + int(spec.bias),
    )
