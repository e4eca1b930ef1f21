"""Compressions that know nothing but the order (Crux, figure 13)."""

from __future__ import annotations

from planner.contention.policies.compression.dag import ContentionDag


def sincronia_levels(dag: ContentionDag, levels: int) -> tuple[int, ...]:
    """Return a level of its own for each of the first `levels` - 1 jobs, and the last for all others."""
    return tuple(min(rank, levels - 1) for rank in range(dag.count))


def varys_levels(dag: ContentionDag, levels: int) -> tuple[int, ...]:
    """Return levels of equally many jobs; the first ones have one more where it does not divide."""
    each, more = divmod(dag.count, levels)
    sizes = [each + (level < more) for level in range(levels)]
    return tuple(level for level, size in enumerate(sizes) for _ in range(size))
