"""What profiling a Cell takes, beside running it for real: device-seconds, by device count.

A Cell's two plans (data-parallel only and tensor-parallel only, Crius section 5.1) are profiled on one core: each
distinct layer's shards, forward, backward and optimizer. Then both plans really train on all of the Cell's workers.
Warm-ups and repeats are the same on both sides. A device-second is a second of a CPU's computing (process time, of all
threads): it does not matter that workers share two cores, and what they wait for each other is not even counted.
Starting processes, building models and the framework's own start-up are on neither side.

    python -m bench.profile_cost [--model gpt-tiny] [--repeats 3] [--cells 2x1,4x1,4x2,8x2]

Crius (section 8.3) profiles with 18.1 times fewer GPU-seconds on average and 2.55 times at least; ours:
RESULTS_profile_cost.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import mean

from estimator.host.cpu import cpu_name
from estimator.pricing.evaluate import evaluate
from estimator.pricing.recipe import Recipe, Setup, StageSetup
from estimator.profiling.measure_torch import measure_layer, start_torch
from estimator.profiling.plan import ProfileTask
from estimator.profiling.rates_torch import measure_rates
from estimator.profiling.setting import Repeats, Setting
from models_zoo.catalogue import load_model
from models_zoo.model import Model
from planner.one_job.explicit.recording import record_plan
from planner.one_job.running.launch import run_here
from planner.one_job.running.program import Program, program_of
from planner.one_job.running.record import Orders
from planner.shared.plan_file import plan_to_json
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster
from profiles.measurements import device_from_rates
from profiles.vocabulary import Infeasible

WARM_UPS = 1
MICRO_BATCHES_A_STAGE = 4
"""As Crius has it (section 4.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Device-seconds of one Cell: profiled on one device, and run on all."""

    devices: int
    stages: int
    shards: int
    profiled_s: float
    run_s: float

    @property
    def ratio(self) -> float:
        """How many times cheaper the profile is."""
        return self.run_s / self.profiled_s


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt-tiny", help="zoo model (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="on either side (default: %(default)s)")
    parser.add_argument("--cells", default="2x1,4x1,4x2,8x2", help="DEVICESxSTAGES (default: %(default)s)")
    args = parser.parse_args(argv)
    model = load_model(args.model)
    setting = Setting(repeats=Repeats(warm_up=WARM_UPS, least=args.repeats, most=args.repeats, least_s=0.0))
    start_torch(setting)
    rates = device_from_rates(measure_rates(setting, "fp32"))
    rows = []
    for cell in args.cells.split(","):
        devices, stages = map(int, cell.split("x"))
        cluster = load_cluster(f"local:1x{devices}", local_device=lambda: rates)
        rows.append(compare(model, cluster, devices, stages, setting, args.repeats))
        print(f"{rows[-1]}", flush=True)
    print(f"\n{cpu_name()}, {os.cpu_count()} cores, {platform.platform()}; {args.model} in fp32, seed 0")
    print("\n| devices | stages | shards profiled | profiled | run | ratio |\n| --: | --: | --: | --: | --: | --: |")
    for row in rows:
        print(
            f"| {row.devices} | {row.stages} | {row.shards} | {row.profiled_s:.2f} device-s | {row.run_s:.2f} device-s"
            f" | {row.ratio:.1f} |"
        )
    ratios = [row.ratio for row in rows]
    print(f"\n{mean(ratios):.1f} times fewer device-seconds on average, {min(ratios):.1f} at least (Crius 18.1, 2.55)")
    return 0


def compare(model: Model, cluster: Cluster, devices: int, stages: int, setting: Setting, repeats: int) -> Row:
    """One Cell's two plans, profiled and run."""
    programs = [make_program(model, cluster, devices, stages, split=split) for split in (False, True)]
    shards = {
        (program.model.layers[index], program.shard(stage, 0)): None
        for program, _ in programs
        for stage in program.stages
        for index in stage.layer_indices()
    }
    start_s = time.process_time()
    for layer, shard in shards:
        found = measure_layer(ProfileTask(layer=layer, shard=shard, name="", multiplicity=1), setting)
        if isinstance(found, Infeasible):
            raise SystemExit(found.reason)
    profiled_s = time.process_time() - start_s
    run_s = 0.0
    for program, plan in programs:
        record = run_here(program, replace(ORDERS, plan=plan, steps=repeats), pins=False)
        run_s += sum(rank.cpu_seconds or 0.0 for ranks in record.iterations for rank in ranks)
    return Row(devices=devices, stages=stages, shards=len(shards), profiled_s=profiled_s, run_s=run_s)


ORDERS = Orders(
    plan="",
    steps=1,
    warm_ups=WARM_UPS,
    seed=0,
    learning_rate=1e-3,
    backend="gloo",
    timeout_s=300.0,
    threads=1,
    data=None,
    data_dtype="uint16",
)


def make_program(model: Model, cluster: Cluster, devices: int, stages: int, *, split: bool) -> tuple[Program, str]:
    """The plan whose stages are all data-parallel, or all tensor-parallel: one sample a replica."""
    each, layers = devices // stages, len(model.layers)
    bounds = [layers * number // stages for number in range(stages + 1)]
    setup = Setup(
        model=model,
        cluster=cluster,
        recipe=Recipe(
            global_batch=each * MICRO_BATCHES_A_STAGE * stages, seq_len=model.seq_len, dtype="fp32", grad_dtype="fp32"
        ),
        stages=tuple(
            StageSetup(
                chunks=((first, end),),
                slots=cluster.slots[number * each : (number + 1) * each],
                dp=1 if split else each,
                tp=each if split else 1,
            )
            for number, (first, end) in enumerate(pairwise(bounds))
        ),
        micro_batch=each,
    )
    evaluation = evaluate(setup)
    if isinstance(evaluation, Infeasible):
        raise SystemExit(evaluation.reason)
    plan = record_plan(setup, evaluation, reference=model.name, assumptions=())
    return program_of(plan, model, where="plan"), plan_to_json(plan)


if __name__ == "__main__":
    raise SystemExit(main())
