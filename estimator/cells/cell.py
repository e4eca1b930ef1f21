"""Cells: the best assembly of data-parallel-only and tensor-parallel-only stages (Crius sections 4.2 and 5.1).

A Cell is (job, device type, device count, stage count). Its layers and devices are split over stages; each stage is
priced once with all its devices in data parallelism and once with all in tensor parallelism; of the 2^Ns assemblies the
fastest is the Cell's estimate, and each stage's choice in it is that stage's favour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

from estimator.cells.assembly import ENUMERABLE, Assembly, AssemblyProblem, assemble_enumerate, assemble_exact
from estimator.cells.job import Job
from estimator.cells.rules import Formula, Method, Partition
from estimator.cells.stage_options import Favour, Machine, StageOption, StagePlace, best_recompute
from estimator.cells.stage_places import place_stages, propose_splits
from estimator.communication.collectives import time_stage_transfer
from estimator.layers.graph import cut_bytes
from profiles.cluster import DeviceSlot
from profiles.errors import InputError
from profiles.vocabulary import Infeasible, Provenance, Shard, combine_provenance

StageChoices = Sequence[tuple[Favour, StageOption]]
"""What a stage may be run as, each with the favour that it stands for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRules:
    """How a Cell is split and assembled, each by name; the defaults are ours, `crius` is the paper's."""

    partition: Partition = "exact"
    formula: Formula = "cellplan"
    assembly: Method = "exact"

    def __post_init__(self) -> None:
        for key, name, known in (
            ("--partition", self.partition, get_args(Partition)),
            ("--formula", self.formula, get_args(Formula)),
            ("--assembly", self.assembly, get_args(Method)),
        ):
            if name not in known:
                raise InputError(where="job", key=key, found=name, expected=f"one of {', '.join(known)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEstimate:
    """One stage of the chosen assembly. `transfer_s` is the transfer from the stage before, a micro-batch both ways."""

    first: int
    end: int
    slots: tuple[DeviceSlot, ...]
    favour: Favour
    option: StageOption
    transfer_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Where an iteration's time goes, seen from the stage that limits the pipeline; the fields sum to the iteration.

    `transfer_s` holds the transfers between stages that nothing hides, `bubble_s` the time that the limiting stage
    waits for the others to fill and drain.
    """

    compute_s: float
    blocking_collectives_s: float
    transfer_s: float
    bubble_s: float
    gradient_sync_s: float
    optimizer_s: float

    @property
    def total_s(self) -> float:
        return (
            self.compute_s
            + self.blocking_collectives_s
            + self.transfer_s
            + self.bubble_s
            + self.gradient_sync_s
            + self.optimizer_s
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CellEstimate:
    """A Cell that fits: its best assembly, priced. `assemblies` counts those compared; `dropped` says which stage
    choices were left out and why."""

    device: str
    devices: int
    micro_batch: int
    micro_batches: int
    stages: tuple[StageEstimate, ...]
    iteration_time_s: float
    breakdown: Breakdown
    assemblies: int
    dropped: tuple[str, ...]
    compute_provenance: Provenance
    communication_provenance: Provenance | None
    communication_basis: tuple[str, ...]
    link_table_ids: tuple[str, ...]
    spread_s: tuple[float, float] | None

    @property
    def peak_memory_bytes(self) -> int:
        """Allocator's peak on the fullest rank."""
        return max(stage.option.memory.peak_bytes for stage in self.stages)

    @property
    def recomputes(self) -> bool:
        """Whether any stage recomputes activations."""
        return any(stage.option.parallelism.recompute != "none" for stage in self.stages)

    @property
    def assembly(self) -> tuple[Favour, ...]:
        """Each stage's favour."""
        return tuple(stage.favour for stage in self.stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellFailure:
    """A Cell that cannot be had, with the nearest miss."""

    device: str
    devices: int
    stages: int
    failure: Infeasible
    dropped: tuple[str, ...] = ()


def estimate_cell(
    job: Job, machine: Machine, slots: Sequence[DeviceSlot], stages: int, rules: CellRules
) -> CellEstimate | CellFailure:
    """Estimate the Cell of `job` on `slots` (all of one device type) with `stages` stages.

    Of the micro-batch counts that `job` allows, the one that its rule asks for: see `Job.micro_batches`.
    """
    counts = job.micro_batch_counts(devices=len(slots), stages=stages)
    if not counts:
        reason = (
            f"{job.micro_batch_per_rank} samples per rank on {len(slots) // stages} devices a stage do not divide the"
            f" global batch of {job.global_batch}"
        )
        return _fail(machine, slots, stages, Infeasible(reason=reason, lacking="divisibility"))
    found: list[CellEstimate] = []
    failure: CellFailure | None = None
    for count in counts[:1] if job.micro_batches == "crius" else counts:
        cell = _estimate_count(job, machine, slots, stages, count, rules)
        if isinstance(cell, CellFailure):
            failure = _nearer(failure, cell)
            continue
        found.append(cell)
        if job.micro_batches != "best" and (job.recompute != "auto" or not cell.recomputes):
            break
    if found:
        fastest = min(found, key=lambda cell: cell.iteration_time_s)
        return replace(fastest, assemblies=sum(cell.assemblies for cell in found))
    assert failure is not None, "neither an estimate nor a failure"
    return failure


def _estimate_count(
    job: Job, machine: Machine, slots: Sequence[DeviceSlot], stages: int, micro_batches: int, rules: CellRules
) -> CellEstimate | CellFailure:
    """The Cell at that many micro-batches: the first split whose stages fit, or the nearest miss."""
    failure: CellFailure | None = None
    for split in propose_splits(job, machine, len(slots), stages, micro_batches, rules.partition):
        if isinstance(split, Infeasible):
            failure = _nearer(failure, _fail(machine, slots, stages, split))
            continue
        places = place_stages(job, split, slots, micro_batches)
        priced = [_price(job, machine, place) for place in places]
        dropped = tuple(line for _, lines in priced for line in lines)
        options = [tuple(stage.items()) for stage, _ in priced if not isinstance(stage, Infeasible)]
        if len(options) == len(places):
            return assemble_cell(job, machine, places, options, dropped=dropped, rules=rules)
        worst = max((stage for stage, _ in priced if isinstance(stage, Infeasible)), key=_lack)
        failure = _nearer(failure, _fail(machine, slots, stages, worst, dropped))
    assert failure is not None, "there is always a split to try"
    return failure


def _fail(
    machine: Machine, slots: Sequence[DeviceSlot], stages: int, failure: Infeasible, dropped: tuple[str, ...] = ()
) -> CellFailure:
    return CellFailure(device=machine.device.name, devices=len(slots), stages=stages, failure=failure, dropped=dropped)


def _nearer(one: CellFailure | None, other: CellFailure) -> CellFailure:
    """The failure that lacks less."""
    return other if one is None or _lack(other.failure) < _lack(one.failure) else one


def _lack(failure: Infeasible) -> float:
    """How far away it is, in bytes; infinitely far where bytes cannot mend it."""
    return math.inf if failure.lacking_bytes is None else failure.lacking_bytes


def _price(
    job: Job, machine: Machine, place: StagePlace
) -> tuple[dict[Favour, StageOption] | Infeasible, tuple[str, ...]]:
    """The stage's options by favour, or the nearest miss if none is left; and a line for each that was dropped.

    On one device both choices are the same and count as data-parallel.
    """
    count = len(place.slots)
    degrees: dict[Favour, tuple[int, int]] = {"dp": (count, 1), "tp": (1, count)}
    if count == 1:
        del degrees["tp"]
    options: dict[Favour, StageOption] = {}
    misses: list[Infeasible] = []
    lines = []
    for favour, (dp, tp) in degrees.items():
        option = best_recompute(job, machine, place, dp=dp, tp=tp)
        if isinstance(option, Infeasible):
            misses.append(option)
            lines.append(f"stage {place.index}: {favour}-only dropped, {option.reason}")
        else:
            options[favour] = option
    if options:
        return options, tuple(lines)
    nearest = min(misses, key=_lack)
    return replace(nearest, reason=f"stage {place.index} ({count} devices): {nearest.reason}"), tuple(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Transfer:
    """Both ways over one boundary, for one micro-batch."""

    seconds: float
    provenance: Provenance
    basis: tuple[str, ...]
    link_table_ids: tuple[str, ...]


def _time_transfer(
    job: Job, machine: Machine, before: StagePlace, after: StagePlace, sender: StageOption, receiver: StageOption
) -> _Transfer:
    """The activation forward and its gradient back, re-cut between the two stages' dp and tp (Crius section 5.1)."""
    whole = Shard(
        micro_batch_per_rank=before.micro_batch,
        seq_len=job.seq_len,
        dtype=job.dtype,
        attention=job.attention_on(machine.device),
    )
    size = cut_bytes(job.model, after.first - 1, whole)
    ways = [
        time_stage_transfer(
            machine.cluster,
            from_slots,
            to_slots,
            size,
            to_tp=to.parallelism.tp,
            gather=not job.sequence_parallel,
            tables=machine.link_tables,
        )
        for from_slots, to_slots, to in ((before.slots, after.slots, receiver), (after.slots, before.slots, sender))
    ]
    return _Transfer(
        seconds=sum(way.total_s for way in ways),
        provenance=combine_provenance(tuple(way.provenance for way in ways)),
        basis=tuple(way.how for way in ways),
        link_table_ids=tuple(name for way in ways for name in way.table_ids),
    )


def assemble_cell(
    job: Job,
    machine: Machine,
    places: Sequence[StagePlace],
    options: Sequence[StageChoices],
    *,
    dropped: tuple[str, ...] = (),
    rules: CellRules,
) -> CellEstimate:
    """The best assembly of `options`, one or more for each of `places`; `dropped` says which were left out and why."""
    transfers = [
        [
            [_time_transfer(job, machine, places[i], places[i + 1], y, x) for _, x in options[i + 1]]
            for _, y in options[i]
        ]
        for i in range(len(places) - 1)
    ]
    problem = AssemblyProblem(
        time_s=tuple(tuple(option.time_s for _, option in stage) for stage in options),
        tail_s=tuple(tuple(option.step_s for _, option in stage) for stage in options),
        transfer_s=tuple(tuple(tuple(time.seconds for time in row) for row in table) for table in transfers),
        micro_batches=places[0].micro_batches,
    )
    best = _find_best(problem, rules)
    taken = [table[y][x] for table, y, x in zip(transfers, best.choices, best.choices[1:], strict=False)]
    stages = []
    for place, stage, choice, transfer in zip(places, options, best.choices, (None, *taken), strict=True):
        favour, option = stage[choice]
        stages.append(
            StageEstimate(
                first=place.first,
                end=place.first + len(place.layers),
                slots=place.slots,
                favour=favour,
                option=option,
                transfer_s=transfer.seconds if transfer else 0.0,
            )
        )
    return _describe_best(machine, places[0], tuple(stages), taken, best, math.prod(map(len, options)), dropped)


def _find_best(problem: AssemblyProblem, rules: CellRules) -> Assembly:
    assemblies = math.prod(len(stage) for stage in problem.time_s)
    if rules.assembly == "enumerate" and assemblies > ENUMERABLE:
        raise InputError(
            where="job",
            key="--assembly",
            found=f"enumerate with {assemblies} assemblies of {len(problem.time_s)} stages",
            expected=f"at most {ENUMERABLE} to enumerate, or exact, which finds the same one",
        )
    best = (assemble_enumerate if rules.assembly == "enumerate" else assemble_exact)(problem, rules.formula)
    if isinstance(best, Infeasible):
        raise ValueError(f"assembly: {best.reason}, although every stage has an option")
    return best


def _describe_best(
    machine: Machine,
    place: StagePlace,
    stages: tuple[StageEstimate, ...],
    transfers: list[_Transfer],
    best: Assembly,
    assemblies: int,
    dropped: tuple[str, ...],
) -> CellEstimate:
    """The chosen assembly with where its figures come from; `place` is any stage's, for the batch."""
    options = [stage.option for stage in stages]
    sources = [option.communication_provenance for option in options] + [way.provenance for way in transfers]
    communication = tuple(source for source in sources if source)
    basis = {line for option in options for line in option.communication_basis}
    basis |= {line for way in transfers for line in way.basis}
    table_ids = {name for option in options for name in option.link_table_ids}
    table_ids |= {name for way in transfers for name in way.link_table_ids}
    compute = combine_provenance(tuple(option.compute_provenance for option in options))
    measured = {compute, *communication} == {"measured"}
    return CellEstimate(
        device=machine.device.name,
        devices=sum(len(stage.slots) for stage in stages),
        micro_batch=place.micro_batch,
        micro_batches=place.micro_batches,
        stages=stages,
        iteration_time_s=best.iteration_time_s,
        breakdown=_break_down(stages, best, place.micro_batches),
        assemblies=assemblies,
        dropped=dropped,
        compute_provenance=compute,
        communication_provenance=combine_provenance(communication) if communication else None,
        communication_basis=tuple(sorted(basis)),
        link_table_ids=tuple(sorted(table_ids)),
        spread_s=_spread(stages, best, place.micro_batches) if measured else None,
    )


def _break_down(stages: Sequence[StageEstimate], best: Assembly, micro_batches: int) -> Breakdown:
    """The assembly's time by kind, from the stage that sets the pace."""
    pipeline = best.pipeline
    slowest = stages[pipeline.bottleneck].option
    last = max(stages, key=lambda stage: stage.option.step_s).option
    # Where transfers set the pace, the stage's own work hides behind them for all but the first micro-batch.
    return Breakdown(
        compute_s=micro_batches * slowest.compute_s,
        blocking_collectives_s=micro_batches * slowest.blocking_s,
        transfer_s=pipeline.fill_transfer_s + pipeline.steady_transfer_s,
        bubble_s=pipeline.fill_compute_s - slowest.time_s,
        gradient_sync_s=last.gradient_sync_step_s,
        optimizer_s=last.optimizer_step_s,
    )


def _spread(stages: Sequence[StageEstimate], best: Assembly, micro_batches: int) -> tuple[float, float]:
    """How far below and above the iteration time its 90% range reaches if all its profiles err the same way."""
    low_s, high_s = (
        sum(spreads) + (micro_batches - 1) * spreads[best.pipeline.bottleneck]
        for spreads in zip(*(stage.option.spread_s for stage in stages), strict=True)
    )
    return low_s, high_s
