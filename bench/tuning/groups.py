"""Groups of plans that were all measured: from a run table, with what was estimated of each beforehand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from bench.accuracy.runs import Run
from estimator.cells.cell import CellEstimate
from estimator.cells.estimate import estimate_cells
from estimator.cells.job import Job
from estimator.cells.stage_pricing import Favour
from estimator.pricing.recipe import Setup
from planner.one_job.tuning.crius import favoured_half
from planner.one_job.tuning.measured import log_spread
from planner.one_job.tuning.records import Candidate, OutOfMemory
from planner.one_job.tuning.traits import traits_of
from profiles.errors import InputError
from profiles.vocabulary import RecomputeKind

LEAST_PLANS = 4
Half = Literal["fit", "held", "all"]


def in_halves(stages: Sequence[tuple[int, int]], favours: Sequence[Favour]) -> bool:
    """Return whether every stage's (dp, tp) is in the half on the side of its favour."""
    return all((dp, tp) in favoured_half(dp * tp, favour) for (dp, tp), favour in zip(stages, favours, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Plans of one model, devices and batch. `measured_s` None: that plan ran out of memory.

    `best_cell` are the candidates in the halves of the Cell of the least estimate, `every_cell` those in the halves of
    any Cell; `cells` all candidates of each Cell whose favours are known, `halves` those in its halves.
    """

    source: str
    name: str
    candidates: tuple[Candidate[Setup], ...]
    measured_s: tuple[float | None, ...]
    cells: tuple[tuple[int, ...], ...] = ()
    halves: tuple[tuple[int, ...], ...] = ()
    best_cell: tuple[int, ...] = ()

    @property
    def every_cell(self) -> tuple[int, ...]:
        """In the halves of any Cell."""
        return tuple(sorted(number for half in self.halves for number in half))

    @property
    def least_s(self) -> float:
        """The measured time of the best plan."""
        return min(seconds for seconds in self.measured_s if seconds is not None)

    def part(self, numbers: Sequence[int]) -> Group:
        """Some of its plans alone, without Cells."""
        return Group(
            source=self.source,
            name=self.name,
            candidates=tuple(self.candidates[number] for number in numbers),
            measured_s=tuple(self.measured_s[number] for number in numbers),
        )


@dataclass(frozen=True, slots=True)
class Table:
    """Measures by looking up what was measured."""

    measured_s: dict[Setup, float | None]

    def measure(self, plan: Setup) -> float | OutOfMemory:
        """Seconds of an iteration."""
        seconds = self.measured_s[plan]
        return OutOfMemory() if seconds is None else seconds


def table_of(group: Group) -> Table:
    """The oracle of the group's plans."""
    return Table(
        {candidate.plan: seconds for candidate, seconds in zip(group.candidates, group.measured_s, strict=True)}
    )


def groups_of(runs: Iterable[Run], half: Half, progress: Callable[[str], None] = lambda _: None) -> tuple[Group, ...]:
    """Groups of `LEAST_PLANS` or more plans of one source, model, device, device count, batch and sequence length among
    the rows of that half. A plan measured several times counts once, with the median."""
    found: dict[tuple[object, ...], dict[object, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        known = run.result.measured_iteration_time_s is not None or run.result.measured_oom
        if run.setup is None or not known or half not in ("all", "fit" if run.fitted else "held"):
            continue
        found[run.result.source, run.result.configuration][run.result.plan].append(run)
    groups = []
    for plans in found.values():
        timed = [any(run.result.measured_iteration_time_s for run in same) for same in plans.values()]
        if len(plans) >= LEAST_PLANS and any(timed):
            groups.append(_group(list(plans.values())))
            progress(f"{half}: {groups[-1].source} {groups[-1].name}")
    return tuple(sorted(groups, key=lambda group: (group.source, group.name)))


def _group(plans: Sequence[Sequence[Run]]) -> Group:
    first = plans[0][0]
    candidates = tuple(_candidate(same[0]) for same in plans)
    row = first.row
    group = Group(
        source=first.result.source,
        name=f"{row.model_name}, {first.result.devices} x {first.device}, batch {row.global_batch}",
        candidates=candidates,
        measured_s=tuple(_seconds(same) for same in plans),
    )
    return with_cells(group, cells_of(candidates))


def _seconds(same: Sequence[Run]) -> float | None:
    times = [run.result.measured_iteration_time_s for run in same]
    known = [seconds for seconds in times if seconds is not None]
    return median(known) if known else None


def _candidate(run: Run) -> Candidate[Setup]:
    assert run.setup is not None, "only runs with a setup are in a group"
    assert run.outcome is not None
    return Candidate(
        plan=run.setup,
        estimated_s=run.outcome.iteration_time_s,
        log_spread=log_spread(run.outcome.interval_90_s),
        traits=traits_of(run.setup),
    )


def cells_of(candidates: Sequence[Candidate[Setup]]) -> dict[int, CellEstimate]:
    """The Cell of each stage count among the candidates, estimated with what they have in common; a stage count that
    does not divide the devices, or whose Cell cannot be had, is left out."""
    setup = candidates[0].plan
    recomputed = {stage.recompute for one in candidates for stage in one.plan.stages}
    kind: RecomputeKind | None = "none" if recomputed == {"none"} else "full" if recomputed == {"full"} else None
    job = Job(
        model=setup.model,
        recipe=setup.recipe,
        recompute="auto" if kind is None else (kind, None),
        zero=(min(stage.zero for one in candidates for stage in one.plan.stages),),
        sequence_parallel=all(stage.sequence_parallel for one in candidates for stage in one.plan.stages),
        micro_batches="best",
    )
    found = {}
    for stages in sorted({len(one.plan.stages) for one in candidates}):
        if setup.devices % stages:
            continue
        try:
            (cell,) = estimate_cells(job, setup.cluster, devices=setup.devices, stages=(stages,))
        except InputError:
            continue
        if isinstance(cell, CellEstimate):
            found[stages] = cell
    return found


def with_cells(group: Group, cells: dict[int, CellEstimate]) -> Group:
    """The group with its Cells' halves. Plans with context or expert parallelism are in no Cell: Crius has neither."""
    whole: dict[int, list[int]] = {stages: [] for stages in cells}
    half: dict[int, list[int]] = {stages: [] for stages in cells}
    for number, candidate in enumerate(group.candidates):
        stages = candidate.plan.stages
        cell = cells.get(len(stages))
        if cell is None or any(stage.cp > 1 for stage in stages):
            continue
        whole[len(stages)].append(number)
        if in_halves([(stage.dp, stage.tp) for stage in stages], cell.assembly):
            half[len(stages)].append(number)
    best = min(cells, key=lambda stages: cells[stages].iteration_time_s, default=None)
    return replace(
        group,
        cells=tuple(tuple(numbers) for numbers in whole.values()),
        halves=tuple(tuple(numbers) for numbers in half.values()),
        best_cell=() if best is None else tuple(half[best]),
    )
