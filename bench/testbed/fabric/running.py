"""Cases on the emulated fabric: when the iterations of each job ended."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from statistics import mean
from typing import Any

from bench.testbed.fabric.cases import Case, Job
from bench.testbed.fabric.shape import BLOCK_PORTS, FIRST_PORT, LEVEL_PORTS, Shape, place_address
from bench.testbed.fabric.spaces import lay_out_fabric, place_space
from bench.testbed.namespaces import tool
from bench.testbed.network import standing
from estimator.host.worker_processes import Limits, WorkerSpec, python_worker, run_workers
from profiles.records import dataclass, replace

WORKER = python_worker("bench.testbed.fabric.worker")
PORT = 29_800
SILENT_S = 120.0
LATE_S, STOLEN, AGAIN = 0.002, 0.02, 2
"""A round is disturbed where a rank woke later than this in the mean, or a host kept more of the cores from this
machine; then it is run again, so often at most, and the round that was disturbed least counts."""


@dataclass(frozen=True, kw_only=True)
class Timed:
    """When the iterations of a job ended, counted from the beginning of the round."""

    ended_s: tuple[float, ...]

    def iterations_s(self, from_s: float, until_s: float) -> tuple[float, ...]:
        """Return the seconds of those that began after `from_s` and ended before `until_s`."""
        return tuple(end - begin for begin, end in pairwise(self.ended_s) if begin >= from_s and end <= until_s)

    def mean_s(self, from_s: float, until_s: float) -> float:
        """Return their mean; nan where there is none."""
        found = self.iterations_s(from_s, until_s)
        return mean(found) if found else float("nan")


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A round: the times of its jobs; how much too late the ranks woke from their sleeps, the mean of the rank that did
    worst; which part of this machine's cores was busy with whatever, and which part its host kept from it; and how
    often it was run to be that."""

    jobs: tuple[Timed, ...]
    late_s: float
    busy: float
    stolen: float
    rounds: int = 1

    @property
    def disturbed(self) -> bool:
        """Whether ranks woke late or cores were kept from the machine."""
        return self.late_s > LATE_S or self.stolen > STOLEN


def run_cases(
    shape: Shape, cases: Sequence[Case], *, lasts_s: float, jitter: float, seed: int, limit_s: float
) -> list[Ran]:
    """Return what came of each case, one case after the other on one fabric. Raise MachineError where a worker dies, or
    the fabric cannot be made."""
    with standing(lay_out_fabric(shape)) as (prefix, _):
        return run_quietly(prefix, shape, cases, lasts_s=lasts_s, jitter=jitter, seed=seed, limit_s=limit_s)


def run_quietly(
    prefix: str,
    shape: Shape,
    cases: Sequence[Case],
    *,
    lasts_s: float,
    jitter: float,
    seed: int,
    limit_s: float,
    rules: Sequence[Sequence[str]] = (),
) -> list[Ran]:
    """As `run_rounds`, but that what was disturbed is run again."""
    best: dict[int, Ran] = {}
    left = list(range(len(cases)))
    for attempt in range(1 + AGAIN):
        again = run_rounds(
            prefix,
            shape,
            [cases[number] for number in left],
            lasts_s=lasts_s,
            jitter=jitter,
            seed=seed,
            limit_s=limit_s,
            rules=[rules[number] for number in left] if rules else (),
        )
        for number, ran in zip(left, again, strict=True):
            kept = min(best.get(number, ran), ran, key=lambda one: (one.disturbed, one.late_s, one.stolen))
            best[number] = replace(kept, rounds=attempt + 1)
        left = [number for number in left if best[number].disturbed]
        if not left:
            break
    return [best[number] for number in range(len(cases))]


def run_rounds(
    prefix: str,
    shape: Shape,
    cases: Sequence[Case],
    *,
    lasts_s: float,
    jitter: float,
    seed: int,
    limit_s: float,
    rules: Sequence[Sequence[str]] = (),
) -> list[Ran]:
    """Return what came of each case, one after the other on the fabric whose namespaces' names begin with `prefix`.
    `rules` are what `nft` loads where each job of each case has its ranks; without them its level's DSCP is put on it
    where levels go by DSCP. Raise MachineError where a worker dies."""
    seats = sorted({(job.place, host) for case in cases for job in case.jobs for host in job.hosts})
    rank_of = {seat: rank for rank, seat in enumerate(seats)}
    request = {
        "address": place_address(seats[0][1], seats[0][0]),
        "port": PORT,
        "rounds": [
            {
                "lasts_s": lasts_s,
                "jobs": [
                    _request(shape, job, rank_of, number, jitter, seed)
                    | {"marks": rules[number][place] if rules else marking(shape, job.level)}
                    for place, job in enumerate(case.jobs)
                ],
            }
            for number, case in enumerate(cases)
        ],
    }
    found: list[list[Timed | None]] = [[None] * len(case.jobs) for case in cases]
    worst = [dict.fromkeys(("late_s", "busy", "stolen"), 0.0) for _ in cases]

    def take(_: int, value: dict[str, Any]) -> None:
        own = worst[value["round"]]
        for key in own:
            own[key] = max(own[key], value.get(key, 0.0))
        if "job" in value:
            found[value["round"]][value["job"]] = Timed(ended_s=tuple(value["ended_s"]))
            sys.stderr.write(f"\r{value['round'] + 1} of {len(cases)} ")
            sys.stderr.flush()

    run_workers(
        [
            WorkerSpec(
                command=(tool("ip") or "ip", "netns", "exec", prefix + place_space(host, place), *WORKER),
                request=request,
                environment={"GLOO_SOCKET_IFNAME": "lo"},
            )
            for place, host in seats
        ],
        what="fabric",
        limits=Limits(total_s=limit_s, silent_s=SILENT_S + lasts_s),
        on_line=take,
    )
    sys.stderr.write("\n")
    return [
        Ran(
            jobs=tuple(one for one in case if one is not None),
            late_s=own["late_s"],
            busy=own["busy"],
            stolen=own["stolen"],
        )
        for case, own in zip(found, worst, strict=True)
    ]


def marking(shape: Shape, level: int) -> str:
    """Return what `nft` loads that puts the DSCP of a level on what leaves a namespace; nothing where levels go by
    port."""
    if not shape.dscps:
        return ""
    chain = f"type filter hook output priority mangle; policy accept; meta l4proto tcp ip dscp set {shape.dscps[level]}"
    return f"table ip levels {{}}\ndelete table ip levels\ntable ip levels {{\nchain out {{\n{chain}\n}}\n}}\n"


def _request(
    shape: Shape, job: Job, rank_of: dict[tuple[int, int], int], number: int, jitter: float, seed: int
) -> dict[str, Any]:
    """`ports` are those that each rank's connections leave from: by them its leaf and the links tell where they go. A
    job of the next round takes the next such block."""
    ports = list(job.ports)
    for host, spine in () if ports else zip(job.hosts, job.spines, strict=True):
        blocks = shape.blocks_to(shape.leaf_of(host), spine)
        first = FIRST_PORT + blocks[number % len(blocks)] * BLOCK_PORTS + job.level * LEVEL_PORTS
        ports.append((first, first + LEVEL_PORTS - 1))
    return {
        "kind": job.kind,
        "ranks": [rank_of[job.place, host] for host in job.hosts],
        "ports": ports,
        "receiver": place_address(job.hosts[1], job.place),
        "bytes": job.size_bytes,
        "compute_s": job.compute_s,
        "begins_s": job.begins_s,
        "offset_s": job.offset_s,
        "period_s": job.period_s,
        "jitter": jitter,
        "seed": f"{seed} {number} {job.place}",
    }
