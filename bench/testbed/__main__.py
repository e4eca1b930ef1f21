"""Whole plans on an emulated cluster, measured against estimated: 4 to 16 workers on this machine.

Compute is slept, as long as a profile says; communication is real (gloo), over network namespaces whose links have the
rates and latencies of a cluster file, the same that the planner reads. Each iteration time stands beside two estimates:
with link tables measured on the very links (`tables`), and from the cluster file's own numbers alone (`file`).

    python -m bench.testbed [--profile FILE] [--scale S] [--steps 7] [--cluster NAME] [--json FILE]

Namespaces need root, iproute2 and a kernel that allows them; without, workers are on the plain loopback device, which
is said, and only the tables' estimate means something. The profile is measured where the file is missing.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.testbed.cases import (
    CLUSTERS,
    DEFAULT_SCALE,
    MODEL,
    SCALES,
    Case,
    cases,
    load_bench_model,
    make_setup,
    probes_of,
)
from bench.testbed.running import Prepared, Row, estimate, print_rows, run_prepared
from estimator.pricing.layer_times import Lookup
from estimator.pricing.recipe import Setup
from estimator.profiling.lookup import to_layer_time
from models_zoo.layers import Layer
from planner.one_job.explicit.recording import record_plan
from planner.one_job.running.program import program_of
from planner.shared.plan_file import plan_to_json
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster
from profiles.files import read_text
from profiles.measurements import Profile, canonical
from profiles.profile_file import parse_profile_set
from profiles.store import ProfileStore, export_profiles
from profiles.vocabulary import LayerTime, Shard

PROFILE = Path(__file__).with_name("profile.json")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--profile", type=Path, default=PROFILE, help="profile file of the layers (default: beside this)"
    )
    parser.add_argument("--scale", type=float, help="of all links' rates (default: what two cores carry, see SCALES)")
    parser.add_argument("--steps", type=int, default=7, help="iterations of each plan (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="of each probe of a link (default: %(default)s)")
    parser.add_argument("--cluster", help="only this one of clusters/")
    parser.add_argument("--case", help="only the case of this name")
    parser.add_argument("--json", type=Path, help="write the rows here as well")
    args = parser.parse_args(argv)
    chosen = [case for case in cases() if args.cluster in (None, case.cluster) and args.case in (None, case.name)]
    lookup = load_lookup(args.profile, chosen)
    print(f"{platform.platform()}, {platform.processor() or platform.machine()}")
    rows: list[Row] = []
    for name in dict.fromkeys(case.cluster for case in chosen):
        own = [case for case in chosen if case.cluster == name]
        scale = SCALES.get(name, DEFAULT_SCALE) if args.scale is None else args.scale
        print(f"{name}: rates scaled by {scale:g}")
        found = run_cluster(name, own, lookup, scale=scale, steps=args.steps, repeats=args.repeats)
        print_rows(found)
        rows += found
    if rows != found:
        print_rows(rows)
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    return 0


def run_cluster(name: str, own: Sequence[Case], lookup: Lookup, *, scale: float, steps: int, repeats: int) -> list[Row]:
    """All cases of one cluster."""
    cluster = scaled(load_cluster(str(CLUSTERS / f"{name}.yaml")), scale)
    prepared = [prepare(case, cluster, lookup) for case in own]
    return run_prepared(name, cluster, prepared, lookup, steps=steps, repeats=repeats)


def prepare(case: Case, cluster: Cluster, lookup: Lookup) -> Prepared:
    """The case ready to run; SystemExit where it cannot be estimated."""
    return prepare_setup(case.name, make_setup(case, load_bench_model(), cluster), lookup)


def prepare_setup(name: str, setup: Setup, lookup: Lookup) -> Prepared:
    """A plan of the bench's model ready to run; SystemExit where it cannot be estimated."""
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


def scaled(cluster: Cluster, scale: float) -> Cluster:
    """The cluster with the links between its sites so many times as fast."""
    links = tuple(
        replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * scale) for link in cluster.site_links
    )
    return replace(cluster, site_links=links)


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


if __name__ == "__main__":
    raise SystemExit(main())
