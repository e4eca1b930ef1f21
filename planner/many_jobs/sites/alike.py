"""Groups of devices, and parties of them, that differ in names alone: what is priced of one holds for the others."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cached_property

from estimator.pricing.pricing import Pricing
from planner.many_jobs.sites.tpa_sites import Party, SiteGraph
from planner.one_job.search.mixed.space import Group
from profiles.cluster import DeviceSlot
from profiles.records import dataclass, replace


@dataclass(frozen=True, kw_only=True, eq=False)
class Alike:
    """`first_of` gives the first party asked about that is like another. Groups are alike if their sites are equal but
    for the name, and their devices sit at the same places of them; parties, if their groups are alike in turn and
    joined by equal links. With `by_name`, where tables of single links count, only a party itself is."""

    groups: Sequence[Group]
    graph: SiteGraph
    by_name: bool
    pricing: Pricing

    def first_of(self, party: Party) -> Party:
        """The first party like this one, perhaps itself."""
        if self.by_name and len(party) > 1:
            return party
        links = tuple(
            (self.graph.bandwidth_bytes_per_s[a][b], self.graph.latency_s[a][b])
            for a, b in itertools.combinations(party, 2)
        )
        return self.pricing.keep((self.first_of, tuple(self.kinds[number] for number in party), links), lambda: party)

    def moved(self, slots: Sequence[DeviceSlot], first: Party, party: Party) -> tuple[DeviceSlot, ...]:
        """Slots of the one party as the same slots of another like it."""
        if first == party:
            return tuple(slots)
        to = {
            slot: other
            for a, b in zip(first, party, strict=True)
            for slot, other in zip(self.groups[a].slots, self.groups[b].slots, strict=True)
        }
        return tuple(to[slot] for slot in slots)

    @cached_property
    def kinds(self) -> tuple[int, ...]:
        """Of each group the first one that is like it."""
        firsts: dict[object, int] = {}
        kinds = []
        for number, group in enumerate(self.groups):
            site = replace(group.own.evaluator.cluster.site(group.site), name="site")
            places = tuple((slot.node, slot.index, slot.group) for slot in group.slots)
            kinds.append(firsts.setdefault((group.own.device, site, places), number))
        return tuple(kinds)
