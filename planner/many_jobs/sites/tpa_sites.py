"""Between sites: which of them make up a pipeline's parts, and in which order (SpiderFlow, section 4.2, equation 9).

A party is groups of devices whose replicas share stages; an arrangement is parties in the order of the layers. Thin
links are what to cut little over: groups are joined into parties along the widest links first, so that replicas, which
sum gradients, stay where links are wide, and parties follow each other such that the traffic over the links between
them costs least.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from estimator.pricing.recipe import Recipe
from models_zoo.layers import Embedding, TransformerBlock
from models_zoo.model import Model
from profiles.records import dataclass
from profiles.vocabulary import DTYPE_BYTES

Party = tuple[int, ...]
Arrangement = tuple[Party, ...]
MOST_TOGETHER = 6
"""Parties of a pipeline over many sites: each further one takes longer to plan."""
EXACT_ORDERS = 5
"""With so many parties at most every order is tried; with more the greedy ones."""

MOST_EQUAL = 6
"""So many orders of the same cost are worth a look: all of three parties."""
TIE = 1e-9


@dataclass(frozen=True, kw_only=True)
class SiteGraph:
    """Groups of devices by number: `speed` of all devices of each (any unit), bytes/s and seconds between two of them,
    0 bytes/s where no link joins their sites."""

    speed: tuple[float, ...]
    bandwidth_bytes_per_s: tuple[tuple[float, ...], ...]
    latency_s: tuple[tuple[float, ...], ...]

    def width(self, party: Party, other: Party) -> float:
        """Bytes/s of the widest link between two parties."""
        return max(self.bandwidth_bytes_per_s[a][b] for a in party for b in other)

    def thinnest(self, party: Party, other: Party) -> float:
        """Bytes/s of the thinnest link between a group of one and a group of the other."""
        return min(self.bandwidth_bytes_per_s[a][b] for a in party for b in other)


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Bytes of an iteration between parts of a pipeline that follow each other, and between the first and the last."""

    message_bytes: float
    tied_bytes: float


def message_bytes(model: Model, recipe: Recipe) -> float:
    """Return the bytes of an iteration's activations and their gradients between two stages, of all replicas."""
    hidden = next((layer.hidden for layer in model.layers if isinstance(layer, TransformerBlock | Embedding)), 1)
    return 2.0 * recipe.global_batch * max(1, recipe.seq_len) * hidden * DTYPE_BYTES[recipe.dtype]


def arrangements(graph: SiteGraph, traffic: Traffic) -> tuple[Arrangement, ...]:
    """Few arrangements that are worth a look: of every set of groups that the widest links join, the set as one party,
    cut into parties along ever wider links, down to each group alone; and what the fastest so many groups make up.

    At most about 3 n^2 / 2 sets of parties for n groups, each in the orders of the least cost (`orders`); of many
    groups only sets of `MOST_TOGETHER`, and all together in at most so many parties.
    """
    orders_of_all: dict[Arrangement, None] = {}
    count = len(graph.speed)
    for merged in _subsets(graph):
        if MOST_TOGETHER < len(merged) < count:
            continue
        for parties in _cuts(graph, merged):
            if len(parties) > MOST_TOGETHER and count > MOST_TOGETHER + 2:
                continue
            orders_of_all.update(dict.fromkeys(orders(graph, parties, traffic)))
    return tuple(orders_of_all)


def ordered(graph: SiteGraph, parties: Sequence[Party], traffic: Traffic) -> Arrangement | None:
    """The first of `orders`; None where links do not join the parties."""
    return next(iter(orders(graph, parties, traffic)), None)


