"""The least that a collective can send between nodes: all ways to seat its ranks, one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from estimator.communication.phases import Phase, bytes_across


def seatings(counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield every way to seat as many ranks as the nodes have devices."""
    if not any(counts):
        yield ()
    for node, count in enumerate(counts):
        if count:
            left = [*counts[:node], count - 1, *counts[node + 1 :]]
            yield from ((node, *rest) for rest in seatings(left))


def least_across(phases: Sequence[Phase], counts: Sequence[int]) -> float:
    """Return the fewest bytes between nodes of any seating."""
    return min(bytes_across(phases, seats) for seats in seatings(counts))
