"""Topology-aware parallelism automation (SpiderFlow, section 4.2): a job's plan over the devices of several sites.

Two levels. Between sites few arrangements of them, that cut little over thin links (`planner.sites.tpa_sites`); inside
each site the exact choice of (d, p) and of the devices of each stage (`planner.sites.inside`). Beyond the paper, which
sets tensor parallelism to 1 and takes equal devices: tp inside a site is one more option of the exact choice, and
stages on devices of different speed get as many layers as they can take (`planner.sites.cut_layers`). All costs are the
estimator's, and a plan counts for what the estimator says of it.

A plan may leave sites idle that a job was given: where links are thin one site alone is often faster. `Wanted` says
whether that is allowed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from estimator.explicit.link_times import LinkTimes
from estimator.explicit.optimizers import GRAD_WIDTH
from estimator.explicit.stage_work import table_parameters, tied_ends
from models_zoo.layers import Embedding, TransformerBlock
from planner.explicit.recording import record_plan
from planner.plan import Plan
from planner.search.mixed_linear import Linear
from planner.search.mixed_prices import contents_of
from planner.search.mixed_segments import Pricer
from planner.search.mixed_space import Group, MixedSpace, Segment, groups_of
from planner.search.request import SearchRequest
from planner.sites.inside_tables import InsideTables
from planner.sites.tpa_pipes import Part, PlanMaker, Priced
from planner.sites.tpa_sites import Arrangement, Party, SiteGraph, Traffic, arrangements
from profiles.cluster import DeviceSlot
from profiles.vocabulary import DTYPE_BYTES

Wanted = Literal["any", "all-sites"]
"""Which plans count: any on the devices given, or those alone that use every site."""
MOST_PRICED = 40
"""So many plans are priced by the estimator, those first that look fastest."""
MOST_INSIDE = 2
"""So many choices inside a site are tried in each arrangement."""
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
    for own in request.spaces:
        mine = tuple(slot for slot in own.space.slots if slot in chosen)
        if mine:
            kept.append(replace(own, space=replace(own.space, slots=mine)))
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
        self.space = MixedSpace(groups=self.groups if len(self.groups) > 1 else self.groups * 2)
        evaluator = self.space.first.evaluator
        kernels = {group.own.evaluator.recipe.attention for group in self.space.groups}
        tables = {table.id: table for group in self.space.groups for table in group.own.link_tables}
        links = LinkTimes(
            cluster=evaluator.cluster,
            parameters=evaluator.parameters,
            tables=tuple(tables.values()),
            experts_a_token=evaluator.links.experts_a_token,
        )
        self.pricer = Pricer(
            space=self.space,
            recipe=evaluator.recipe if len(kernels) == 1 else replace(evaluator.recipe, attention="math"),
            links=links,
            contents=contents_of(evaluator.layers),
        )
        self.linear = Linear(pricer=self.pricer)
        self.inside = InsideTables(pricer=self.pricer, linear=self.linear)
        self.maker = PlanMaker(pricer=self.pricer)
        self.choices: dict[object, list[tuple[Part, float]]] = {}

    def run(self, most: int) -> Across | None:
        graph, traffic = self._graph(), self._traffic()
        every = [one for one in arrangements(graph, traffic) if self._is_wanted(one)]
        candidates = [
            found
            for arrangement in every
            for micro_batch in self._micro_batches()
            for found in self._candidates(graph, arrangement, micro_batch)
        ]
        candidates.sort(key=lambda one: one.looks_s)
        best: Priced | None = None
        by_arrangement: dict[Arrangement, float] = {}
        priced = 0
        for one in _spread(candidates, most):
            found = self.maker.plan(one.parts)
            priced += 1
            if found is None:
                continue
            by_arrangement[one.arrangement] = min(found.time_s, by_arrangement.get(one.arrangement, math.inf))
            if best is None or found.time_s < best.time_s:
                best = found
        if best is None:
            return None
        considered = [
            Considered(sites=self._names(arrangement), iteration_time_s=by_arrangement.get(arrangement))
            for arrangement in every
        ]
        considered.sort(key=lambda one: math.inf if one.iteration_time_s is None else one.iteration_time_s)
        said = "planned in two levels (SpiderFlow, section 4.2): the best of few arrangements of the sites"
        plan = record_plan(
            best.setup,
            best.evaluation,
            reference=self.request.reference,
            assumptions=(*self.request.assumptions, said),
        )
        size = replace(plan.provenance, search_space_size=max(1, priced))
        return Across(best=best, plan=replace(plan, provenance=size), considered=tuple(considered), priced=priced)

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

    def _graph(self) -> SiteGraph:
        groups, cluster = self.groups, self.pricer.links.cluster
        links = {frozenset(link.between): link for link in cluster.site_links}

        def width(one: Group, other: Group) -> tuple[float, float]:
            if one.site == other.site:
                fabric = cluster.site(one.site).fabric_link
                return fabric.bandwidth_bytes_per_s * fabric.efficiency, fabric.latency_s
            link = links.get(frozenset((one.site, other.site)))
            return (0.0, math.inf) if link is None else (link.bandwidth_bytes_per_s, link.latency_s)

        both = [[width(one, other) for other in groups] for one in groups]
        dtype = self.pricer.recipe.dtype
        return SiteGraph(
            speed=tuple(len(group.slots) * (group.device.peak(dtype) or 1.0) for group in groups),
            bandwidth_bytes_per_s=tuple(tuple(one for one, _ in row) for row in both),
            latency_s=tuple(tuple(one for _, one in row) for row in both),
        )

    def _traffic(self) -> Traffic:
        recipe, model = self.pricer.recipe, self.space.model
        hidden = next((one.hidden for one in model.layers if isinstance(one, TransformerBlock | Embedding)), 0)
        tied = 0.0
        if tied_ends(model) and not recipe.lora_rank:
            tied = 2.0 * table_parameters(model, recipe.vocabulary_multiple, 1) * GRAD_WIDTH[recipe.grad_dtype]
        samples = recipe.global_batch * max(1, recipe.seq_len)
        return Traffic(message_bytes=max(1.0, 2.0 * samples * hidden * DTYPE_BYTES[recipe.dtype]), tied_bytes=tied)

    def _micro_batches(self) -> list[int]:
        limits, batch = self.space.constraints, self.pricer.recipe.global_batch
        sizes = [size for size in range(1, batch + 1) if batch % size == 0]
        kept = [size for size in sizes if limits.permits("micro_batches", batch // size)]
        return kept if len(kept) <= MOST_BATCHES else _even_choice(kept, MOST_BATCHES)

    # Inside a site

    def _candidates(self, graph: SiteGraph, arrangement: Arrangement, micro_batch: int) -> list[_Candidate]:
        """The best choice of every party together, and with the next best choice of one of them."""
        speeds = [sum(graph.speed[number] for number in party) for party in arrangement]
        many = len(arrangement) > 1
        ranked = [
            self._choose(party, micro_batch, round(speed / sum(speeds), 3), many=many)
            for party, speed in zip(arrangement, speeds, strict=True)
        ]
        if not all(ranked):
            return []
        first = [own[0] for own in ranked]
        found = [first]
        for place, own in enumerate(ranked):
            found += [[*first[:place], other, *first[place + 1 :]] for other in own[1:]]
        limits = self.space.constraints
        return [
            _Candidate(
                arrangement=arrangement,
                parts=tuple(part for part, _ in choices),
                looks_s=max(looks for _, looks in choices) + self._between_s([part for part, _ in choices]),
            )
            for choices in found
            if limits.permits("pp", sum(part.segment.pp for part, _ in choices))
            and limits.permits("devices", sum(len(part.slots) for part, _ in choices))
        ]

    def _between_s(self, parts: Sequence[Part]) -> float:
        """Messages between parties that the iteration waits for: of every one of the slowest, of all others once."""
        hops = []
        for one, other in itertools.pairwise(parts):
            last = replace(self.space.stage(one.segment, 0), slots=one.stage_slots(one.segment.pp - 1))
            first = replace(self.space.stage(other.segment, 0), slots=other.stage_slots(0))
            hops.append(float(self.pricer.hop_s(last, first, one.segment.micro_batch)[1]))
        if not hops:
            return 0.0
        waits = max(a + b for a, b in zip([0.0, *hops], [*hops, 0.0], strict=True))
        return 2 * math.fsum(hops) + (self.pricer.batches(parts[0].segment) - 1) * waits

    def _choose(self, party: Party, micro_batch: int, share: float, *, many: bool) -> list[tuple[Part, float]]:
        """The party's best choices with what each looks like."""
        key = (party, micro_batch, share, many)
        if key not in self.choices:
            if len(party) == 1:
                inside = self.inside.ranked(party[0], micro_batch, share, most=MOST_INSIDE, many=many)
                self.choices[key] = [(Part(segment=one.segment, slots=one.slots), one.total_s) for one in inside]
            else:
                self.choices[key] = self._over_sites(party, micro_batch, share, many=many)
        return self.choices[key]

    def _over_sites(self, party: Party, micro_batch: int, share: float, *, many: bool) -> list[tuple[Part, float]]:
        """Replicas on several groups: the same degrees in each, which share every stage."""
        if party not in self.space.parties:
            return []
        found = []
        for choices in self.space.segments(party, micro_batch):
            for segment in self._evenest(choices):
                option = self.inside.option_in_order(segment, share, many=many)
                if option is not None:
                    slots = tuple(
                        slot for number in range(segment.pp) for slot in self.space.stage_slots(segment, number)
                    )
                    found.append((Part(segment=segment, slots=slots), option.least_s))
        return sorted(found, key=lambda pair: pair[1])[:MOST_INSIDE]

    def _evenest(self, choices: Sequence[Segment]) -> list[Segment]:
        """Of segments that differ in shares alone those in which the types take about as long."""
        if len(choices) <= 2:
            return list(choices)
        speeds = [
            self.space.groups[number].device.peak(self.pricer.recipe.dtype) or 1.0 for number in choices[0].groups
        ]

        def slowest(segment: Segment) -> float:
            return max(own / speed for own, speed in zip(segment.samples, speeds, strict=True))

        return sorted(choices, key=slowest)[:2]


def _spread(candidates: Sequence[_Candidate], most: int) -> list[_Candidate]:
    """The first `most` to price: half by how fast they look, half the first of each arrangement in turn."""
    firsts: dict[Arrangement, _Candidate] = {}
    for one in candidates:
        firsts.setdefault(one.arrangement, one)
    chosen = list(candidates[: most // 2])
    chosen += [one for one in firsts.values() if all(one is not other for other in chosen)]
    chosen = chosen[:most]
    rest = (one for one in candidates if all(one is not other for other in chosen))
    return [*chosen, *(one for one, _ in zip(rest, range(most - len(chosen)), strict=False))]


def _even_choice(sizes: Sequence[int], count: int) -> list[int]:
    """So many of them, evenly by their number, both ends among them."""
    step = (len(sizes) - 1) / (count - 1)
    return [sizes[round(number * step)] for number in range(count)]
