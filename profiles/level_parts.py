"""In which part of a level of a cluster's network a node of some name is."""

from __future__ import annotations

from collections.abc import Callable

from profiles.cluster import Cluster
from profiles.errors import InputError

Part = tuple[str, int]
"""A site, and the number of a part of its level."""


def part_finder(cluster: Cluster, level: str, *, where: str) -> Callable[[str], Part]:
    """Return who finds the part of `level` that the node of a name is in; a name with a domain is found without it too.

    Raises:
        InputError: no site has such a level and names its nodes; and later, at `where`, for a name that none has.
    """
    parts: dict[str, Part] = {}
    for site in cluster.sites:
        names = [known.name for known in site.network.levels]
        if level in names and site.network.hosts:
            row = site.network.part_of_node[names.index(level)]
            parts |= {host: (site.name, part) for host, part in zip(site.network.hosts, row, strict=True)}
    if not parts:
        levels = {known.name for site in cluster.sites for known in site.network.levels}
        named = any(site.network.hosts for site in cluster.sites)
        expected = f"one of its levels ({', '.join(sorted(levels)) or 'none'}) on nodes with names"
        stated = repr(level) if named else f"{level!r} and no names of nodes"
        raise InputError(where=f"cluster {cluster.text}", key="--spread", found=stated, expected=expected)

    def find(host: str) -> Part:
        part = parts.get(host) or parts.get(host.partition(".")[0])
        if part is None:
            raise InputError(where=where, key="host", found=repr(host), expected=f"one of {len(parts)} nodes' names")
        return part

    return find
