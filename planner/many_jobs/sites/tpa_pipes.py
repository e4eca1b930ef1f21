"""From segments in order to a plan: the stages' tables, the cut of the layers, the rules, the estimator's word."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from estimator.pricing.amounts import Floats
from estimator.pricing.evaluate import evaluate
from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import Setup, StageSetup
from estimator.schedules.closed_form import flying_micro_batches
from planner.many_jobs.sites.cut_layers import cut_layers
from planner.many_jobs.sites.inside_tables import Part
from planner.one_job.search.mixed.pricer import Pricer
from planner.one_job.search.mixed.stage_tables import StageTable
from profiles.records import dataclass, replace
from profiles.vocabulary import Infeasible

PIECE_BYTES = 2.0**28
"""Bytes of gradients by which what a byte of them takes is measured."""


@dataclass(frozen=True, kw_only=True)
class Priced:
    """A plan that fits, and the estimator's figures."""

    setup: Setup
    evaluation: Evaluation

    @property
    def time_s(self) -> float:
        """Of an iteration."""
        return self.evaluation.iteration_time_s


@dataclass(frozen=True, kw_only=True)
class _Stage:
    """One stage: its setup as if it held all layers, its table, and of every rule what fits."""

    setup: StageSetup
    table: StageTable
    fits: NDArray[np.bool_]
    part: int


