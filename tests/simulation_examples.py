"""Policies, speeds and workloads for tests of the simulator. All figures are such that floating point is exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from planner.many_jobs.jobs.records import CellOption, Decision, Grant, Job, Pool, Stateless, View, Workload
from planner.many_jobs.simulation.failures import Failure
from tests.scheduling_examples import make_job, make_pool


class PowerCells:
    """A book whose iterations take 8 s / devices on "a" and 16 s / devices on any other pool, twice that in two
    stages. Nothing fits on more than `most` devices."""

    def __init__(self, most: int = 1024) -> None:
        self.most = most

    def options(self, workload: Workload, pool: str, devices: int) -> tuple[CellOption, ...]:
        del workload
        if not 1 <= devices <= self.most:
            return ()
        whole_s = 8.0 if pool == "a" else 16.0
        return tuple(
            CellOption(
                pool=pool,
                devices=devices,
                stages=stages,
                iteration_time_s=whole_s * stages / devices,
                assembly=("dp",) * stages,
            )
            for stages in (1, 2)
            if stages <= devices
        )

    def best(self, workload: Workload, pool: str, devices: int) -> CellOption | None:
        return next(iter(self.options(workload, pool, devices)), None)

    def data_parallel_s(self, workload: Workload, pool: str, devices: int) -> float | None:
        best = self.best(workload, pool, devices)
        return None if best is None else best.iteration_time_s

    def least_devices(self, workload: Workload, pool: str) -> int | None:
        del workload, pool
        return 1


def speed_over_pools(job: Job, grant: Grant) -> float | None:
    """As `PowerCells`; over several pools as the slowest of them with all devices."""
    del job
    if grant.stages is not None and grant.stages > grant.devices:
        return None
    whole_s = 8.0 if {pool for pool, _ in grant.parts} == {"a"} else 16.0
    return whole_s * (grant.stages or 1) / grant.devices


class Scripted:
    """Random decisions out of a seed and the number of the call; it reads nothing of the view but who is there and how
    much is free. `calls` is its state."""

    name = "scripted"

    def __init__(self, seed: int, *, drops: bool = True) -> None:
        self.seed, self.calls, self.drops = seed, 0, drops

    def decide(self, view: View) -> Decision:
        self.calls += 1
        rng = Random(f"{self.seed} {self.calls}")
        free = dict(view.free)
        grants: dict[str, Grant | None] = {}
        dropped = []
        for id_, state in view.running.items():
            if rng.random() < 0.15:
                assert state.grant is not None
                for pool, count in state.grant.parts:
                    free[pool] += count
                grants[id_] = None
        for id_ in [*view.waiting, *(id_ for id_ in view.running if id_ not in grants), *list(grants)]:
            if self.drops and rng.random() < 0.01:
                dropped.append(id_)
                grants.pop(id_, None)
                continue
            if rng.random() < (0.7 if id_ in view.waiting else 0.2):
                state = view.waiting.get(id_) or view.running[id_]
                own = dict(state.grant.parts) if state.grant is not None and id_ not in grants else {}
                grant = self._draw(rng, {pool: free[pool] + own.get(pool, 0) for pool in sorted(free)})
                if grant is not None:
                    for pool, count in own.items():
                        free[pool] += count
                    for pool, count in grant.parts:
                        free[pool] -= count
                    grants[id_] = grant
        for id_ in view.waiting:
            if id_ not in grants and id_ not in dropped and not view.running and not any(grants.values()):
                pool = max(sorted(free), key=lambda name: free[name])
                if free[pool]:
                    grants[id_] = Grant(parts=((pool, 1),))
                    free[pool] -= 1
        return Decision(grants=grants, dropped=tuple(dropped))

    @staticmethod
    def _draw(rng: Random, free: Mapping[str, int]) -> Grant | None:
        pools = [pool for pool, count in free.items() if count]
        rng.shuffle(pools)
        parts = []
        for pool in pools[: rng.choice((1, 1, 1, 2))]:
            counts = [count for count in (1, 2, 4, 8, 16, 32) if count <= free[pool]]
            parts.append((pool, rng.choice(counts)))
        total = sum(count for _, count in parts)
        if not parts or total & (total - 1):
            return None
        return Grant(parts=tuple(parts), stages=rng.choice((None, 1, 2)) if total > 1 else None)

    def state(self) -> object:
        return {"calls": self.calls}

    def restore(self, state: object) -> None:
        assert isinstance(state, dict)
        self.calls = state["calls"]


class Follow(Stateless):
    """Does what it is told at each time, once: `plan[time]` is a decision."""

    name = "follow"

    def __init__(self, plan: Mapping[float, Decision]) -> None:
        self.plan = dict(plan)

    def decide(self, view: View) -> Decision:
        return self.plan.pop(view.now_s, Decision(grants={}))


def small_pools() -> tuple[Pool, ...]:
    """32 devices of "a" on nodes of 8, 12 of "b" on nodes of 4."""
    return make_pool("a", nodes=4, devices_per_node=8), make_pool("b", nodes=3, devices_per_node=4)


def draw_jobs(rng: Random, count: int, *, latest_s: int = 400) -> tuple[Job, ...]:
    """Jobs whose figures are whole numbers."""
    return tuple(
        make_job(
            f"j{number}",
            submit_s=float(rng.randrange(latest_s)),
            pool=rng.choice("ab"),
            devices=rng.choice((1, 1, 2, 4, 8)),
            iterations=float(rng.choice((0, 1, 2, 5, 16, 30, 64, 100))),
            deadline_s=rng.choice((None, 600.0)),
        )
        for number in range(count)
    )


def draw_failures(rng: Random, pools: Sequence[Pool], count: int) -> tuple[Failure, ...]:
    """Failures of nodes that are up at the time."""
    found: list[Failure] = []
    up_from: dict[tuple[str, int], float] = {}
    for time_s in sorted(rng.sample(range(600), count)):
        pool = rng.choice(list(pools))
        node = rng.randrange(pool.nodes)
        if time_s > up_from.get((pool.name, node), -1):
            repair_s = float(rng.randrange(1, 100))
            up_from[pool.name, node] = time_s + repair_s
            found.append(Failure(time_s=float(time_s), pool=pool.name, node=node, repair_s=repair_s))
    return tuple(found)
