"""What each layer cut out of a traced function computes, holds, keeps and passes on."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from jax.extend.core import Literal, Var

from estimator.frontends.jax_cut import Cut, crossing
from estimator.frontends.jax_kernels import Kept, Kernel, kernels_of, messages_of
from estimator.frontends.jax_products import type_text, wired_text
from estimator.frontends.jax_program import Held, Program
from estimator.frontends.sizes import Size
from models_zoo.layers import SharedWeights
from profiles.vocabulary import Collective, LocalLayer, Operator


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


def local_layers(
    program: Program, cuts: Sequence[Cut], *, ranks: int, widths: tuple[int, ...]
) -> tuple[tuple[LocalLayer, ...], ...]:
    """Each layer's part on one of `ranks` ranks, at each of `widths` bytes to an element of the function's own dtype.

    A value crosses a cut if it is made by the chain before it and read after it. Inputs and what depends on them alone
    do not: each stage can read its batch. `input_bytes` and `output_bytes` are what crosses, and at the ends the
    function's own inputs and outputs.
    """
    all_indices = [indices_of(program, cut) for cut in cuts]
    kept = _kept(program, all_indices)
    edges = _edges(program, cuts)
    held = held_weights(program, cuts)

    def at(number: int, width: int, kernels: tuple[Kernel, ...]) -> LocalLayer:
        return LocalLayer(
            operators=tuple(_operator(kernel, width) for kernel in kernels),
            collectives=tuple(
                Collective(
                    op=message.op,
                    bytes=program.size_of(message.elements, message.dtype).at(width),
                    phase="backward" if backward else "forward",
                    ranks=ranks,
                )
                for message, backward in messages_of(program, all_indices[number])
                if ranks > 1
            ),
            parameters=sum(weights.count for weights in held[number]),
            replicated_parameters=sum(weights.count for weights in held[number] if ranks > 1 and weights.replicated),
            input_bytes=edges[number].at(width),
            output_bytes=edges[number + 1].at(width),
        )

    layers = []
    spans = crossing(program)
    for number, (indices, (_, end)) in enumerate(zip(all_indices, cuts, strict=True)):
        leaving = frozenset(span.var for span in spans if span.made < end <= span.last)
        kernels = kernels_of(program, indices, kept[number], leaving)
        layers.append(tuple(at(number, width, kernels) for width in widths))
    return tuple(layers)


def layer_texts(program: Program, cuts: Sequence[Cut]) -> tuple[str, ...]:
    """A digest of each layer's equations, their types and how they hang together; equal layers have equal ones."""
    texts = []
    for cut in cuts:
        numbers: dict[Any, int] = {}
        text = "|".join(wired_text(program.eqns[index], numbers, type_text) for index in indices_of(program, cut))
        texts.append(hashlib.sha256(text.encode()).hexdigest())
    return tuple(texts)


def held_weights(program: Program, cuts: Sequence[Cut]) -> list[list[Held]]:
    """The trained weights that each layer reads, in order; leaves that nothing reads go to the first layer."""
    weights_by_layer: list[list[Held]] = []
    for cut in cuts:
        indices = indices_of(program, cut)
        read = dict.fromkeys(
            atom for index in indices for atom in program.eqns[index].invars if not isinstance(atom, Literal)
        )
        weights_by_layer.append([program.weights[atom] for atom in read if atom in program.weights])
    seen = {leaf_or_slice.leaf for held in weights_by_layer for leaf_or_slice in held}
    weights_by_layer[0] += [leaf for leaf in program.leaves if leaf.leaf not in seen]
    return [
        [leaf_or_slice for leaf_or_slice in dict.fromkeys(held) if leaf_or_slice.trained] for held in weights_by_layer
    ]


def shared_weights(program: Program, cuts: Sequence[Cut]) -> tuple[tuple[SharedWeights, ...], ...]:
    """For each layer the weights that it is the first of several to hold, those of the same holders together."""
    holders: dict[Held, list[int]] = {}
    for number, held in enumerate(held_weights(program, cuts)):
        for weights in held:
            holders.setdefault(weights, []).append(number)
    counts: Counter[tuple[int, ...]] = Counter()
    for weights, numbers in holders.items():
        if len(numbers) > 1:
            counts[tuple(numbers)] += weights.count
    groups = [SharedWeights(parameters=count, holders=numbers) for numbers, count in sorted(counts.items())]
    return tuple(tuple(weights for weights in groups if weights.holders[0] == number) for number in range(len(cuts)))


def _edges(program: Program, cuts: Sequence[Cut]) -> list[Size]:
    """What enters the first layer, crosses each cut, and leaves the last layer."""
    spans = crossing(program)

    def total(types: Iterable[Any]) -> Size:
        return sum(map(program.size, types), Size())

    between = [total(s.var.aval for s in spans if s.made < first <= s.last) for first, _ in cuts[1:]]
    return [total(var.aval for var in program.inputs), *between, total(atom.aval for atom in program.outputs)]


def _kept(program: Program, all_indices: Sequence[Sequence[int]]) -> list[Kept]:
    """What each layer keeps for backward. Neither weights and what is made of them alone, nor constants.

    A value of the chain that its layer and one later layer keep counts there, as that layer's input; one that several
    later layers keep where it is made. What depends on inputs alone each layer has for itself.
    """
    kept_by_layer: list[Kept] = [{} for _ in all_indices]
    keepers: dict[Var, dict[int, int]] = {}
    for number, indices in enumerate(all_indices):
        for index in indices:
            eqn, gradient = program.eqns[index], program.gradients[index]
            for atom in [eqn.invars[at] for at in gradient.kept_read] + [eqn.outvars[at] for at in gradient.kept_made]:
                root = program.root(atom)
                if root is not None and root in program.of_inputs:
                    keepers.setdefault(root, {}).setdefault(number, index)
            sizes = [program.size_of(elements, dtype) for elements, dtype in gradient.kept_new]
            if sizes and any(program.root(var) in program.of_inputs for var in eqn.outvars):
                kept_by_layer[number].setdefault(index, []).extend((None, size) for size in sizes)
    homes = {index: number for number, indices in enumerate(all_indices) for index in indices}
    for var, by_layer in keepers.items():
        numbers = list(by_layer)
        maker = program.makers.get(var)
        if maker is not None and program.in_chain[maker]:
            home = homes[maker]
            others = [number for number in numbers if number != home]
            numbers = others if len(others) == 1 else [home]
        for number in numbers:
            index = by_layer[number] if number in by_layer else program.makers[var]
            kept_by_layer[number].setdefault(index, []).append((var, program.size(var.aval)))
    return kept_by_layer


def _operator(kernel: Kernel, width: int) -> Operator:
    return Operator(
        name=kernel.name,
        kind=kernel.kind,
        shape=kernel.shape,
        forward_flops=kernel.forward_flops,
        backward_flops=kernel.backward_flops,
        forward_bytes=kernel.forward.at(width),
        backward_bytes=kernel.backward.at(width),
        saved_bytes=kernel.saved.at(width),
        forward_kernels=kernel.forward_kernels,
        backward_kernels=kernel.backward_kernels,
    )
