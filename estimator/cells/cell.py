"""Cells: the best assembly of data-parallel-only and tensor-parallel-only stages (Crius sections 4.2 and 5.1).

A Cell is (job, device type, device count, stage count). Its layers and devices are split over stages; each stage is
priced with all its devices in data parallelism and with all in tensor parallelism; of the assemblies the one that is
fastest by formula is the Cell's, and each stage's choice in it is that stage's favour. A Cell so generates setups: its
estimate is the price of the one chosen, the same as that of any explicit plan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import get_args

from estimator.cells.assembly import (
    ENUMERABLE,
    QUICKLY_TRIED,
    Assembly,
    AssemblyProblem,
    assemble_enumerate,
    assemble_exact,
)
from estimator.cells.held_stages import StagePlace
from estimator.cells.rules import Formula, Method, Partition
from estimator.cells.stage_places import place_stages, propose_splits
from estimator.cells.stage_pricing import Favour, StageOption, StagePricing, lacking_bytes
from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import Setup
from profiles.cluster import DeviceSlot
from profiles.errors import InputError
from profiles.records import dataclass, replace
from profiles.vocabulary import Infeasible

StageChoices = Sequence[tuple[Favour, StageOption]]
"""What a stage may be run as, each with the favour that it stands for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRules:
    """How a Cell is split and assembled, each by name; the defaults are ours, `crius` is the paper's."""

    partition: Partition = "exact"
    formula: Formula = "cellplan"
    assembly: Method = "exact"

    def __post_init__(self) -> None:
        for key, name, words in (
            ("--partition", self.partition, get_args(Partition)),
            ("--formula", self.formula, get_args(Formula)),
            ("--assembly", self.assembly, get_args(Method)),
        ):
            if name not in words:
                raise InputError(where="job", key=key, found=name, expected=f"one of {', '.join(words)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CellEstimate:
    """A Cell that fits: the setup of its best assembly, priced, and each stage's favour. `assemblies` counts those
    compared; `dropped` says which stage choices were left out and why."""

    device: str
    setup: Setup
    evaluation: Evaluation
    assembly: tuple[Favour, ...]
    assemblies: int
    dropped: tuple[str, ...]

    @property
    def iteration_time_s(self) -> float:
        """Seconds of an iteration."""
        return self.evaluation.iteration_time_s

    @property
    def recomputes(self) -> bool:
        """Whether any stage recomputes activations."""
        return any(stage.recompute != "none" for stage in self.setup.stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenCell:
    """The best assembly of a Cell: each stage's option and its favour, and the seconds of an iteration, all that a
    scheduler asks for. `assemblies` and `dropped` as in `CellEstimate`."""

    options: tuple[StageOption, ...]
    micro_batch: int
    iteration_time_s: float
    assembly: tuple[Favour, ...]
    assemblies: int
    dropped: tuple[str, ...]

    @property
    def recomputes(self) -> bool:
        """Whether any stage recomputes activations."""
        return any(option.setup.recompute != "none" for option in self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellFailure:
    """A Cell that cannot be had, with the nearest miss."""

    device: str
    devices: int
    stages: int
    failure: Infeasible
    dropped: tuple[str, ...] = ()


def estimate_cell(
    pricing: StagePricing, slots: Sequence[DeviceSlot], stages: int, rules: CellRules
) -> CellEstimate | CellFailure:
    """Estimate the Cell of `pricing.job` on `slots` (all of one device type) with `stages` stages.

    Of the micro-batch counts that the job allows, the one that its rule asks for: see `Job.micro_batches`.
    """
    chosen = choose_cell(pricing, slots, stages, rules)
    return chosen if isinstance(chosen, CellFailure) else _evaluated(pricing, chosen)


def choose_cell(
    pricing: StagePricing, slots: Sequence[DeviceSlot], stages: int, rules: CellRules
) -> ChosenCell | CellFailure:
    """Return what `estimate_cell` evaluates, with its seconds alone."""
    job = pricing.job
    counts = job.micro_batch_counts(devices=len(slots), stages=stages)
    if not counts:
        reason = (
            f"{job.micro_batch_per_rank} samples per rank on {len(slots) // stages} devices a stage do not divide the"
            f" global batch of {job.global_batch}"
        )
        return _fail(pricing, slots, stages, Infeasible(reason=reason, lacking="divisibility"))
    cells: list[ChosenCell] = []
    failure: CellFailure | None = None
    for count in counts[:1] if job.micro_batches == "crius" else counts:
        cell = _choose_count(pricing, slots, stages, count, rules)
        if isinstance(cell, CellFailure):
            failure = _nearer(failure, cell)
            continue
        cells.append(cell)
        if job.micro_batches != "best" and (job.recompute != "auto" or not cell.recomputes):
            break
    if cells:
        fastest = min(cells, key=lambda cell: cell.iteration_time_s)
        return replace(fastest, assemblies=sum(cell.assemblies for cell in cells))
    assert failure is not None, "neither an estimate nor a failure"
    return failure


def _choose_count(
    pricing: StagePricing, slots: Sequence[DeviceSlot], stages: int, micro_batches: int, rules: CellRules
) -> ChosenCell | CellFailure:
    """The Cell at that many micro-batches: the first split whose stages fit, or the nearest miss."""
    failure: CellFailure | None = None
    for split in propose_splits(pricing, len(slots), stages, micro_batches, rules.partition):
        if isinstance(split, Infeasible):
            failure = _nearer(failure, _fail(pricing, slots, stages, split))
            continue
        places = place_stages(split, slots, pricing.job.global_batch // micro_batches)
        priced = [_price(pricing, place) for place in places]
        dropped = tuple(line for _, lines in priced for line in lines)
        options = [stage for stage, _ in priced if not isinstance(stage, Infeasible)]
        if len(options) == len(places):
            return _choose(pricing, places, options, dropped, rules)
        worst = max((stage for stage, _ in priced if isinstance(stage, Infeasible)), key=lacking_bytes)
        failure = _nearer(failure, _fail(pricing, slots, stages, worst, dropped))
    assert failure is not None, "there is always a split to try"
    return failure


def _fail(
    pricing: StagePricing,
    slots: Sequence[DeviceSlot],
    stages: int,
    failure: Infeasible,
    dropped: tuple[str, ...] = (),
) -> CellFailure:
    device = pricing.hardware.device.name
    return CellFailure(device=device, devices=len(slots), stages=stages, failure=failure, dropped=dropped)


def _nearer(one: CellFailure | None, other: CellFailure) -> CellFailure:
    """The failure that lacks less."""
    return other if one is None or lacking_bytes(other.failure) < lacking_bytes(one.failure) else one


def _price(pricing: StagePricing, place: StagePlace) -> tuple[StageChoices | Infeasible, tuple[str, ...]]:
    """The stage's options with their favours, or the nearest miss if none is left; a line for each favour dropped.

    On one device both favours are the same and count as data-parallel.
    """
    count = len(place.slots)
    degrees: dict[Favour, tuple[int, int]] = {"dp": (count, 1), "tp": (1, count)}
    if count == 1:
        del degrees["tp"]
    choices: list[tuple[Favour, StageOption]] = []
    misses: list[Infeasible] = []
    lines = []
    for favour, (dp, tp) in degrees.items():
        options = pricing.options(place, dp=dp, tp=tp)
        if isinstance(options, Infeasible):
            misses.append(options)
            lines.append(f"stage {place.index}: {favour}-only dropped, {options.reason}")
        else:
            choices += [(favour, option) for option in options]
    if choices:
        return choices, tuple(lines)
    nearest = min(misses, key=lacking_bytes)
    return replace(nearest, reason=f"stage {place.index} ({count} devices): {nearest.reason}"), tuple(lines)


def assemble_cell(
    pricing: StagePricing,
    places: Sequence[StagePlace],
    options: Sequence[StageChoices],
    *,
    dropped: tuple[str, ...] = (),
    rules: CellRules,
) -> CellEstimate:
    """Return the best assembly of `options`, one or more for each of `places`, priced; `dropped` says which were left
    out and why."""
    return _evaluated(pricing, _choose(pricing, places, options, dropped, rules))


def _choose(
    pricing: StagePricing,
    places: Sequence[StagePlace],
    options: Sequence[StageChoices],
    dropped: tuple[str, ...],
    rules: CellRules,
) -> ChosenCell:
    """The best assembly of `options`."""
    micro_batch = places[0].micro_batch
    problem = AssemblyProblem(
        time_s=tuple(tuple(option.time_s for _, option in stage) for stage in options),
        tail_s=tuple(tuple(option.tail_s for _, option in stage) for stage in options),
        transfer_s=tuple(_transfers(pricing, before, after, micro_batch) for before, after in pairwise(options)),
        micro_batches=pricing.job.global_batch // micro_batch,
    )
    best = _find_best(problem, rules)
    chosen = [stage[choice] for stage, choice in zip(options, best.choices, strict=True)]
    return ChosenCell(
        options=tuple(option for _, option in chosen),
        micro_batch=micro_batch,
        iteration_time_s=pricing.iteration_s([option for _, option in chosen], micro_batch),
        assembly=tuple(favour for favour, _ in chosen),
        assemblies=math.prod(map(len, options)),
        dropped=dropped,
    )


def _evaluated(pricing: StagePricing, chosen: ChosenCell) -> CellEstimate:
    """The Cell with its price in full."""
    setup, evaluation = pricing.evaluate([option.setup for option in chosen.options], chosen.micro_batch)
    return CellEstimate(
        device=pricing.hardware.device.name,
        setup=setup,
        evaluation=evaluation,
        assembly=chosen.assembly,
        assemblies=chosen.assemblies,
        dropped=chosen.dropped,
    )


def _transfers(
    pricing: StagePricing, before: StageChoices, after: StageChoices, micro_batch: int
) -> tuple[tuple[float, ...], ...]:
    """Seconds from each option of a stage to each of the next, which depend on their degrees alone."""
    seconds: dict[tuple[int, bool, int, bool], float] = {}
    rows = []
    for _, sender in before:
        row = []
        for _, receiver in after:
            here, there = sender.setup, receiver.setup
            key = (here.tp, here.sequence_parallel, there.tp, there.sequence_parallel)
            if key not in seconds:
                seconds[key] = pricing.transfer_s(here, there, micro_batch)
            row.append(seconds[key])
        rows.append(tuple(row))
    return tuple(rows)


def _find_best(problem: AssemblyProblem, rules: CellRules) -> Assembly:
    assemblies = math.prod(len(stage) for stage in problem.time_s)
    if rules.assembly == "enumerate" and assemblies > ENUMERABLE:
        raise InputError(
            where="job",
            key="--assembly",
            found=f"enumerate with {assemblies} assemblies of {len(problem.time_s)} stages",
            expected=f"at most {ENUMERABLE} to enumerate, or exact, which finds the same one",
        )
    tries_all = rules.assembly == "enumerate" or assemblies <= QUICKLY_TRIED
    best = (assemble_enumerate if tries_all else assemble_exact)(problem, rules.formula)
    if isinstance(best, Infeasible):
        raise ValueError(f"assembly: {best.reason}, although every stage has an option")
    return best
