"""Slurm's trees of switches: `topology.conf`, what `scontrol show topology` prints, and `topology.yaml`.

Keys are those of the man pages topology.conf(5) and topology.yaml(5): SwitchName with Nodes or Switches, which are host
lists, in any case; a LinkSpeed has no unit there and is left out. `scontrol show topology` also prints each switch's
Level, and under switches of switches all nodes that are anywhere below.
"""

from __future__ import annotations

import re
from typing import Any

from profiles.errors import InputError
from profiles.files import text_lines
from profiles.host_lists import expand_hosts
from profiles.limits import LIMITS
from profiles.topology_tree import HostTree, Switch, tree_of_switches

_KEYS = {"switchname", "nodes", "switches", "linkspeed", "level"}
_NOTHING = {"", "(null)", "none"}
NO_UPLINKS = "says nothing of uplinks: as wide as the NICs below them, but where the cluster file's levels say it"


def read_topology_conf(text: str, where: str) -> HostTree:
    """Return the tree of a `topology.conf`, or of what `scontrol show topology` prints. Raise InputError with the
    line."""
    switches: list[Switch] = []
    joined, listed = "", 0
    for number, line in enumerate(text_lines(text, where=where), start=1):
        plain = line.split("#", 1)[0].strip()
        if plain.endswith("\\"):
            joined += plain[:-1] + " "
            continue
        words, joined = (joined + plain).split(), ""
        if words:
            switches.append(_switch(words, f"{where}, line {number}"))
            listed += len(switches[-1].nodes) + len(switches[-1].switches)
            _check_listed(listed, where)
    if joined:
        expected = "the line that goes on with it"
        raise InputError(where=where, key="last line", found="a backslash at its end", expected=expected)
    if not switches:
        raise InputError(where=where, found="no switch", expected="lines such as SwitchName=s1 Nodes=gpu[01-16]")
    return tree_of_switches(switches, where, "SwitchName", (NO_UPLINKS,))


def _check_listed(count: int, where: str) -> None:
    """Raise InputError for more names below switches than a tree has: each node stands below one at every level."""
    if count > LIMITS.levels.most * LIMITS.nodes.most:
        raise LIMITS.nodes.error(where=where)


def _switch(words: list[str], where: str) -> Switch:
    said: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key.lower() not in _KEYS:
            expected = "SwitchName, Nodes, Switches and LinkSpeed of topology/tree, each as KEY=VALUE"
            raise InputError(where=where, key=key, found=repr(word[:60]), expected=expected)
        if key.lower() in said:
            raise InputError(where=where, key=key, found="the key twice", expected="each key once")
        said[key.lower()] = "" if value.lower() in _NOTHING else value
    name = said.get("switchname", "")
    if not name or re.search(r"[\[\],]", name):
        raise InputError(where=where, key="SwitchName", found=repr(name), expected="the name of one switch")
    switches = expand_hosts(said["switches"], where, "Switches") if said.get("switches") else ()
    nodes = expand_hosts(said["nodes"], where, "Nodes") if said.get("nodes") else ()
    if switches and nodes and "level" not in said:
        raise InputError(
            where=where, key=f"SwitchName {name}", found="nodes and switches below one switch", expected="either"
        )
    return Switch(name=name, nodes=() if switches else nodes, switches=switches, where=where)


def read_topology_yaml(data: list[Any], where: str) -> HostTree:
    """Return the one tree of a `topology.yaml`, of several the cluster's default. Raise InputError with the key."""
    trees = []
    for number, entry in enumerate(data):
        if not isinstance(entry, dict) or "topology" not in entry:
            expected = "entries with topology (a name) and tree, as topology.yaml has them"
            raise InputError(where=where, key=f"[{number}]", found=str(entry)[:60], expected=expected)
        if "tree" in entry:
            trees.append((number, entry))
    default = [pair for pair in trees if pair[1].get("cluster_default") is True][:1]
    if len(trees) != 1 and not default:
        stated = f"{len(trees)} topologies with a tree, none of them cluster_default"
        raise InputError(where=where, key="tree", found=stated, expected="one, or one with cluster_default: true")
    number, entry = (default or trees)[0]
    key = f"[{number}].tree.switches"
    listed = entry["tree"].get("switches") if isinstance(entry["tree"], dict) else None
    if not isinstance(listed, list) or not listed:
        raise InputError(where=where, key=key, found=str(listed)[:60], expected="a list of switches")
    switches, count = [], 0
    for place, switch in enumerate(listed):
        switches.append(_yaml_switch(switch, where, f"{key}[{place}]"))
        count += len(switches[-1].nodes) + len(switches[-1].switches)
        _check_listed(count, where)
    return tree_of_switches(switches, where, "switch", (NO_UPLINKS,))


def _yaml_switch(data: Any, where: str, key: str) -> Switch:
    unknown = sorted(set(data) - {"switch", "nodes", "children"}) if isinstance(data, dict) else ["no mapping"]
    if unknown or not isinstance(data.get("switch"), str):
        stated = f"{unknown[0]!r}" if unknown else f"{data.get('switch')!r}"
        raise InputError(where=where, key=key, found=stated, expected="switch (a name), with nodes or children")
    lists: dict[str, tuple[str, ...]] = {}
    for name in ("nodes", "children"):
        value = data.get(name, "")
        if not isinstance(value, str):
            raise InputError(where=where, key=f"{key}.{name}", found=repr(value)[:60], expected="a host list")
        lists[name] = expand_hosts(value, where, f"{key}.{name}") if value else ()
    if lists["nodes"] and lists["children"]:
        raise InputError(where=where, key=key, found="nodes and children below one switch", expected="either")
    return Switch(name=data["switch"], nodes=lists["nodes"], switches=lists["children"], where=f"{where}: {key}")
