"""Rounds of jobs on the emulated machines: what their iterations took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import mean
from typing import Any

from bench.testbed.machines.estimates import Line, Links
from bench.testbed.machines.seats import seat_numbers
from bench.testbed.network import Network
from estimator.communication.fit import fit_alpha_beta
from estimator.host.ports import unused_port
from estimator.host.worker_processes import Limits, WorkerSpec, python_worker, run_workers
from profiles.records import dataclass

WORKER = python_worker("bench.testbed.machines.worker")
PORT = 29_600
SILENT_S = 120.0
PROBED = (1 << 16, 1 << 18, 1 << 20)
"""Elements of the messages that a link is measured with: 256 KiB to 4 MiB, well above what a token bucket lets through
at once (27 KB)."""
PROBES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A job in a round: on which node each rank sits, what it sends and for how long it computes. `together`: its
    ranks begin every iteration at the same time. `delay_s`: how much later than the round the job begins."""

    nodes: tuple[int, ...]
    algorithm: str
    elements: int
    compute_s: float
    steps: int
    together: bool = True
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Of a job in a round: (begin, end) of each iteration from its first rank's begin to its last one's end, and the
    longest all-reduce of each on any rank."""

    spans_s: tuple[tuple[float, float], ...]
    all_reduces_s: tuple[float, ...]

    @property
    def least_s(self) -> float:
        """The fastest iteration: other work on this machine only ever adds."""
        return min(end_s - begin_s for begin_s, end_s in self.spans_s)

    def until(self, end_s: float) -> float:
        """Return the mean of the iterations that ended by then."""
        return mean(end - begin for begin, end in self.spans_s if end <= end_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What the jobs of a round took, and the CPU seconds of all workers in it."""

    jobs: tuple[Timed, ...]
    cpu_s: float

    @property
    def busy_s(self) -> float:
        """From the first begin to the last end."""
        spans = [span for job in self.jobs for span in job.spans_s]
        return max(end for _, end in spans) - min(begin for begin, _ in spans)


def run_rounds(
    network: Network, free: Sequence[int], rounds: Sequence[Sequence[Run]], *, limit_s: float
) -> list[Round]:
    """Return what came of the rounds, one after the other, with a worker on every free seat. Raise MachineError where
    one dies, or nothing is heard for two minutes, or it is not done in time."""
    first_free = [seat for node in range(len(free)) for seat in _seats_of(network, node)[: free[node]]]
    request = {
        "address": first_free[0].address,
        "port": PORT if network.emulated else unused_port(),
        "rounds": [[_request(run, taken, free) for run, taken in _with_taken(jobs, free)] for jobs in rounds],
    }
    found: list[dict[str, Any]] = []
    run_workers(
        [
            WorkerSpec(command=(*seat.prefix, *WORKER), request=request, environment=dict(seat.environment))
            for seat in first_free
        ],
        what="testbed of machines",
        limits=Limits(total_s=limit_s, silent_s=SILENT_S),
        on_line=lambda rank, value: found.append({"rank": rank, **value}),
    )
    return [_collect(number, jobs, found) for number, jobs in enumerate(rounds)]


def measure_links(rounds: Sequence[Round]) -> Links:
    """Return the lines of the two kinds of links from the rounds of `link_rounds`."""
    lines = []
    for part in (rounds[: len(PROBED)], rounds[len(PROBED) :]):
        points = [(4 * elements, one.jobs[0].least_s / 2) for elements, one in zip(PROBED, part, strict=True)]
        alpha_s, s_per_byte, _ = fit_alpha_beta(points)
        lines.append(Line(alpha_s=alpha_s, s_per_byte=s_per_byte))
    return Links(nic=lines[0], inside=lines[1])


def link_rounds(free: Sequence[int]) -> list[list[Run]]:
    """Return messages there and back between the two emptiest nodes, then inside the emptiest."""
    one, other = sorted(range(len(free)), key=lambda node: -free[node])[:2]
    return [
        [Run(nodes=nodes, algorithm="send_recv", elements=elements, compute_s=0.0, steps=PROBES)]
        for nodes in ((one, other), (one, one))
        for elements in PROBED
    ]


def _seats_of(network: Network, node: int):  # type: ignore[no-untyped-def]
    return [seat for seat in network.seats if seat.slot.node == node]


def _with_taken(jobs: Sequence[Run], free: Sequence[int]) -> list[tuple[Run, tuple[int, ...]]]:
    found: list[tuple[Run, tuple[int, ...]]] = []
    taken: tuple[int, ...] = ()
    for run in jobs:
        found.append((run, taken))
        taken += seat_numbers(run.nodes, free, taken)
    return found


def _request(run: Run, taken: Sequence[int], free: Sequence[int]) -> dict[str, Any]:
    return {
        "ranks": seat_numbers(run.nodes, free, taken),
        "algorithm": run.algorithm,
        "elements": run.elements,
        "compute_s": run.compute_s,
        "steps": run.steps,
        "together": run.together,
        "delay_s": run.delay_s,
    }


def _collect(number: int, jobs: Sequence[Run], found: Sequence[dict[str, Any]]) -> Round:
    own = [value for value in found if value["round"] == number]
    timed = []
    for job, run in enumerate(jobs):
        by_rank: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
        for value in own:
            if value.get("job") == job:
                by_rank[value["rank"]].append(value)
        steps = list(zip(*by_rank.values(), strict=True))
        assert (len(by_rank), len(steps)) == (len(run.nodes), run.steps)
        timed.append(
            Timed(
                spans_s=tuple(
                    (min(one["began_s"] for one in step), max(one["ended_s"] for one in step)) for step in steps
                ),
                all_reduces_s=tuple(max(one["all_reduce_s"] for one in step) for step in steps),
            )
        )
    return Round(jobs=tuple(timed), cpu_s=sum(value.get("cpu_s", 0.0) for value in own))
