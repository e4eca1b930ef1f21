"""Who loses what if two jobs get the same level: the contention DAG of Crux, section 4.3, and what levels cut of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from profiles.records import dataclass


@dataclass(frozen=True, kw_only=True)
class ContentionDag:
    """`count` jobs, numbered by importance, 0 first. `edges`: of two that share a link the more important, the other,
    and what is lost where both have the same level. Levels are valid where no edge goes from a level to one before."""

    count: int
    edges: tuple[tuple[int, int, float], ...]

    def __post_init__(self) -> None:
        """Raise ValueError for an edge that goes backwards, or a loss below 0."""
        for first, second, weight in self.edges:
            if not (0 <= first < second < self.count and weight >= 0):
                raise ValueError(f"edge {first} -> {second} of weight {weight} among {self.count}")


def contention_dag(
    order: Sequence[int], pairs: Iterable[tuple[int, int]], weights: Mapping[int, float]
) -> ContentionDag:
    """Return the DAG of the jobs in `order`: an edge for each of `pairs`, which weighs what the more important of both
    has in `weights` (its GPU intensity: if both have the same level, it alone loses what it would not lose else)."""
    return dag_of_losses(order, pairs, lambda first, _: weights[first])


def dag_of_losses(
    order: Sequence[int], pairs: Iterable[tuple[int, int]], loss: Callable[[int, int], float]
) -> ContentionDag:
    """Return the DAG of the jobs in `order`: an edge for each of `pairs`, which weighs what `loss` says of the more
    important and the other."""
    place = {job: number for number, job in enumerate(order)}
    edges = []
    for one, other in pairs:
        first, second = sorted((place[one], place[other]))
        edges.append((first, second, loss(order[first], order[second])))
    return ContentionDag(count=len(order), edges=tuple(sorted(edges)))


def cut_weight(dag: ContentionDag, levels: Sequence[int]) -> float:
    """Return what is not lost: the weight of the edges whose two jobs have different levels."""
    return sum(weight for first, second, weight in dag.edges if levels[first] != levels[second])


def is_valid(dag: ContentionDag, levels: Sequence[int], count: int) -> bool:
    """Whether the levels are from 0 to below `count`, and no edge goes to a level before its own."""
    return all(0 <= level < count for level in levels) and all(levels[u] <= levels[v] for u, v, _ in dag.edges)
