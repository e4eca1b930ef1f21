"""The tree above a site's nodes as the cluster file has it, in the short form (`pods`, `oversubscription`) or by
levels; and back into that form."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from profiles.errors import InputError
from profiles.host_lists import HOST_NAMES, expand_hosts, fold_hosts, is_host_name
from profiles.limits import LIMITS
from profiles.network import FabricLevel, FabricPart, Network, SpreadTable, equal_pods, pods_of
from profiles.records import dataclass, replace
from profiles.spreads import load_spread

if TYPE_CHECKING:
    from profiles.cluster import NodeGroup
    from profiles.cluster_schema import FabricModel, LevelModel, NodesModel, PartModel, SpreadModel
    from profiles.topology_tree import HostTree
    from profiles.vocabulary import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class _Below:
    """What the parts of a level are made of: the nodes, or the parts of the level below; `nic_bytes_per_s` is the line
    rate of all NICs in each."""

    what: str
    names: tuple[str, ...]
    nic_bytes_per_s: tuple[float, ...]


def read_hosts(written: Sequence[NodesModel], where: str) -> tuple[str, ...]:
    """Return the names of a site's nodes, none where none has one. Raise InputError unless all have one or none has,
    as many as there are nodes; keys are the site's."""
    names: list[str] = []
    for number, group in enumerate(written):
        at = f"nodes[{number}].names"
        if (group.names is None) != (written[0].names is None):
            stated = "names of some groups of nodes and not of others"
            raise InputError(where=where, key=at, found=stated, expected="names of all of them, or of none")
        if group.names is None:
            continue
        listed = expand_hosts(group.names, where, at) if isinstance(group.names, str) else tuple(group.names)
        if len(listed) != group.count:
            raise InputError(where=where, key=at, found=f"{len(listed)} names", expected=f"{group.count}, one a node")
        wrong = next((name for name in listed if not is_host_name(name)), None)
        if wrong is not None:
            raise InputError(where=where, key=at, found=repr(wrong)[:60], expected=HOST_NAMES)
        names += listed
    return tuple(names)


def network_beside(tree: HostTree, network: Network, nodes: int, *, text: str) -> Network:
    """Return the tree above a site's nodes that a file beside the cluster `text` holds; `network` has the nodes' names,
    where they have any. Raise InputError where the site has a tree already."""
    from profiles.topology_reading import network_under

    if network.levels or network.wiring is not None:
        expected = f"none in {text}, or no file beside it"
        raise InputError(where=tree.where, found="a second tree", expected=expected)
    return network_under(tree, nodes, network.hosts, text)


def read_network(
    fabric: FabricModel,
    nodes: Sequence[NodeGroup],
    hosts: tuple[str, ...],
    link: Link,
    where: str,
    tree: HostTree | None = None,
) -> Network:
    """Return the tree that a site's `fabric` describes above `nodes`, whose NICs reach it by `link`; of levels without
    parts, those of `tree`. Raise InputError naming `where` and the site's key for what is no tree of exactly these
    nodes."""
    count = sum(group.count for group in nodes)
    bare = [number for number, level in enumerate(fabric.levels or ()) if level.parts is None]
    if bare and tree is None:
        expected = "parts, or --topology FILE, which has them"
        raise InputError(where=where, key=f"fabric.levels[{bare[0]}].parts", found="nothing", expected=expected)
    if tree is not None and tree.wiring is not None:
        expected = f"nothing: the cables in {tree.where} say how wide uplinks are"
        raise InputError(where=where, key="fabric.levels", found="rules for levels", expected=expected)
    if tree is not None and fabric.levels is not None and len(bare) < len(fabric.levels):
        raise InputError(
            where=where, key="fabric.levels", found=f"parts, beside those of {tree.where}", expected="one tree"
        )
    if fabric.levels is None:
        pods = 1 if fabric.pods is None else fabric.pods
        over = 1.0 if fabric.oversubscription is None else fabric.oversubscription
        network = equal_pods(count, pods=pods, oversubscription=over)
        return replace(network, hosts=hosts)
    for name, value in (("pods", fabric.pods), ("oversubscription", fabric.oversubscription)):
        if value is not None:
            expected = "nothing beside levels, which say it of each part"
            raise InputError(where=where, key=f"fabric.{name}", found=value, expected=expected)
    LIMITS.levels.check(len(fabric.levels), where=where, key="fabric.levels")
    rates = [group.nics * group.nic_bytes_per_s(link) for group in nodes for _ in range(group.count)]
    below = _Below(what="nodes", names=hosts or tuple(map(str, range(count))), nic_bytes_per_s=tuple(rates))
    written = fabric.levels if tree is None else _levels_of(tree, fabric.levels, count, hosts, where)
    if tree is not None and not hosts:
        hosts = tuple(tree.places)
        below = replace(below, names=hosts)
    levels = []
    for number, level in enumerate(written):
        reader = _LevelReader(where=where, key=f"fabric.levels[{number}]", below=below, named=bool(hosts or number))
        levels.append(reader.level(level))
        below = reader.above(levels[-1])
    return Network(levels=tuple(levels), hosts=hosts)


