"""Hosts under switches, as any file names them, turned into the tree above a site's nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from profiles.errors import InputError
from profiles.host_lists import HOST_NAMES, is_host_name
from profiles.limits import LIMITS
from profiles.network import FabricLevel, FabricPart, Network, level_names
from profiles.records import dataclass
from profiles.wiring import Wired
from profiles.wiring_levels import levels_of, nodes_alone


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTree:
    """`levels` are their names from the nodes up, `places` each host's part at each of them. A part's name is its own
    at its level; hosts are in an order in which those of one part follow each other, at every level. `wiring` are the
    switches and cables that a file has, whose nodes are these hosts in this order; levels then follow from them."""

    levels: tuple[str, ...]
    places: Mapping[str, tuple[str, ...]]
    where: str
    notes: tuple[str, ...] = ()
    wiring: Wired | None = None

    def network(self, hosts: Sequence[str]) -> Network:
        """Return the tree above `hosts`, in their order; parts without any of them are left out. Raise KeyError for a
        host that is not in the tree."""
        if self.wiring is not None:
            places = {host: number for number, host in enumerate(self.places)}
            wiring = nodes_alone(self.wiring, [places[host] for host in hosts])
            return Network(levels=levels_of(wiring, wiring.node_bytes_per_s), hosts=tuple(hosts), wiring=wiring)
        rows = [self.places[host] for host in hosts]
        levels: list[FabricLevel] = []
        below = list(range(len(rows)))  # A row in which each part of the level below, at first each host, is found.
        for depth, name in enumerate(self.levels):
            numbers: dict[str, int] = {}
            part_of: list[int] = []
            first: list[int] = []
            for row in below:
                part = numbers.setdefault(rows[row][depth], len(numbers))
                if part == len(first):
                    first.append(row)
                part_of.append(part)
            levels.append(
                FabricLevel(name=name, parts=tuple(FabricPart(name=part) for part in numbers), part_of=tuple(part_of))
            )
            below = first
        while levels and len(levels[-1].parts) == 1:
            levels.pop()
        return Network(levels=tuple(levels), hosts=tuple(hosts))


def host_tree(
    levels: Sequence[str], paths: Mapping[str, Sequence[str]], where: str, notes: tuple[str, ...] = ()
) -> HostTree:
    """Return the tree of hosts whose `paths` name their part at each of `levels`, from the nodes up. A name counts only
    inside the part above it: where two parts have the same one, each is called after what it is in, too."""
    LIMITS.nodes.check(len(paths), where=where)
    wrong = next((host for host in paths if not is_host_name(host)), None)
    if wrong is not None:
        raise InputError(where=where, key="node", found=repr(wrong)[:60], expected=HOST_NAMES)
    LIMITS.levels.check(len(levels), where=where)
    unprinted = next((name for path in (levels, *paths.values()) for name in path if not name.isprintable()), None)
    if unprinted is not None:
        expected = "a name without control characters"
        raise InputError(where=where, key="switch", found=repr(unprinted)[:60], expected=expected)
    seen: list[dict[str, set[tuple[str, ...]]]] = [{} for _ in levels]
    for path in paths.values():
        for depth, name in enumerate(path):
            seen[depth].setdefault(name, set()).add(tuple(path[depth:]))
    called = {
        host: tuple(
            name if len(seen[depth][name]) == 1 else "/".join(reversed(tuple(path[depth:])))
            for depth, name in enumerate(path)
        )
        for host, path in paths.items()
    }
    order: list[dict[str, int]] = [{} for _ in levels]
    for path in called.values():
        for depth, name in enumerate(path):
            order[depth].setdefault(name, len(order[depth]))
    ranked = sorted(
        called, key=lambda host: [order[depth][called[host][depth]] for depth in reversed(range(len(levels)))]
    )
    return HostTree(levels=tuple(levels), places={host: called[host] for host in ranked}, where=where, notes=notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A switch with nodes or switches below it; `where` is the place of its description."""

    name: str
    nodes: tuple[str, ...]
    switches: tuple[str, ...]
    where: str


def tree_of_switches(switches: Sequence[Switch], where: str, key: str, notes: tuple[str, ...] = ()) -> HostTree:
    """Return the tree that switches make up. `key` is what a switch is called by in the file. Raise InputError for a
    node under two of them, a switch in a loop, without a parent or under two, or that nobody describes."""
    by_name: dict[str, Switch] = {}
    for switch in switches:
        if switch.name in by_name:
            raise _wrong(switch.where, f"{key} {switch.name}", "its description a second time", "each switch once")
        if not switch.nodes and not switch.switches:
            raise _wrong(switch.where, f"{key} {switch.name}", "nothing below it", "nodes, or switches")
        by_name[switch.name] = switch
    above: dict[str, Switch] = {}
    leaf: dict[str, Switch] = {}
    for switch in switches:
        for child in switch.switches:
            at = f"{key} {switch.name}"
            if child not in by_name:
                raise _wrong(switch.where, at, f"a switch {child} below it", "switches that the file describes")
            if child in above:
                stated = f"{child}, which is under {above[child].name} already"
                raise _wrong(switch.where, at, stated, "each switch under one other")
            above[child] = switch
        for node in switch.nodes:
            if node in leaf:
                stated = f"node {node}, which is under {leaf[node].name} already"
                raise _wrong(switch.where, f"{key} {switch.name}", stated, "each node under one switch")
            leaf[node] = switch
    chains = {name: _chain(by_name[name], above, key) for name in by_name}
    tops = [switch for switch in switches if switch.name not in above]
    for switch in tops[1:]:
        stated = f"no switch above it, as there is none above {tops[0].name}"
        raise _wrong(switch.where, f"{key} {switch.name}", stated, "one switch at the top, all others below it")
    if not leaf:
        raise InputError(where=where, key=key, found="no node below any switch", expected="nodes")
    depth = max(len(chains[switch.name]) for switch in leaf.values())
    # A node nearer to the top than others hangs under switches of its own that limit nothing.
    paths = {node: _padded(chains[switch.name], depth) for node, switch in leaf.items()}
    return host_tree(level_names(depth), paths, where, notes)


def _chain(switch: Switch, above: Mapping[str, Switch], key: str) -> tuple[str, ...]:
    """The switch and all above it."""
    chain = [switch]
    places = {switch.name: 0}
    while chain[-1].name in above:
        chain.append(above[chain[-1].name])
        again = places.setdefault(chain[-1].name, len(chain) - 1)
        if again < len(chain) - 1:
            names, first = " under ".join(link.name for link in chain[again:]), chain[again]
            raise _wrong(first.where, f"{key} {first.name}", f"a loop: {names}", "switches that end at one top")
        LIMITS.levels.check(len(chain), where=switch.where, key=f"{key} {switch.name}")
    return tuple(link.name for link in chain)


def _padded(chain: tuple[str, ...], depth: int) -> tuple[str, ...]:
    return (chain[0],) * (depth - len(chain)) + chain


def _wrong(where: str, key: str, found: str, expected: str) -> InputError:
    return InputError(where=where, key=key, found=found, expected=expected)
