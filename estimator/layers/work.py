"""A rank's work in a layer of an explicit plan: its description under recomputation, frozen weights, adapters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby

from estimator.layers.kind import LayerKind
from estimator.layers.kinds import KINDS
from estimator.layers.parts import Piece
from estimator.layers.recomputing import Again, computed_again
from estimator.layers.split import Split, Work
from models_zoo.layers import Layer, experts_of
from profiles.records import replace
from profiles.vocabulary import Infeasible, Operator


@lru_cache(maxsize=16384)
def refuse_layer(layer: Layer, split: Split) -> Infeasible | None:
    """Return why `layer` cannot be held as `split`, None where it can: the one place that says which degrees a layer
    can have. Of `split` the degrees, tokens per sample and sequence parallelism count."""
    return KINDS[type(layer)].refuse(layer, split)


def refuse_layers(layers: Sequence[Layer], split: Split) -> Infeasible | None:
    """Return why the first of `layers` that cannot be held as `split` cannot (`refuse_layer`), None where all can. Of
    layers that are one again and again the first is asked."""
    return next((refused for layer, _ in groupby(layers) if (refused := refuse_layer(layer, split))), None)


@lru_cache(maxsize=16384)
def layer_work(layer: Layer, split: Split) -> Work | Infeasible:
    """Return the work of `layer` for one micro-batch on one rank; Infeasible as `refuse_layer` says."""
    refused = refuse_layer(layer, split)
    counting = counting_split(layer, split)
    return refused or (_work if counting is split else layer_work)(layer, counting)


def _work(layer: Layer, split: Split) -> Work:
    return _finish(_piece(layer, replace(split, recompute="none")), KINDS[type(layer)], split)


def counting_split(layer: Layer, split: Split) -> Split:
    """Return what of `split` counts for the work of `layer`, which can be held so: of one without experts not how
    these are shared."""
    return split if split.ep == split.etp == 1 or experts_of(layer) else undivided(split)


@lru_cache(maxsize=4096)
def undivided(split: Split) -> Split:
    """Return `split` with all experts on every rank."""
    return replace(split, ep=1, etp=1)


@lru_cache(maxsize=4096)
def _piece(layer: Layer, split: Split) -> Piece:
    """What the layer is put together from, whatever of it runs again."""
    return KINDS[type(layer)].piece(layer, split)


def _finish(piece: Piece, kind: LayerKind, split: Split) -> Work:
    """The layer's pieces as one rank's work under the split's recomputation and training of weights."""
    full = split.recompute == "full" and not kind.is_end
    operators = tuple(_frozen(op, split) for op in piece.operators) if split.frozen else piece.operators
    if split.wide:
        operators = tuple(replace(op, wide=True) for op in operators)
    # Where neither this layer nor one before it learns, backward never comes here.
    ends_here = split.frozen and not split.lora_rank and not split.passes_gradient
    again = Again() if ends_here else computed_again(piece, operators, split, is_end=kind.is_end)
    forward = tuple(collective for collective in piece.collectives if collective.phase == "forward")
    saved = 0 if ends_here else piece.saved_bytes - again.freed_bytes
    learning = 0 if split.frozen else piece.parameters
    learning_experts = 0 if split.frozen else piece.expert_parameters
    if split.lora_rank:
        learning, learning_experts = piece.adapter_parameters, 0
    return Work(
        operators=operators,
        again=again.operators,
        collectives=forward if ends_here else piece.collectives,
        again_collectives=again.collectives,
        runs_again=full and not ends_here,
        parameters=piece.parameters + (piece.adapter_parameters if split.lora_rank else 0),
        expert_parameters=piece.expert_parameters,
        trainable_parameters=learning,
        trainable_expert_parameters=learning_experts,
        vectors=piece.vectors,
        partial_gradients=() if split.frozen else piece.partial_gradients,
        frozen=split.frozen,
        wide=split.wide,
        is_end=kind.is_end,
        saved_bytes=saved,
        temporary_bytes=piece.temporary_bytes + (piece.saved_bytes if full else again.freed_bytes),
        input_bytes=piece.input_bytes,
        output_bytes=piece.output_bytes,
    )


def _frozen(op: Operator, split: Split) -> Operator:
    """`op` without its weight's gradient: that of the input alone, or nothing where nothing before it learns."""
    if not split.passes_gradient and not split.lora_rank:
        return replace(op, backward_flops=0, backward_bytes=0, backward_kernels=0, saved_bytes=0)
    if op.kind not in ("gemm", "grouped_gemm", "conv") or ".lora_" in op.name:
        return op
    return replace(op, backward_flops=op.forward_flops, backward_bytes=op.backward_bytes // 2, backward_kernels=1)
