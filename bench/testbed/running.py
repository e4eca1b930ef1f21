"""Plans on an emulated cluster: workers that sleep and communicate, and what they took beside two estimates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import mean, median
from typing import Any

from bench.testbed.cases import Probe
from bench.testbed.network import Network, emulated_network
from estimator.communication.fit import make_table
from estimator.communication.groups import describe_group
from estimator.host.worker_processes import Limits, WorkerSpec, python_worker, run_workers
from estimator.pricing.evaluate import evaluate
from estimator.pricing.layer_times import Lookup
from estimator.pricing.outcome import Evaluation
from estimator.pricing.pricing import Pricing
from estimator.pricing.recipe import Setup
from planner.one_job.running.program import Program
from profiles.cluster import Cluster
from profiles.training_parameters import neutral_parameters
from profiles.vocabulary import Infeasible, LinkTable

WORKER = python_worker("bench.testbed.worker")
PORT = 29_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A plan with its setup, the program that its workers run and the estimate from the cluster file."""

    name: str
    setup: Setup
    program: Program
    plan: str
    by_file: Evaluation
    probes: tuple[Probe, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One case: seconds of an iteration, measured and estimated."""

    case: str
    cluster: str
    workers: int
    measured_s: float
    median_s: float
    tables_s: float
    file_s: float

    @property
    def error(self) -> float:
        """Of the estimate with measured tables."""
        return self.tables_s / self.measured_s - 1

    @property
    def file_error(self) -> float:
        """Of the estimate from the cluster file."""
        return self.file_s / self.measured_s - 1


def run_prepared(
    name: str,
    cluster: Cluster,
    prepared: Sequence[Prepared],
    lookup: Lookup,
    *,
    steps: int,
    repeats: int,
) -> list[Row]:
    """All these plans of one cluster, in one set of workers."""
    with emulated_network(cluster) as network:
        print(f"{name}: {network.note}", flush=True)
        return run_on(network, name, cluster, prepared, lookup, steps=steps, repeats=repeats)


def run_on(
    network: Network,
    name: str,
    cluster: Cluster,
    prepared: Sequence[Prepared],
    lookup: Lookup,
    *,
    steps: int,
    repeats: int,
) -> list[Row]:
    """All these plans, whose ranks sit alike, in one set of workers on a network that stands."""
    found: dict[int, list[list[float]]] = {number: [] for number in range(len(prepared))}
    probed: defaultdict[tuple[int, int], dict[int, list[float]]] = defaultdict(dict)
    run_workers(
        worker_specs(network, prepared, lookup, steps=steps, repeats=repeats),
        what="testbed",
        limits=Limits(silent_s=600),
        on_line=_taker(found, probed),
    )
    rows = []
    for number, one in enumerate(prepared):
        slowest = [max(ranks) for ranks in zip(*_by_rank(found[number], steps), strict=True)]
        tables = make_tables(one, cluster, {p: probed[number, p] for p in range(len(one.probes))})
        rows.append(
            Row(
                case=one.name,
                cluster=name,
                workers=one.program.ranks,
                measured_s=min(slowest),
                median_s=median(slowest),
                tables_s=estimate(one.setup, lookup, tables).iteration_time_s,
                file_s=one.by_file.iteration_time_s,
            )
        )
    return rows


def _taker(found: dict[int, list[list[float]]], probed: defaultdict[tuple[int, int], dict[int, list[float]]]):  # type: ignore[no-untyped-def]
    def take(rank: int, value: dict[str, Any]) -> None:
        if value["event"] == "probe":
            probed[value["case"], value["probe"]][rank] = value["seconds"]
        else:
            found[value["case"]].append([rank, value["step"], value["seconds"]])

    return take


def _by_rank(lines: list[list[float]], steps: int) -> list[list[float]]:
    ranks: defaultdict[float, list[float]] = defaultdict(list)
    for rank, _, seconds in lines:
        ranks[rank].append(seconds)
    assert all(len(own) == steps for own in ranks.values())
    return list(ranks.values())


def estimate(setup: Setup, lookup: Lookup, tables: Sequence[LinkTable]) -> Evaluation:
    """The product's own estimate; nothing of training on real GPUs (shares of links, launches) applies here. Tables of
    collectives were measured on the very groups of the setup, those of messages between one pair."""
    messages, placed = ([table for table in tables if (table.op == "send_recv") == one] for one in (True, False))
    pricing = Pricing(parameters=neutral_parameters(), lookup=lookup, link_tables=messages, placed_tables=placed)
    found = evaluate(setup, pricing)
    if isinstance(found, Infeasible):
        raise SystemExit(found.reason)
    return found


def worker_specs(
    network: Network, prepared: Sequence[Prepared], lookup: Lookup, *, steps: int, repeats: int
) -> list[WorkerSpec]:
    """A worker on the seat of each device of the largest case, in its order, which is that of the other cases too."""
    orders = [[slot for stage in one.setup.stages for slot in stage.slots] for one in prepared]
    longest = max(orders, key=len)
    assert all(order == longest[: len(order)] for order in orders), "cases whose ranks sit elsewhere run apart"
    seat_of = {seat.slot: seat for seat in network.seats}
    seats = [seat_of[slot] for slot in longest]
    request = {
        "address": seats[0].address,
        "port": PORT,
        "cases": [
            {
                "plan": one.plan,
                "steps": steps,
                "times": [_times(one, number, lookup) for number in range(len(one.program.stages))],
                "probes": [{**asdict(probe), "repeats": repeats} for probe in one.probes],
            }
            for one in prepared
        ],
    }
    return [
        WorkerSpec(command=(*seat.prefix, *WORKER), request=request, environment=dict(seat.environment))
        for seat in seats
    ]


def _times(one: Prepared, number: int, lookup: Lookup) -> dict[str, tuple[float, float, float]]:
    stage = one.program.stages[number]
    found = {}
    for index in stage.layer_indices():
        time = lookup(one.program.model.layers[index], one.program.shard(stage, 0))
        assert time is not None, "load_lookup has measured what was missing"
        found[str(index)] = (time.forward_s, time.backward_s, time.optimizer_s)
    return found


def make_tables(one: Prepared, cluster: Cluster, probed: dict[int, dict[int, list[float]]]) -> tuple[LinkTable, ...]:
    """Link tables from the probes (of each its ranks' seconds): of each repeat what the slowest rank of a link's groups
    took, of messages half a round trip."""
    samples: defaultdict[tuple[str, Any, int, int], dict[int, tuple[float, ...]]] = defaultdict(dict)
    slots = [slot for stage in one.setup.stages for slot in stage.slots]
    for number, probe in enumerate(one.probes):
        by_link: defaultdict[tuple[str, Any, int, int], list[list[float]]] = defaultdict(list)
        for members in probe.groups:
            group = describe_group(cluster, [slots[rank] for rank in members])
            key = (group.levels[-1].link, probe.op, group.ranks, group.nodes)
            by_link[key] += [probed[number][rank] for rank in members]
        share = 2 if probe.op == "send_recv" else 1
        for key, ranks in by_link.items():
            samples[key][probe.bytes] = tuple(max(repeat) / share for repeat in zip(*ranks, strict=True))
    return tuple(
        make_table(link=link, op=op, ranks=ranks, nodes=nodes, samples=by_size, source="gloo on the emulated links")
        for (link, op, ranks, nodes), by_size in samples.items()
    )


def print_rows(rows: Sequence[Row]) -> None:
    """The table, and the errors in sum."""
    print("\n| cluster | plan | workers | measured | median | with tables | error | from the file | error |")
    print("| :-- | :-- | --: | --: | --: | --: | --: | --: | --: |")
    for row in rows:
        measured, middle, tables, file = (
            f"{seconds * 1e3:.1f} ms" for seconds in (row.measured_s, row.median_s, row.tables_s, row.file_s)
        )
        print(
            f"| {row.cluster} | {row.case} | {row.workers} | {measured} | {middle} | {tables} | {row.error:+.1%}"
            f" | {file} | {row.file_error:+.1%} |"
        )
    for what, errors in (
        ("with tables", [row.error for row in rows]),
        ("from the file", [row.file_error for row in rows]),
    ):
        print(f"{what}: mean {mean(map(abs, errors)):.1%}, worst {max(map(abs, errors)):.1%} of {len(errors)} plans")