def _levels_of(
    tree: HostTree, rules: Sequence[LevelModel], count: int, hosts: tuple[str, ...], where: str
) -> list[LevelModel]:
    """The levels of `tree` with what `rules` say of the uplinks of those they name."""
    from profiles.cluster_schema import LevelModel, PartModel
    from profiles.topology_reading import network_under

    network = network_under(tree, count, hosts, where)
    named = {level.name: level for level in rules}
    several = [level.name for level in tree.network(tuple(tree.places)).levels]
    unknown = next((name for name in named if name not in several), None)
    if unknown is not None:
        expected = f"some of {', '.join(several) or 'no levels'}, the levels of {tree.where}"
        if unknown in tree.levels:
            expected += f" (its {unknown} is one switch above everything)"
        raise InputError(where=where, key="fabric.levels", found=repr(unknown), expected=expected)
    levels: list[LevelModel] = []
    below = network.hosts
    for level in network.levels:
        members: list[list[str]] = [[] for _ in level.parts]
        for name, part in zip(below, level.part_of, strict=True):
            members[part].append(name)
        key = "parts" if levels else "nodes"
        parts = [PartModel(name=part.name, **{key: listed}) for part, listed in zip(level.parts, members, strict=True)]
        rule = named.get(level.name, LevelModel(name=level.name))
        levels.append(rule.model_copy(update={"parts": parts}))
        below = tuple(part.name for part in level.parts)
    return levels


@dataclass(frozen=True, slots=True, kw_only=True)
class _LevelReader:
    """Reads one level on top of `below`, whose members are `named` by the author, or else counted from 0."""

    where: str
    key: str
    below: _Below
    named: bool

    def level(self, written: LevelModel) -> FabricLevel:
        parts: list[FabricPart] = []
        part_of: dict[int, int] = {}
        places = {name: number for number, name in enumerate(self.below.names)}
        next_ones = (number for number in range(len(places)) if number not in part_of)
        for position, part in enumerate(written.parts or ()):
            key = f"{self.key}.parts[{position}]"
            if part.count > 1 and not isinstance(part.nodes if self._lowest else part.parts, int):
                raise self._wrong(f"{key}.count", part.count, f"1 beside names, or a number of {self.below.what}")
            for _ in range(part.count):
                LIMITS.nodes.check(len(parts), where=self.where, key=key)
                if isinstance(part.nodes if self._lowest else part.parts, int):
                    members = self._next_members(part, key, next_ones, left=len(places) - len(part_of))
                else:
                    members = self._listed_members(part, key, places, part_of)
                rate = sum(self.below.nic_bytes_per_s[member] for member in members)
                name = part.name if part.name is not None and part.count == 1 else None
                stem = part.name or written.name
                part_of |= dict.fromkeys(members, len(parts))
                parts.append(
                    FabricPart(name=name or f"{stem}{len(parts)}", oversubscription=self._ratio(part, written, rate))
                )
        left = [name for number, name in enumerate(self.below.names) if number not in part_of]
        if left:
            stated = f"no part with {self.below.what} {', '.join(left[:3])}{' ...' if len(left) > 3 else ''}"
            raise self._wrong(f"{self.key}.parts", stated, "each of them in one part")
        return FabricLevel(
            name=written.name,
            parts=tuple(parts),
            part_of=tuple(part_of[number] for number in range(len(self.below.names))),
            hop_latency_s=written.hop_latency_s,
            spread=self._spread(written.spread),
        )

    def _spread(self, written: str | SpreadModel | None) -> SpreadTable | None:
        if written is None or isinstance(written, str):
            return None if written is None else load_spread(written, where=self.where, key=f"{self.key}.spread")
        return SpreadTable(
            collective=tuple(written.collective), message=tuple(written.message), source=written.source or self.where
        )

    def above(self, level: FabricLevel) -> _Below:
        """Return this level's parts as what the next one is made of."""
        rates = [0.0] * len(level.parts)
        for member, part in enumerate(level.part_of):
            rates[part] += self.below.nic_bytes_per_s[member]
        return _Below(
            what=f"parts of {level.name}", names=tuple(part.name for part in level.parts), nic_bytes_per_s=tuple(rates)
        )

    @property
    def _lowest(self) -> bool:
        return self.below.what == "nodes"

    def _members(self, part: PartModel, key: str) -> tuple[str, int | str | list[int] | list[str]]:
        """The key at which the members of a part stand, and what stands there."""
        name, other = ("nodes", "parts") if self._lowest else ("parts", "nodes")
        listed, key = getattr(part, name), f"{key}.{name}"
        if listed is None or getattr(part, other) is not None:
            found = f"{other} here" if getattr(part, other) is not None else "nothing"
            raise self._wrong(key, found, f"how many {self.below.what}, or which")
        return key, listed

    def _next_members(self, part: PartModel, key: str, next_ones: Iterator[int], *, left: int) -> list[int]:
        """So many members, by number, as come next of those `left`."""
        key, count = self._members(part, key)
        assert isinstance(count, int)
        if not 1 <= count <= left:
            raise self._wrong(key, count, f"from 1 to the {left} {self.below.what} that no part has yet")
        return list(islice(next_ones, count))

    def _listed_members(
        self, part: PartModel, key: str, places: Mapping[str, int], taken: Collection[int]
    ) -> list[int]:
        """The members that a part lists, by number."""
        key, listed = self._members(part, key)
        assert not isinstance(listed, int)
        names = expand_hosts(listed, self.where, key) if isinstance(listed, str) else [str(name) for name in listed]
        members: dict[int, None] = {}
        for member in names:
            if member not in places:
                called = "" if self.named else ", which are counted from 0 where they have no names"
                raise self._wrong(key, repr(member), f"some of the {len(places)} {self.below.what}{called}")
            if places[member] in taken or places[member] in members:
                raise self._wrong(key, f"{member} a second time", f"each of the {self.below.what} in one part")
            members[places[member]] = None
        if not members:
            raise self._wrong(key, "none", f"one or more {self.below.what}")
        return list(members)

    def _ratio(self, part: PartModel, level: LevelModel, nic_bytes_per_s: float) -> float:
        """The part's own oversubscription or uplink, else the level's, else none."""
        for written in (part, level):
            if written.oversubscription is not None and written.uplink_bytes_per_s is not None:
                stated = "oversubscription and uplink_bytes_per_s of one uplink"
                raise self._wrong(self.key, stated, "one of them")
            if written.oversubscription is not None:
                return written.oversubscription
            if written.uplink_bytes_per_s is not None:
                return nic_bytes_per_s / written.uplink_bytes_per_s if nic_bytes_per_s else 1.0
        return 1.0

    def _wrong(self, key: str, found: object, expected: str) -> InputError:
        return InputError(where=self.where, key=key, found=found, expected=expected)


