"""Crux's observations of its cluster (section 2.2) beside what the trace and the model say.

Figures 4 and 5 are read off the trace as it is in our data: jobs that ran, in minutes. Figure 6 needs to know who sat
where, and which cables their connections took: jobs are placed by the cluster's rule (`same-switch`) or at random on
`lingjun_2048.yaml`, each sends one ring over all of its hosts, and ECMP takes the ways. Figure 7's pair is played on
`pair.yaml`; the paper gives models, numbers of GPUs and hosts, and nothing of batches, links and hashes. Ours: pure
data parallelism, gradients in fp32 all-reduced after the backward pass, as many samples as make GPT alone take 1.53 s.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from zlib import crc32

import numpy as np

from bench.network.pair import GBITS, PAPER_ALONE_S, PAPER_SLOWER, play_pairs
from bench.network.sitting import Stay, read_jobs, sit
from estimator.network.connections import transfer_of
from estimator.network.fabric import Fabric, fabric_of
from estimator.network.traffic import Exchange
from planner.many_jobs.jobs.records import Job
from profiles.cluster_file import load_cluster

CLUSTER = Path(__file__).with_name("lingjun_2048.yaml")


def main(argv: Sequence[str]) -> None:
    """Print figures 4 to 7."""
    parser = argparse.ArgumentParser(prog="bench.network observations", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds traces/")
    parser.add_argument("--hashes", type=int, default=1000, help="of the pair (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=5, help="of placements and hashes (default: %(default)s)")
    options = parser.parse_args(argv)
    print("\n".join(_figures_4_and_5(read_jobs(options.data, 10**6))), flush=True)
    print("\n".join(_figure_6(options.data, options.seeds)), flush=True)
    for line in _figure_7(options.hashes):
        print(line, flush=True)


def _figures_4_and_5(jobs: Sequence[Job]) -> Iterator[str]:
    sizes = [job.devices for job in jobs]
    large = sum(size >= 128 for size in sizes) / len(sizes)
    most_jobs, most_gpus = at_once(jobs)
    yield "| figure | the paper | the trace as we have it |\n|---|---|---|"
    yield f"| 4: jobs with 128 GPUs or more | over 10% | {large:.1%} of {len(jobs):,} |"
    yield f"| 4: the largest | 512 GPUs | {max(sizes)} GPUs |"
    yield f"| 5: jobs at once | more than 30 | {most_jobs} |"
    yield f"| 5: GPUs at once | more than 1,000 | {most_gpus:,} |"


def at_once(jobs: Sequence[Job]) -> tuple[int, int]:
    """Return the most jobs, and the most GPUs, that ran at one time."""
    changes = [(job.submit_s, 1, job.devices) for job in jobs]
    changes += [(job.submit_s + job.duration_s, -1, -job.devices) for job in jobs]
    changes.sort(key=lambda change: (change[0], change[1]))
    totals = np.cumsum([change[1:] for change in changes], axis=0)
    return int(totals[:, 0].max()), int(totals[:, 1].max())


def _figure_6(data: Path, seeds: int) -> Iterator[str]:
    cluster = load_cluster(str(CLUSTER))
    jobs = read_jobs(data, cluster.sites[0].nodes[0].count * 8)
    yield f"\nFigure 6: jobs that share a link with others at some time ({CLUSTER.name}, {seeds} seeds)\n"
    yield "| placed | jobs | their GPUs, of all jobs' | by a host's own cables alone |\n|---|---|---|---|"
    yield "| the paper, wherever they sat | 36.3% | 51% | a minority |"
    fabric = fabric_of(cluster)
    for rule in ("same-switch", "packed", "random"):
        found = []
        for seed in range(seeds):
            stays = sit(jobs, cluster, rule, seed)
            at_risk, inside = at_risk_of(stays, fabric, seed)
            gpus = sum(stay.gpus for stay in stays)
            shares = len(at_risk) / len(stays), sum(stays[number].gpus for number in at_risk) / gpus
            found.append((*shares, len(inside) / len(stays)))
        columns = list(zip(*found, strict=True))
        cells = [f"{np.mean(column):.1%} ({min(column):.1%} to {max(column):.1%})" for column in columns]
        yield f"| {rule} | {' | '.join(cells)} |"


def at_risk_of(stays: Sequence[Stay], fabric: Fabric, seed: int) -> tuple[set[int], set[int]]:
    """Return the numbers of the stays that share a link with another at some time, and of those that share none but
    cables of hosts."""
    links = [links_of_ring(stay, fabric, seed) for stay in stays]
    at_node = np.asarray((fabric.links.ends < fabric.links.nodes).any(axis=1), dtype=bool).tolist()
    times = sorted(
        [(stay.end_s, 0, number) for number, stay in enumerate(stays)]
        + [(stay.start_s, 1, number) for number, stay in enumerate(stays)]
    )
    users: defaultdict[int, set[int]] = defaultdict(set)
    shared: set[int] = set()
    above: set[int] = set()
    for _, begins, number in times:
        for link in links[number]:
            if not begins:
                users[link].discard(number)
                continue
            if users[link]:
                together = users[link] | {number}
                shared |= together
                above |= set() if at_node[link] else together
            users[link].add(number)
    return shared, shared - above


def links_of_ring(stay: Stay, fabric: Fabric, seed: int) -> tuple[int, ...]:
    """Return the links of one ring over all of a job's devices; none of a job on one host."""
    if stay.nodes == 1:
        return ()
    exchange = Exchange(axis="dp", op="all_reduce", size_bytes=1e9, groups=(tuple(range(stay.gpus)),), alone_s=1.0)
    transfer = transfer_of(exchange, stay.seats, fabric, seed=crc32(f"{seed} {stay.job}".encode()))
    return tuple(link for mover in transfer.movers for link, _ in mover.way)


def _figure_7(hashes: int) -> Iterator[str]:
    yield f"\nFigure 7: GPT of 24 layers x 1,024 on 64 A100 beside BERT on 16, under two leaves, {hashes} hashes\n"
    yield (
        "the paper: GPT 1.53 s to 1.70 s (11.0% longer), throughput -9.9% and -7.7%, GPU utilization -9.5%; NICs' speed"
        " is not said\n"
    )
    yield (
        "| Gbit/s a NIC | GPT alone, s | of that communication | GPT longer: mean | median | p90 | most | hashes with"
        " none | at or above 11.0% | BERT longer: mean | most |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for gbit in GBITS:
        pair = play_pairs(gbit, hashes)
        gpt, bert = pair.gpt_longer, pair.bert_longer
        yield (
            f"| {gbit} | {pair.alone_s:.3f} | {pair.communication:.1%} | {gpt.mean():.1%} | {np.median(gpt):.1%} |"
            f" {np.quantile(gpt, 0.9):.1%} | {gpt.max():.1%} | {(gpt < 1e-3).mean():.1%} |"
            f" {(gpt >= PAPER_SLOWER).mean():.1%} | {bert.mean():.1%} | {bert.max():.1%} |"
        )
    yield f"\nGPT alone is {PAPER_ALONE_S} s on a hash of which none of its own connections meet."
