"""Linear attention in attention's place: projections, causal convolution, the scan in chunks, gate and norm.

Mamba-2 (Dao & Gu 2024, section 6) and the gated delta rule (Yang et al. 2024, section 3.3), as products of chunks.
Convolution, scan, and gated norm keep their inputs alone and run again in backward, as mamba-ssm's and
flash-linear-attention's kernels and the zoo's modules do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from estimator.layers.kind import Branch, BranchKind, Place
from estimator.layers.operators import batched_gemm
from estimator.layers.parts import Piece, copied, gradient_sum, held, join, linear, memory_pass
from estimator.layers.split import Split
from models_zoo.layers import LinearAttention, TransformerBlock
from profiles.vocabulary import Infeasible, Operator


def _refuse(spec: LinearAttention, split: Split, place: Place) -> Infeasible | None:
    """Heads, groups and the norm's elements split by tp; the state passes along whole samples."""
    if split.cp > 1:
        return Infeasible(
            reason=f"{place.name}: linear attention passes its state along a whole sample, which cp={split.cp} cuts",
            lacking="support",
        )
    reason = spec.refuses(split.tp)
    return Infeasible(reason=f"{place.name}: {reason}", lacking="divisibility") if reason else None


def _branch(block: TransformerBlock, spec: LinearAttention, split: Split, place: Place) -> Branch:
    name, inner = place.name, spec.heads // split.tp * spec.value_dim
    pieces = (
        *_projections(name, block.hidden, spec, split),
        _convolution(name, spec, split),
        _scan(name, spec, split),
        _gated_norm(name, spec, split),
        linear(f"{name}.output", rows=split.rows, n=block.hidden, k=inner, split=split),
    )
    return Branch(piece=join(pieces))


LINEAR_ATTENTION = BranchKind(refuse=_refuse, branch=_branch)


