"""What each layer cut out of a traced function computes, holds, keeps and passes on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from jax.extend.core import Literal, Var

from estimator.frontends.jax_cut import Cut, crossing
from estimator.frontends.jax_equations import variables
from estimator.frontends.jax_kernels import Kept, kernels_of, messages_of
from estimator.frontends.jax_products import type_text, wired_text
from estimator.frontends.jax_program import Held, Program
from estimator.frontends.sizes import Size
from estimator.frontends.traced import LayerTrace, keeping_layer


def indices_of(program: Program, cut: Cut) -> tuple[int, ...]:
    """The equations that layer `cut` does, in order: the chain's, and all others that they need."""
    first, end = cut
    chosen = set(program.chain[first:end])
    waiting = [atom for index in chosen for atom in program.eqns[index].invars]
    if end == len(program.chain):
        waiting += program.outputs
    while waiting:
        atom = waiting.pop()
        if isinstance(atom, Literal) or atom not in program.makers:
            continue
        index = program.makers[atom]
        if index not in chosen and not program.in_chain[index]:
            chosen.add(index)
            waiting += program.eqns[index].invars
    return tuple(sorted(chosen))


def trace_layers(program: Program, cuts: Sequence[Cut], *, ranks: int) -> tuple[LayerTrace, ...]:
    """Return what each layer does on one of `ranks` ranks, and holds, keeps and passes on.

    A value crosses a cut if it is made by the chain before it and read after it. Inputs and what depends on them alone
    do not: each stage can read its batch. What enters and leaves at the ends are the function's own inputs and outputs.
    """
    all_indices = [indices_of(program, cut) for cut in cuts]
    kept = _kept(program, all_indices)
    edges = _edges(program, cuts)
    held = _held_weights(program, cuts)
    spans = crossing(program)
    layers = []
    for number, (indices, (_, end)) in enumerate(zip(all_indices, cuts, strict=True)):
        leaving = frozenset(span.var for span in spans if span.made < end <= span.last)
        messages = messages_of(program, indices) if ranks > 1 else []
        layers.append(
            LayerTrace(
                kernels=kernels_of(program, indices, kept[number], leaving),
                collectives=tuple(
                    (message.op, program.size_of(message.elements, message.dtype), phase, "")
                    for message, phase in messages
                ),
                weights=tuple((weights, weights.count, weights.replicated) for weights in held[number]),
                entering=edges[number],
                leaving=edges[number + 1],
            )
        )
    return tuple(layers)


def layer_texts(program: Program, cuts: Sequence[Cut]) -> tuple[str, ...]:
    """A digest of each layer's equations, their types and how they hang together; equal layers have equal ones."""
    texts = []
    for cut in cuts:
        numbers: dict[Any, int] = {}
        text = "|".join(wired_text(program.eqns[index], numbers, type_text) for index in indices_of(program, cut))
        texts.append(hashlib.sha256(text.encode()).hexdigest())
    return tuple(texts)


def _held_weights(program: Program, cuts: Sequence[Cut]) -> list[list[Held]]:
    """The trained weights that each layer reads, in order; leaves that nothing reads go to the first layer."""
    weights_by_layer: list[list[Held]] = []
    for cut in cuts:
        indices = indices_of(program, cut)
        read = dict.fromkeys(atom for index in indices for atom in variables(program.eqns[index].invars))
        weights_by_layer.append([program.weights[atom] for atom in read if atom in program.weights])
    seen = {leaf_or_slice.leaf for held in weights_by_layer for leaf_or_slice in held}
    weights_by_layer[0] += [leaf for leaf in program.leaves if leaf.leaf not in seen]
    return [
        [leaf_or_slice for leaf_or_slice in dict.fromkeys(held) if leaf_or_slice.trained] for held in weights_by_layer
    ]


def _edges(program: Program, cuts: Sequence[Cut]) -> list[Size]:
    """What enters the first layer, crosses each cut, and leaves the last layer."""
    spans = crossing(program)

    def total(types: Iterable[Any]) -> Size:
        return sum(map(program.size, types), Size())

    between = [total(s.var.aval for s in spans if s.made < first <= s.last) for first, _ in cuts[1:]]
    return [total(var.aval for var in program.inputs), *between, total(atom.aval for atom in program.outputs)]


def _kept(program: Program, all_indices: Sequence[Sequence[int]]) -> list[Kept]:
    """What each layer keeps for backward. Neither weights and what is made of them alone, nor constants.

    A value of the chain counts once (see `keeping_layer`); what depends on inputs alone each layer has for itself.
    """
    kept_by_layer = [_made_for_backward(program, indices) for indices in all_indices]
    homes = {index: number for number, indices in enumerate(all_indices) for index in indices}
    for var, by_layer in _keepers(program, all_indices).items():
        numbers = list(by_layer)
        maker = program.makers.get(var)
        if maker is not None and program.in_chain[maker]:
            numbers = [keeping_layer(homes[maker], numbers)]
        for number in numbers:
            index = by_layer[number] if number in by_layer else program.makers[var]
            kept_by_layer[number].setdefault(index, []).append((var, program.size(var.aval)))
    return kept_by_layer


def _made_for_backward(program: Program, indices: Sequence[int]) -> Kept:
    """What each of the equations `indices` of a layer makes for backward alone."""
    kept: Kept = {}
    for index in indices:
        new = program.gradients[index].kept_new
        if new and any(program.root(var) in program.of_inputs for var in program.eqns[index].outvars):
            kept[index] = [(None, program.size_of(elements, dtype)) for elements, dtype in new]
    return kept


def _keepers(program: Program, all_indices: Sequence[Sequence[int]]) -> dict[Var, dict[int, int]]:
    """Which values backward needs again: by layer, the first equation of it that keeps one."""
    keepers: dict[Var, dict[int, int]] = {}
    for number, indices in enumerate(all_indices):
        for index in indices:
            eqn, gradient = program.eqns[index], program.gradients[index]
            for atom in [eqn.invars[at] for at in gradient.kept_read] + [eqn.outvars[at] for at in gradient.kept_made]:
                root = program.root(atom)
                if root is not None and root in program.of_inputs:
                    keepers.setdefault(root, {}).setdefault(number, index)
    return keepers
