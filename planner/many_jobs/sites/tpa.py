"""Topology-aware parallelism automation (SpiderFlow, section 4.2): a job's plan over the devices of several sites.

Two levels. Between sites few arrangements of them, that cut little over thin links
(`planner.many_jobs.sites.tpa_sites`); inside each site the exact choice of (d, p) and of the devices of each stage
(`planner.many_jobs.sites.inside`). Beyond the paper, which sets tensor parallelism to 1 and takes equal devices: tp
inside a site is one more option of the exact choice, and stages on devices of different speed get as many layers as
they can take (`planner.many_jobs.sites.cut_layers`). All costs are the estimator's, and a plan counts for what the
estimator says of it.

A plan may leave sites idle that a job was given: where links are thin one site alone is often faster. `Wanted` says
whether that is allowed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Literal

from estimator.layers.graph import table_parameters
from estimator.pricing.optimizers import GRAD_WIDTH
from planner.many_jobs.sites.alike import Alike
from planner.many_jobs.sites.inside import messages_s
from planner.many_jobs.sites.inside_tables import InsideTables, Part
from planner.many_jobs.sites.tpa_pipes import CutPlan, PlanMaker, Priced
from planner.many_jobs.sites.tpa_sites import Arrangement, Party, Traffic, arrangements, message_bytes
from planner.many_jobs.sites.tpa_ways import Ways
from planner.one_job.explicit.recording import record_plan
from planner.one_job.search.mixed.pricer import make_pricer
from planner.one_job.search.mixed.space import MixedSpace, Segment, groups_of, pricing_of
from planner.one_job.search.spaces.request import SearchRequest
from planner.one_job.search.spaces.space import divisors
from planner.shared.plan import Plan
from profiles.cluster import DeviceSlot
from profiles.records import dataclass, replace

Wanted = Literal["any", "all-sites"]
"""Which plans count: any on the devices given, or those alone that use every site."""
MOST_PRICED = 12
"""So many plans are priced by the estimator, those first that look fastest once their layers are cut."""
CUT_FOR_ONE = 6
"""The layers of so many plans are cut for each that is priced, those first that look fastest before."""
MOST_INSIDE = 2
"""So many choices inside a site are tried in each arrangement."""
MOST_TYPES = 2
"""Replicas of a stage are of so many device types at most (`planner.one_job.search.mixed.space`)."""
MOST_BATCHES = 8
"""So many sizes of micro-batch are looked at: from 1 to the whole batch, evenly."""


@dataclass(frozen=True, kw_only=True)
class Considered:
    """An arrangement of sites with the best plan found of it; None where none fits."""

    sites: tuple[tuple[str, ...], ...]
    iteration_time_s: float | None


@dataclass(frozen=True, kw_only=True)
class Across:
    """The best plan over sites, and the best of each other arrangement that was priced, the fastest first. `priced`
    counts the plans that the estimator was asked about."""

    best: Priced
    plan: Plan
    considered: tuple[Considered, ...]
    priced: int


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    """An arrangement with a choice for each party, and what it looks like in seconds."""

    arrangement: Arrangement
    parts: tuple[Part, ...]
    looks_s: float


def on_devices(request: SearchRequest, slots: Sequence[DeviceSlot]) -> SearchRequest:
    """The request on these devices alone, which are some of its own: what an allocation of sites gives a job."""
    chosen = set(slots)
    kept = []
    for part in request.spaces:
        mine = tuple(slot for slot in part.space.slots if slot in chosen)
        if mine:
            kept.append(replace(part, space=replace(part.space, slots=mine)))
    return replace(request, spaces=tuple(kept))


def plan_across(request: SearchRequest, *, wanted: Wanted = "any", most: int = MOST_PRICED) -> Across | None:
    """The plan of the least iteration time that two levels find on the free devices of `request`; None where nothing
    fits. At most `most` plans are priced. 1F1B, one chunk a stage, cp 1; layer times are modelled."""
    return _Search(request, wanted).run(most)


class _Search:
    """One search: the pieces of the exact search over several groups, asked about few plans."""

    def __init__(self, request: SearchRequest, wanted: Wanted) -> None:
        self.request, self.wanted = request, wanted
        self.groups = groups_of(request.spaces)
        # A space of one group leaves even shares to the search on one type of device: a second one brings them back.
        self.pricing = pricing_of(request.spaces)
        self.space = MixedSpace(
            cluster=request.cluster,
            groups=self.groups if len(self.groups) > 1 else self.groups * 2,
            pricing=self.pricing,
        )
        self.pricer = make_pricer(self.space)
        self.inside = InsideTables(pricer=self.pricer)
        self.maker = PlanMaker(pricer=self.pricer)
        self.ways = Ways(groups=self.groups, cluster=self.pricer.links.cluster, pricing=self.pricing)
        self.graph, self.traffic = self.ways.graph(self.pricer.recipe.dtype), self._traffic()
        self.alike = Alike(
            groups=self.groups,
            graph=self.graph,
            pricing=self.pricing,
            by_name=bool(self.pricing.link_tables) or self.ways.pass_others,
        )
        self.choices: dict[object, list[Part]] = {}

    def run(self, most: int) -> Across | None:
        every = self._arrangements()
        candidates = [
            candidate
            for arrangement in every
            for micro_batch in self._micro_batches()
            for candidate in self._candidates(arrangement, micro_batch)
        ]
        candidates.sort(key=lambda candidate: candidate.looks_s)
        cuts = []
        for candidate in _spread(candidates, CUT_FOR_ONE * most):
            cut = self.maker.cut(candidate.parts)
            if cut is not None:
                cuts.append((cut.looks_s + self._tied_s(candidate.arrangement), candidate.arrangement, cut))
        cuts.sort(key=lambda looks: looks[0])
        best: Priced | None = None
        by_arrangement: dict[Arrangement, float] = {}
        priced = 0
        for arrangement, cut in self._worth_pricing([(arrangement, cut) for _, arrangement, cut in cuts], most):
            plan_of_cut = self.maker.price(cut)
            priced += 1
            if plan_of_cut is None:
                continue
            by_arrangement[arrangement] = min(plan_of_cut.time_s, by_arrangement.get(arrangement, math.inf))
            if best is None or plan_of_cut.time_s < best.time_s:
                best = plan_of_cut
        if best is None:
            return None
        considered = [
            Considered(sites=self._names(arrangement), iteration_time_s=by_arrangement.get(arrangement))
            for arrangement in every
        ]
        considered.sort(key=lambda way: math.inf if way.iteration_time_s is None else way.iteration_time_s)
        said = "planned in two levels (SpiderFlow, section 4.2): the best of few arrangements of the sites"
        plan = record_plan(
            best.setup,
            best.evaluation,
            reference=self.request.reference,
            assumptions=(*self.request.assumptions, said),
        )
        size = replace(plan.provenance, search_space_size=max(1, priced))
        return Across(best=best, plan=replace(plan, provenance=size), considered=tuple(considered), priced=priced)

    def _arrangements(self) -> list[Arrangement]:
        """Those worth a look, both ways round: messages cost the same, but the head is at one end, and most activations
        are at the other. Of those that differ in names alone the first."""
        firsts: dict[object, Arrangement] = {}
        for arrangement in arrangements(self.graph, self.traffic):
            for way in (arrangement, arrangement[::-1]) if self._is_wanted(arrangement) else ():
                numbers = tuple(number for party in way for number in party)
                firsts.setdefault((tuple(map(len, way)), self.alike.first_of(numbers)), way)
        return list(firsts.values())

    def _worth_pricing(
        self, cuts: Sequence[tuple[Arrangement, CutPlan]], most: int
    ) -> Iterator[tuple[Arrangement, CutPlan]]:
        """So many of the plans in order of their looks: half by that alone, then the first of each set of sites."""
        firsts: dict[frozenset[str], int] = {}
        for number, (arrangement, _) in enumerate(cuts):
            sites = frozenset(name for names in self._names(arrangement) for name in names)
            firsts.setdefault(sites, number)
        # Half for the fastest looking, whatever their sites.
        order = dict.fromkeys([*range(min(len(cuts), most - most // 2)), *firsts.values(), *range(len(cuts))])
        return (cuts[number] for number in list(order)[:most])

    def _is_wanted(self, arrangement: Arrangement) -> bool:
        if self.wanted == "any":
            return True
        used = {self.space.groups[number].site for party in arrangement for number in party}
        return used == {group.site for group in self.space.groups}

    def _names(self, arrangement: Arrangement) -> tuple[tuple[str, ...], ...]:
        def names(party: Party) -> tuple[str, ...]:
            return tuple(dict.fromkeys(self.space.groups[number].site for number in party))

        return tuple(map(names, arrangement))

    # Between sites

    def _traffic(self) -> Traffic:
        recipe, model = self.pricer.recipe, self.space.model
        tied = 0.0
        if not recipe.lora_rank:
            table = table_parameters(model, 1, vocabulary_multiple=recipe.vocabulary_multiple)
            tied = 2.0 * table * GRAD_WIDTH[recipe.grad_dtype]
        return Traffic(message_bytes=message_bytes(model, recipe), tied_bytes=tied)

    def _micro_batches(self) -> list[int]:
        limits, batch = self.space.constraints, self.pricer.recipe.global_batch
        kept = [size for size in divisors(batch) if limits.permits("micro_batches", batch // size)]
        return kept if len(kept) <= MOST_BATCHES else _even_choice(kept, MOST_BATCHES)

    # Inside a site

    def _candidates(self, arrangement: Arrangement, micro_batch: int) -> list[_Candidate]:
        """The best choice of every party together, and with the next best choice of one of them."""
        speeds = [sum(self.graph.speed[number] for number in party) for party in arrangement]
        many = len(arrangement) > 1
        ranked = [
            self._choose(party, micro_batch, round(speed / sum(speeds), 3), many=many)
            for party, speed in zip(arrangement, speeds, strict=True)
        ]
        if not all(ranked):
            return []
        first = [choices[0] for choices in ranked]
        joined = [first]
        for place, choices in enumerate(ranked):
            joined += [[*first[:place], other, *first[place + 1 :]] for other in choices[1:]]
        limits = self.space.constraints
        return [
            _Candidate(
                arrangement=arrangement,
                parts=tuple(parts),
                looks_s=max(part.total_s - part.fill_s for part in parts)
                + math.fsum(part.fill_s for part in parts)
                + self._between_s(parts)
                + self._tied_s(arrangement),
            )
            for parts in joined
            if limits.permits("pp", sum(part.segment.pp for part in parts))
            and limits.permits("devices", sum(len(part.slots) for part in parts))
        ]

    def _tied_s(self, arrangement: Arrangement) -> float:
        """Summing the gradients of a table that the first and the last stage share, if these are at different sites."""
        width = self.graph.thinnest(arrangement[0], arrangement[-1]) if len(arrangement) > 1 else math.inf
        return self.traffic.tied_bytes / width if self.traffic.tied_bytes and width > 0 else 0.0

    def _between_s(self, parts: Sequence[Part]) -> float:
        """Messages between parties that the iteration waits for: of every one of the slowest, of all others once."""
        hops_s = []
        for before, after in itertools.pairwise(parts):
            last = replace(self.space.stage(before.segment, 0), slots=before.stage_slots(before.segment.pp - 1))
            first = replace(self.space.stage(after.segment, 0), slots=after.stage_slots(0))
            hops_s.append(float(self.pricer.hop_s(last, first, before.segment.micro_batch)[1]))
        return messages_s(hops_s, self.pricer.batches(parts[0].segment))

    def _choose(self, party: Party, micro_batch: int, share: float, *, many: bool) -> list[Part]:
        """The party's best choices: those of the first party like it, on its own slots."""
        first = self.alike.first_of(party)
        key = (first, micro_batch, share, many)
        if key not in self.choices:
            self.choices[key] = self.inside.ranked(
                self._segments(first, micro_batch, many=many), share, most=MOST_INSIDE, many=many
            )
        return [replace(part, slots=self.alike.moved(part.slots, first, party)) for part in self.choices[key]]

    def _segments(self, party: Party, micro_batch: int, *, many: bool) -> Iterator[Segment]:
        """What the party's stages can be; replicas on several groups have the same degrees in each. Unless parties are
        `many` there are no other stages."""
        if len({self.space.groups[number].own.device for number in party}) > MOST_TYPES:
            return
        for choices in self.space.segments(self.ways.in_ring(party), micro_batch):
            alone = [choice for choice in choices if many or self.space.constraints.permits("pp", choice.pp)]
            yield from self._evenest(alone)

    def _evenest(self, choices: Sequence[Segment]) -> list[Segment]:
        """Of segments that differ in shares alone those in which the types take about as long."""
        if len(choices) <= 2:
            return list(choices)
        speeds = [
            self.space.groups[number].device.peak(self.pricer.recipe.dtype) or 1.0 for number in choices[0].groups
        ]

        def slowest(segment: Segment) -> float:
            return max(samples / speed for samples, speed in zip(segment.samples, speeds, strict=True))

        return sorted(choices, key=slowest)[:2]


def _spread(candidates: Sequence[_Candidate], most: int) -> list[_Candidate]:
    """The first `most` to cut: half by how fast they look, half the first of each arrangement in turn."""
    firsts: dict[Arrangement, _Candidate] = {}
    for candidate in candidates:
        firsts.setdefault(candidate.arrangement, candidate)
    chosen = list(candidates[: most // 2])
    chosen += [candidate for candidate in firsts.values() if all(candidate is not other for other in chosen)]
    chosen = chosen[:most]
    rest = (candidate for candidate in candidates if all(candidate is not other for other in chosen))
    return [*chosen, *(candidate for candidate, _ in zip(rest, range(most - len(chosen)), strict=False))]


def _even_choice(sizes: Sequence[int], count: int) -> list[int]:
    """So many of them, evenly by their number, both ends among them."""
    step = (len(sizes) - 1) / (count - 1)
    return [sizes[round(number * step)] for number in range(count)]
