"""Plans over sites that really run: plans of TPA and plain data parallelism over thin links, measured and estimated.

    python -m bench.clusters.real_runs [--sites four|eight] [--steps 5] [--repeats 3] [--json FILE]

Jobs of 4, 6 and 8 devices are placed on the four sites of `real_sites.yaml`, of 12 and 16 on the eight of SpiderFlow's
testbed (whose links have what two cores carry, see `bench.testbed.rings`), by our default; each runs once as
`planner.many_jobs.sites.tpa` plans it over all sites that it was given, and once with a replica on every device.
Compute is slept as long as the operator model prices it, communication is real (gloo over network namespaces,
`bench.testbed`). Each iteration time stands beside the estimate with link tables measured on the very links, and that
from the cluster file.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from bench.operator_times import operator_times
from bench.testbed.__main__ import scaled
from bench.testbed.cases import CLUSTERS, EIGHT, MODEL, SCALES, SEQ_LEN, load_bench_model, probes_of
from bench.testbed.running import Prepared, Row, estimate, print_rows, run_prepared
from estimator.pricing.layer_times import Lookup
from estimator.pricing.recipe import Recipe, Setup, StageSetup
from models_zoo.model import Model
from planner.many_jobs.sites.choosing import place_on_sites
from planner.many_jobs.sites.records import Demand, SitePlacement
from planner.many_jobs.sites.state import table_of_cluster
from planner.many_jobs.sites.tpa import plan_across
from planner.one_job.explicit.recording import record_plan
from planner.one_job.running.program import program_of
from planner.one_job.search.spaces.constraints import Constraints
from planner.one_job.search.spaces.request import request_on
from planner.shared.plan_file import plan_to_json
from profiles.cluster import Cluster, DeviceSlot
from profiles.cluster_file import load_cluster

SITES = {
    "four": (Path(__file__).with_name("real_sites.yaml"), 1.0, (4, 6, 8)),
    "eight": (CLUSTERS / f"{EIGHT}.yaml", SCALES[EIGHT], (12, 16)),
}
"""Of each choice: its cluster, the scale of the links between its sites, and the demands."""

BATCH = {4: 32, 6: 48, 8: 32, 12: 48, 16: 32}
RECIPE = Recipe(global_batch=32, seq_len=SEQ_LEN, dtype="fp32", schedule="1f1b", overlap=frozenset({"p2p"}))
LIMITS = Constraints(schedules=("1f1b",), zero=(0,), recompute=("none",), offload=False, sequence_parallel=(False,))
"""What sleeping workers can do."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run all, and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", choices=tuple(SITES), default="four", help="how many (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=5, help="iterations of each plan (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="of each probe of a link (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the rows here as well")
    args = parser.parse_args(argv)
    file, scale, demands = SITES[args.sites]
    cluster = scaled(load_cluster(str(file)), scale)
    lookup = operator_times(load_bench_model(), cluster, cluster.sites[0].nodes[0].device)
    rows: list[Row] = []
    print(f"{platform.platform()}, {platform.processor() or platform.machine()}")
    for demand in demands:
        model, slots = load_bench_model(), slots_for(cluster, demand)
        sites = ", ".join(f"{sum(slot.site == name for slot in slots)} at {name}" for name in sites_of(slots))
        print(f"\n{demand} devices: {sites}", flush=True)
        prepared = prepare_both(model, cluster, slots, lookup)
        # One by one: the ranks of the two plans sit on different devices.
        own = [
            row
            for plan in prepared
            for row in run_prepared(file.stem, cluster, [plan], lookup, steps=args.steps, repeats=args.repeats)
        ]
        print_rows(own)
        tpa, replicas = own
        print(
            f"TPA's plan over data parallelism: {replicas.measured_s / tpa.measured_s:.2f} times as fast measured,"
            f" {replicas.tables_s / tpa.tables_s:.2f} estimated"
        )
        rows += own
    print_rows(rows)
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    return 0


def slots_for(cluster: Cluster, devices: int) -> tuple[DeviceSlot, ...]:
    """The devices of the sites that our default chooses, site by site."""
    placement = place_on_sites(table_of_cluster(cluster), Demand(devices=devices))
    assert isinstance(placement, SitePlacement), "the demands fit"
    found: list[DeviceSlot] = []
    for share in placement.sites:
        found += [slot for slot in cluster.free_slots if slot.site == share.site][: share.count]
    return tuple(found)


def sites_of(slots: Sequence[DeviceSlot]) -> tuple[str, ...]:
    """Each site once, in order."""
    return tuple(dict.fromkeys(slot.site for slot in slots))


def prepare_both(model: Model, cluster: Cluster, slots: tuple[DeviceSlot, ...], lookup: Lookup) -> list[Prepared]:
    """TPA's plan over all the sites of `slots`, and a replica on each of them."""
    recipe = replace(RECIPE, global_batch=BATCH[len(slots)])
    request = request_on(model, cluster, recipe, constraints=LIMITS, slots=slots, reference=str(MODEL))
    across = plan_across(request, wanted="all-sites")
    assert across is not None, "it fits"
    whole = StageSetup(chunks=((0, len(model.layers)),), slots=slots, dp=len(slots))
    replicas = Setup(model=model, cluster=cluster, recipe=recipe, stages=(whole,), micro_batch=recipe.global_batch)
    names = ("TPA: " + describe(across.best.setup), f"dp{len(slots)}")
    return [prepare(name, setup, lookup) for name, setup in zip(names, (across.best.setup, replicas), strict=True)]


def describe(setup: Setup) -> str:
    """The stages with their sites: `north dp2 x5 layers`."""
    words = []
    for stage in setup.stages:
        layers = sum(end - first for first, end in stage.chunks)
        degrees = "".join(f" {name}{degree}" for name, degree in (("dp", stage.dp), ("tp", stage.tp)) if degree > 1)
        words.append(f"{'+'.join(sites_of(stage.slots))}{degrees} {layers} layers")
    return f"{' then '.join(words)}, micro-batch {setup.micro_batch}"


def prepare(name: str, setup: Setup, lookup: Lookup) -> Prepared:
    """Ready to run, with the estimate from the cluster file."""
    by_file = estimate(setup, lookup, ())
    plan = record_plan(setup, by_file, reference=str(MODEL), assumptions=())
    program = program_of(plan, setup.model, where=name)
    return Prepared(
        name=name,
        setup=setup,
        program=program,
        plan=plan_to_json(plan),
        by_file=by_file,
        probes=tuple(probes_of(setup, program)),
    )


if __name__ == "__main__":
    raise SystemExit(main())