def _columns(spec: LinearAttention, split: Split) -> dict[str, int]:
    """This rank's columns of each projection; groups fewer than the ranks are held by several of them."""
    local = {part: columns // split.tp for part, columns in spec.columns}
    local["query"] = local["key"] = max(1, spec.groups // split.tp) * spec.key_dim
    return local | {"gate": local["value"]} | dict.fromkeys(spec.rates, spec.heads // split.tp)


def _copies(part: str, spec: LinearAttention, split: Split) -> int | None:
    """How many ranks hold alike what makes queries and keys; None where each rank has its own."""
    return split.tp // spec.groups if part in ("query", "key") and split.tp > spec.groups else None


def _projections(name: str, hidden: int, spec: LinearAttention, split: Split) -> Iterator[Piece]:
    """From the branch's input to what the convolution, the gate and the scan take: one product, in the zoo several."""
    columns = _columns(spec, split)
    rows = split.rows
    if not split.zoo:
        yield linear(f"{name}.in", rows=rows, n=sum(columns.values()), k=hidden, split=split, input_outside=True)
        yield join(copied(n * hidden, _copies(part, spec, split)) for part, n in columns.items())
    else:
        for number, (part, n) in enumerate(columns.items()):
            yield linear(
                f"{name}.{part}",
                rows=rows,
                n=n,
                k=hidden,
                split=split,
                saves_input=number == 0,
                gradient_ranks=_copies(part, spec, split),
            )
        yield gradient_sum(f"{name}.input", rows * hidden, split, consumers=len(columns))


def _convolution(name: str, spec: LinearAttention, split: Split) -> Piece:
    """Of each channel over `kernel` tokens, and SiLU: one kernel, or a product and a sum for each token of it."""
    columns, taps, biased = _columns(spec, split), spec.kernel, int(spec.convolution_bias)
    elements = split.rows * sum(columns[part] for part, _ in spec.columns)
    fused = split.kernels == "fused"
    forward = 2.0 if fused else 4.0 + 2 * taps + 3 * (taps - 1) + 2 * biased
    mixed = memory_pass(
        f"{name}.convolution",
        elements,
        split,
        forward=forward,
        backward=3.0 if fused else forward + 3.0 + 9.0 * taps + biased,
        # What goes in is kept here, what comes out by the scan.
        saved_bytes=2 * elements * split.width,
        forward_kernels=1 if fused else 2 + 2 * taps + biased,
        backward_kernels=2 if fused else 4 + 7 * taps + 2 * biased,
    )
    weights = [held(columns[part] * (taps + biased), _copies(part, spec, split)) for part, _ in spec.columns]
    return join((mixed, *weights))


def _scan(name: str, spec: LinearAttention, split: Split) -> Piece:
    """Products within chunks, of chunks with states, and between them; decays are elementwise around them."""
    chunk = min(spec.chunk, split.seq_len)
    chunks = -(-split.seq_len // chunk)
    heads = spec.heads // split.tp
    products = _state_space if spec.rule == "state_space" else _delta_rule
    fused = split.kernels == "fused"
    square = split.samples * chunks * heads * chunk * chunk
    decays = memory_pass(
        f"{name}.decays",
        split.rows * heads if fused else square,
        split,
        forward=6.0 if fused else 12.0,
        backward=12.0 if fused else 30.0,
        saved_bytes=split.rows * heads * len(spec.rates) * split.width,
        forward_kernels=2 if fused else 12,
        backward_kernels=2 if fused else 30,
    )
    weights = heads * (3 if spec.rule == "state_space" else 2)
    operators = tuple(products(name, spec, split, heads, chunk, chunks))
    return join((decays, Piece(operators=operators, parameters=weights)))


def _product(name: str, split: Split, groups: int, m: int, n: int, k: int) -> Iterator[Operator]:
    """A product of activations that runs again in backward, before those of its two gradients."""
    if groups:
        once = batched_gemm(name, groups=groups, m=m, n=n, k=k, width=split.width, saved_bytes=0)
        yield replace(
            once,
            backward_flops=3 * once.forward_flops,
            backward_bytes=3 * once.forward_bytes,
            backward_kernels=3,
        )


def _state_space(
    name: str, spec: LinearAttention, split: Split, heads: int, chunk: int, chunks: int
) -> Iterator[Operator]:
    """Scores, what they mix, states of chunks, states from chunk to chunk, and what later chunks see of them."""
    samples, later, n, p = split.samples, chunks - 1, spec.key_dim, spec.value_dim
    groups = max(1, spec.groups // split.tp)
    yield from _product(f"{name}.scores", split, samples * chunks * groups, chunk, chunk, n)
    yield from _product(f"{name}.within", split, samples * chunks * heads, chunk, p, chunk)
    yield from _product(f"{name}.states", split, samples * later * heads, n, p, chunk)
    yield from _product(f"{name}.across", split, samples * heads * min(1, later), later, n * p, later)
    yield from _product(f"{name}.seen", split, samples * later * heads, chunk, p, n)


def _delta_rule(
    name: str, spec: LinearAttention, split: Split, heads: int, chunk: int, chunks: int
) -> Iterator[Operator]:
    """As the state space's, with the triangular system of each chunk and what its solution writes and erases."""
    samples, later, n, p = split.samples, chunks - 1, spec.key_dim, spec.value_dim
    groups, squares = max(1, spec.groups // split.tp), samples * chunks * heads
    yield from _product(f"{name}.scores", split, samples * chunks * groups, chunk, chunk, n)
    yield from _product(f"{name}.overlap", split, samples * chunks * groups, chunk, chunk, n)
    # The solution is no product (twice: backward runs it again, and one for its gradient), its gradient has one.
    bytes_moved = 4 * squares * chunk * chunk
    yield Operator(
        name=f"{name}.solve",
        kind="batched_gemm",
        shape=(squares, chunk, chunk, chunk),
        backward_flops=2 * squares * chunk**3,
        forward_bytes=2 * bytes_moved,
        backward_bytes=7 * bytes_moved,
        backward_kernels=3,
    )
    yield from _product(f"{name}.sources", split, squares, chunk, n + p, chunk)
    yield from _product(f"{name}.within", split, squares, chunk, p, chunk)
    yield from _product(f"{name}.states", split, samples * later * heads, n, p, chunk)
    yield from _product(f"{name}.erased", split, samples * later * heads, chunk, p, n)
    yield from _product(f"{name}.seen", split, samples * later * heads, chunk, p, n)


def _gated_norm(name: str, spec: LinearAttention, split: Split) -> Piece:
    """Norm and gate in one kernel, or one each; keeps the scan's result and the gate's projection."""
    inner = spec.heads // split.tp * spec.value_dim
    fused = split.kernels == "fused"
    normed = memory_pass(
        f"{name}.gated_norm",
        split.rows * inner,
        split,
        forward=3.0 if fused else 14.0,
        backward=5.0 if fused else 40.0,
        saved_bytes=2 * split.rows * inner * split.width,
        forward_kernels=1 if fused else 8,
        backward_kernels=2 if fused else 24,
    )
    shared = spec.rule == "delta"
    return join((normed, held(spec.value_dim if shared else inner, split.tp if shared else None)))