@dataclass(frozen=True, kw_only=True)
class CutPlan:
    """A plan whose layers are cut, not yet priced; `looks_s` is the iteration as the cut counts it."""

    stages: tuple[_Stage, ...]
    masks: tuple[NDArray[np.bool_], ...]
    ends: tuple[int, ...]
    contents: tuple[int, ...]
    micro_batch: int
    looks_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanMaker:
    """Makes plans of parts in order."""

    pricer: Pricer

    def cut(self, parts: Sequence[Part]) -> CutPlan | None:
        """The plan of these parts whose layers are cut for the sum of passes and the slowest stage; None where the
        devices cannot hold them."""
        stages = self._stages(parts)
        if stages is None:
            return None
        ids, layers = self.pricer.contents.ids, len(self.pricer.space.model.layers)
        micro_batch = parts[0].segment.micro_batch
        micro_batches = self.pricer.batches(parts[0].segment)
        nothing = self.pricer.no_hop
        hops = [
            self.pricer.hop_s(here.setup, there.setup, micro_batch) if self.pricer.waits else nothing
            for here, there in pairwise(stages)
        ]
        below, above = [nothing, *hops], [*hops, nothing]
        masks = [stage.fits for stage in stages]
        for _ in range(len(parts) + 1):
            takes = [
                self._takes(stage, fits, ids) + before[: layers + 1, None] + other[None, : layers + 1]
                for stage, fits, before, other in zip(stages, masks, below, above, strict=True)
            ]
            loads = [
                takes_s + self._sync(stage, ids) / micro_batches for takes_s, stage in zip(takes, stages, strict=True)
            ]
            ends = cut_layers(takes, loads, micro_batches)
            if ends is None:
                return None
            contents = tuple(int(ids[first, end]) for first, end in pairwise((0, *ends)))
            broken = self._broken(stages, masks, contents)
            if broken is None:
                spans = list(enumerate(pairwise((0, *ends))))
                once = [float(takes[number][span]) for number, span in spans]
                # Of a stage's gradients its load has the m-th part.
                more = [micro_batches * float(loads[number][span]) for number, span in spans]
                return CutPlan(
                    stages=tuple(stages),
                    masks=tuple(masks),
                    ends=ends,
                    contents=contents,
                    micro_batch=micro_batch,
                    looks_s=math.fsum(once) + max(a - b for a, b in zip(more, once, strict=True)),
                )
            # No rule suits all stages of that part: from now on it has the one that saves most memory.
            for number, stage in enumerate(stages):
                if stage.part == broken:
                    masks[number] = _only_thriftiest(masks[number])
        return None

    def price(self, cut: CutPlan) -> Priced | None:
        """By the estimator, each part under its best rule; None where that says that it does not fit."""
        micro_batches = self.pricer.recipe.global_batch // cut.micro_batch
        rules = self._rules(cut.stages, cut.masks, cut.contents, micro_batches)
        return self._priced(cut.stages, cut.ends, rules, cut.micro_batch)

    def _stages(self, parts: Sequence[Part]) -> list[_Stage] | None:
        count = sum(part.segment.pp for part in parts)
        if count > len(self.pricer.space.model.layers):
            return None
        micro_batches = self.pricer.batches(parts[0].segment)
        flying = flying_micro_batches("1f1b", count, 1, micro_batches)[:, 0].astype(int).tolist()
        stages: list[_Stage] = []
        for number, part in enumerate(parts):
            priced = self.pricer.price(part.segment, many=count > 1)
            if priced is None:
                return None
            for place in range(part.segment.pp):
                setup = replace(priced.stages[place], slots=part.stage_slots(place))
                table = priced.tables[place]
                stages.append(_Stage(setup=setup, table=table, fits=table.fits(flying[len(stages)]), part=number))
        return stages

    def _takes(self, stage: _Stage, fits: NDArray[np.bool_], ids: NDArray[np.int64]) -> Floats:
        """Passes of a micro-batch by first and last layer, under the fastest rule that fits."""
        least_s = np.where(fits, stage.table.relaxed_s, np.inf).min(axis=0)
        return np.where(ids >= 0, least_s[ids], np.inf)

    def _sync(self, stage: _Stage, ids: NDArray[np.int64]) -> Floats:
        """What a stage's gradients take, by first and last layer, as their bytes."""
        if stage.setup.dp == 1:
            return np.zeros(ids.shape)
        byte_s = self.pricer.pricing.remember(self.pricer.sum_s, stage.setup, PIECE_BYTES) / PIECE_BYTES
        return np.where(ids >= 0, self.pricer.gradient_bytes(stage.table)[ids] * byte_s, 0.0)

    def _broken(
        self, stages: Sequence[_Stage], masks: Sequence[NDArray[np.bool_]], contents: Sequence[int]
    ) -> int | None:
        """A part for whose stages there is no rule under which all of them fit (all parts where a tool wants one rule
        for all)."""
        for part, numbers in self._alike(stages):
            if not np.logical_and.reduce([masks[number][:, contents[number]] for number in numbers]).any():
                return part
        return None

    def _alike(self, stages: Sequence[_Stage]) -> list[tuple[int, list[int]]]:
        """Parts by number, each with the stages that have one rule."""
        whole = self.pricer.space.constraints.alike
        parts = dict.fromkeys(0 if whole else stage.part for stage in stages)
        return [(part, [n for n, stage in enumerate(stages) if whole or stage.part == part]) for part in parts]

    def _rules(
        self,
        stages: Sequence[_Stage],
        masks: Sequence[NDArray[np.bool_]],
        contents: Sequence[int],
        micro_batches: int,
    ) -> list[int]:
        """The rule of each stage: of those that suit its part the one of the least passes, gradients and steps."""
        rules = [0] * len(stages)
        beside = self.pricer.overlaps(0)
        for _, numbers in self._alike(stages):
            kept = np.logical_and.reduce([masks[number][:, contents[number]] for number in numbers])
            # Stages of the same table and layers take as long.
            pairs = {(stages[number].table, contents[number]): number for number in numbers}.values()
            possible = np.flatnonzero(kept)
            costs = np.full(len(kept), np.inf)
            costs[possible] = np.maximum.reduce(
                [
                    self._whole_s(stages[number], possible, contents[number], micro_batches, overlapped=beside)
                    for number in pairs
                ]
            )
            for number in numbers:
                rules[number] = int(np.argmin(costs))
        return rules

    def _whole_s(
        self, stage: _Stage, rules: NDArray[np.int64], content: int, micro_batches: int, *, overlapped: bool
    ) -> Floats:
        """Seconds of the stage's part of an iteration under each of these rules."""
        exact = stage.table.exact(rules, np.full_like(rules, content), overlapped=overlapped)
        passes = exact.forward_s[rules, content] + exact.backward_s[rules, content]
        once = exact.reduce_s[rules, content] + exact.gather_s[rules, content] + exact.optimizer_s[rules, content]
        return np.asarray(micro_batches * passes + once)

    def _priced(
        self, stages: Sequence[_Stage], ends: Sequence[int], rules: Sequence[int], micro_batch: int
    ) -> Priced | None:
        """By the estimator."""
        chosen = [stage.table.rules[number] for stage, number in zip(stages, rules, strict=True)]
        setup = self.pricer.setup(
            [stage.setup for stage in stages],
            ends,
            chosen,
            schedule="1f1b",
            micro_batch=micro_batch,
            overlapped=all(self.pricer.overlaps(zero) for _, zero in chosen),
        )
        evaluation = evaluate(setup, self.pricer.pricing)
        if isinstance(evaluation, Infeasible) or evaluation.out_of_memory is not None:
            return None
        return Priced(setup=setup, evaluation=evaluation) if math.isfinite(evaluation.iteration_time_s) else None


def _only_thriftiest(fits: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Of the rules the one under which most contents fit."""
    best = int(np.argmax(fits.sum(axis=1)))
    kept = np.zeros_like(fits)
    kept[best] = fits[best]
    return kept
