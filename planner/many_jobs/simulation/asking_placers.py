"""A rule of placement in a run: asked for devices of a pool, and checked.

A rule may answer `Later` for a job that waits for its first start, once no other job gives anything up for it. The job
then stays where it is in the queue, and is asked for again with every decision that grants it devices, up to the time
that the rule said first: from then on it is placed, so that nobody starves by a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from planner.many_jobs.jobs.records import NodeCounts
from planner.many_jobs.placers.records import Budget, Later, Placer, Price, Request
from planner.many_jobs.simulation.placing import Pieces, PoolNodes
from planner.many_jobs.simulation.settings import PlacerError
from planner.many_jobs.simulation.states import ActiveJob
from profiles.errors import InputError, MachineError
from profiles.network import Network


class Sitting:
    """Which jobs sit on which nodes, and when they should end."""

    __slots__ = ("ends",)

    def __init__(self) -> None:
        self.ends: dict[tuple[str, int], dict[int, tuple[float, int]]] = {}

    def enter(self, states: Sequence[ActiveJob]) -> None:
        """The job sits where it does from now on, or the jobs do that take turns there: their devices come free with
        the last of them."""
        ends_s = [predicted_end_s(state, state.granted_s or 0.0, state.began_with) for state in states]
        known = [end_s for end_s in ends_s if end_s is not None]
        if len(known) < len(ends_s):
            return
        for pool, pieces in states[0].placement.items():
            for node, mask in pieces:
                self.ends.setdefault((pool, node), {})[states[0].index] = max(known), mask.bit_count()

    def leave(self, states: Sequence[ActiveJob]) -> None:
        """They do no more."""
        for pool, pieces in states[0].placement.items():
            for node, _ in pieces:
                self.ends.get((pool, node), {}).pop(states[0].index, None)


def predicted_end_s(state: ActiveJob, from_s: float, iterations: float) -> float | None:
    """When the job should end that has so many iterations to do from then on: by what the predictor said of it when it
    came, else by the duration that the trace states; None where it states none."""
    duration_s = state.job.duration_s if state.predicted_s is None else state.predicted_s
    if not duration_s > 0:
        return None
    return from_s + duration_s * (iterations / state.job.iterations if state.job.iterations > 0 else 0.0)


class PoolView:
    """A `planner.many_jobs.placers.records.FreeNodes` of a run's pool, while a rule is asked."""

    __slots__ = ("_barred", "_pool", "_sitting", "free")

    def __init__(self, nodes: PoolNodes, pool: str, sitting: Sitting) -> None:
        self.free: Sequence[int] = nodes.counts
        if nodes.barred:
            self.free = [0 if node in nodes.barred else count for node, count in enumerate(nodes.counts)]
        self._pool, self._sitting, self._barred = pool, sitting, nodes.barred

    def last_end_s(self, node: int) -> float | None:
        """As `FreeNodes`."""
        ends = self._sitting.ends.get((self._pool, node))
        return max(ends.values())[0] if ends else None

    def ends(self, node: int) -> Sequence[tuple[float, int]]:
        """As `FreeNodes`; none of nodes that are reserved for others."""
        if node in self._barred:
            return ()
        return tuple(self._sitting.ends.get((self._pool, node), {}).values())


def take_by_rule(
    placer: Placer,
    nodes: PoolNodes,
    sitting: Sitting,
    state: ActiveJob,
    pool: str,
    devices: int,
    network: Network,
    *,
    price: Price,
    budget: Callable[[], Budget | None] | None,
    may_wait: bool,
) -> Pieces | Later:
    """Return the devices of the pool that the rule gives the job, taken; or that it is to be placed later. The caller
    knows that so many are free.

    Raises:
        PlacerError: the rule fails, gives too few, too many, a device twice, or one that is not free, or lets a job
            wait that may not, or until no time to come.
    """
    now_s = state.clock.now_s
    view = PoolView(nodes, pool, sitting)
    request = Request(
        job=state.job,
        pool=pool,
        devices=devices,
        size=nodes.size,
        now_s=now_s,
        predicted_end_s=predicted_end_s(state, now_s, state.remaining_at),
        network=network,
        iteration_s=price,
        budget=budget,
        may_wait=may_wait,
    )
    where = f"placer {placer.name} at {now_s:g} s, job {state.job.id}"
    try:
        chosen = placer.place(view, request)
    except (InputError, MachineError):
        raise
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
        raise PlacerError(where=where, found=found, expected=f"{devices} devices of {pool}") from error
    if isinstance(chosen, Later):
        if not (may_wait and now_s < chosen.until_s < inf):
            expected = "a time after now" if may_wait else f"{devices} devices of {pool}: the job may not wait longer"
            raise PlacerError(where=where, found=f"later, at {chosen.until_s:g} s", expected=expected)
        return chosen
    wrong = wrong_seats(chosen, view.free, devices)
    if wrong is not None:
        found, expected = wrong
        raise PlacerError(where=where, found=found, expected=expected)
    return nodes.take_on(tuple((node, count) for node, count in chosen))


def wrong_seats(chosen: NodeCounts, free: Sequence[int], devices: int) -> tuple[str, str] | None:
    """Return what is found and what was expected where `chosen` are not `devices` of these free ones; else None."""
    pairs = isinstance(chosen, tuple | list) and all(
        isinstance(pair, tuple | list) and len(pair) == 2 for pair in chosen
    )
    if not pairs or not all(isinstance(value, int) for pair in chosen for value in pair):
        return f"{chosen!r:.80}", "pairs of a node's number and how many of its devices"
    seen: set[int] = set()
    for node, count in chosen:
        if not 0 <= node < len(free):
            return f"node {node}", f"one of nodes 0 to {len(free) - 1}"
        if node in seen:
            return f"node {node} twice", "each node once, so that no device is given twice"
        if count < 1:
            return f"{count} devices of node {node}", "1 or more of each node"
        if count > free[node]:
            return f"{count} devices of node {node}", f"no more than the {free[node]} that are free there"
        seen.add(node)
    total = sum(count for _, count in chosen)
    if total != devices:
        return f"{total} devices", f"the {devices} that the job gets"
    return None
