"""A queue of short jobs really runs under a policy; the same queue is simulated; how far apart they are.

    python -m bench.scheduling.live [--testbed] [--policies fcfs,crius] [--jobs 20] [--seed 0] [--json FILE]

On `local:1x2` each worker trains on a core of its own; with --testbed eight workers of two emulated sites sleep instead
of computing, and communicate over shaped links (bench.testbed). Live and simulated have the same policy code, view,
checks and placement (bench.scheduling.live.driver), the same jobs and Cells. Nothing is fitted on a queue: layers,
links and contention are measured first, then each Cell by itself for some seconds. Each queue is simulated twice: with
iterations as the Cells estimate them (`estimated`), and as they were then measured (`measured`).

A start is counted as measured there too (the mean over Cells): a connection and a new model in workers that stay; they
import nothing. A restart is counted as a start and half a mean iteration more, since whoever has to leave ends the
iteration that it is in. Weights are not carried over a restart: it takes as long with new ones.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

from bench.scheduling.live.calibration import Measured, calibrate, measured_truth
from bench.scheduling.live.comparison import Row, describe, figures_of
from bench.scheduling.live.crew import Crew, Orders, crew_on
from bench.scheduling.live.driver import run_live
from bench.scheduling.live.jobs import QueueRules, draw_queue
from bench.scheduling.live.local import MENU as LOCAL_MENU
from bench.scheduling.live.local import local_cells, local_places
from bench.scheduling.live.neighbours import NodeNeighbours
from bench.scheduling.live.plans import orders_of_cells
from bench.scheduling.live.testbed import CLUSTER, testbed_cells, testbed_places, testbed_tables
from bench.scheduling.live.testbed import MENU as TESTBED_MENU
from bench.testbed.network import emulated_network
from estimator.host.cpu import cpu_name
from planner.many_jobs.jobs.records import Job, Workload
from planner.many_jobs.policies.catalogue import make_policy
from planner.many_jobs.scheduling.cell_book import EstimatedCells
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.settings import Settings
from planner.many_jobs.simulation.truth import cells_truth
from profiles.cluster_file import load_cluster
from profiles.store import ProfileStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What queues run on. `alone`: the Cells by themselves on a node, where that is not what `cells` says."""

    menu: tuple[Workload, ...]
    cells: EstimatedCells
    alone: EstimatedCells | None = None
    orders: Orders
    crew: Crew


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    least_s, most_s = (15.0, 40.0) if args.testbed else (8.0, 24.0)
    rules = QueueRules(count=args.jobs, least_s=args.least or least_s, most_s=args.most or most_s, load=args.load)
    ground_of: Callable[[Path | None], Iterator[Ground]] = _testbed if args.testbed else _local
    print(f"{cpu_name()}, {os.cpu_count()} cores, {platform.platform()}, load {os.getloadavg()[0]:.1f}", flush=True)
    with contextmanager(ground_of)(args.store) as ground:
        cells, crew = ground.cells, ground.crew
        alone = ground.alone is not None
        measured = calibrate(crew, cells, cells.pools, ground.menu, ground.orders, alone=alone)
        start_s = mean(one.start_s for one in measured)
        restart_s = start_s + mean(one.iteration_s for one in measured) / 2
        print(describe_measured(measured), f"a start: {start_s:.2f} s, a restart: {restart_s:.2f} s\n", flush=True)
        jobs = draw_queue(ground.menu, cells.pools, cells, rules, start_s=start_s, seed=args.seed)
        settings = Settings(start_s=start_s, restart_s=restart_s, round_s=args.round)
        rows = []
        for name in args.policies.split(","):
            rows.append(run_queue(name, jobs, ground, settings, measured))
            print(f"{name}: load {os.getloadavg()[0]:.1f}, live {rows[-1].live.makespan_s:.0f} s", flush=True)
    print(f"\n{len(jobs)} jobs, seed {args.seed}, {rules.least_s:g} to {rules.most_s:g} s each\n")
    print(describe(rows))
    if args.json:
        content = {"jobs": [asdict(job) for job in jobs], "rows": [asdict(row) for row in rows]}
        args.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--testbed", action="store_true", help="eight emulated workers instead of two real ones")
    parser.add_argument("--policies", default="fcfs,crius", help="by name, comma between (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=20, help="of the queue (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the queue (default: %(default)s)")
    parser.add_argument("--least", type=float, help="seconds of work of a job (default: 8, with --testbed 15)")
    parser.add_argument("--most", type=float, help="seconds of work of a job (default: 24, with --testbed 40)")
    parser.add_argument("--load", type=float, default=1.3, help="work that arrives over what there is to do it")
    parser.add_argument("--round", type=float, help="decide every so many seconds (default: after every event)")
    parser.add_argument("--store", type=Path, help="keep the local measurements here, and use what it has")
    parser.add_argument("--json", type=Path, help="write jobs and figures here as well")
    return parser


def run_queue(name: str, jobs: Sequence[Job], ground: Ground, settings: Settings, measured: Sequence[Measured]) -> Row:
    """The queue under one policy: live, then simulated with both kinds of times."""
    cells, crew = ground.cells, ground.crew
    crew.begin()
    live = run_live(jobs, cells.pools, cells, make_policy(name), crew, settings=settings)
    simulated = {
        source: simulate(jobs, cells.pools, cells, make_policy(name), settings=chosen)
        for source, chosen in _settings_by_source(settings, ground, measured)
    }
    return Row(
        policy=name,
        live=figures_of(live, cells),
        simulated={source: figures_of(result, cells) for source, result in simulated.items()},
    )


def _settings_by_source(
    settings: Settings, ground: Ground, measured: Sequence[Measured]
) -> Iterator[tuple[str, Settings]]:
    """How the queue is simulated: with estimated iterations, then with measured ones. Where Cells differ by themselves
    and on a full node, jobs slow their neighbours as they come and go."""
    cells = ground.cells
    sources = {
        "estimated": (cells_truth(cells), None if ground.alone is None else cells_truth(ground.alone)),
        "measured": (
            measured_truth(measured, cells),
            None if ground.alone is None else measured_truth(measured, ground.alone, alone=True),
        ),
    }
    for source, (crowded, alone) in sources.items():
        sharing = None if alone is None else NodeNeighbours(pools=cells.pools, alone=alone, crowded=crowded)
        yield source, replace(settings, truth=crowded, sharing=sharing)


def _local(store: Path | None) -> Iterator[Ground]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="cellplan-live-")))
        opened = stack.enter_context(ProfileStore(store or folder / "live.sqlite"))
        local = local_cells(opened, LOCAL_MENU)
        orders = orders_of_cells(local.crowded, sleeps=False)
        crew = stack.enter_context(crew_on(local_places(local.crowded), orders))
        yield Ground(menu=LOCAL_MENU, cells=local.crowded, alone=local.alone, orders=orders, crew=crew)


