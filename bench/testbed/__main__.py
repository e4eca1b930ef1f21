"""Whole plans on an emulated cluster, measured against estimated: 4 to 16 workers on this machine.

Compute is slept, as long as a profile says; communication is real (gloo), over network namespaces whose links have the
rates and latencies of a cluster file, the same that the planner reads. Each iteration time stands beside two estimates:
with link tables measured on the very links (`tables`), and from the cluster file's own numbers alone (`file`).

    python -m bench.testbed [--profile FILE] [--scale 0.25] [--steps 7] [--cluster NAME] [--json FILE]

Namespaces need root, iproute2 and a kernel that allows them; without, workers are on the plain loopback device, which
is said, and only the tables' estimate means something. The profile is measured where the file is missing.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any

from bench.testbed.cases import CLUSTERS, MODEL, Case, Probe, cases, load_bench_model, make_setup, probes_of
from bench.testbed.network import Network, emulated_network
from estimator.communication.fit import make_table
from estimator.communication.groups import describe_group
from estimator.explicit.evaluate import evaluate
from estimator.explicit.outcome import Evaluation
from estimator.explicit.recipe import Setup
from estimator.layer_times import Lookup
from estimator.profiling.lookup import to_layer_time
from estimator.worker_processes import Limits, WorkerSpec, python_worker, run_workers
from models_zoo.layers import Layer
from planner.explicit.recording import record_plan
from planner.plan_file import plan_to_json
from planner.running.program import Program, program_of
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster
from profiles.files import read_text
from profiles.measurements import Profile, canonical, parse_profile_set
from profiles.store import ProfileStore, export_profiles
from profiles.training_parameters import neutral_parameters
from profiles.vocabulary import Infeasible, LayerTime, LinkTable, Shard

PROFILE = Path(__file__).with_name("profile.json")
WORKER = python_worker("bench.testbed.worker")
PORT = 29_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A case with its setup, the program that its workers run and the estimate from the cluster file."""

    case: Case
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


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--profile", type=Path, default=PROFILE, help="profile file of the layers (default: beside this)"
    )
    parser.add_argument("--scale", type=float, default=0.25, help="of all links' rates (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=7, help="iterations of each plan (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="of each probe of a link (default: %(default)s)")
    parser.add_argument("--cluster", help="only this one of clusters/")
    parser.add_argument("--case", help="only the case of this name")
    parser.add_argument("--json", type=Path, help="write the rows here as well")
    args = parser.parse_args(argv)
    chosen = [case for case in cases() if args.cluster in (None, case.cluster) and args.case in (None, case.name)]
    lookup = load_lookup(args.profile, chosen)
    print(f"{platform.platform()}, {platform.processor() or platform.machine()}; rates scaled by {args.scale:g}")
    rows: list[Row] = []
    for name in dict.fromkeys(case.cluster for case in chosen):
        own = [case for case in chosen if case.cluster == name]
        found = run_cluster(name, own, lookup, scale=args.scale, steps=args.steps, repeats=args.repeats)
        print_rows(found)
        rows += found
    if rows != found:
        print_rows(rows)
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    return 0


def run_cluster(name: str, own: Sequence[Case], lookup: Lookup, *, scale: float, steps: int, repeats: int) -> list[Row]:
    """All cases of one cluster, in one set of workers."""
    path = CLUSTERS / f"{name}.yaml"
    cluster = scaled(load_cluster(str(path)), scale)
    prepared = [prepare(case, cluster, lookup) for case in own]
    found: dict[int, list[list[float]]] = {number: [] for number in range(len(own))}
    probed: defaultdict[tuple[int, int], list[list[float]]] = defaultdict(list)
    with emulated_network(cluster) as network:
        print(f"{name}: {network.note}", flush=True)
        take = _taker(found, probed)
        run_workers(
            worker_specs(network, prepared, lookup, steps=steps, repeats=repeats),
            what="testbed",
            limits=Limits(silent_s=600),
            on_line=take,
        )
    rows = []
    for number, one in enumerate(prepared):
        slowest = [max(ranks) for ranks in zip(*_by_rank(found[number], steps), strict=True)]
        tables = make_tables(one, cluster, {p: probed[number, p] for p in range(len(one.probes))})
        rows.append(
            Row(
                case=one.case.name,
                cluster=name,
                workers=one.program.ranks,
                measured_s=min(slowest),
                median_s=median(slowest),
                tables_s=estimate(one.setup, lookup, tables).iteration_time_s,
                file_s=one.by_file.iteration_time_s,
            )
        )
    return rows


def _taker(found: dict[int, list[list[float]]], probed: defaultdict[tuple[int, int], list[list[float]]]):  # type: ignore[no-untyped-def]
    def take(rank: int, value: dict[str, Any]) -> None:
        if value["event"] == "probe":
            probed[value["case"], value["probe"]].append(value["seconds"])
        else:
            found[value["case"]].append([rank, value["step"], value["seconds"]])

    return take


def _by_rank(lines: list[list[float]], steps: int) -> list[list[float]]:
    ranks: defaultdict[float, list[float]] = defaultdict(list)
    for rank, _, seconds in lines:
        ranks[rank].append(seconds)
    assert all(len(own) == steps for own in ranks.values())
    return list(ranks.values())


def prepare(case: Case, cluster: Cluster, lookup: Lookup) -> Prepared:
    """The case ready to run; SystemExit where it cannot be estimated."""
    setup = make_setup(case, load_bench_model(), cluster)
    by_file = estimate(setup, lookup, ())
    plan = record_plan(setup, by_file, reference=str(MODEL), assumptions=())
    program = program_of(plan, setup.model, where=case.name)
    return Prepared(
        case=case,
        setup=setup,
        program=program,
        plan=plan_to_json(plan),
        by_file=by_file,
        probes=tuple(probes_of(setup, program)),
    )


def estimate(setup: Setup, lookup: Lookup, tables: Sequence[LinkTable]) -> Evaluation:
    """The product's own estimate; nothing of training on real GPUs (shares of links, launches) applies here."""
    found = evaluate(setup, parameters=neutral_parameters(), lookup=lookup, link_tables=tables)
    if isinstance(found, Infeasible):
        raise SystemExit(found.reason)
    return found


def scaled(cluster: Cluster, scale: float) -> Cluster:
    """The cluster with the links between its sites so many times as fast."""
    links = tuple(
        replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * scale) for link in cluster.site_links
    )
    return replace(cluster, site_links=links)


