"""Loads at which jobs wait: a trace at a stated load under every rule, with what scattering costs in time.

`nodes` machines of eight A100, racks of eight machines, pods of eight racks, one NIC of 100 Gb/s a machine and a fabric
that carries them all. Every job trains ResNet-50 or VGG-16 (drawn, even odds) by data parallelism, 32 samples a device:
an iteration is the estimator's compute of one device and its all-reduce (NCCL's fastest algorithm) of bf16 gradients
over the devices that the job got; nothing hides it. A job's work is its duration over that time on whole machines, so
that it lasts as traced if it sits there alone. Jobs on several nodes slow each other as the simulator's `SharedNetwork`
says: what others put on a NIC in the mean is in the way of what a job sends there.

Arrivals are stretched alike until the devices that would be held if nobody waited, in the mean up to the last arrival,
are the load of them all (what long jobs hold later does not count). `head` jobs are a run of so many of the trace, from
where the seed draws. Sizes other than the trace's are drawn, durations stay. First come, first served, until all have
ended. What rules are told of ends: the true ones (`stated`), what the simulator's predictor says, which learns from the
jobs that have ended (`predicted`), or nothing (`none`). Rules that ask for it see the tree: the one above, or that of a
file of hosts by switch, whose hosts the machines then are. `RULE@SECONDS` may move running jobs every so many seconds.
Nodes and traffic are sums over time: machine-hours, and bytes between nodes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from statistics import mean
from typing import Literal

import cellplan
from bench.simulation import ClosedForm
from estimator.communication.collectives import time_collective
from estimator.communication.groups import describe_group
from planner.many_jobs.jct.online import OnlinePredictor, OnlineSetting
from planner.many_jobs.jobs.records import Grant, Job, Pool, Workload
from planner.many_jobs.placers.catalogue import make_placer
from planner.many_jobs.policies.catalogue import make_policy
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.result import Result
from planner.many_jobs.simulation.settings import Placement, Settings
from planner.many_jobs.simulation.sharing import SharedAmounts
from planner.many_jobs.traces.assign import count_parameters
from planner.many_jobs.traces.records import TraceRow
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster, name_cluster
from profiles.network import FabricLevel, FabricPart, Network

SIZE, RACK, POD = 8, 8, 8
"""Devices of a machine, machines of a rack, racks of a pod."""
NIC_BYTES_PER_S = 1.25e10
MODELS = ("resnet-50", "vgg-16")
SAMPLES, KILO = 32, 1000
_HALVINGS = 60
LARGE = 16
"""From so many devices on a job's waiting is counted apart."""

