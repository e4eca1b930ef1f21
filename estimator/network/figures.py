"""What a network's wires say of it: what its tiers carry, what half of it can send to the other half, equal ways."""

from __future__ import annotations

import numpy as np

from estimator.network.wires import BETWEEN_SWITCHES, Integers, Wires
from profiles.records import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class TierFigures:
    """A tier of switches: the most `ports` that one of them has cabled; of those with nodes below them `cables_up`,
    what all cables below them carry up to them (`below_bytes_per_s`), and what those above them carry."""

    name: str
    switches: int
    ports: int
    cables_up: int
    below_bytes_per_s: float
    up_bytes_per_s: float

    @property
    def oversubscription(self) -> float | None:
        """What comes from below over what goes up; None at the top."""
        return self.below_bytes_per_s / self.up_bytes_per_s if self.up_bytes_per_s else None


def tier_figures(wires: Wires) -> tuple[TierFigures, ...]:
    """Return the figures of each tier of switches, from the nodes up."""
    tier = wires.tier_of[wires.ends]
    low, high = tier.min(axis=1), tier.max(axis=1)
    lower = np.where(tier[:, 0] <= tier[:, 1], wires.ends[:, 0], wires.ends[:, 1])
    upper = wires.ends.sum(axis=1) - lower
    used = wires.tier_of == 0
    for number in range(1, len(wires.tiers) + 1):
        used[upper[(high == number) & (low < number) & used[lower]]] = True
    rates = np.where(used[lower], wires.counts * wires.bytes_per_s, 0.0)
    cables = np.where(used[lower], wires.counts, 0)
    ports = np.bincount(wires.ends.ravel(), np.repeat(wires.counts, 2), minlength=wires.vertices).astype(int)
    return tuple(
        TierFigures(
            name=each.name,
            switches=each.switches,
            ports=int(ports[wires.tier_of == number].max()),
            cables_up=int(cables[(low == number) & (high > number)].sum()),
            below_bytes_per_s=float(rates[(low < number) & (high == number)].sum()),
            up_bytes_per_s=float(rates[(low == number) & (high > number)].sum()),
        )
        for number, each in enumerate(wires.tiers, start=1)
    )


def halves_bytes_per_s(wires: Wires) -> float:
    """Return what the first half of the nodes, in the cluster's order, can send to the rest at once: the greatest flow
    (Ford and Fulkerson, "Flows in Networks"); 0 for one node. Exact where all rates are multiples of one that is not
    too small beside them, else to a millionth of the fullest cables or a thousand-millionth of all."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import maximum_flow

    half = wires.nodes // 2
    if half == 0:
        return 0.0
    source, sink, (low, high) = wires.vertices, wires.vertices + 1, wires.ends.T
    rates = wires.counts * wires.bytes_per_s
    common = float(np.gcd.reduce(np.rint(rates).astype(np.int64)))
    exact = common > 0 and rates.sum() / common < 2**30 and bool((rates == np.rint(rates)).all())
    unit = common if exact else max(float(rates.max()) / 1e6, float(rates.sum()) / 2**30, 1e-300)
    whole = np.floor(rates / unit + 0.5).astype(np.int64)
    nodes = np.arange(wires.nodes)
    out = np.bincount(wires.ends.ravel(), np.repeat(whole, 2), minlength=wires.vertices)[: wires.nodes].astype(np.int64)
    tails = np.concatenate([low, high, np.full(half, source), nodes[half:]])
    heads = np.concatenate([high, low, nodes[:half], np.full(wires.nodes - half, sink)])
    amounts = np.minimum(np.concatenate([whole, whole, out[:half], out[half:]]), 2**31 - 1)
    size = wires.vertices + 2
    graph = coo_array((amounts.astype(np.int32), (tails, heads)), shape=(size, size)).tocsr()
    return float(maximum_flow(graph, source, sink).flow_value) * unit


def steps_from(wires: Wires, node: int) -> Integers:
    """Return how many cables each vertex is away from a node by ways that pass no other node, but in a network without
    switches; -1 where none leads."""
    _, to, begins = _up_only(wires)
    far = np.full(wires.vertices, -1, dtype=np.int64)
    far[node], front = 0, np.array([node])
    passes = wires.nodes if wires.tiers else 0
    while len(front):
        counts = begins[front + 1] - begins[front]
        offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        beyond = np.unique(to[np.repeat(begins[front], counts) + offsets])
        beyond = beyond[far[beyond] < 0]
        far[beyond] = far[front[0]] + 1
        front = beyond[beyond >= passes]
    return far


def equal_ways(wires: Wires, first: int, second: int, *, nic: int = 0) -> tuple[int, int]:
    """Return how many shortest ways lead from a NIC of one node to the same NIC of another, parallel cables between
    switches counted apart, and of how many cables each is; (0, 0) where none leads."""
    of_others = (wires.nics >= 0) & (wires.nics != nic)
    wires = replace(
        wires,
        bytes_per_s=np.where(of_others, 0.0, wires.bytes_per_s),
        counts=np.where(wires.nics == BETWEEN_SWITCHES, wires.counts, 1),
    )
    far = steps_from(wires, first)
    if far[second] < 0 or first == second:
        return 0, 0
    rows, to, begins = _up_only(wires)
    ways: dict[int, int] = {second: 1}
    for away in range(int(far[second]) - 1, -1, -1):
        before: dict[int, int] = {}
        for vertex, count in ways.items():
            for place in range(begins[vertex], begins[vertex + 1]):
                if far[to[place]] == away and (away == 0 or to[place] >= (wires.nodes if wires.tiers else 0)):
                    before[int(to[place])] = before.get(int(to[place]), 0) + count * int(wires.counts[rows[place]])
        ways = before
    return ways.get(first, 0), int(far[second])


def _up_only(wires: Wires) -> tuple[Integers, Integers, Integers]:
    """`Wires.around` of the rows that are up."""
    rows, to, begins = wires.around
    up = wires.bytes_per_s[rows] > 0
    if up.all():
        return rows, to, begins
    kept = np.concatenate([[0], np.cumsum(up)])
    return rows[up], to[up], kept[begins]
