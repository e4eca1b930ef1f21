"""Volcano's HyperNodes: a tree of objects, each with nodes or HyperNodes as members (topology.volcano.sh/v1alpha1)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from profiles.errors import InputError
from profiles.topology_slurm import NO_UPLINKS
from profiles.topology_tree import HostTree, Switch, tree_of_switches

KIND = "HyperNode"
MOST_REPEATS = 4
"""Of a pattern: its search takes a name's length to this power, at most."""

_REPEATED_GROUP = re.compile(r"\)[*+{?]|\\\d|\(\?")


def read_hypernodes(items: Sequence[Any], where: str) -> HostTree:
    """Return the tree of the HyperNodes in a List of `kubectl get hypernodes -o json`; with `kubectl get
    hypernodes,nodes` members may be told by labels and patterns too. Raise InputError for members that are not as
    Volcano has them, a member that the List lacks, and what is no tree."""
    nodes = {
        item["metadata"]["name"]: item["metadata"].get("labels") or {}
        for item in items
        if isinstance(item, dict) and item.get("kind") == "Node" and isinstance(item.get("metadata"), dict)
        and isinstance(item["metadata"].get("name"), str)
    }  # fmt: skip
    switches: list[Switch] = []
    for item in (item for item in items if isinstance(item, dict) and item.get("kind") == KIND):
        metadata, spec = item.get("metadata"), item.get("spec")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        if not isinstance(name, str) or not name:
            raise InputError(where=where, key=f"{KIND}.metadata.name", found=repr(name)[:60], expected="a name")
        listed = spec.get("members") if isinstance(spec, dict) else None
        key = f"{KIND} {name}: spec.members"
        if not isinstance(listed, list):
            raise InputError(where=where, key=key, found=type(listed).__name__, expected="a list")
        below: dict[str, list[str]] = {"Node": [], KIND: []}
        for number, member in enumerate(listed):
            at = f"{key}[{number}]"
            kind = member.get("type") if isinstance(member, dict) else None
            if not isinstance(kind, str) or kind not in below:
                raise InputError(where=where, key=f"{at}.type", found=repr(kind)[:60], expected=f"Node or {KIND}")
            below[kind] += _members(member.get("selector"), nodes if kind == "Node" else {}, where, f"{at}.selector")
        leaves, above = tuple(dict.fromkeys(below["Node"])), tuple(dict.fromkeys(below[KIND]))
        switches.append(Switch(name=name, nodes=leaves, switches=above, where=where))
    return tree_of_switches(switches, where, KIND, (NO_UPLINKS,))


def _members(selector: Any, nodes: Mapping[str, Mapping[str, Any]], where: str, key: str) -> list[str]:
    """The names that a member's selector means."""
    given = {name: value for name, value in selector.items() if value} if isinstance(selector, dict) else {}
    if len(given) != 1 or not set(given) <= {"exactMatch", "regexMatch", "labelMatch"}:
        found = ", ".join(map(str, given))[:60] or "nothing"
        raise InputError(where=where, key=key, found=found, expected="one of exactMatch, regexMatch, labelMatch")
    how, value = next(iter(given.items()))
    key = f"{key}.{how}"
    if how == "exactMatch":
        name = value.get("name") if isinstance(value, dict) else None
        if not isinstance(name, str) or not name:
            raise InputError(where=where, key=f"{key}.name", found=repr(name)[:60], expected="a name")
        return [name]
    if not nodes:
        expected = "the nodes in the same List: kubectl get hypernodes,nodes -o json"
        raise InputError(where=where, key=key, found="no node to match", expected=expected)
    if how == "regexMatch":
        pattern = _pattern(value.get("pattern") if isinstance(value, dict) else None, where, f"{key}.pattern")
        return [name for name in nodes if pattern.search(name)]
    labels = value.get("matchLabels") if isinstance(value, dict) else None
    if not isinstance(labels, dict) or not labels or set(value) != {"matchLabels"}:
        raise InputError(where=where, key=key, found=repr(value)[:60], expected="matchLabels alone")
    return [name for name, carried in nodes.items() if isinstance(carried, dict) and labels.items() <= carried.items()]


def _pattern(text: Any, where: str, key: str) -> re.Pattern[str]:
    expected = f"a regular expression without repeated groups, with at most {MOST_REPEATS} repeats"
    if not isinstance(text, str) or not text or len(text) > 1000:
        raise InputError(where=where, key=key, found=repr(text)[:60], expected=expected)
    if _REPEATED_GROUP.search(text) or len(re.findall(r"[*+{]", text)) > MOST_REPEATS:
        raise InputError(where=where, key=key, found=repr(text)[:60], expected=expected)
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError):
        raise InputError(where=where, key=key, found=repr(text)[:60], expected=expected) from None
