"""Rules of placement on an emulated testbed of Titan's shape: eight nodes of four workers, some of them held by others.

    python -m bench.testbed.machines [--seed 0] [--model NAME] [--workers 4,6,8,10,12] [--rules A,B] [--steps 3]
        [--scale S] [--slow S] [--json FILE]

Jobs of ResNet-50 and VGG-16 (the zoo's), 32 samples a worker; compute is slept, as long as the estimator says of one
RTX 3090, and the all-reduce of all gradients follows it: recursive halving and doubling in gloo's send and recv (with
the ranks in the order of fewest bytes on the rule's nodes, in that of least time where it is another, and, of the
paper's rules, in the order of the nodes), and gloo's own ring. Links and gradients are scaled down alike, and the clock
is slowed, so that two cores carry what twelve workers send; the table gives true seconds. Each time stands beside the
estimates: the phases walked over the seats, and the group's, whose ranks the estimator seats itself, with links
measured on the testbed. Then two jobs that share a node's NIC.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from bench.testbed.cases import CLUSTERS
from bench.testbed.machines.cases import Case, Pair, cases, pairs
from bench.testbed.machines.estimates import Links, of_group_s, paired, walked_s, with_links
from bench.testbed.machines.jobs import Scale, compute_s, gradient_elements
from bench.testbed.machines.report import PairRow, Row, print_pairs, print_paper, print_rows, verdicts
from bench.testbed.machines.running import Round, Run, link_rounds, measure_links, run_rounds
from bench.testbed.machines.seats import MODELS, WORKERS, occupied
from bench.testbed.network import emulated_network
from estimator.host.cpu import cpu_name
from planner.many_jobs.placers.catalogue import PLACERS
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster
from profiles.records import replace

CLUSTER = "eight-machines"
PAIR_S = 5.0
"""About how long two jobs run beside each other."""
BEHIND = (0.0, 0.25, 0.5, 0.75)
"""By what part of an iteration the second of two jobs begins later: who sends when the other computes is chance."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the jobs and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="draws who holds what (default: %(default)s)")
    parser.add_argument("--model", choices=MODELS, help="only this one")
    parser.add_argument("--workers", default=",".join(map(str, WORKERS)), help="of the jobs (default: %(default)s)")
    parser.add_argument("--rules", default=",".join(sorted(PLACERS)), help="of placement (default: all)")
    parser.add_argument("--pairs", action="store_true", help="only the two jobs that share a NIC")
    parser.add_argument("--steps", type=int, default=3, help="iterations of each job (default: %(default)s)")
    parser.add_argument("--scale", type=float, default=0.002, help="of the links' rates (default: %(default)s)")
    parser.add_argument("--slow", type=float, default=4.0, help="how much slower the clock goes (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds in all (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="add the rows to this file of lines")
    args = parser.parse_args(argv)
    nodes, scale = occupied(args.seed), Scale(rates=args.scale, slow=args.slow)
    models = (args.model,) if args.model else MODELS
    rules = [] if args.pairs else args.rules.split(",")
    jobs = cases(nodes, rules, models, [int(one) for one in args.workers.split(",")])
    beside = pairs(nodes, models)
    cluster = load_cluster(str(CLUSTERS / f"{CLUSTER}.yaml"))
    print(f"{cpu_name()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Linux {platform.release()}")
    print(f"seed {args.seed}: of the nodes' four seats others hold {', '.join(map(str, nodes.held))}")
    rounds = [*link_rounds(nodes.free), *(_run(case, scale, args.steps) for case in jobs)]
    for pair in beside:
        rounds += _pair_rounds(pair, scale)
    each = 2 + len(BEHIND)
    with emulated_network(cluster, scale=scale.rates) as network:
        print(f"{network.note}; clock {scale.slow:g} times slower; {sum(nodes.free)} workers", flush=True)
        found = run_rounds(network, nodes.free, rounds, limit_s=args.limit)
    probes, own, others = _parts(found, len(link_rounds(nodes.free)), len(jobs))
    links = measure_links(probes)
    print(
        f"links, measured: {1e-6 / links.nic.s_per_byte:.2f} MB/s + {links.nic.alpha_s * 1e3:.2f} ms between nodes,"
        f" {1e-6 / links.inside.s_per_byte:.0f} MB/s + {links.inside.alpha_s * 1e3:.2f} ms inside"
    )
    rows = [_row(case, took, cluster, links, scale) for case, took in zip(jobs, own, strict=True)]
    if rows:
        print_rows(rows)
    pair_rows = [
        row
        for at, pair in enumerate(beside)
        for row in _pair_rows(pair, others[each * at : each * (at + 1)], links, scale)
    ]
    print_pairs(pair_rows)
    for line in verdicts(rows, pair_rows):
        print(line)
    if rows:
        print_paper(rows, nodes)
    if args.json:
        with args.json.open("a", encoding="utf-8") as lines:
            for value in (*(row.to_json() for row in rows), *(row.to_json() for row in pair_rows)):
                print(json.dumps(value), file=lines)
    return 0


def _parts(found: Sequence[Round], probes: int, jobs: int) -> tuple[Sequence[Round], Sequence[Round], Sequence[Round]]:
    return found[:probes], found[probes : probes + jobs], found[probes + jobs :]


def _run(case: Case, scale: Scale, steps: int) -> list[Run]:
    return [
        Run(
            nodes=case.job.nodes,
            algorithm=case.job.algorithm,
            elements=gradient_elements(case.job.model, scale),
            compute_s=compute_s(case.job.model) * scale.slow,
            steps=steps,
        )
    ]


def _row(case: Case, took: Round, cluster: Cluster, links: Links, scale: Scale) -> Row:
    size_bytes = 4 * gradient_elements(case.job.model, scale)
    slept_s = compute_s(case.job.model) * scale.slow
    group_s = of_group_s(with_links(cluster, links), case.job, size_bytes)
    return Row(
        case=case,
        measured_s=took.jobs[0].least_s / scale.slow,
        walked_s=(slept_s + walked_s(links, case.job, size_bytes)) / scale.slow,
        of_group_s=(slept_s + group_s) / scale.slow,
        compute_s=compute_s(case.job.model),
        cpu_share=took.cpu_s / took.busy_s / (os.cpu_count() or 1),
    )


def _pair_rounds(pair: Pair, scale: Scale) -> list[list[Run]]:
    """Each job alone, then both, the second one later and later."""
    runs, about = [], []
    for job, computes in zip(pair.jobs, pair.computes, strict=True):
        slept_s = compute_s(job.model) * scale.slow if computes else 0.0
        elements = gradient_elements(job.model, scale)
        # About as long as the other one: what a job sends once, twice over, at the rate of a NIC.
        about_s = slept_s + 2 * 4 * elements / (1.25e10 * scale.rates)
        about.append(about_s)
        runs.append(
            Run(
                nodes=job.nodes,
                algorithm=job.algorithm,
                elements=elements,
                compute_s=slept_s,
                steps=max(3, round(PAIR_S / about_s)),
                together=False,
            )
        )
    first, second = runs
    return [[first], [second], *([first, replace(second, delay_s=part * about[0])] for part in BEHIND)]


def _pair_rows(pair: Pair, took: Sequence[Round], links: Links, scale: Scale) -> list[PairRow]:
    """Both jobs, over the time in which both ran; the mean over when the second one began."""
    both: tuple[list[float], list[float]] = ([], [])
    for beside in took[2:]:
        end_s = min(job.spans_s[-1][1] for job in beside.jobs)
        for found, job in zip(both, beside.jobs, strict=True):
            found.append(job.until(end_s))
    sizes = tuple(4 * gradient_elements(job.model, scale) for job in pair.jobs)
    slept = tuple(
        compute_s(job.model) * scale.slow if computes else 0.0
        for job, computes in zip(pair.jobs, pair.computes, strict=True)
    )
    said = paired(links, pair.jobs, (sizes[0], sizes[1]), (slept[0], slept[1]))
    return [
        PairRow(
            name=f"{pair.name}, {'first' if number == 0 else 'second'}",
            alone_s=took[number].jobs[0].until(float("inf")) / scale.slow,
            measured_s=mean(both[number]) / scale.slow,
            range_s=(min(both[number]) / scale.slow, max(both[number]) / scale.slow),
            even_s=said[number].even_s / scale.slow,
            by_load_s=said[number].by_load_s / scale.slow,
        )
        for number in (0, 1)
    ]


if __name__ == "__main__":
    raise SystemExit(main())
