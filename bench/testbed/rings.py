"""Whether this machine carries an emulated cluster: an all-reduce of all its workers against the ring by the file.

The rates of all links are scaled down, and the bytes with them, so that the ring takes as long at every scale. Where
the machine keeps up the measured time is the ring's; where it does not it is longer, whatever the links would allow.

    python -m bench.testbed.rings [--cluster spiderflow-eight-sites] [--scales 0.25,0.0625,0.015625] [--bytes 48493568]
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from bench.testbed.cases import CLUSTERS
from bench.testbed.measure import measure_between
from bench.testbed.network import emulated_network
from estimator.communication.collectives import describe_group, time_collective
from estimator.host.cpu import cpu_name
from profiles.cluster_file import load_cluster

_REPEATS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure at each scale, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", default="spiderflow-eight-sites", help="one of clusters/ (default: %(default)s)")
    parser.add_argument("--scales", default="0.25,0.0625,0.015625", help="of all rates (default: %(default)s)")
    parser.add_argument("--bytes", type=int, default=48493568, help="at the first scale (default: dp16's gradients)")
    options = parser.parse_args(arguments)
    scales = [float(scale) for scale in options.scales.split(",")]
    cluster = load_cluster(str(CLUSTERS / f"{options.cluster}.yaml"))
    group = describe_group(cluster, cluster.free_slots)
    print(f"{cpu_name()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {group.ranks} workers\n")
    print("| rates | bytes | all_reduce | ring by the file | ratio |\n| --: | --: | --: | --: | --: |")
    for scale in scales:
        size = int(options.bytes * scale / scales[0]) // group.ranks * group.ranks
        with emulated_network(cluster, scale=scale) as network:
            ((_, seconds),) = measure_between(network, range(group.ranks), (size,), "all_reduce", repeats=_REPEATS)
        ring_s = time_collective("all_reduce", size / scale, group).seconds
        print(f"| {scale:g} | {size} | {seconds:.3f} s | {ring_s:.3f} s | {seconds / ring_s:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
