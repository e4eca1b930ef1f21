"""Sixteen days of lingjun on 2,048 GPUs, played: every iteration, or until rates are steady.

Jobs sit at random on `lingjun_2048.yaml` when the trace has them, for as long as they take there alone; slowed by
others they stay longer on the devices that they have, which others may have got by then (this is the player's speed and
the steady rates' error, not a schedule). The trace says nothing of what jobs compute and send: drawn by the seed, an
iteration computes for 0.5 to 2.5 s and communicates for 10% to 40% of its time alone, after the compute, in one ring
over all of a job's devices (`--collectives N`: the same in N parts, each after its part of the compute). Ways are
ECMP's, every job's connections move in lockstep, and compute times vary by 1%.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from zlib import crc32

from bench.network.sitting import Stay, read_jobs, sit
from estimator.network.connections import playing_of
from estimator.network.fabric import Fabric, fabric_of
from estimator.network.player.packing import Packed, pack
from estimator.network.player.play import Played, Settings, play
from estimator.network.traffic import Exchange, Span, Traffic
from profiles.cluster_file import load_cluster
from profiles.records import replace

CLUSTER = Path(__file__).with_name("lingjun_2048.yaml")
COMPUTE_S, COMMUNICATION = (0.5, 2.5), (0.1, 0.4)
WINDOWS = ((20, 10), (20, 2), (10, 2), (5, 2))
"""Iterations of a window, and after how many windows a rate is taken as it is: the player's own, and fewer."""


def main(argv: Sequence[str]) -> None:
    """Print what playing takes, and how far steady rates are from every iteration."""
    parser = argparse.ArgumentParser(prog="bench.network lingjun", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds traces/")
    parser.add_argument("--head", type=int, help="the first N jobs")
    parser.add_argument("--collectives", type=int, default=1, help="an iteration (default: %(default)s)")
    parser.add_argument("--mode", choices=("exact", "steady", "both"), default="both", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    cluster = load_cluster(str(CLUSTER))
    stays = sit(read_jobs(options.data, 2048, options.head), cluster, "random", options.seed)
    fabric = fabric_of(cluster)
    began_s = time.process_time()
    jobs = [packed_job(stay, fabric, options.collectives, options.seed) for stay in stays]
    several = sum(stay.nodes > 1 for stay in stays)
    print(
        f"{len(jobs):,} jobs, {several:,} of them on several of 256 hosts, {fabric.links.count:,} links, seed"
        f" {options.seed}, {options.collectives} collectives an iteration; routed in"
        f" {time.process_time() - began_s:.1f} s\n"
    )
    print("| rates | events | CPU, s | events/s | GPU utilization | makespan, days |\n|---|---|---|---|---|---|")
    modes = [("every iteration", Settings(exact=True, seed=options.seed))] if options.mode != "steady" else []
    if options.mode != "exact":
        modes += [
            (f"steady over {window}, {most} windows", Settings(window=window, most_windows=most, seed=options.seed))
            for window, most in WINDOWS
        ]
    names = [stay.job for stay in stays]
    play(jobs[:1], fabric.links.bytes_per_s, settings=modes[0][1])  # What is compiled is compiled by then.
    for name, settings in modes:
        began_s = time.process_time()
        played = play(jobs, fabric.links.bytes_per_s, settings=settings, names=names)
        took_s = time.process_time() - began_s
        ends_s = [job.ended_s or 0.0 for job in played.jobs]
        print(
            f"| {name} | {played.events:,} | {took_s:.1f} | {played.events / took_s:,.0f} |"
            f" {utilization(stays, jobs, played):.3%} | {max(ends_s) / 86400:.3f} |",
            flush=True,
        )


def packed_job(stay: Stay, fabric: Fabric, collectives: int, seed: int) -> Packed:
    """Return a job of the trace as the player takes it."""
    draw = Random(f"{seed} {stay.job}")
    compute_s, share = draw.uniform(*COMPUTE_S), draw.uniform(*COMMUNICATION) if stay.nodes > 1 else 0.0
    sent_s = compute_s * share / (1 - share)
    part_s = compute_s / collectives
    exchanges: tuple[Exchange, ...] = ()
    if sent_s:
        rate = float(fabric.links.bytes_per_s.max()) * _fewest_nics(stay, fabric)
        reduce = Exchange(
            axis="dp",
            op="all_reduce",
            size_bytes=sent_s / collectives * rate * stay.gpus / (2 * (stay.gpus - 1)),
            groups=(tuple(range(stay.gpus)),),
            alone_s=sent_s / collectives,
        )
        exchanges = (reduce,)
    span = Span(compute_s=part_s, exchanges=exchanges, begins_s=part_s, times=collectives)
    traffic = Traffic(devices=stay.gpus, spans=(span,), flops=compute_s * stay.gpus)
    playing = playing_of(traffic, stay.seats, fabric, seed=crc32(f"{seed} {stay.job}".encode()))
    iterations = max(1, round((stay.end_s - stay.start_s) / (compute_s + sent_s)))
    return pack(replace(playing, starts_s=stay.start_s, iterations=iterations))


def _fewest_nics(stay: Stay, fabric: Fabric) -> int:
    """How many NICs the job has in the node where it has fewest: what its ring leaves every node by."""
    nics: dict[int, set[int]] = {}
    for seat in stay.seats:
        nics.setdefault(seat.node, set()).add(int(fabric.nic_of_device[fabric.device(seat)]))
    return min(map(len, nics.values()))


def utilization(stays: Sequence[Stay], jobs: Sequence[Packed], played: Played) -> float:
    """Return the share of all jobs' device-seconds in which devices compute."""
    computed = held = 0.0
    for stay, job, result in zip(stays, jobs, played.jobs, strict=True):
        computed += stay.gpus * job.compute_s * result.iterations
        held += stay.gpus * ((result.ended_s or 0.0) - stay.start_s)
    return computed / held
