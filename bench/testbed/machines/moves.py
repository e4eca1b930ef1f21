"""What a rank sends and receives in an all-reduce by recursive halving and doubling, in order.

gloo's send and recv carry it (`bench.testbed.machines.worker`). The phases are those of
`estimator.communication.phases`, with the vector's own places: the tests hold each against the other.
"""

from __future__ import annotations

from collections.abc import Iterator

from profiles.records import dataclass

Span = tuple[int, int]
"""The first element of a part of the vector, and the one behind its last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """With `peer` (a rank of the job) at once: what is sent, what is received, and whether that is added to what stands
    there or replaces it."""

    peer: int
    sends: Span | None = None
    receives: Span | None = None
    adds: bool = False


def core_of(ranks: int) -> int:
    """Return the greatest power of two of ranks: halves are those of a vector of a multiple of it."""
    return 1 << (ranks.bit_length() - 1)


def moves(rank: int, ranks: int, elements: int) -> Iterator[Move]:
    """Yield the moves of a rank. Raise ValueError where the vector cannot be halved so often."""
    core, whole = core_of(ranks), (0, elements)
    if elements % core or not 0 <= rank < ranks:
        raise ValueError(f"rank {rank} of {ranks}, {elements} elements; expected a multiple of {core}")
    if rank >= core:
        yield Move(peer=rank - core, sends=whole)
        yield Move(peer=rank - core, receives=whole)
        return
    folded = rank + core if rank + core < ranks else None
    if folded is not None:
        yield Move(peer=folded, receives=whole, adds=True)
    halved = list(_halvings(rank, core, elements))
    for peer, kept, given in halved:
        yield Move(peer=peer, sends=given, receives=kept, adds=True)
    for peer, kept, given in reversed(halved):
        yield Move(peer=peer, sends=kept, receives=given)
    if folded is not None:
        yield Move(peer=folded, sends=whole)


def _halvings(rank: int, core: int, elements: int) -> Iterator[tuple[int, Span, Span]]:
    """The partner of each halving, the half that the rank keeps and the one that it gives away."""
    first, end, distance = 0, elements, core // 2
    while distance:
        middle = (first + end) // 2
        lower, upper = (first, middle), (middle, end)
        kept, given = (upper, lower) if rank & distance else (lower, upper)
        yield rank ^ distance, kept, given
        (first, end), distance = kept, distance // 2
