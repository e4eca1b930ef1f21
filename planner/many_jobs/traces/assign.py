"""From rows to jobs: a model, devices of a pool, and an amount of work for each, fixed before any policy runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from estimator.frontends.load import load_file_model
from estimator.layers.graph import build_graph
from planner.many_jobs.jobs.records import AS_LOGGED, Announcement, CellBook, Job, Pool, Workload
from planner.many_jobs.traces.choosing import Chooser
from planner.many_jobs.traces.draws import PURPOSES, draws
from planner.many_jobs.traces.records import Trace, TraceRow
from planner.many_jobs.traces.workloads import TABLE_2, ModelFamily
from planner.shared.garbage import collection_paused
from planner.shared.options.simulate import Counts, NoModel, Oversize, UnknownDevice
from profiles.errors import InputError
from profiles.records import dataclass
from profiles.vocabulary import DType, Shard

DEADLINE_SPANS = (1.0, 3.0)
"""Where deadlines are drawn: this many durations after submission, evenly. Ours: Crius (section 8.5) has deadlines
but does not say which."""

CHECKPOINT_BYTES_PER_PARAMETER = 2 + 12
"""Weights in bf16; master weights and both of AdamW's moments in fp32."""


def assign_workloads(
    trace: Trace,
    *,
    pools: Mapping[str, Pool],
    cells: CellBook,
    seed: int,
    distribution: tuple[ModelFamily, ...] = TABLE_2,
    counts: Counts = "keep",
    oversize: Oversize = "refuse",
    unknown_device: UnknownDevice = "refuse",
    deadlines: tuple[float, float] | None = None,
    dtype: DType = "bf16",
    parameters_of: Callable[[str], int] | None = None,
    no_model: NoModel = "draw",
) -> tuple[Job, ...]:
    """Return the jobs of a trace's rows, in its order.

    What a row states stays: model, batch, device, iterations, deadline, priority. The rest is drawn, each kind of
    draw from a stream of its own that depends on `seed` and the row's place in the trace alone. The pool is drawn by
    size among those that have enough devices, and on them something that fits. A model stated without a batch is
    trained with the zoo's. Work that is not stated is duration / iteration time of the best Cell on the row's devices.

    A row with more GPUs than any pool has may ask for devices over several pools of one type (`oversize` "spread"): its
    job keeps more devices than its pool has, which is drawn as ever among those of a type that has enough in all. What
    it trains is drawn and checked on the largest power of two of devices that a pool of the type has, and an iteration
    is taken to need that Cell's time x its count / the job's devices, as if links between pools cost nothing. Only
    policies that join sites (`planner.many_jobs.scheduling.sites`) give it all that it asks for; others leave it
    waiting, or run it on fewer devices where they choose how many.

    Args:
        trace: its rows.
        pools: by name.
        cells: says what fits and how fast it is; asked once for each workload, pool and count.
        seed: of all draws.
        distribution: what rows without a model train; see `planner.many_jobs.traces.workloads`.
        counts: "keep" the rows' GPUs as devices, or round them up to "powers" of two.
        oversize: rows with more GPUs than any pool has: "refuse", "clip" to the largest pool (duration unchanged), or
            "spread" over pools of one type.
        unknown_device: rows that name a device no pool has: "refuse", or "draw" a pool.
        deadlines: rows without one get submit + duration x U(these two), e.g. `DEADLINE_SPANS`; None: none.
        dtype: what everything is trained in (`planner.many_jobs.scheduling.cell_book.common_dtype`).
        no_model: rows that name no model: "draw" one, or "keep-durations" on as many devices as they asked for.
        parameters_of: parameters of a model, for the size of its checkpoints; by default counted from its layers.

    Raises:
        InputError: a row too large, a device that is not there, a model that is unknown or has no batch.
        NothingFits: no pool that a row may go to has room for its model, or for any, on its devices.
    """
    _check(pools, seed, distribution, deadlines)
    count = len(trace.rows)
    maker = _JobMaker(
        choose=Chooser(trace.source, pools, cells, distribution, counts, oversize, unknown_device, dtype),
        checkpoints=Checkpoints(parameters_of or count_parameters),
        deadlines=deadlines,
        no_model=no_model,
    )
    streams = [draws(seed, purpose, count) for purpose in PURPOSES]

    with collection_paused():
        return tuple(maker.job(row, *drawn) for row, *drawn in zip(trace.rows, *streams, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class _JobMaker:
    choose: Chooser
    checkpoints: Checkpoints
    deadlines: tuple[float, float] | None
    no_model: NoModel

    def job(
        self, row: TraceRow, by_pool: float, by_family: float, by_size: float, by_batch: float, by_deadline: float
    ) -> Job:
        """The job of a row, with a number of [0, 1) for each thing that may have to be drawn."""
        choose = self.choose
        names = choose.pools_of(row)
        devices = choose.devices_of(row, names)
        workload = choose.stated(row) if row.model else None
        if workload is None and self.no_model == "keep-durations":
            workload = Workload(model=AS_LOGGED, global_batch=devices, dtype=choose.dtype)
        pool = choose.pool_for(row, names, devices, workload, by_pool)
        if workload is None:
            workload = choose.drawn(pool, devices, (by_family, by_size, by_batch), row.global_batch)
        return Job(
            id=row.job_id,
            submit_s=row.submit_time_s if row.cancelled_s is None else row.cancelled_s,
            pool=pool,
            devices=devices,
            workload=workload,
            iterations=row.iterations or row.duration_s / choose.time_s(workload, pool, devices),
            duration_s=row.duration_s,
            user=row.user,
            virtual_cluster=row.vc_or_department,
            priority=row.priority or 0,
            deadline_s=_deadline(row, self.deadlines, by_deadline) if self.deadlines else row.deadline_s,
            checkpoint_bytes=self.checkpoints[workload.model],
            planned=_announced(row),
            preemptible=bool(row.preemptible),
            hosts=row.hosts,
        )


def _announced(row: TraceRow) -> Announcement | None:
    """What was said of the row's job before it came."""
    if row.planned_s is None:
        return None
    arrival_s = row.submit_time_s if row.planned_for_s is None else row.planned_for_s
    return Announcement(known_s=row.planned_s, arrival_s=arrival_s, cancelled=row.cancelled_s is not None)


class Checkpoints(dict[str, int]):
    """Bytes of a checkpoint by model, counted when first asked for."""

    def __init__(self, parameters_of: Callable[[str], int]) -> None:
        super().__init__()
        self._parameters_of = parameters_of

    def __missing__(self, model: str) -> int:
        self[model] = CHECKPOINT_BYTES_PER_PARAMETER * self._parameters_of(model)
        return self[model]


def _deadline(row: TraceRow, spans: tuple[float, float], drawn: float) -> float:
    """The deadline that the row states, or submission + duration x a factor between the two."""
    if row.deadline_s is not None:
        return row.deadline_s
    return row.submit_time_s + row.duration_s * (spans[0] + (spans[1] - spans[0]) * drawn)


@cache
def count_parameters(model: str) -> int:
    """Return the parameters of the model that `model` names, counted from its layers; 0 where none is known."""
    if model == AS_LOGGED:
        return 0
    loaded = load_file_model(model)
    return build_graph(loaded, shard=Shard(seq_len=loaded.seq_len), degrees=()).parameters


def _check(
    pools: Mapping[str, Pool], seed: int, distribution: tuple[ModelFamily, ...], deadlines: tuple[float, float] | None
) -> None:
    if not pools:
        raise InputError(where="cluster", found="no pool of devices", expected="at least one")
    if seed < 0:
        raise InputError(where="trace", key="seed", found=seed, expected="a whole number of at least 0")
    if not distribution:
        raise InputError(where="distribution", found="no family of models", expected="at least one")
    if deadlines is not None and not 0 < deadlines[0] <= deadlines[1] < float("inf"):
        raise InputError(where="deadlines", found=deadlines, expected="two factors above 0 of a duration, rising")
