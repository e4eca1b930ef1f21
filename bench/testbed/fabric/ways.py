"""Ways on the fabric by asking it: `cellplan network probe` finds ports of each, traces say where given ports lead.

Run as a module it is what asks on a host: the product's own prober, for each address and port on its input.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.testbed.fabric.shape import BLOCK_PORTS, BLOCKS, FIRST_PORT, Shape, host_address, host_name, spine_address
from bench.testbed.fabric.spaces import host_space
from bench.testbed.namespaces import run_tool
from estimator.network.probing.sockets import Probing, trace

WAIT_S = "0.5"
PORTS = f"{FIRST_PORT}-{FIRST_PORT + BLOCKS * BLOCK_PORTS - 1}"
"""Among which ways are looked for: those that leaves have rules for."""

Asked = tuple[int, int, int]
"""From a host to a host, from a port."""


def probe_pairs(prefix: str, pairs: Iterable[tuple[int, int]], file: Path) -> list[dict[str, Any]]:
    """Have `cellplan network probe` find the ways from hosts to hosts, one pair after the other, and write them into
    the cluster file; return what it said. Raise MachineError where a probe fails."""
    answers = []
    after = file.with_name(f"after-{file.name}")
    for source, target in pairs:
        inside = ("netns", "exec", prefix + host_space(source), sys.executable, "-m", "cellplan", "network", "probe")
        hosts = (str(file), host_name(target), "--source", host_name(source))
        words = ("--ports", PORTS, "--wait", WAIT_S, "-o", str(after), "--json")
        answers.append(json.loads(run_tool("ip", *inside, *hosts, *words)))
        after.replace(file)
    return answers


def trace_spines(prefix: str, shape: Shape, asked: Sequence[Asked]) -> dict[Asked, int | None]:
    """Return which spine packets of each port pass from host to host; None for one that passes none, or did not come
    through. Raise MachineError where a host cannot ask."""
    by_host: defaultdict[int, list[Asked]] = defaultdict(list)
    for one in dict.fromkeys(asked):
        by_host[one[0]].append(one)
    spines = {spine_address(spine): spine for spine in range(shape.spines)}
    found: dict[Asked, int | None] = {}
    for host, its in by_host.items():
        text = "".join(f"{host_address(target)} {port}\n" for _, target, port in its)
        inside = ("netns", "exec", prefix + host_space(host), sys.executable, "-m", __name__)
        printed = run_tool("ip", *inside, text=text).splitlines()
        for one, line in zip(its, printed, strict=True):
            hops = json.loads(line)
            found[one] = next((spines[hop] for hop in hops if hop in spines), None)
    return found


def main() -> None:
    """Print a line for each line read, an address and a port: the hops that answered, one for each time to live."""
    for line in sys.stdin:
        address, port = line.split()
        found = trace(Probing(address=address, wait_s=float(WAIT_S)), int(port))
        print(json.dumps([hop[0] for hop in found.hops if hop] if found is not None and found.arrived else []))


if __name__ == "__main__":
    main()
