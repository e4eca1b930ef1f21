"""`cellplan network probe` on the emulated fabric: the ways that it finds, beside what the rules say.

Run as a module with an address and ports it is what asks on a host: the command's own prober, port by port.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.testbed.fabric.shape import SINGLE_PORTS, Shape, host_address, host_name
from bench.testbed.fabric.simulated import cluster_file, cluster_of
from bench.testbed.fabric.spaces import host_space, lay_out_fabric
from bench.testbed.namespaces import run_tool
from bench.testbed.network import standing
from estimator.network.fabric import fabric_of
from estimator.network.probing.hops import Trace
from estimator.network.probing.sockets import Probing, trace
from planner.shared.network_probe import hop_names
from profiles.records import dataclass

_WAIT_S = "0.5"


@dataclass(frozen=True, kw_only=True)
class Probed:
    """Between two hosts: what the command said, and of each single port the switches that its packets passed."""

    hosts: tuple[int, int]
    answer: dict[str, Any]
    through: dict[int, tuple[str, ...]]


def probe_fabric(shape: Shape, pairs: Sequence[tuple[int, int]]) -> list[Probed]:
    """Return what is found between these hosts. Raise MachineError where the fabric cannot be made or a probe fails."""
    found = []
    with standing(lay_out_fabric(shape)) as (prefix, _), TemporaryDirectory() as folder:
        file = Path(folder) / "fabric.yaml"
        file.write_text(json.dumps(cluster_file(shape)), encoding="utf-8")
        for source, target in pairs:
            inside = ("netns", "exec", prefix + host_space(source), sys.executable, "-m")
            ports = f"{SINGLE_PORTS.start}-{SINGLE_PORTS.stop - 1}"
            names = (host_name(target), "--source", host_name(source), "--ports", ports, "--wait", _WAIT_S)
            printed = run_tool("ip", *inside, "cellplan", "network", "probe", str(file), *names, "--json")
            asked = run_tool("ip", *inside, __name__, host_address(target), *map(str, SINGLE_PORTS))
            found.append(Probed(hosts=(source, target), answer=json.loads(printed), through=_named(shape, asked)))
    return found


def _named(shape: Shape, printed: str) -> dict[int, tuple[str, ...]]:
    """Hops by the names that the cluster file has for their addresses."""
    cluster = cluster_of(shape)
    names = hop_names(cluster, cluster.sites[0], fabric_of(cluster))
    return {
        each["port"]: tuple(names.get(hop[0], hop[0]) if hop else "" for hop in each["hops"])
        for each in map(json.loads, printed.splitlines())
    }


def wrong_ports(shape: Shape, probed: Probed) -> list[int]:
    """Return the ports that did not go as the rules say, or of which the command says something else."""
    source, target = probed.hosts
    wrong = []
    said = {port: tuple(path["through"]) for path in probed.answer["paths"] for port in _ports(path["ports"])}
    for port in SINGLE_PORTS:
        way = shape.way(source, target, shape.spine_of(shape.leaf_of(source), port))
        rule = tuple(switch for _, switch in way[:-1])
        if probed.through.get(port) != rule or said.get(port, rule) != rule:
            wrong.append(port)
    return wrong


def _ports(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def print_probed(shape: Shape, found: Sequence[Probed]) -> int:
    """Print a line for each pair; return how many ports went another way than the rules say."""
    print("\n| from, to | equal ways | seen | ports that it took | by chance in the mean | ports as the rules say |")
    print("| :-- | --: | --: | --: | --: | --: |")
    failed = 0
    for probed in found:
        answer, wrong = probed.answer, wrong_ports(shape, probed)
        failed += len(wrong)
        print(
            f"| {', '.join(map(host_name, probed.hosts))} | {answer['equal']} | {answer['seen']} | {answer['asked']} |"
            f" {answer['expected_ports']:.1f} | {len(SINGLE_PORTS) - len(wrong)} of {len(SINGLE_PORTS)} |"
        )
    return failed


def main() -> None:
    """Print a line of JSON for each port's trace."""
    address, *ports = sys.argv[1:]
    for port in ports:
        found: Trace | None = trace(Probing(address=address, wait_s=float(_WAIT_S)), int(port))
        if found is not None:
            print(json.dumps(asdict(found)))


if __name__ == "__main__":
    main()
