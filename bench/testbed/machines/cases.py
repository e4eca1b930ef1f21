"""The jobs that are run: what each rule gives them, placements that are the same once; and two that share a NIC."""

from __future__ import annotations

from collections.abc import Sequence

from bench.testbed.machines.seats import Occupied, Seated, place, seat
from estimator.communication.phases import Algorithm
from profiles.records import dataclass

PAPERS = ("elasticflow", "titan", "tiresias", "hived")
SENDING_ONLY = " sending only"
ORDERED, BY_TIME, IN_NODE_ORDER, RING = "halving-doubling", "by time", "in node order", "ring"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job and the rules that seat it so; `way` is how its ranks are ordered, or the algorithm."""

    job: Seated
    way: str
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two jobs with one node in common, and whether each computes between its all-reduces."""

    name: str
    jobs: tuple[Seated, Seated]
    computes: tuple[bool, bool]


def cases(nodes: Occupied, rules: Sequence[str], models: Sequence[str], workers: Sequence[int]) -> list[Case]:
    """Return every different job. All nodes being alike, those of the same model whose nodes give equally many in the
    same order are one; in an order that was chosen, and round a ring, whatever the nodes' order."""
    found: dict[tuple[str, str, tuple[int, ...]], tuple[Seated, list[str]]] = {}
    for model in models:
        for count in workers:
            for rule in rules:
                counts = place(rule, nodes, model, count)
                sizes = tuple(size for _, size in counts)
                by_size = tuple(sorted(counts, key=lambda pair: -pair[1]))
                ways: list[tuple[str, Seated, tuple[int, ...]]] = [
                    (ORDERED, seat(by_size, model, "halving-doubling"), tuple(sorted(sizes, reverse=True))),
                    (RING, seat(by_size, model, "ring"), tuple(sorted(sizes, reverse=True))),
                ]
                by_time = seat(by_size, model, "halving-doubling", by="time")
                if by_time != ways[0][1]:
                    ways.append((BY_TIME, by_time, tuple(sorted(sizes, reverse=True))))
                if rule in PAPERS and len(sizes) > 1:
                    ways.append((IN_NODE_ORDER, seat(counts, model, "halving-doubling", by="nodes"), sizes))
                for way, job, shape in ways:
                    found.setdefault((model, way, shape), (job, []))[1].append(rule)
    return [Case(job=job, way=way, rules=tuple(names)) for (_, way, _), (job, names) in found.items()]


def pairs(nodes: Occupied, models: Sequence[str]) -> list[Pair]:
    """Return jobs of two and two: the first on both idle nodes, the second on one of them and on another node."""
    first, second, *others = sorted(range(len(nodes.held)), key=lambda node: (-nodes.free[node], node))
    heavy, light = models[-1], models[0]

    def both(algorithm: Algorithm, one: str, other: str) -> tuple[Seated, Seated]:
        return (
            seat(((first, 2), (second, 2)), one, algorithm),
            seat(((second, 2), (others[0], 2)), other, algorithm),
        )

    found = [
        Pair(name=f"{one} and {other}, {algorithm}", jobs=both(algorithm, one, other), computes=(True, True))
        for algorithm in ("halving-doubling", "ring")
        for one, other in dict.fromkeys(((heavy, heavy), (heavy, light)))
    ]
    found += [
        Pair(
            name=f"{heavy} and {other},{SENDING_ONLY}",
            jobs=both("halving-doubling", heavy, other),
            computes=(False,) * 2,
        )
        for other in dict.fromkeys((heavy, light))
    ]
    return found
