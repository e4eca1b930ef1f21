"""Why a job cannot be placed over the sites, and the smallest change of each kind that would help."""

from __future__ import annotations

from collections.abc import Sequence

from planner.many_jobs.sites.records import Demand, NoSites
from planner.many_jobs.sites.state import SiteTable, local_number


def explain_shortage(table: SiteTable, demand: Demand) -> NoSites:
    """For a demand that cannot be met: what lacks, by how much, and where. ValueError if it can be met.

    The kinds of change: fewer devices, devices freed on joined sites, links between sites that are not joined, other
    or several device types.
    """
    types_there = [name for name in demand.types if name in table.types]
    if demand.types and not types_there:
        have = ", ".join(f"{name} ({sum(row)} free)" for name, row in zip(table.types, table.free, strict=True))
        wanted = " or ".join(demand.types)
        return NoSites(reason=f"no site has {wanted}", changes=(f"ask for one of: {have}",))
    options: list[tuple[str, ...]] = [tuple(types_there)]
    if demand.one_type and table.types:
        options = [(name,) for name in types_there or table.types]
    shortages = [(types, _Shortage(table, demand, types)) for types in options]
    types, least = min(shortages, key=lambda entry: (entry[1].lacking, -entry[1].everywhere))
    if least.lacking <= 0:
        raise ValueError(f"{demand} can be met, expected one that cannot")
    return NoSites(reason=least.reason(types), changes=(*least.changes(types), *_other_types(table, demand, types)))


class _Shortage:
    """What lacks of some types."""

    def __init__(self, table: SiteTable, demand: Demand, types: Sequence[str]) -> None:
        topology, self.table, self.demand = table.topology, table, demand
        free = table.free_for(types)
        groups: dict[int, list[int]] = {}
        for site, part in enumerate(topology.parts):
            groups.setdefault(part, []).append(site)
        self.local = local_number(table, demand)
        held = {part: sum(free[site] for site in sites) for part, sites in groups.items()}
        ranked = sorted(groups, key=lambda part: -held[part])
        if self.local is not None:
            home = topology.parts[self.local]
            ranked = [home, *(part for part in ranked if part != home)]
        self.groups, self.held = [groups[part] for part in ranked], [held[part] for part in ranked]
        self.everywhere = sum(free)
        self.lacking = demand.devices - self.held[0] if self.held else demand.devices

    def reason(self, types: Sequence[str]) -> str:
        """What is wanted and what there is."""
        what = " ".join((*(" or ".join(types),) * bool(types), "devices"))
        said = f"{self.demand.devices} {what} wanted, {self.everywhere} free on all sites"
        if self.everywhere < self.demand.devices:
            return said
        where = "are joined to " + str(self.demand.local) if self.local is not None else "one another are joined"
        if self.local is not None:
            return f"{said}, but only {self.held[0]} on sites that {where}"
        return f"{said}, but at most {self.held[0]} on sites that links join"

    def changes(self, types: Sequence[str]) -> list[str]:
        """Least devices to free, least links to add, most devices that can be asked for."""
        changes = []
        names = self._names(0)
        of = f" of {' or '.join(types)}" if types else ""
        if self.everywhere >= self.demand.devices:
            held, count = self.held[0], 1
            while held < self.demand.devices:
                held += self.held[count]
                count += 1
            ends = "; ".join(self._names(number) for number in range(count))
            changes.append(f"{count - 1} link{'s' * (count > 2)} that join{'s' * (count == 2)} these: {ends}")
        changes.append(f"{self.lacking} more free device{'s' * (self.lacking > 1)}{of} on {names}")
        if self.held[0]:
            changes.append(f"a job of at most {self.held[0]} devices{of}")
        return changes

    def _names(self, group: int) -> str:
        names = [self.table.topology.names[site] for site in self.groups[group]]
        shown = " or ".join(names[:4])
        return shown if len(names) <= 4 else f"{shown} or {len(names) - 4} more"


def _other_types(table: SiteTable, demand: Demand, types: Sequence[str]) -> list[str]:
    """What helps if the demand is less particular about types."""
    if demand.one_type:
        mixed = _Shortage(table, demand, demand.types)
        if mixed.lacking <= 0:
            return ["devices of several types in one job"]
    others = [name for name in table.types if name not in (demand.types or table.types)]
    enough = [name for name in others if _Shortage(table, demand, (name,)).lacking <= 0]
    if enough:
        return [f"devices of {enough[0]} instead"]
    if demand.types and not demand.one_type and _Shortage(table, demand, ()).lacking <= 0:
        return [f"devices of any type, not only {' or '.join(types)}"]
    return []