def _testbed(store: Path | None) -> Iterator[Ground]:
    if store is not None:
        print("--store: the testbed keeps nothing there", file=sys.stderr)
    cluster = load_cluster(str(CLUSTER))
    with emulated_network(cluster) as network:
        print(network.note, flush=True)
        cells = testbed_cells(cluster, testbed_tables(cluster, network))
        orders = orders_of_cells(cells, sleeps=True)
        with crew_on(testbed_places(cluster, network), orders) as crew:
            yield Ground(menu=TESTBED_MENU, cells=cells, orders=orders, crew=crew)


def describe_measured(measured: Sequence[Measured]) -> str:
    """The Cells by themselves: iterations estimated and measured, and starts."""
    lines = [
        "\n| model | batch | pool | devices | stages | estimated | measured | error | alone | start |",
        "| :-- | --: | :-- | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for one in measured:
        model = Path(one.workload.model).parent.name if "/" in one.workload.model else one.workload.model
        alone = "" if one.alone_s is None else f"{one.alone_s * 1e3:.0f} ms"
        lines.append(
            f"| {model} | {one.workload.global_batch} | {one.pool} | {one.devices} | {one.stages}"
            f" | {one.estimated_s * 1e3:.0f} ms | {one.iteration_s * 1e3:.0f} ms"
            f" | {one.estimated_s / one.iteration_s - 1:+.1%} | {alone} | {one.start_s:.2f} s |"
        )
    return "\n".join((*lines, ""))


if __name__ == "__main__":
    raise SystemExit(main())