def worker_specs(
    network: Network, prepared: Sequence[Prepared], lookup: Lookup, *, steps: int, repeats: int
) -> list[WorkerSpec]:
    """A worker on each seat that a case uses."""
    most = max(one.program.ranks for one in prepared)
    request = {
        "address": network.seats[0].address,
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
        for seat in network.seats[:most]
    ]


def _times(one: Prepared, number: int, lookup: Lookup) -> dict[str, tuple[float, float, float]]:
    stage = one.program.stages[number]
    found = {}
    for index in stage.layer_indices():
        time = lookup(one.program.model.layers[index], one.program.shard(stage, 0))
        assert time is not None, "load_lookup has measured what was missing"
        found[str(index)] = (time.forward_s, time.backward_s, time.optimizer_s)
    return found


def make_tables(one: Prepared, cluster: Cluster, probed: dict[int, list[list[float]]]) -> tuple[LinkTable, ...]:
    """Link tables from the probes: of each repeat what its slowest rank took, of messages half a round trip."""
    samples: defaultdict[tuple[str, Any, int, int], dict[int, tuple[float, ...]]] = defaultdict(dict)
    slots = [slot for stage in one.setup.stages for slot in stage.slots]
    for number, probe in enumerate(one.probes):
        ranks = [seconds for seconds in probed[number] if seconds]
        slowest = [max(repeat) for repeat in zip(*ranks, strict=True)]
        for members in probe.groups:
            group = describe_group(cluster, [slots[rank] for rank in members])
            share = 2 if probe.op == "send_recv" else 1
            key = (group.levels[-1].link, probe.op, group.ranks, group.nodes)
            samples[key][probe.bytes] = tuple(seconds / share for seconds in slowest)
    return tuple(
        make_table(link=link, op=op, ranks=ranks, nodes=nodes, samples=by_size, source="gloo on the emulated links")
        for (link, op, ranks, nodes), by_size in samples.items()
    )


def load_lookup(path: Path, chosen: Sequence[Case]) -> Lookup:
    """Measured layer times out of the profile file; what it lacks is measured first, on this machine's CPU."""
    if not path.exists() or not _complete(_profiles(path), chosen):
        print(f"measuring layers into {path}", file=sys.stderr, flush=True)
        _measure(path, chosen)
    known = _profiles(path)

    def look_up(layer: Layer, shard: Shard) -> LayerTime | None:
        found = known.get((canonical(layer), shard))
        return None if found is None else to_layer_time(found)

    return look_up


def _profiles(path: Path) -> dict[tuple[str, Shard], Profile]:
    found = parse_profile_set(read_text(path), where=str(path)).profiles
    return {(profile.key.layers[0], profile.key.shard): profile for profile in found}


def _needed(chosen: Sequence[Case]) -> dict[tuple[Layer, Shard], str]:
    model = load_bench_model()
    found: dict[tuple[Layer, Shard], str] = {}
    for case in chosen:
        for stage in case.stages:
            shard = Shard(
                tp=stage.tp,
                micro_batch_per_rank=case.micro_batch // stage.dp,
                seq_len=128,
                dtype="fp32",
                attention="flash",
            )
            found |= {(layer, shard): name for layer, name in zip(model.layers, model.layer_names, strict=True)}
    return found


def _complete(known: dict[tuple[str, Shard], Profile], chosen: Sequence[Case]) -> bool:
    return all((canonical(layer), shard) in known for layer, shard in _needed(chosen))


def _measure(path: Path, chosen: Sequence[Case]) -> None:
    from estimator.profiling.plan import ProfileTask
    from estimator.profiling.run import profile_layers
    from estimator.profiling.setting import Setting

    tasks = [
        ProfileTask(layer=layer, shard=shard, name=name, multiplicity=1)
        for (layer, shard), name in _needed(chosen).items()
    ]
    with TemporaryDirectory() as folder, ProfileStore(Path(folder) / "store.sqlite") as store:
        profile_layers(store, tasks, Setting())
        export_profiles(store, path)


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


if __name__ == "__main__":
    raise SystemExit(main())
