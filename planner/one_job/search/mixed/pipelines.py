"""From a frame to the pipelines that it can be, and from the best cut of one back to a setup."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from estimator.pricing.recipe import ScheduleName, Setup, StageSetup, ZeroStage
from estimator.pricing.stage_work import tied_bytes
from estimator.schedules.closed_form import flying_micro_batches
from planner.one_job.search.mixed.best_cut import BestCut, FrameStage, Pipe
from planner.one_job.search.mixed.frames import Frame
from planner.one_job.search.mixed.pricer import Pricer, SegmentPrices
from profiles.records import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PipeMaker:
    """Makes the pipelines of frames, under each of `schedules`.

    Whether gradients are summed beside compute is one setting of a plan, which the training software may tie to the
    stage of ZeRO: where its stages differ in it, plans with sums beside compute use those stages alone that have them.
    """

    pricer: Pricer
    schedules: tuple[ScheduleName, ...]

    def pipes(self, frame: Frame) -> Iterator[Pipe]:
        """Every pipeline of the frame, none where a layer cannot be held. Messages between segments are left out."""
        many = frame.stages > 1
        prices = []
        for segment in frame.segments:
            priced = self.pricer.price(segment, many=many)
            if priced is None:
                return
            prices.append(priced)
        open_stages = [stage for place, priced in enumerate(prices) for stage in self._stages(priced, first=place == 0)]
        micro_batch = frame.segments[0].micro_batch
        micro_batches = self.pricer.recipe.global_batch // micro_batch
        tied_s = self._tied_s([stage for priced in prices for stage in priced.stages], micro_batch)
        zeros = {zero for stage in open_stages for _, zero in stage.table.rules}
        for schedule in self.schedules if many else self.schedules[:1]:
            flying = flying_micro_batches(schedule, len(open_stages), 1, micro_batches)[:, 0].astype(int).tolist()
            for overlapped in self._modes(zeros):
                stages = [
                    replace(stage, flying=kept, allowed=self._allowed(stage, overlapped=overlapped))
                    for stage, kept in zip(open_stages, flying, strict=True)
                ]
                yield Pipe(
                    stages=tuple(stages),
                    schedule=schedule,
                    micro_batches=micro_batches,
                    overlapped=overlapped,
                    fixed_s=self.pricer.pricing.parameters.of("iteration_s") + tied_s,
                )

    def _stages(self, priced: SegmentPrices, *, first: bool) -> Iterator[FrameStage]:
        """A segment's stages before anything keeps micro-batches; `first`: it is the frame's first segment."""
        nothing = self.pricer.no_hop
        hops = [nothing, *(hop if self.pricer.waits else nothing for hop in self.pricer.hops_s(priced)), nothing]
        # What a tool recomputes and shards is the same in all stages.
        anew = first or not self.pricer.space.constraints.alike
        for number, table in enumerate(priced.tables):
            below, above = hops[number : number + 2]
            opens = anew and number == 0
            yield FrameStage(table=table, flying=0, allowed=(), below_s=below, above_s=above, opens=opens)

    def _allowed(self, stage: FrameStage, *, overlapped: bool) -> tuple[bool, ...]:
        return tuple(not overlapped or self.pricer.overlaps(zero) for _, zero in stage.table.rules)

    def with_messages(self, frame: Frame, pipe: Pipe) -> Pipe:
        """A pipeline of the frame with the messages between its segments."""
        if len(frame.segments) == 1 or not self.pricer.waits:
            return pipe
        stages, place = list(pipe.stages), 0
        for before, other in pairwise(frame.segments):
            place += before.pp
            last, first = self.pricer.space.stage(before, before.pp - 1), self.pricer.space.stage(other, 0)
            took = self.pricer.hop_s(last, first, before.micro_batch)
            stages[place - 1] = replace(stages[place - 1], above_s=took)
            stages[place] = replace(stages[place], below_s=took)
        return replace(pipe, stages=tuple(stages))

    def setup(self, frame: Frame, pipe: Pipe, best: BestCut) -> Setup:
        """The plan that a cut of the frame's pipe is."""
        space = self.pricer.space
        return self.pricer.setup(
            [space.stage(segment, number) for segment in frame.segments for number in range(segment.pp)],
            best.ends,
            [stage.table.rules[number] for stage, number in zip(pipe.stages, best.rules, strict=True)],
            schedule=pipe.schedule,
            micro_batch=frame.segments[0].micro_batch,
            overlapped=pipe.overlapped,
        )

    def _modes(self, zeros: set[ZeroStage]) -> tuple[bool, ...]:
        beside = {self.pricer.overlaps(zero) for zero in zeros}
        return (True, False) if len(beside) == 2 else tuple(beside)

    def _tied_s(self, stages: list[StageSetup], micro_batch: int) -> float:
        """What first and last stage take to sum the gradient of a table that they share."""
        first, last = stages[0], stages[-1]
        if len(stages) == 1:
            return 0.0
        setup = Setup(
            model=self.pricer.space.model,
            cluster=self.pricer.links.cluster,
            recipe=self.pricer.recipe,
            stages=(first, last),
            micro_batch=micro_batch,
        )
        size = tied_bytes(setup)
        return self.pricer.pricing.remember(self.pricer.links.pair_sum_s, first, last, size) if size else 0.0
