"""The plan that the search chooses beside the fastest published one of the same model, devices, batch and software."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.accuracy.adapters.published import prepare, read_published
from estimator.bulk.evaluator import BulkEvaluator
from estimator.pricing.evaluate import evaluate
from estimator.pricing.pricing import Pricing
from estimator.pricing.recipe import Setup
from planner.one_job.search.exact import search
from planner.one_job.search.spaces.constraints import Constraints
from planner.one_job.search.spaces.space import Space
from planner.one_job.validation.columns import RunRow
from planner.one_job.validation.measured import measured_time_s
from planner.one_job.validation.prepared import PreparedRun
from planner.one_job.validation.run import predict_row

FEWEST_PLANS = 4
FEWEST_DEVICES = 8


def compare_with_published(data: Path) -> list[dict[str, Any]]:
    """A line for each group of published plans of one training; its fastest measured plan against the chosen one."""
    print(
        f"\nchosen and published plans, groups of {FEWEST_PLANS} plans and more on {FEWEST_DEVICES} devices and more\n"
    )
    names = ("source", "model", "devices", "batch", "plans", "fastest published", "measured", "estimated", "chosen")
    print(f"| {' | '.join((*names, 'estimated', 'ratio'))} |")
    print("| :-- | :-- | :-- | --: | --: | :-- | --: | --: | :-- | --: | --: |")
    groups: defaultdict[tuple[object, ...], list[tuple[RunRow, Setup, float, float]]] = defaultdict(list)
    for row in (run.explicit for run in read_published(data / "train_runs.csv")):
        plan = prepare(row)
        if not isinstance(plan, PreparedRun) or plan.setup.devices < FEWEST_DEVICES:
            continue
        measured_s = measured_time_s(row, plan.setup)
        if measured_s is None or row.out_of_memory:
            continue
        result = predict_row(row, prepare=lambda _, plan=plan: plan, evaluate=evaluate)  # type: ignore[misc]
        if result.estimated_iteration_time_s is None:
            continue
        key = (row.source, *result.configuration)
        groups[key].append((row, plan.setup, measured_s, result.estimated_iteration_time_s))
    compared = [_compare(rows) for rows in groups.values() if len(rows) >= FEWEST_PLANS]
    ratios = [line["ratio"] for line in compared if line["ratio"] is not None]
    if ratios:
        better = sum(ratio <= 1 + 1e-9 for ratio in ratios)
        print(f"\nby our estimates no slower than the fastest published plan in {better} of {len(ratios)} groups")
    return compared


def _compare(rows: list[tuple[RunRow, Setup, float, float]]) -> dict[str, Any]:
    row, setup, measured_s, estimated_s = min(rows, key=lambda run: run[2])
    recipe, cluster = setup.recipe, setup.cluster
    evaluator = BulkEvaluator(
        model=setup.model,
        cluster=cluster,
        recipe=replace(recipe, schedule="1f1b"),
        pricing=Pricing(),
        overlap_under=lambda zero: recipe.overlap | {"dp"} if zero == 3 else recipe.overlap,
    )
    group = cluster.group_of(setup.stages[0].slots[0])
    space = Space(
        model=setup.model,
        slots=cluster.free_slots,
        island=min(group.island_size, group.devices),
        node=group.devices,
        global_batch=recipe.global_batch,
        seq_len=recipe.seq_len,
        dtype=recipe.dtype,
        constraints=Constraints(most={"devices": setup.devices}, offload=False, sequence_parallel=(True, False)),
    )
    best = search(space, evaluator).best
    chosen, chosen_s, ratio = "nothing fits", None, None
    if best is not None:
        degrees, chosen_s = best.degrees, best.iteration_time_s
        ratio = chosen_s / estimated_s
        chosen = (
            f"tp{degrees.tp} pp{degrees.pp} dp{degrees.dp} cp{degrees.cp} mb{degrees.samples} zero{best.state.zero}"
        )
        chosen += f" vpp{len(best.cut[0])}" if len(best.cut[0]) > 1 else ""
    stage = setup.stages[0]
    published = f"tp{stage.tp} pp{len(setup.stages)} dp{stage.dp} cp{stage.cp} mb{setup.micro_batch // stage.dp}"
    published += f" zero{stage.zero}" + (f" vpp{len(stage.chunks)}" if len(stage.chunks) > 1 else "")
    print(
        f"| {row.source} | {setup.model.name} | {setup.devices} x {group.device.name} | {recipe.global_batch} |"
        f" {len(rows)} | {published} | {measured_s:.3g} s | {estimated_s:.3g} s | {chosen} |"
        f" {'-' if chosen_s is None else f'{chosen_s:.3g} s'} | {'-' if ratio is None else f'{ratio:.2f}'} |",
        flush=True,
    )
    return {
        "source": row.source,
        "fastest_published": row.id,
        "measured_s": measured_s,
        "estimated_s": estimated_s,
        "chosen": chosen,
        "chosen_estimated_s": chosen_s,
        "ratio": ratio,
    }