def orders(graph: SiteGraph, parties: Sequence[Party], traffic: Traffic) -> list[Arrangement]:
    """The parties in the orders in which messages, and the sum over first and last, cost least: of few parties the best
    of all orders, of many the best of the greedy ones, improved by reversals. Of equally good ones `MOST_EQUAL`, since
    what cuts as little may still differ in time. Empty where links do not join the parties."""
    if len(parties) == 1:
        return [tuple(parties)]
    if len(parties) <= EXACT_ORDERS:
        tried = list(itertools.permutations(parties))
    else:
        tried = [_improved(graph, _greedy(graph, parties, start), traffic) for start in range(len(parties))]
    costs = [cost_s(graph, order, traffic) for order in tried]
    least = min(costs)
    if not math.isfinite(least):
        return []
    equal = list(dict.fromkeys(order for order, cost in zip(tried, costs, strict=True) if cost <= least * (1 + TIE)))
    return equal if len(equal) <= MOST_EQUAL else [equal[n * len(equal) // MOST_EQUAL] for n in range(MOST_EQUAL)]


def cost_s(graph: SiteGraph, order: Sequence[Party], traffic: Traffic) -> float:
    """Equation 9: traffic over each link that is cut, times what a byte of it costs; infinite where no link is."""

    def over(party: Party, other: Party, size: float) -> float:
        width = graph.thinnest(party, other)
        return math.inf if width <= 0 else size / width

    total = math.fsum(over(a, b, traffic.message_bytes) for a, b in itertools.pairwise(order))
    return total + (over(order[0], order[-1], traffic.tied_bytes) if traffic.tied_bytes else 0.0)


def _subsets(graph: SiteGraph) -> list[list[Party]]:
    """Sets of groups, each as the parties that single links make of them: those of the tree of widest links, and the
    fastest groups one after another, each joined to those before it."""
    numbers = range(len(graph.speed))
    merged: list[Party] = [(number,) for number in numbers]
    subsets: dict[Party, None] = dict.fromkeys(merged)
    while len(merged) > 1:
        party, other = max(itertools.combinations(merged, 2), key=lambda pair: graph.width(*pair))
        if graph.width(party, other) <= 0:
            break
        merged = _joined(merged, party, other)
        subsets[merged[-1]] = None
    start = max(numbers, key=lambda number: (graph.speed[number], -number))
    grown = [start]
    while True:
        near = [
            (max(graph.bandwidth_bytes_per_s[number][other] for other in grown), graph.speed[number], -number)
            for number in numbers
            if number not in grown
        ]
        if not near or max(near)[0] <= 0:
            break
        grown.append(-max(near)[2])
        subsets[tuple(sorted(grown))] = None
    return [[(number,) for number in subset] for subset in subsets]


def _joined(parties: Sequence[Party], first: Party, other: Party) -> list[Party]:
    """The parties with two of them as one, the last."""
    return [*(party for party in parties if party not in (first, other)), tuple(sorted((*first, *other)))]


def _cuts(graph: SiteGraph, alone: Sequence[Party]) -> list[list[Party]]:
    """From each group alone to all as one party, joined along the widest links."""
    current = list(alone)
    cuts = [current]
    while len(current) > 1:
        pairs = itertools.combinations(current, 2)
        # Where some groups of all pairs are not joined, by those that are.
        party, other = max(
            pairs, key=lambda pair: (graph.thinnest(*pair), not graph.thinnest(*pair) and graph.width(*pair))
        )
        if graph.width(party, other) <= 0:
            break
        current = _joined(current, party, other)
        cuts.append(current)
    return cuts


def _greedy(graph: SiteGraph, parties: Sequence[Party], start: int) -> list[Party]:
    """From one party on, always to the one with the widest link."""
    left = list(parties)
    order = [left.pop(start)]
    while left:
        following = max(left, key=lambda party: (graph.thinnest(order[-1], party), party))
        left.remove(following)
        order.append(following)
    return order


def _improved(graph: SiteGraph, order: list[Party], traffic: Traffic) -> tuple[Party, ...]:
    """By reversals of runs, until none helps."""
    best, better = cost_s(graph, order, traffic), True
    while better:
        better = False
        for first, end in itertools.combinations(range(len(order) + 1), 2):
            other = order[:first] + order[first:end][::-1] + order[end:]
            cost = cost_s(graph, other, traffic)
            if cost < best * (1 - 1e-9) or (math.isinf(best) and math.isfinite(cost)):
                order, best, better = other, cost, True
    return tuple(order)
