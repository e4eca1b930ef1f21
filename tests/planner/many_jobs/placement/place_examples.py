"""Cluster files of sites for the tests of `place`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

Link = tuple[str, str, float, float]


def write_cluster(
    folder: Path, sites: Mapping[str, Sequence[str]], links: Sequence[Link] = (), *, name: str = "cluster.yaml"
) -> str:
    """A file of sites, each with groups of nodes as YAML flow maps, and links (two sites, bytes/s, s). Its path."""
    lines = ["schema: cellplan.cluster/1", "sites:"]
    for site, groups in sites.items():
        lines += [f"  - name: {site}", "    nodes:", *(f"      - {{{group}}}" for group in groups)]
    if links:
        lines.append("links_between_sites:")
        lines += [
            f"  - {{between: [{a}, {b}], bandwidth_bytes_per_s: {width!r}, latency_s: {far!r}}}"
            for a, b, width, far in links
        ]
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def a100(devices: int, *, nodes: int = 1, free: int | None = None) -> str:
    """Nodes of A100."""
    return f"count: {nodes}, device: a100-80gb, devices: {devices}" + ("" if free is None else f", free: {free}")


def three_sites(folder: Path) -> str:
    """12 of 16, 8 and 6 free devices in a line of links; the last site's are of another type."""
    return write_cluster(
        folder,
        {
            "north": [a100(8, nodes=2, free=12)],
            "south": [a100(8)],
            "west": ["count: 2, device: a40, devices: 4, free: 6"],
        },
        [("north", "south", 1.25e9, 2e-3), ("south", "west", 6.25e8, 5e-3)],
    )