Sizes = Literal["traced", "uniform", "powers"]
Ends = Literal["stated", "predicted", "none"]
DRAWN: Mapping[str, Sequence[int]] = {"uniform": range(1, 17), "powers": (1, 2, 4, 8, 16, 32)}


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a run counts: seconds, machine-hours, and bytes between nodes (a ring's)."""

    jct_s: float
    large_wait_s: float
    machine_hours: float
    cross_node_bytes: float
    scattered: float
    utilization: float
    cpu_s: float
    moves: float = 0
    moves_device_hours: float = 0.0


def draw_jobs(
    rows: Sequence[TraceRow], *, nodes: int, load: float | None, sizes: Sizes, head: int | None, seed: int
) -> list[Job]:
    """Return the jobs that fit on the machines, arriving so that they want `load` of them; None: as they did."""
    draw = Random(f"loads {seed}")
    if head is not None and head < len(rows):
        first = draw.randrange(len(rows) - head)
        rows = rows[first : first + head]
    wanted = [(row, _devices(row, sizes, draw), draw.choice(MODELS)) for row in rows]
    wanted = [entry for entry in wanted if 0 < entry[1] <= nodes * SIZE and entry[0].duration_s > 0]
    first_s = wanted[0][0].submit_time_s
    spans = [(row.submit_time_s - first_s, row.duration_s, devices) for row, devices, _ in wanted]
    stretch = 1.0 if load is None else stretch_of(spans, nodes, load)
    return [
        Job(
            id=row.job_id,
            submit_s=(row.submit_time_s - first_s) * stretch,
            pool="pool",
            devices=devices,
            workload=Workload(model=model, global_batch=SAMPLES * devices),
            iterations=row.duration_s / iteration_s(model, whole(devices)),
            duration_s=row.duration_s,
            user=row.user,
            virtual_cluster=row.vc_or_department,
        )
        for row, devices, model in wanted
    ]


def stretch_of(jobs: Sequence[tuple[float, float, int]], nodes: int, load: float) -> float:
    """Return by how much the arrivals of jobs (arrival, duration, devices) are stretched until they want `load` of the
    machines up to the last of them. Raise ValueError where they never want so much."""
    last_s = jobs[-1][0]

    def wanted(stretch: float) -> float:
        held = sum(devices * min(span_s, stretch * (last_s - at_s)) for at_s, span_s, devices in jobs)
        return held / (stretch * last_s * nodes * SIZE)

    low, high = 1e-6, 1e6
    if not last_s or wanted(low) < load:
        raise ValueError(
            f"{len(jobs)} jobs never want {load:g} of {nodes} machines; expected more jobs, or fewer machines"
        )
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if wanted(middle) > load else (low, middle)
    return high


def _devices(row: TraceRow, sizes: Sizes, draw: Random) -> int:
    return row.gpus if sizes == "traced" else draw.choice(DRAWN[sizes])


def rule_of(word: str) -> tuple[str, float | None]:
    """Return the name of a rule and every how many seconds it may move jobs.

    >>> rule_of("titan"), rule_of("ours@3600")
    (('titan', None), ('ours', 3600.0))
    """
    name, _, every_s = word.partition("@")
    return name, float(every_s) if every_s else None


def run(jobs: Sequence[Job], rule: str, nodes: int, *, ends: Ends = "stated", tree: Network | None = None) -> Found:
    """Return what is counted of the jobs under a rule (`rule_of`), above the machines that tree, or racks and pods."""
    began_s = time.process_time()
    result = simulate_under(jobs, rule, nodes, ends=ends, tree=tree)
    summary, table = result.summary, result.table
    waits = [
        start_s - job.submit_s for start_s, job in zip(table.start_s, result.jobs, strict=True) if job.devices >= LARGE
    ]
    return Found(
        jct_s=summary.jct_mean_s or 0.0,
        large_wait_s=mean(waits) if waits else 0.0,
        machine_hours=summary.machine_hours or 0.0,
        cross_node_bytes=(summary.cross_node_bytes_per_s or 0.0) * summary.simulated_s,
        scattered=summary.scattered_ratio or 0.0,
        utilization=summary.utilization_mean,
        moves=summary.moves,
        moves_device_hours=summary.moves_device_hours,
        cpu_s=time.process_time() - began_s,
    )


def simulate_under(
    jobs: Sequence[Job],
    rule: str,
    nodes: int,
    *,
    ends: Ends = "stated",
    tree: Network | None = None,
    series: bool = False,
) -> Result:
    """Return what became of the jobs, with the cluster over time where asked."""
    name, defragment_s = rule_of(rule)
    if ends == "none":
        jobs = [replace(job, duration_s=0.0) for job in jobs]
    pool = Pool(name="pool", site="", device="", nodes=nodes, devices_per_node=SIZE, devices=nodes * SIZE)
    settings = Settings(
        truth=seat_time_s,
        seat_times=seat_time_s,
        sharing=SharedNics(),
        placer=make_placer(name),
        defragment_s=defragment_s,
        predictor=OnlinePredictor(OnlineSetting(threads=1)) if ends == "predicted" else None,
        networks={"pool": racks_and_pods(nodes) if tree is None else tree},
        series=series,
    )
    result = simulate(jobs, {"pool": pool}, ClosedForm(), make_policy("fcfs"), settings=settings)
    assert result.summary.violations == 0
    return result


def racks_and_pods(nodes: int) -> Network:
    """Return the tree above so many machines."""
    racks = -(-nodes // RACK)
    pods = -(-racks // POD)
    levels = (
        FabricLevel(
            name="rack",
            parts=tuple(FabricPart(name=f"r{rack}") for rack in range(racks)),
            part_of=tuple(node // RACK for node in range(nodes)),
        ),
        FabricLevel(
            name="pod",
            parts=tuple(FabricPart(name=f"p{pod}") for pod in range(pods)),
            part_of=tuple(rack // POD for rack in range(racks)),
        ),
    )
    return Network(levels=levels)


# Times


def whole(devices: int) -> tuple[int, ...]:
    """Return how many devices whole machines and a rest give."""
    full, rest = divmod(devices, SIZE)
    return (SIZE,) * full + ((rest,) if rest else ())


def iteration_s(model: str, counts: tuple[int, ...]) -> float:
    """Return the seconds of an iteration on machines that give `counts` devices, the most first, alone."""
    return compute_s(model) + all_reduce_s(model, counts)


@cache
def compute_s(model: str) -> float:
    """Return the seconds of one device's iteration."""
    found = cellplan.estimate(model, cluster="a100-80gb:1x1", global_batch=SAMPLES, dp=1, tp=1, pp=1)
    return float(found.to_dict()["estimate"]["iteration_time_s"])


@cache
def all_reduce_s(model: str, counts: tuple[int, ...]) -> float:
    """Return the seconds of the all-reduce of a job's gradients."""
    cluster = _cluster(len(counts))
    slots = [slot for slot in cluster.slots if slot.index < counts[slot.node]]
    return time_collective("all_reduce", 2.0 * count_parameters(model), describe_group(cluster, slots)).seconds


@cache
def _cluster(nodes: int) -> Cluster:
    nic = {
        "name": "nic-100g",
        "kind": "ethernet",
        "bandwidth_bytes_per_s": NIC_BYTES_PER_S,
        "latency_s": 5e-6,
        "efficiency": 1.0,
        "source": "100 Gb/s",
    }
    group = {"count": nodes, "device": "a100-80gb", "devices": SIZE, "nics": {"count": 1, "link": nic}}
    return load_cluster(name_cluster({"sites": [{"name": "site", "nodes": [group], "fabric": {"link": nic}}]}))


def counts_of(placement: Placement) -> tuple[int, ...]:
    """Return how many devices a job has of each of its nodes, the most first."""
    return tuple(sorted((mask.bit_count() for _, mask in placement["pool"]), reverse=True))


def seat_time_s(job: Job, grant: Grant, placement: Placement | None) -> float:
    """`planner.many_jobs.simulation.settings.Truth` of these jobs; where one has no seats yet, on whole machines."""
    counts = whole(grant.parts[0][1]) if placement is None else counts_of(placement)
    return iteration_s(job.workload.model, counts)


class SharedNics(SharedAmounts):
    """`planner.many_jobs.simulation.settings.Sharing` of machines' NICs, as `SharedNetwork` has it."""

    def uses(self, job: Job, grant: Grant, placement: Placement) -> Mapping[str, int]:
        """The mean kB/s that the job puts on each of its NICs; nothing on one machine."""
        del grant
        pieces = placement["pool"]
        if len(pieces) == 1:
            return {}
        mean_kb = self._mean_kb(job, placement)
        return {f"NIC {node}": mean_kb for node, _ in pieces}

    def iteration_s(self, job: Job, grant: Grant, placement: Placement, in_use: Mapping[str, int]) -> float:
        """With the NIC that others use most in the way."""
        del grant
        others = KILO * (max(in_use.values()) - self._mean_kb(job, placement))
        model = job.workload.model
        sent_s = all_reduce_s(model, counts_of(placement))
        return compute_s(model) + sent_s * (1 + others / NIC_BYTES_PER_S)

    def _mean_kb(self, job: Job, placement: Placement) -> int:
        model, counts = job.workload.model, counts_of(placement)
        return round(all_reduce_s(model, counts) / iteration_s(model, counts) * NIC_BYTES_PER_S / KILO)
