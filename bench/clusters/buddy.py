"""The buddy allocator: a million operations, and how near and how whole it keeps devices.

    python -m bench.clusters.buddy [--operations 1000000] [--seed 0] [--json FILE]

Requests are mostly small, as jobs of clusters are; a job ends, drawn by seed, when a request finds no place or fewer
than an eighth of the devices are free. Both ways of rounding and first fit by number (the lowest free devices, node by
node as they come) see the same requests. `spread` is the share of requests for several devices that got them at a
higher level than an empty site would give. `refused with room`: requests that found no place though as many devices
were free; `given on top`: devices that rounding adds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Protocol

from bench.clusters.buddy_allocator import BuddyAllocator
from bench.clusters.whole_blocks import WholeBlocks, uniform_domain
from estimator.host.cpu import cpu_name
from planner.many_jobs.sites.domains import Domain

SITES = {
    "8 nodes of 8": uniform_domain(8, 8),
    "128 nodes of 8, racks of 8": uniform_domain(128, 8, nodes_per_rack=8),
    "128 nodes of 8, islands of 4": uniform_domain(128, 8, island=4, nodes_per_rack=8),
    "170 nodes of 6": uniform_domain(170, 6),
    "1250 nodes of 8, racks of 16": uniform_domain(1250, 8, nodes_per_rack=16),
}
WANTED, SHARES = (1, 2, 3, 4, 6, 8, 16, 32), (50, 14, 3, 13, 3, 12, 3, 2)


class Allocator(Protocol):
    """What is timed."""

    def get(self, wanted: int) -> tuple[Any, tuple[int, ...]] | None:
        """A handle and the devices."""

    def give(self, handle: Any) -> None: ...


class Buddy:
    """The allocator of the product, or the one of whole blocks."""

    def __init__(self, domain: Domain, way: str) -> None:
        self.own = WholeBlocks(domain) if way == "block" else BuddyAllocator(domain)

    def get(self, wanted: int) -> tuple[Any, tuple[int, ...]] | None:
        """As the allocator."""
        found = self.own.allocate(wanted)
        return None if found is None else (found, found.devices)

    def give(self, handle: Any) -> None:
        """As the allocator."""
        self.own.free(handle)


class FirstFit:
    """The lowest free devices, whatever lies between them."""

    def __init__(self, domain: Domain) -> None:
        self.free = (1 << domain.size) - 1

    def get(self, wanted: int) -> tuple[Any, tuple[int, ...]] | None:
        """The lowest bits."""
        if self.free.bit_count() < wanted:
            return None
        devices, taken = [], 0
        for _ in range(wanted):
            bit = self.free & -self.free
            self.free ^= bit
            taken |= bit
            devices.append(bit.bit_length() - 1)
        return taken, tuple(devices)

    def give(self, handle: Any) -> None:
        """Set the bits."""
        self.free |= handle


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="bench.clusters.buddy", description=__doc__)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    print(f"{cpu_name()}, {os.cpu_count()} cores, {platform.platform()}, python {platform.python_version()}")
    print(f"seed {options.seed}, {options.operations} operations\n")
    print("| site | way | s | us each | CPU us each | refused with room | given on top | spread | back as one block |")
    print("| :-- | :-- |" + " --: |" * 7)
    rows = []
    for name, domain in SITES.items():
        for way in ("composed", "block", "first fit"):
            own: Allocator = FirstFit(domain) if way == "first fit" else Buddy(domain, way)
            row = {"site": name, "way": way, **drive(own, domain, options.operations, options.seed)}
            rows.append(row)
            print(
                f"| {name} | {way} | {row['seconds']:.2f} | {row['seconds'] / row['operations'] * 1e6:.1f} |"
                f" {row['cpu_s'] / row['operations'] * 1e6:.1f} | {row['refused']:.2%} | {row['on_top']:.1%} |"
                f" {row['spread']:.1%} | {row['whole']} |"
            )
            sys.stdout.flush()
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


def drive(own: Allocator, domain: Domain, operations: int, seed: int) -> dict[str, Any]:
    """Requests and returns, timed together with this loop; places are looked at afterwards, every 50th."""
    rng = Random(seed)
    wanted = rng.choices(WANTED, SHARES, k=operations)
    draws = [rng.random() for _ in range(operations)]
    held: list[tuple[Any, int]] = []
    sample: list[tuple[int, tuple[int, ...]]] = []
    free, low = domain.size, domain.size // 8
    done = asked = refused = given = needed = 0
    start, cpu = time.perf_counter(), time.process_time()
    while done < operations:
        count = wanted[asked]
        found = own.get(count)
        asked += 1
        done += 1
        if found is None:
            refused += free >= count
        else:
            held.append((found[0], len(found[1])))
            free -= len(found[1])
            given, needed = given + len(found[1]), needed + count
            if asked % 50 == 0:
                sample.append((count, found[1]))
        while held and done < operations and (found is None or free < low):
            position = int(draws[done] * len(held))
            held[position], held[-1] = held[-1], held[position]
            handle, size = held.pop()
            own.give(handle)
            free += size
            done += 1
            found = handle
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    for handle, _ in held:
        own.give(handle)
    whole = len(own.own.free_blocks()) == 1 if isinstance(own, Buddy) else own.get(domain.size) is not None
    return {
        "operations": done,
        "seconds": seconds,
        "cpu_s": cpu,
        "refused": refused / asked,
        "on_top": given / needed - 1,
        "spread": spread(domain, sample),
        "whole": whole,
    }


def spread(domain: Domain, sample: Sequence[tuple[int, tuple[int, ...]]]) -> float:
    """The share of requests for several devices that are at a higher level than an empty site would give."""
    empty = BuddyAllocator(domain)
    tree, least = empty.tree, dict[int, int]()
    worse = several = 0
    for count, devices in sample:
        if count == 1:
            continue
        if count not in least:
            found = empty.allocate(count)
            assert found is not None
            empty.free(found)
            least[count] = tree.levels.index(found.level)
        block = tree.leaf[devices[0]]
        while not tree.first[block] <= min(devices) <= max(devices) < tree.first[block] + tree.size[block]:
            block = tree.above[block]
        several += 1
        worse += tree.level[block] > least[count]
    return worse / several


if __name__ == "__main__":
    sys.exit(main())
