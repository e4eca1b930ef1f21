"""Which pool and which model a row gets; every question to the book of Cells is asked once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from itertools import accumulate

from estimator.frontends.load import load_file_model
from planner.many_jobs.jobs.records import CellBook, Pool, Workload
from planner.many_jobs.traces.places import (
    devices_like,
    devices_of,
    pools_of,
    stand_in,
)
from planner.many_jobs.traces.records import TraceRow
from planner.many_jobs.traces.workloads import ModelFamily, all_choices, fallbacks, family_shares, pick, size_shares
from planner.shared.options.simulate import Counts, Oversize, UnknownDevice
from profiles.errors import InputError, NothingFits
from profiles.limits import LIMITS
from profiles.records import dataclass
from profiles.vocabulary import DType

_PoolKey = tuple[tuple[str, ...], int, Workload | None, int | None]
_DrawKey = tuple[str, int, tuple[int, int, int], int | None]


@dataclass(slots=True)
class Chooser:
    """What `cells` answered, kept by what was asked: the rows of a trace are many, what they ask is not."""

    source: str
    pools: Mapping[str, Pool]
    cells: CellBook
    distribution: tuple[ModelFamily, ...]
    counts: Counts
    oversize: Oversize
    unknown_device: UnknownDevice
    dtype: DType = "bf16"
    _devices: dict[tuple[tuple[str, ...], int], int] = field(default_factory=dict)
    _times: dict[tuple[Workload, str, int], float | None] = field(default_factory=dict)
    _drawn: dict[_DrawKey, Workload] = field(default_factory=dict)
    _shares: dict[_PoolKey, tuple[tuple[str, ...], tuple[float, ...]]] = field(default_factory=dict)
    _by_device: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _stated: dict[tuple[str, int | None], Workload] = field(default_factory=dict)

    def pools_of(self, row: TraceRow) -> tuple[str, ...]:
        """As `places.pools_of`."""
        if row.device not in self._by_device:
            self._by_device[row.device] = pools_of(row, self.pools, self.unknown_device, source=self.source)
        return self._by_device[row.device]

    def devices_of(self, row: TraceRow, names: tuple[str, ...]) -> int:
        """As `places.devices_of`."""
        key = (names, row.gpus)
        if key not in self._devices:
            self._devices[key] = devices_of(row, names, self.pools, self.counts, self.oversize, source=self.source)
        return self._devices[key]

    def stated(self, row: TraceRow) -> Workload:
        """The workload of a row that names its model, with the zoo's batch where it names none; InputError where the
        zoo has none either."""
        key = (row.model, row.global_batch)
        if key not in self._stated:
            try:
                model = load_file_model(row.model, key="model")
            except InputError as error:
                where = f"{self.source}, line {row.line}"
                raise InputError(where=where, key="model", found=error.found, expected=error.expected) from error
            batch = row.global_batch or model.global_batch
            if batch is None:
                lacking = f"nothing, and {row.model} has no published one"
                where = f"{self.source}, line {row.line}"
                raise InputError(where=where, key="global_batch", found=lacking, expected="samples an iteration")
            LIMITS.samples.check(batch, where=f"{self.source}, line {row.line}", key="global_batch")
            self._stated[key] = Workload(model=row.model, global_batch=batch, dtype=self.dtype)
        return self._stated[key]

    def time_s(self, workload: Workload, pool: str, devices: int) -> float:
        """Seconds an iteration of the best Cell; only for a workload and a pool that were chosen here. Of a job over
        several pools the time of the Cell that stands for it (`places.stand_in`), scaled by devices: x count / devices.
        """
        place, count = stand_in(pool, devices, self.pools)
        time_s = self._best_s(workload, place, count)
        assert time_s is not None
        return time_s * count / devices

    def pool_for(
        self, row: TraceRow, names: tuple[str, ...], devices: int, workload: Workload | None, drawn: float
    ) -> str:
        """A pool of `names`, drawn by size among those that have the devices and fit the workload on them (None: any
        of the distribution's); NothingFits where there is none. Where none has so many, but its type does in all pools
        together ("spread"), what fits is asked of the Cell that stands for it."""
        key = (names, devices, workload, row.global_batch if workload is None else None)
        if key not in self._shares:
            spread = self._spread(names, devices)
            enough = [
                name
                for name in names
                if devices <= (devices_like(name, self.pools) if spread else self.pools[name].devices)
            ]
            hosts = tuple(name for name in enough if self._hosts(name, devices, workload, row.global_batch))
            sizes = [self.pools[name].devices for name in hosts]
            self._shares[key] = hosts, tuple(so_far / sum(sizes) for so_far in accumulate(sizes))
        hosts, shares = self._shares[key]
        if not hosts:
            raise NothingFits(self._why_not(row, names, devices, workload))
        return hosts[pick(shares, drawn)]

    def drawn(self, pool: str, devices: int, numbers: tuple[float, float, float], global_batch: int | None) -> Workload:
        """The workload that three numbers of [0, 1) draw, or what stands in for it, on devices that `pool_for` found
        to fit some. `global_batch` is the row's, where it states one."""
        pool, devices = stand_in(pool, devices, self.pools)
        family = pick(family_shares(self.distribution), numbers[0])
        drawn_family = self.distribution[family]
        size = pick(size_shares(devices, len(drawn_family.models)), numbers[1])
        choice = (family, size, int(numbers[2] * len(drawn_family.global_batches)))
        key = (pool, devices, choice, global_batch)
        if key not in self._drawn:
            workload = self._first(fallbacks(self.distribution, choice), pool, devices, global_batch)
            workload = workload or self._first(all_choices(self.distribution), pool, devices, global_batch)
            assert workload is not None
            self._drawn[key] = workload
        return self._drawn[key]

    def _spread(self, names: tuple[str, ...], devices: int) -> bool:
        return self.oversize == "spread" and devices > max(self.pools[name].devices for name in names)

    def _hosts(self, pool: str, devices: int, workload: Workload | None, global_batch: int | None) -> bool:
        pool, devices = stand_in(pool, devices, self.pools)
        if workload is not None:
            return self._best_s(workload, pool, devices) is not None
        return self._first(all_choices(self.distribution), pool, devices, global_batch) is not None

    def _first(
        self, choices: Iterable[tuple[str, int]], pool: str, devices: int, global_batch: int | None
    ) -> Workload | None:
        """The first that fits."""
        for model, usual_batch in choices:
            workload = Workload(model=model, global_batch=global_batch or usual_batch, dtype=self.dtype)
            if self._best_s(workload, pool, devices) is not None:
                return workload
        return None

    def _best_s(self, workload: Workload, pool: str, devices: int) -> float | None:
        key = (workload, pool, devices)
        if key not in self._times:
            best = self.cells.best(workload, pool, devices)
            self._times[key] = None if best is None else best.iteration_time_s
        return self._times[key]

    def _why_not(self, row: TraceRow, names: tuple[str, ...], devices: int, workload: Workload | None) -> str:
        where = f"{self.source}, line {row.line}: job {row.job_id}"
        place = f"{devices} devices of {' or '.join(names)}"
        if self._spread(names, devices):
            asked = dict.fromkeys(
                stand_in(name, devices, self.pools) for name in names if devices <= devices_like(name, self.pools)
            )
            names = tuple(name for name, _ in asked)
            asked_for = " or ".join(f"{count} of {name}" for name, count in asked)
            place = f"the devices that stand for its {devices} over several pools ({asked_for})"
        if workload is None:
            return f"{where}: no model of the distribution fits on {place}"
        least = [least for name in names if (least := self.cells.least_devices(workload, name)) is not None]
        hint = f"; it fits from {min(least)} devices on" if least else "; it fits on no number of them"
        return f"{where}: {workload.model} with a global batch of {workload.global_batch} does not fit on {place}{hint}"
