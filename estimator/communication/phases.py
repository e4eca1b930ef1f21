"""Who sends what to whom: the phases of a collective, by its algorithm.

Bytes are counted as in `profiles.vocabulary.Collective.bytes`: of an all_reduce and a broadcast the vector, of an
all_gather what everybody has at the end, of a reduce_scatter what everybody had at first, of an all_to_all what a rank
gives away and keeps. In sum over the ranks each of them sends `ranks * bus_factor` times that, whichever the algorithm
and the number of ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Literal

from profiles.records import dataclass

Algorithm = Literal["ring", "tree", "halving-doubling", "exchange"]
PhasedOp = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"]

ALGORITHMS: Mapping[Algorithm, tuple[PhasedOp, ...]] = {
    "ring": ("all_reduce", "all_gather", "reduce_scatter", "broadcast"),
    "tree": ("all_reduce",),
    "halving-doubling": ("all_reduce", "all_gather", "reduce_scatter", "broadcast"),
    "exchange": ("all_to_all",),
}
"""What each algorithm has a form of."""

Flow = tuple[int, int, float]
"""Sender, receiver, bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Flows at the same time, and how often in a row. What passes in pieces, one behind the other, is one phase."""

    flows: tuple[Flow, ...]
    repeats: int = 1


def collective_phases(algorithm: Algorithm, op: PhasedOp, ranks: int, size_bytes: float = 1.0) -> tuple[Phase, ...]:
    """Return the phases of `op` with so many bytes over ranks 0, 1, ..., in the order in which they follow each other.

    `halving-doubling`: with a power of two ranks, those at half of the ranks' distance exchange half of the bytes, then
    those at a quarter a quarter, and so on, and back again (Thakur, Rabenseifner, Gropp, "Optimization of collective
    communication operations in MPICH", 2005; Titan, Fig. 1a). Of other numbers, each rank p + i beyond the greatest
    power of two p hands what it has to rank i before, and gets the result from it after. `tree`: NCCL's double binary
    tree, each of the two with half of the bytes, in one pipeline. `exchange`: each rank to the one t places on.

    Raises:
        ValueError: an algorithm that has no form of `op`, or no rank.

    >>> [phase.flows[0] for phase in collective_phases("halving-doubling", "all_reduce", 4, 8)]
    [(0, 2, 4.0), (0, 1, 2.0), (0, 1, 2.0), (0, 2, 4.0)]
    """
    if op not in ALGORITHMS.get(algorithm, ()) or ranks < 1:
        expected = ", ".join(f"{name} ({', '.join(forms)})" for name, forms in ALGORITHMS.items())
        raise ValueError(f"{algorithm} of {op} over {ranks} ranks; expected {expected}, over 1 rank or more")
    if ranks == 1:
        return ()
    return tuple(
        Phase(flows=tuple((a, b, share * size_bytes) for a, b, share in phase.flows), repeats=phase.repeats)
        for phase in _shares(algorithm, op, ranks)
    )


@lru_cache(maxsize=256)
def _shares(algorithm: Algorithm, op: PhasedOp, ranks: int) -> tuple[Phase, ...]:
    """The phases of a collective of one byte."""
    return FORMS[algorithm](op, ranks)


def bytes_between(phases: Iterable[Phase]) -> dict[tuple[int, int], float]:
    """Return the bytes of all phases by sender and receiver."""
    sent: defaultdict[tuple[int, int], float] = defaultdict(float)
    for phase in phases:
        for sender, receiver, size in phase.flows:
            sent[sender, receiver] += size * phase.repeats
    return dict(sent)


def bytes_across(phases: Iterable[Phase], places: Sequence[int]) -> float:
    """Return the bytes that are sent from one place to another, where rank r sits at `places[r]` (a node, a rack)."""
    between = bytes_between(phases).items()
    return sum(size for (sender, receiver), size in between if places[sender] != places[receiver])


def exchanged_across(phases: Iterable[Phase], places: Sequence[int]) -> float:
    """Return `bytes_across` as Titan counts it (section II-B): what two ranks exchange in a phase once, not both
    ways."""
    total = 0.0
    for phase in phases:
        pairs: dict[tuple[int, int], float] = {}
        for sender, receiver, size in phase.flows:
            if places[sender] != places[receiver]:
                pair = (min(sender, receiver), max(sender, receiver))
                pairs[pair] = max(pairs.get(pair, 0.0), size)
        total += phase.repeats * sum(pairs.values())
    return total


def _ring(op: PhasedOp, ranks: int) -> tuple[Phase, ...]:
    if op == "broadcast":
        return (Phase(flows=tuple((rank, rank + 1, 1.0) for rank in range(ranks - 1))),)
    around = tuple((rank, (rank + 1) % ranks, 1 / ranks) for rank in range(ranks))
    return (Phase(flows=around, repeats=(2 if op == "all_reduce" else 1) * (ranks - 1)),)


def _tree(_op: PhasedOp, ranks: int) -> tuple[Phase, ...]:
    flows: list[Flow] = []
    for rank in range(1, ranks):
        parent = _parent(rank, ranks)
        for child, above in ((rank, parent), (_second(rank, ranks), _second(parent, ranks))):
            flows += ((child, above, 0.5), (above, child, 0.5))
    return (Phase(flows=tuple(flows)),)


def _parent(rank: int, ranks: int) -> int:
    """The rank above in NCCL's binary tree (`ncclGetBtree`), whose leaves are the odd ranks and whose root is 0."""
    bit = rank & -rank
    above = (rank ^ bit) | (bit << 1)
    return above if above < ranks else rank ^ bit


def _second(rank: int, ranks: int) -> int:
    """The rank in the same place of the second tree, where those are leaves that are not in the first."""
    return ranks - 1 - rank if ranks % 2 == 0 else (rank + 1) % ranks


def _halving_doubling(op: PhasedOp, ranks: int) -> tuple[Phase, ...]:
    core = 1 << (ranks.bit_length() - 1)
    if op == "broadcast":
        return _binomial(ranks)
    if op == "all_reduce":
        return _all_reduce(ranks, core)
    gathered = _gather(ranks, core)
    return gathered if op == "all_gather" else tuple(map(_backwards, reversed(gathered)))


def _all_reduce(ranks: int, core: int) -> tuple[Phase, ...]:
    handed_in = tuple((rank, rank - core, 1.0) for rank in range(core, ranks))
    halving, distance = [], core // 2
    while distance:
        share = distance / core
        halving.append(Phase(flows=tuple((rank, rank ^ distance, share) for rank in range(core))))
        distance //= 2
    inside = (*halving, *reversed(halving))
    if not handed_in:
        return inside
    before = Phase(flows=handed_in)
    return (before, *inside, _backwards(before))


def _gather(ranks: int, core: int) -> tuple[Phase, ...]:
    """Recursive doubling, with twice of its own from who has a rank's beyond the power of two."""
    extra = ranks - core
    phases = [Phase(flows=tuple((core + rank, rank, 1 / ranks) for rank in range(extra)))] if extra else []
    held = [2 if rank < extra else 1 for rank in range(core)]
    distance = 1
    while distance < core:
        phases.append(Phase(flows=tuple((rank, rank ^ distance, held[rank] / ranks) for rank in range(core))))
        held = [held[rank] + held[rank ^ distance] for rank in range(core)]
        distance *= 2
    if extra:
        phases.append(Phase(flows=tuple((rank, core + rank, (ranks - 1) / ranks) for rank in range(extra))))
    return tuple(phases)


def _binomial(ranks: int) -> tuple[Phase, ...]:
    """Broadcast from rank 0: who has it hands it on, twice as near each time."""
    phases, distance = [], 1 << ((ranks - 1).bit_length() - 1)
    while distance:
        senders = range(0, ranks - distance, 2 * distance)
        phases.append(Phase(flows=tuple((rank, rank + distance, 1.0) for rank in senders)))
        distance //= 2
    return tuple(phases)


def _backwards(phase: Phase) -> Phase:
    return Phase(flows=tuple((receiver, sender, size) for sender, receiver, size in phase.flows), repeats=phase.repeats)


def _exchange(_op: PhasedOp, ranks: int) -> tuple[Phase, ...]:
    return tuple(
        Phase(flows=tuple((rank, (rank + turn) % ranks, 1 / ranks) for rank in range(ranks)))
        for turn in range(1, ranks)
    )


FORMS: Mapping[Algorithm, Callable[[PhasedOp, int], tuple[Phase, ...]]] = {
    "ring": _ring,
    "tree": _tree,
    "halving-doubling": _halving_doubling,
    "exchange": _exchange,
}
