"""What queue pairs do for a stock NCCL, whose ports nobody chooses: by pair of NCCL_IB_QPS_PER_CONNECTION and
NCCL_IB_SPLIT_DATA_ON_QPS, over many draws of the switches' hashes and of where NICs begin to number queue pairs.

Jobs are zoo models in data parallel as in figure 16 (`cases.py`), on hosts of 8 GPUs and 4 x 200 Gb/s; hosts are drawn
for each case. No job has a level, as before anybody plans.

- two leaves: 8 hosts below 2 leaves and 2 spines, 4 jobs of 2 hosts.
- clos: 32 hosts below 8 leaves and 4 spines, twice as much down as up, 8 jobs of 4 hosts.

`flow` plays every connection by itself, `collective` lets all flows of a step wait for each other: there, whether
messages are cut up makes no difference. Gains are beside one queue pair in the same draw of the same case; spreads are
standard deviations among the draws of a case, in the mean of cases.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from time import process_time

from bench.contention.cases import GPUS, MODELS, SAMPLES, priced
from estimator.network.connections import Model
from estimator.network.fabric import Fabric, Nccl, fabric_of
from planner.contention.emitting.queue_pairs import PAIRS, SEEDS, work_share
from planner.contention.jobs_file import PlacedJob, read_jobs
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster
from profiles.records import dataclass

MODELS_PLAYED: tuple[Model, ...] = ("collective", "flow")
HASH = "jenkins"

Shares = Mapping[tuple[int, bool], list[float]]
"""Of each pair the work share of each case and draw, in one order."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A fabric by its file, and how many jobs of how many hosts are put on it."""

    name: str
    hosts: int
    leaves: int
    spines: int
    jobs: int
    each: int
    cables: int


BENCHES = (
    Bench(name="two leaves", hosts=8, leaves=2, spines=2, jobs=4, each=2, cables=4),
    Bench(name="clos", hosts=32, leaves=8, spines=4, jobs=8, each=4, cables=2),
)


def lines(cases: int, draws: int, first: int) -> Iterator[str]:
    """Yield the tables: so many cases from a seed on, each under so many draws."""
    yield f"{cases} cases from seed {first}, {draws} draws each; hash {HASH}"
    for bench in BENCHES:
        for model in MODELS_PLAYED:
            began = process_time()
            shares = _played(bench, cases, draws, first, model)
            yield ""
            yield f"{bench.name}, {model}: {process_time() - began:.0f} s of CPU"
            yield ""
            yield from _table(shares, draws)
            yield ""
            yield from _chosen(shares, cases, draws)


def _played(bench: Bench, cases: int, draws: int, first: int, model: Model) -> Shares:
    shares: defaultdict[tuple[int, bool], list[float]] = defaultdict(list)
    for seed in range(first, first + cases):
        fabric, jobs = _case(bench, seed)
        for draw in range(draws):
            for count, split in PAIRS:
                if split and model == "collective":
                    continue
                nccl = Nccl(queue_pairs=count, split_data=split)
                shares[count, split].append(work_share(jobs, (), fabric, nccl, draw, model=model))
    return shares


def _case(bench: Bench, seed: int) -> tuple[Fabric, tuple[PlacedJob, ...]]:
    """The jobs of a case as their file says them, on their cluster."""
    rng = Random(f"queue pairs, {bench.name}, {seed}")
    hosts = rng.sample(range(bench.hosts), bench.hosts)
    rows = ["schema: cellplan.jobs/1", "jobs:"]
    for number in range(bench.jobs):
        compute_s, flops, size = priced(rng.choice(MODELS), rng.choice(SAMPLES))
        own = sorted(hosts[number * bench.each : (number + 1) * bench.each])
        names = ",".join(f"{host}" for host in own)
        begins_s = rng.choice((0.0, compute_s / 3))
        begins = f", begins_s: {begins_s!r}" if begins_s else ""
        rows.append(
            f'  - {{id: j{number}, hosts: "node[{names}]", traffic: {{compute_s: {compute_s!r}, bytes: {size!r},'
            f" flops: {flops * GPUS * bench.each!r}{begins}}}}}"
        )
    with TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.yaml"
        path.write_text("\n".join(rows) + "\n", encoding="utf-8")
        cluster = _cluster(bench, Path(folder) / "cluster.yaml")
        return fabric_of(cluster), read_jobs(path, cluster)


def _cluster(bench: Bench, path: Path) -> Cluster:
    topology = (
        f"{{kind: clos2, leaves: {bench.leaves}, spines: {bench.spines},"
        f" nodes_per_leaf: {bench.hosts // bench.leaves}, cables: {bench.cables}}}"
    )
    path.write_text(
        f"""schema: cellplan.cluster/1
sites:
  - name: site
    nodes: [{{count: {bench.hosts}, device: a100-80gb, devices: {GPUS}, nics: {{count: 4, link: roce200}}}}]
    fabric:
      link: roce200
      topology: {topology}
      routing: {{kind: ecmp, hash: {HASH}, seed: 1}}
""",
        encoding="utf-8",
    )
    return load_cluster(str(path))


def _table(shares: Shares, draws: int) -> Iterator[str]:
    yield (
        "| queue pairs | messages cut up | work, % of jobs that meet nobody | spread by draw | least | most |"
        " gain over one, points | spread by draw | draws in which it loses |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    base = shares[1, False]
    for (count, split), own in shares.items():
        work = [100 * share for share in own]
        gains = [100 * (share - one) for share, one in zip(own, base, strict=True)]
        lost = sum(gain < -0.01 for gain in gains) / len(gains)
        cells = [f"{count}", "yes" if split else "no", f"{mean(work):.1f}", f"{_by_draw(work, draws):.1f}"]
        cells += [f"{min(work):.1f}", f"{max(work):.1f}"]
        beside = [f"{mean(gains):+.1f}", f"{_by_draw(gains, draws):.1f}", f"{lost:.0%}"]
        cells += beside if count > 1 else ["", "", ""]
        yield f"| {' | '.join(cells)} |"


def _by_draw(values: Sequence[float], draws: int) -> float:
    """The standard deviation among the draws of a case, in the mean of cases."""
    return mean(stdev(values[first : first + draws]) for first in range(0, len(values), draws))


def _chosen(shares: Shares, cases: int, draws: int) -> Iterator[str]:
    """What is lost by choosing from few draws, as `--emit` does: the pair that is best in the first `SEEDS` of a case,
    over the rest of them, beside the best there and beside one queue pair."""
    gained, lost = [], []
    for case in range(cases):
        own = {pair: its[case * draws : (case + 1) * draws] for pair, its in shares.items()}
        pair = max(own, key=lambda each: (round(mean(own[each][:SEEDS]), 6), -each[0], not each[1]))
        rest = {each: mean(its[SEEDS:]) for each, its in own.items()}
        gained.append(100 * (rest[pair] - rest[1, False]))
        lost.append(100 * (max(rest.values()) - rest[pair]))
    yield (
        f"chosen by {SEEDS} draws, as --emit does, over the other {draws - SEEDS}: {mean(gained):+.2f} points over one"
        f" queue pair (worst case {min(gained):+.2f}), {mean(lost):.2f} points below the best pair of these"
        f" (worst case {max(lost):.2f})"
    )
