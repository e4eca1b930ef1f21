"""The kernels that a compiler makes of a piece of a traced function, and what each moves and keeps.

XLA fuses what is element by element, with sums over the last axes, into one kernel between two products; so here. Such
a kernel reads what was made outside of it and writes what is read outside of it or kept for backward; its backward
reads the gradients of the latter and what was kept, and writes the gradients of the former. Layout changes and
constants cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from jax.extend.core import JaxprEqn, Literal, Var

from estimator.frontends.jax_cut import scope_of
from estimator.frontends.jax_products import Message, Product
from estimator.frontends.jax_program import Program
from estimator.frontends.sizes import NOTHING, Size
from estimator.frontends.traced import Kernel
from profiles.records import dataclass
from profiles.vocabulary import Phase

Kept = dict[int, list[tuple[Any, Size]]]
"""By equation what it is the first of its layer to keep: the value (None: made for backward alone) and its size."""


@dataclass(slots=True)
class _Group:
    """Equations of one kernel."""

    depth: int
    indices: list[int]


def kernels_of(program: Program, indices: Sequence[int], kept: Kept, leaving: frozenset[Var]) -> tuple[Kernel, ...]:
    """The kernels of the equations `indices`, a layer's own in order, with what they keep; `leaving` is read later."""
    piece = _Piece(program, frozenset(indices), kept, leaving)
    kernels: list[Kernel] = []
    for group in _groups(program, indices):
        kind = program.kinds[group.indices[0]]
        if kind == "product" or kind == "composite":
            kernels += piece.products(group.indices[0])
        elif kind == "lookup":
            kernels.append(piece.lookup(group.indices[0]))
        else:
            kernels += piece.fused(group.indices)
    return tuple(kernels)


def messages_of(program: Program, indices: Iterable[int]) -> list[tuple[Message, Phase]]:
    """Return the collectives of the equations `indices`, each with its pass."""
    gradients = [program.gradients[index] for index in indices]
    ahead: list[tuple[Message, Phase]] = [(message, "forward") for g in gradients for message in g.messages_forward]
    return ahead + [(message, "backward") for g in reversed(gradients) for message in g.messages_backward]


def label(program: Program, indices: Sequence[int]) -> str:
    """The last equation's scope and what it does."""
    eqn = program.eqns[indices[-1]]
    called = eqn.params.get("call_jaxpr")
    name = eqn.primitive.name if called is None else called.jaxpr.debug_info.func_name
    return ".".join((*scope_of(program, indices[-1]), str(name)))


def _groups(program: Program, indices: Sequence[int]) -> list[_Group]:
    """Which equations make one kernel, in order of their last; those that cost nothing are in none."""
    costly = [
        index
        for index in indices
        if program.kinds[index] != "layout"
        and any(program.roots[var] is not None for var in program.eqns[index].outvars)
    ]
    depths = _depths(program, costly)
    owners: dict[Var, _Group] = {}
    groups: dict[int, _Group] = {}
    for index in costly:
        group = _Group(depths[index], [index])
        if program.kinds[index] in ("fused", "ending"):
            for root in map(program.root, program.eqns[index].invars):
                other = owners.get(root) if root is not None else None
                if other is None or other.depth != group.depth or other is group:
                    continue
                group.indices = sorted(other.indices + group.indices)
                owners.update({var: group for var, owner in owners.items() if owner is other})
                del groups[id(other)]
            owners.update((var, group) for var in program.eqns[index].outvars)
        groups[id(group)] = group
    return sorted(
        (group for group in groups.values() if program.kinds[group.indices[0]] != "collective"),
        key=lambda group: group.indices[-1],
    )


