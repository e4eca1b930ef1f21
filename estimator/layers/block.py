"""A transformer block: branches, each with norm(s), tensor-parallel edges, and bias, dropout and residual.

What a block keeps for backward follows Korthikanti et al. 2022 (section 4, equations 1 to 4): without parallelism
s b h (34 + 5 a s / h) bytes in 16 bits, of which 24 are split by tp and the other 10 by sequence parallelism;
`selective` recomputation drops the quadratic part (section 5). Norms, biases, activations, dropout and residuals are
single passes over memory where `kernels` is fused, one kernel each where it is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from estimator.layers.kind import Branch, BranchKind, Place
from estimator.layers.parts import (
    Piece,
    enter,
    gradient_sum,
    held,
    join,
    leave,
    memory_pass,
    norm,
    refuse_tokens,
)
from estimator.layers.split import Split
from models_zoo.layers import Attention, Experts, TransformerBlock
from profiles.records import replace
from profiles.vocabulary import Infeasible

Branches = Mapping[type, BranchKind]


def refuse_block(layer: TransformerBlock, split: Split, *, branches: Branches) -> Infeasible | None:
    """The first degree that a branch or the tokens of a sample cannot have, or a combination that nobody runs: a
    parallel residual that is post-norm, sandwich-norm or has cross-attention."""
    halved = layer.attention is None or layer.feed_forward is None
    if layer.parallel and (layer.placement != "pre" or layer.cross_attention or halved):
        return Infeasible(
            reason=f"block: a parallel residual with placement={layer.placement!r} and"
            f" cross_attention={layer.cross_attention is not None}; only pre-norm self-attention with a"
            " feed-forward is supported",
            lacking="support",
        )
    for place, spec in _places(layer):
        refused = branches[type(spec)].refuse(spec, split, place)
        if refused:
            return refused
    return refuse_tokens("block", split)


def block_piece(layer: TransformerBlock, split: Split, *, branches: Branches) -> Piece:
    """The block from its input to its output, activations (samples, tokens, hidden) of the tokens outside the
    tensor-parallel region. A decoder's encoder memory, of the same shape, is not in `input_bytes`."""
    described = {
        place.name: _branch(branches[type(spec)], layer, spec, _adapted(split, spec), place)
        for place, spec in _places(layer)
    }
    boundary = split.local_rows * layer.hidden * split.width
    pieces = (_parallel if layer.parallel else _sequential)(layer, split, described)
    return replace(join(pieces), input_bytes=boundary, output_bytes=boundary)


@lru_cache(maxsize=4096)
def _branch(kind: BranchKind, layer: TransformerBlock, spec: object, split: Split, place: Place) -> Branch:
    return kind.branch(layer, spec, split, place)


def _adapted(split: Split, spec: object) -> Split:
    """What of `split` counts for `spec`: no adapters where they stand beside attention's projections alone and it is
    none of these, no sharing of experts where it has none."""
    if split.lora_rank and split.lora_targets != "all" and not isinstance(spec, Attention):
        split = replace(split, lora_rank=0)
    if (split.ep > 1 or split.etp > 1) and not isinstance(spec, Experts):
        return replace(split, ep=1, etp=1)
    return split


def _places(layer: TransformerBlock) -> list[tuple[Place, Any]]:
    """The block's branches, each with its specification, in order; of a hybrid's block one may be missing."""
    places = (
        (Place(name="attention"), layer.attention),
        (Place(name="cross_attention", memory=True), layer.cross_attention),
        (Place(name="mlp", shared_input=layer.parallel and layer.shared_norm), layer.feed_forward),
    )
    return [(place, spec) for place, spec in places if spec is not None]


def _sequential(layer: TransformerBlock, split: Split, described: Mapping[str, Branch]) -> list[Piece]:
    """Branches one after the other, each with a residual of its own."""
    hidden = layer.hidden
    norms = 2 if layer.placement == "sandwich" else 1
    pieces: list[Piece] = []
    for name, branch in described.items():
        pieces += [_norm(layer, name, split)] * norms
        pieces += [enter(f"{name}.enter", hidden, split)] if branch.enters else []
        pieces.append(branch.piece)
        pieces += [leave(f"{name}.leave", hidden, split)] if branch.leaves else []
        pieces.append(_residual(name, split.local_rows * hidden, split, biased=branch.biased, dropped=layer.dropout))
        pieces += [held(hidden, split.outside_ranks)] if branch.biased else []
    return pieces


def _parallel(layer: TransformerBlock, split: Split, described: Mapping[str, Branch]) -> list[Piece]:
    """Branches from the same input (PaLM, section 2), whose partial results are added before one way out; with a shared
    norm they share one way in too."""
    hidden = layer.hidden
    pieces: list[Piece] = []
    for number, (name, branch) in enumerate(described.items()):
        if number == 0 or not layer.shared_norm:
            pieces.append(_norm(layer, name, split, input_kept=number > 0 and split.zoo))
            pieces += [enter(f"{name}.enter", hidden, split)] if branch.enters else []
        pieces.append(branch.piece)
        pieces += [held(hidden, split.outside_ranks)] if branch.biased else []
    rows = split.rows if layer.shared_norm else split.local_rows
    pieces += [
        gradient_sum("block.input", rows * hidden, split, consumers=len(described)),
        memory_pass("block.branches", split.rows * hidden, split, forward=3.0, backward=0.0 if split.zoo else 2.0),
    ]
    pieces += [leave("block.leave", hidden, split)] if any(branch.leaves for branch in described.values()) else []
    biased = any(branch.biased for branch in described.values())
    pieces.append(_residual("block", split.local_rows * hidden, split, biased=biased, dropped=layer.dropout))
    return pieces


def _norm(layer: TransformerBlock, name: str, split: Split, *, input_kept: bool = False) -> Piece:
    return norm(
        f"{name}.norm",
        layer.norm,
        rows=split.local_rows,
        size=layer.hidden,
        split=split,
        gradient_ranks=split.outside_ranks,
        bias=layer.norm_bias,
        input_bytes=0 if input_kept else None,
    )


def _residual(name: str, elements: int, split: Split, *, biased: bool, dropped: bool) -> Piece:
    """Bias, dropout and residual in one kernel (fused), or one each; the mask is a byte an element."""
    mask = elements if dropped else 0
    if split.kernels == "fused":
        # Forward: read the branch and the residual, write the sum; backward: the branch's gradient by the mask, the
        # sum of both branches' gradients where the norm's backward adds to it.
        return memory_pass(
            f"{name}.residual",
            elements,
            split,
            forward=3.0,
            backward=(2.0 if dropped else 0.0) + 3.0,
            extra_bytes=mask,
            saved_bytes=mask,
            forward_kernels=1,
            backward_kernels=2 if dropped else 1,
        )
    kernels = 1 + int(biased) + int(dropped)
    return memory_pass(
        f"{name}.residual",
        elements,
        split,
        forward=3.0 + 2.0 * (kernels - 1),
        backward=3.0 + (2.0 if dropped else 0.0) + (1.0 if biased else 0.0),
        extra_bytes=mask,
        saved_bytes=mask,
        forward_kernels=kernels,
        backward_kernels=kernels + 1,
    )