def describe_network(network: Network) -> dict[str, Any]:
    """Return the keys of a `fabric` that mean the tree, without its link; nodes' names stand with the nodes."""
    if network.routing is not None:
        from profiles.routing_file import describe_routing

        return {**describe_network(replace(network, routing=None)), "routing": describe_routing(network.routing)}
    if network.wiring is not None:
        from profiles.wiring_file import describe_wiring

        return {"topology": describe_wiring(network.wiring, network.hosts)}
    short = pods_of(replace(network, hosts=()))
    if short is not None:
        return {"oversubscription": short[1], "pods": short[0]}
    levels = []
    for depth, level in enumerate(network.levels):
        below = [part.name for part in network.levels[depth - 1].parts] if depth else list(network.hosts)
        described: dict[str, Any] = {"name": level.name}
        if level.hop_latency_s:
            described["hop_latency_s"] = level.hop_latency_s
        if level.spread is not None:
            table = level.spread
            described["spread"] = {
                "collective": list(table.collective),
                "message": list(table.message),
                "source": table.source,
            }
        members: dict[int, list[int]] = {}
        for number, part in enumerate(level.part_of):
            members.setdefault(part, []).append(number)
        in_turn = all(part == number for number, (part, _) in enumerate(groupby(level.part_of)))
        described["parts"] = [
            _describe_part(part, members[number], depth, below, in_turn=in_turn)
            for number, part in enumerate(level.parts)
        ]
        levels.append(described)
    return {"levels": levels}


def _describe_part(
    part: FabricPart, members: Sequence[int], depth: int, below: Sequence[str], *, in_turn: bool
) -> dict[str, Any]:
    listed: int | list[int] | list[str] | str = len(members)
    if not in_turn:
        names = [below[member] for member in members] if below else None
        listed = (names if depth else fold_hosts(names)) if names else list(members)
    described: dict[str, Any] = {"name": part.name, "parts" if depth else "nodes": listed}
    return described | ({"oversubscription": part.oversubscription} if part.oversubscription != 1 else {})