def _depths(program: Program, indices: Sequence[int]) -> dict[int, int]:
    """How often, on the way to each equation, a kernel has to end before the next can begin.

    What is no part of the chain is done as late as can be, by the kernel that reads it.
    """
    of_values: dict[Any, int] = {}
    depths: dict[int, int] = {}
    readers: dict[Any, list[int]] = {}
    for index in indices:
        roots = [program.root(atom) for atom in program.eqns[index].invars]
        for root in roots:
            readers.setdefault(root, []).append(index)
        depths[index] = max((of_values.get(root, 0) for root in roots), default=0)
        after = depths[index] if program.kinds[index] == "fused" else depths[index] + 1
        of_values.update((var, after) for var in program.eqns[index].outvars)
    for index in reversed(indices):
        if program.in_chain[index] or program.kinds[index] != "fused":
            continue
        later = [reader for var in program.eqns[index].outvars for reader in readers.get(var, ())]
        if later and all(program.kinds[reader] in ("fused", "ending") for reader in later):
            depths[index] = min(depths[reader] for reader in later)
    return depths


class _Piece:
    """The equations of one layer, and who reads their results."""

    def __init__(self, program: Program, indices: frozenset[int], kept: Kept, leaving: frozenset[Var]) -> None:
        self._program, self._kept, self._leaving = program, kept, leaving
        self._readers: dict[Any, set[int]] = {}
        for index in indices:
            for atom in program.eqns[index].invars:
                if program.kinds[index] != "layout":
                    self._readers.setdefault(program.root(atom), set()).add(index)

    def _saved(self, indices: Iterable[int]) -> Size:
        return sum((size for index in indices for _, size in self._kept.get(index, ())), NOTHING)

    def _moved(self, atoms: Iterable[Any]) -> Size:
        """What the values take, each once and as it lies in memory."""
        roots = dict.fromkeys(self._program.root(atom) for atom in atoms)
        return sum((self._program.size(root.aval) for root in roots if root is not None), NOTHING)

    def _is_active(self, atom: Any) -> bool:
        return not isinstance(atom, Literal) and atom in self._program.active

    def products(self, index: int) -> list[Kernel]:
        """A product, or what a loop does: its products, and its other traffic as one kernel for each iteration."""
        program, eqn = self._program, self._program.eqns[index]
        active = [atom for atom in eqn.invars if self._is_active(atom)] if self._is_active_result(eqn) else []
        name, saved, gradient = label(program, [index]), self._saved([index]), program.gradients[index]
        traffic = sum((program.size(atom.aval) for atom in (*eqn.invars, *eqn.outvars)), NOTHING)
        if program.kinds[index] == "product":
            (product,) = gradient.forward
            return [
                Kernel(
                    name=name,
                    kind=product.kind,
                    shape=self._weight_last(eqn, product),
                    forward_flops=product.flops,
                    backward_flops=product.flops * len(active),
                    forward=traffic,
                    backward=traffic * len(active),
                    saved=saved,
                    backward_kernels=len(active),
                )
            ]
        times = eqn.params.get("length", 1)
        rest = Kernel(
            name=name,
            kind="memory",
            shape=(sum(var.aval.size for var in eqn.outvars),),
            forward=traffic,
            backward=traffic if active else NOTHING,
            saved=saved,
            forward_kernels=times,
            backward_kernels=times if active else 0,
        )
        return [*_repeated(name, gradient.forward, gradient.backward), rest]

    def _is_active_result(self, eqn: JaxprEqn) -> bool:
        return any(map(self._is_active, eqn.outvars))

    def _weight_last(self, eqn: JaxprEqn, product: Product) -> tuple[int, ...]:
        """(m, n, k) with the weight's columns as n, on whichever side it stands."""
        left, right = (atom in self._program.of_inputs for atom in eqn.invars[:2])
        if product.kind == "gemm" and right and not left:
            m, n, k = product.shape
            return n, m, k
        return product.shape

    def lookup(self, index: int) -> Kernel:
        """Rows picked by an index, or put there: backward puts their gradients into zeros of the table's size."""
        program, eqn = self._program, self._program.eqns[index]
        row = max(1, prod(eqn.params["slice_sizes"])) if "slice_sizes" in eqn.params else 1
        table, *others = eqn.invars
        made = program.size(eqn.outvars[0].aval)
        indices = sum((program.size(atom.aval) for atom in others), NOTHING)
        forward = made * 2 + indices
        if eqn.primitive.name != "gather":
            forward = made + indices * 2
        active = self._is_active_result(eqn) and any(map(self._is_active, eqn.invars))
        backward = NOTHING
        if active:
            backward = program.size(table.aval) + made * 3 + indices if eqn.primitive.name == "gather" else forward
        return Kernel(
            name=label(program, [index]),
            kind="gather",
            shape=(eqn.outvars[0].aval.size // row, row),
            forward=forward,
            backward=backward,
            saved=self._saved([index]),
            backward_kernels=2 if active else 0,
        )

    def fused(self, indices: Sequence[int]) -> list[Kernel]:
        """One kernel of element-wise equations and sums; none if it only makes what is read by nobody."""
        program = self._program
        made = {var for index in indices for var in program.eqns[index].outvars}
        read = [
            _as_read(program.eqns[index], atom)
            for index in indices
            for atom in program.eqns[index].invars
            if program.root(atom) not in made
        ]
        written = self._written(made, set(indices))
        for_backward = sum(
            (size for index in indices for var, size in self._kept.get(index, ()) if var is None), NOTHING
        )
        forward = sum(dict(self._sized(read)).values(), NOTHING) + self._moved(written) + for_backward
        into = [atom for _, atom in read if self._is_active(atom)]
        backward, kernels = self._backward(into, [var for var in written if self._is_active(var)], indices)
        if forward == NOTHING and backward == NOTHING:
            return []
        return [
            Kernel(
                name=label(program, indices),
                kind="memory",
                shape=(sum(var.aval.size for var in written) or sum(var.aval.size for var in made),),
                forward=forward,
                backward=backward,
                saved=self._saved(indices),
                backward_kernels=kernels,
            )
        ]

    def _written(self, made: set[Var], indices: set[int]) -> list[Var]:
        """Of what the equations `indices` have `made`, what is kept for backward or read outside of them."""
        kept = {var for index in indices for var, _ in self._kept.get(index, ())}
        return [var for var in made if var in kept or self._readers.get(var, set()) - indices or var in self._leaving]

    def _backward(self, into: Sequence[Any], out_of: Sequence[Var], indices: Sequence[int]) -> tuple[Size, int]:
        """What backward of one kernel moves, and in how many: gradients of `out_of` and what was kept, into those of
        `into`. The gradient of a weight that all rows share is a sum over them, a kernel of its own."""
        if not into:
            return NOTHING, 0
        largest = max((var.aval.size for var in out_of), default=0)
        weights = {self._program.root(atom) for atom in into} & self._program.weights.keys()
        sums = sum(var.aval.size < largest for var in weights if var is not None)
        return self._moved(out_of) + self._saved(indices) + self._moved(into), 1 + sums

    def _sized(self, read: Sequence[tuple[Any, Any]]) -> Iterable[tuple[Any, Size]]:
        for aval, atom in read:
            root = self._program.root(atom)
            if root is not None:
                yield (root, aval.shape), self._program.size(min((aval, root.aval), key=lambda value: value.size))


def _as_read(eqn: JaxprEqn, atom: Any) -> tuple[Any, Any]:
    """What `eqn` reads of `atom`: of a slice no more than it takes."""
    if eqn.primitive.name in ("slice", "dynamic_slice"):
        return eqn.outvars[0].aval, atom
    return atom.aval, atom


def _repeated(name: str, forward: Sequence[Product], backward: Sequence[Product]) -> list[Kernel]:
    """A loop's products, with backward's FLOPs shared out by forward's; those of many iterations as one grouped."""
    ahead, back = (sum(product.flops * product.times for product in kernels) for kernels in (forward, backward))
    kernels, left = [], back
    for place, product in enumerate(forward):
        flops = product.flops * product.times
        share = left if place == len(forward) - 1 else back * flops // ahead
        left -= share
        kind, shape = product.kind, product.shape
        if product.times > 1 and kind in ("gemm", "batched_gemm", "grouped_gemm"):
            *groups, m, n, k = shape
            kind, shape = "grouped_gemm" if kind != "batched_gemm" else kind, (prod(groups) * product.times, m, n, k)
        kernels.append(
            Kernel(
                name=f"{name}.{place}",
                kind=kind,
                shape=shape,
                forward_flops=flops,
                backward_flops=share,
                forward_kernels=product.times,
                backward_kernels=round(share / flops) * product.times,
            )
        )
    return kernels
