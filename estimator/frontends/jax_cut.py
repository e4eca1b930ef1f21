"""Cuts the chain of a traced function into layers, at narrow places and so that repeated blocks become equal layers.

A place is narrow if one value alone crosses it: a block's output, whose addition ended the block. What lies between two
narrow places is a segment; the stretch of segments that repeats itself (attention, feed-forward; attention, ...) is a
block. Segments that repeat nothing become layers of their own if they have a product, and join a neighbour if not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal as OneOf

import numpy as np
from jax.extend.core import Var

from estimator.frontends.jax_equations import variables
from estimator.frontends.jax_products import products_in, type_text, wired_text
from estimator.frontends.jax_program import Program, is_float
from profiles.records import dataclass

Cut = tuple[int, int]
"""[first, end) in the chain."""

_MANY_PRODUCTS = 16
"""A segment with more of them is no block: something else crosses it from end to end (an encoder's output, a skip)."""
_MOST_IGNORED = 8

_Weight = OneOf["product", "table", "light"]


@dataclass(frozen=True, slots=True)
class Span:
    """A value with the chain's places where it is made and last read; the chain's end where it is an output."""

    var: Var
    made: int
    last: int


@dataclass(frozen=True, slots=True)
class _Segment:
    first: int
    end: int
    text: str
    flops: int
    table: bool
    has_weights: bool

    @property
    def weight(self) -> _Weight:
        return "product" if self.flops else "table" if self.table else "light"


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive segments [first, end). `is_block`: they are one of several equal stretches."""

    first: int
    end: int
    is_block: bool
    weight: _Weight


def cut_chain(program: Program) -> tuple[Cut, ...]:
    """The layers of the program's chain, in order; none where the chain is empty."""
    chain = program.chain
    if not chain:
        return ()
    segments = [_segment(program, first, end) for first, end in _narrow_segments(program)]
    runs = list(_runs([segment.text for segment in segments], segments, 0, len(segments)))
    layers = _join_scopes(program, segments, _join_light(runs))
    return tuple((segments[run.first].first, segments[run.end - 1].end) for run in layers)


def crossing(program: Program) -> list[Span]:
    """The values of the chain that are read after they were made."""
    at = {index: place for place, index in enumerate(program.chain)}
    last: dict[object, int] = {}
    for index, place in at.items():
        for atom in program.eqns[index].invars:
            root = program.root(atom)
            if root is not None:
                last[root] = max(place, last.get(root, 0))
    for atom in program.outputs:
        last[program.root(atom)] = len(at)
    return [
        Span(var, made, last[var])
        for index, made in at.items()
        for var in program.eqns[index].outvars
        if program.roots[var] is var and last.get(var, made) > made
    ]


def _narrow_segments(program: Program) -> list[Cut]:
    chain, spans = program.chain, crossing(program) + _first_inputs(program)
    heavy = np.array([bool(_flops(program, index)) for index in chain])
    # What is there in some dtypes or sizes and not in others belongs to what follows.
    allowed = np.array([program.is_solid(index) for index in chain])
    waiting, done = [(0, len(chain), spans, 0)], []
    while waiting:
        first, end, crossed, ignored = waiting.pop()
        counts = np.zeros(end - first + 1, dtype=int)
        inside = [(max(s.made, first), min(s.last, end)) for s in crossed if s.made < end - 1 and s.last > first]
        for a, b in inside:
            counts[a - first] += 1
            counts[b - first] -= 1
        through = np.cumsum(counts)[: end - first - 1]
        cuts = [first + 1 + int(i) for i in np.nonzero((through <= 1) & allowed[first : end - 1])[0]]
        for a, b in zip([first, *cuts], [*cuts, end], strict=True):
            if heavy[a:b].sum() <= _MANY_PRODUCTS or ignored >= _MOST_IGNORED or not inside:
                done.append((a, b))
                continue
            longest = max(crossed, key=lambda span: min(span.last, b) - max(span.made, a))
            waiting.append((a, b, [span for span in crossed if span is not longest], ignored + 1))
    return sorted(done)


def _first_inputs(program: Program) -> list[Span]:
    """Floating inputs that the chain begins with (not ids, and not masks): to a first block they are what one block's
    output is to the next, though each stage can read them."""
    sources: dict[object, set[Var]] = {var: {var} for var in program.inputs if is_float(var.aval.dtype)}
    last: dict[Var, int] = {}
    place = 0
    for index, eqn in enumerate(program.eqns):
        read = set().union(*(sources.get(atom, set()) for atom in variables(eqn.invars)))
        if not program.in_chain[index]:
            sources.update((var, read) for var in eqn.outvars)
            continue
        last.update((var, place) for var in read if place == 0 or var in last)
        place += 1
    return [Span(var, -1, end) for var, end in last.items()]


def _flops(program: Program, index: int) -> int:
    if program.kinds[index] not in ("product", "composite"):
        return 0
    return sum(product.flops * product.times for product in products_in([program.eqns[index]]))


def _segment(program: Program, first: int, end: int) -> _Segment:
    indices = program.chain[first:end]
    numbers: dict[object, int] = {}

    def outside(atom: object) -> str:
        weights, inputs = atom in program.of_weights, atom in program.of_inputs
        return f"{'w' if weights else ''}{'i' if inputs else ''}{type_text(atom)}:"

    return _Segment(
        first=first,
        end=end,
        text="|".join(wired_text(program.eqns[index], numbers, outside) for index in indices),
        flops=sum(_flops(program, index) for index in indices),
        table=any(is_table_lookup(program, index) for index in indices),
        has_weights=any(_reads_weights(program, index) for index in indices),
    )


def is_table_lookup(program: Program, index: int) -> bool:
    """Whether the equation takes rows of a weight, as an embedding does."""
    eqn = program.eqns[index]
    operand = eqn.invars[0] if eqn.primitive.name == "gather" else None
    return operand in program.of_weights and operand not in program.of_inputs


def _reads_weights(program: Program, index: int) -> bool:
    read = variables(program.eqns[index].invars)
    return any(atom in program.of_weights and atom not in program.of_inputs for atom in read)


def _runs(texts: Sequence[str], segments: Sequence[_Segment], first: int, end: int) -> Iterator[_Run]:
    """The blocks among segments [first, end), and each other segment by itself."""
    repeat = _best_repeat(texts, segments, first, end)
    if repeat is None:
        yield from (_Run(at, at + 1, False, segments[at].weight) for at in range(first, end))
        return
    start, period, times = repeat
    yield from _runs(texts, segments, first, start)
    for at in range(start, start + period * times, period):
        # What begins as the block begins is a block too: attention and experts after attention and feed-forward.
        begins = [place for place in range(at, at + period) if texts[place] == texts[at]]
        ends = [*begins[1:], at + period]
        heavy = all(any(segments[i].flops for i in range(a, b)) for a, b in zip(begins, ends, strict=True))
        parts = zip(begins, ends, strict=True) if heavy else [(at, at + period)]
        yield from (_Run(a, b, True, "product") for a, b in parts)
    yield from _runs(texts, segments, start + period * times, end)


def _best_repeat(
    texts: Sequence[str], segments: Sequence[_Segment], first: int, end: int
) -> tuple[int, int, int] | None:
    """(start, period, times) of the stretch whose repetitions hold most FLOPs, of the shortest period, first. It begins
    with something that has weights, if that can be: an activation ends a block."""
    ids: dict[str, int] = {}
    numbers = np.array([ids.setdefault(text, len(ids)) for text in texts[first:end]])
    flops = np.concatenate([[0.0], np.cumsum([float(segment.flops) for segment in segments[first:end]])])
    best, gained = None, 0.0
    for period in range(1, len(numbers) // 2 + 1):
        equal = np.concatenate([[False], numbers[:-period] == numbers[period:], [False]])
        changes = np.nonzero(equal[1:] != equal[:-1])[0]
        for start, stop in zip(changes[::2], changes[1::2], strict=True):
            times = (stop - start) // period + 1
            slack = range((stop - start) % period + 1)
            start += next((shift for shift in slack if segments[first + start + shift].has_weights), 0)
            held = flops[start + period * times] - flops[start]
            if times > 1 and held > gained * 1.000001:
                best, gained = (first + int(start), period, int(times)), held
    return best


def _join_light(runs: Sequence[_Run]) -> list[_Run]:
    """Runs without a product join the layer before them, or after a block and at the start the next; lookups one
    another."""
    layers: list[_Run] = []
    start: int | None = None
    for run in runs:
        last = layers[-1] if layers else None
        begin = run.first if start is None else start
        if run.weight == "light" and (last is None or last.is_block):
            start = begin
        elif run.weight == "light" or (run.weight == "table" and last and last.weight == "table"):
            assert last is not None
            layers[-1] = _Run(last.first, run.end, False, last.weight)
            start = None
        else:
            layers.append(_Run(begin, run.end, run.is_block, run.weight))
            start = None
    if start is not None:
        last = layers.pop() if layers else _Run(start, start, False, "light")
        layers.append(_Run(last.first, runs[-1].end, False, last.weight))
    return layers


def _join_scopes(program: Program, segments: Sequence[_Segment], layers: Sequence[_Run]) -> list[_Run]:
    """Neighbours that repeat nothing but stand in the same numbered scope (`block_3/...`) become one layer."""
    joined: list[_Run] = []
    for run in layers:
        last = joined[-1] if joined else None
        if last is not None and not last.is_block and not run.is_block:
            before = numbered_scope(program, segments[last.end - 1].end - 1)
            if before and before == numbered_scope(program, segments[run.first].first):
                joined[-1] = _Run(last.first, run.end, False, "product")
                continue
        joined.append(run)
    return joined


def scope_of(program: Program, index: int) -> tuple[str, ...]:
    """The named scopes that the equation was written in, outermost first, without those of transformations."""
    names = str(program.eqns[index].source_info.name_stack).split("/")
    return tuple(name for name in names if name and "(" not in name and ")" not in name)


def numbered_scope(program: Program, place: int) -> tuple[str, ...]:
    """Of the chain's equation at `place`, the scopes down to the first that has a number."""
    scope = scope_of(program, program.chain[place])
    for depth, name in enumerate(scope):
        if any(letter.isdigit() for letter in name):
            return scope[: depth + 1]
    return ()


def name_layers(program: Program, layers: Sequence[Cut]) -> tuple[str, ...]:
    """A name for each layer: the scope that all its products, or else lookups or all its equations, stand in; a number
    where several have the same, or none."""
    names = []
    for first, end in layers:
        indices = program.chain[first:end]
        products = [index for index in indices if _flops(program, index)]
        lookups = [index for index in indices if is_table_lookup(program, index)]
        names.append(".".join(_common([scope_of(program, index) for index in products or lookups or indices])))
    numbered = []
    for place, name in enumerate(names):
        again = f"{name}.{names[:place].count(name)}" if names.count(name) > 1 else name
        numbered.append(again if name else f"layer.{place}")
    return tuple(numbered)


def _common(scopes: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    shortest = min(scopes, key=len)
    depth = 0
    while depth < len(shortest) and all(scope[depth] == shortest[depth] for scope in scopes):
        depth += 1
    return shortest[:depth]
