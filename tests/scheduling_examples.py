"""Pools, jobs and a book of Cells in closed form, for tests of schedulers, simulations and traces."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from planner.many_jobs.jobs.records import CellOption, Job, Pool, Workload

GIB = 2**30


def make_pool(
    name: str = "a100",
    *,
    nodes: int = 4,
    devices_per_node: int = 8,
    device: str | None = None,
    site: str = "site",
    devices: int | None = None,
) -> Pool:
    """`nodes` of `devices_per_node`, all of which work unless `devices` says otherwise."""
    return Pool(
        name=name,
        site=site,
        device=device or name,
        nodes=nodes,
        devices_per_node=devices_per_node,
        devices=nodes * devices_per_node if devices is None else devices,
    )


def two_pools() -> dict[str, Pool]:
    """32 of "a100" (fast, 80 GiB by `FakeCells`' defaults) and 16 of "v100" (a third as fast, 32 GiB)."""
    return {"a100": make_pool("a100"), "v100": make_pool("v100", nodes=4, devices_per_node=4)}


def make_job(
    id_: str = "0",
    *,
    submit_s: float = 0.0,
    pool: str = "a100",
    devices: int = 1,
    model: str = "bert-1.3b",
    global_batch: int = 256,
    iterations: float = 1000.0,
    duration_s: float = 600.0,
    user: str = "",
    virtual_cluster: str = "",
    priority: int = 0,
    deadline_s: float | None = None,
    checkpoint_bytes: int = 0,
) -> Job:
    """A job of the given parts."""
    return Job(
        id=id_,
        submit_s=submit_s,
        pool=pool,
        devices=devices,
        workload=Workload(model=model, global_batch=global_batch),
        iterations=iterations,
        duration_s=duration_s,
        user=user,
        virtual_cluster=virtual_cluster,
        priority=priority,
        deadline_s=deadline_s,
        checkpoint_bytes=checkpoint_bytes,
    )


class FakeCells:
    """A `CellBook` in closed form. Of a model only its size is used: the figure before the final "b" of its name
    (`bert-2.6b`: 2.6), or `sizes[model]`, billions of parameters; 0.1 where neither is there.

    On n devices in s stages a batch of B takes

        B x size / 64 / speed x (1 - parallel + parallel / n) x (1 + 0.1 x |log2 s - wanted|)

    seconds, where `wanted` = min(log2 n, floor(size)) // 2: big models want some stages, small ones none. It fits where
    16 bytes a parameter, shared by n devices, are at most the memory. Data parallelism holds all of them on every
    device, and is 1 + 0.05 x size x (1 - 1 / n) times as slow as the best Cell. Speeds are relative (1.0), memories
    bytes (80 GiB); "v100" defaults to 1/3 and 32 GiB. `asked` counts the calls of `best` and `options`.
    """

    def __init__(
        self,
        pools: Mapping[str, Pool] | None = None,
        *,
        speed: Mapping[str, float] | None = None,
        memory_bytes: Mapping[str, float] | None = None,
        sizes: Mapping[str, float] | None = None,
        parallel: float = 0.98,
    ) -> None:
        self.pools = dict(two_pools() if pools is None else pools)
        self._speed = {"v100": 1 / 3} | dict(speed or {})
        self._memory = {"v100": 32.0 * GIB} | dict(memory_bytes or {})
        self._sizes, self._parallel = dict(sizes or {}), parallel
        self._options: dict[tuple[Workload, str, int], tuple[CellOption, ...]] = {}
        self.asked: Counter[str] = Counter()

    def size(self, workload: Workload) -> float:
        """Billions of parameters."""
        if workload.model in self._sizes:
            return self._sizes[workload.model]
        found = re.search(r"(\d+(?:\.\d+)?)b$", workload.model)
        return float(found[1]) if found else 0.1

    def options(self, workload: Workload, pool: str, devices: int) -> tuple[CellOption, ...]:
        """One Cell for each power of two of stages up to `devices`, fastest first; none where memory lacks."""
        self.asked["options"] += 1
        return self._found(workload, pool, devices)

    def best(self, workload: Workload, pool: str, devices: int) -> CellOption | None:
        """The first of `options`."""
        self.asked["best"] += 1
        found = self._found(workload, pool, devices)
        return found[0] if found else None

    def data_parallel_s(self, workload: Workload, pool: str, devices: int) -> float | None:
        """The best Cell's time with its slowdown; scaled from the smallest Cell where all of it fits on no device."""
        size = self.size(workload)
        if not self._holds(pool, size, 1):
            least = self.least_devices(workload, pool)
            smallest = self._found(workload, pool, least) if least else ()
            return smallest[0].iteration_time_s * least / devices if smallest and least else None
        found = self._found(workload, pool, devices)
        return found[0].iteration_time_s * (1 + 0.05 * size * (1 - 1 / devices)) if found else None

    def least_devices(self, workload: Workload, pool: str) -> int | None:
        """The smallest power of two on which the parameters fit."""
        count = 1
        while count <= self.pools[pool].devices:
            if self._found(workload, pool, count):
                return count
            count *= 2
        return None

    def _holds(self, pool: str, size: float, devices: int) -> bool:
        return size * 16e9 / devices <= self._memory.get(pool, 80.0 * GIB)

    def _found(self, workload: Workload, pool: str, devices: int) -> tuple[CellOption, ...]:
        key = (workload, pool, devices)
        if key not in self._options:
            self._options[key] = self._make(workload, pool, devices)
        return self._options[key]

    def _make(self, workload: Workload, pool: str, devices: int) -> tuple[CellOption, ...]:
        size = self.size(workload)
        if not 1 <= devices <= self.pools[pool].devices or not self._holds(pool, size, devices):
            return ()
        most = devices.bit_length() - 1
        wanted = min(most, int(size)) // 2
        share = 1 - self._parallel + self._parallel / devices
        base_s = workload.global_batch * size / 64 / self._speed.get(pool, 1.0) * share
        made = [
            CellOption(
                pool=pool,
                devices=devices,
                stages=2**power,
                iteration_time_s=base_s * (1 + 0.1 * abs(power - wanted)),
                assembly=("dp",) * 2**power if self._holds(pool, size, 2**power) else ("tp",) * 2**power,
            )
            for power in range(most + 1)
        ]
        return tuple(sorted(made, key=lambda option: (option.iteration_time_s, option.stages)))
