"""How fast the best plan is found, how the time grows, and how the chosen plan does beside published ones.

    python -m bench.planning [--repeats 3] [--quick] [--only NAME] [--baseline CHECKOUT] [--baseline-limit 60]
                             [--data DIR] [--json FILE]

The first table times whole commands (CPU seconds of the process, its peak memory), from modules that are compiled
before, as an installed package's are, whatever the environment says; the second how the search grows with
layers and devices; the third how many plans a second are priced in bulk beside one by one, in the same process; the
fourth a scheduler's warm calls. With the published runs in DIR, the fifth puts the plan that the search chooses beside
the fastest published one of the same model, devices and batch: our estimate of both, and what was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from bench.planning.checkouts import Checkout, Least, compiled, in_turn
from estimator.bulk.records import BatchedDegrees, Family
from estimator.host.cpu import cpu_name
from estimator.pricing.evaluate import evaluate
from models_zoo.catalogue import load_model
from planner.one_job.search.best import setup_of
from planner.one_job.search.exact import search
from planner.one_job.search.spaces.cuts import cuts_of
from planner.one_job.search.spaces.found import Found
from planner.one_job.search.spaces.request import DeviceSpace, SearchRequest, read_search
from planner.one_job.search.spaces.space import recompute_rules, schedules_of, state_rules, ways_of
from planner.shared.options.search import SearchOptions
from profiles.vocabulary import Infeasible

MOE = Path(__file__).with_name("moe-10t") / "config.json"
COMMANDS: tuple[tuple[str, tuple[str, ...], float], ...] = (
    ("llama3-8b on 64 H100", ("llama3-8b", "--cluster", "h100:8x8"), 0.5),
    ("gpt3-175b on 1,024 A100", ("gpt3-175b", "--cluster", "a100-80gb:128x8"), 1.0),
    ("llama3-405b on 16,384 H100", ("llama3-405b", "--cluster", "h100:2048x8"), 3.0),
    ("qwen3-30b-a3b on 32 H100", ("qwen3-30b-a3b", "--cluster", "h100:4x8"), 2.0),
    ("llama3-8b on 16 H100 and 16 A100", ("llama3-8b", "--cluster", "h100:2x8+a100-80gb:2x8"), 1.5),
    ("deepseek-v3 on 256 H100", ("deepseek-v3", "--cluster", "h100:32x8"), 5.0),
    ("deepseek-v3 on 2,048 H100", ("deepseek-v3", "--cluster", "h100:256x8"), 5.0),
    ("MoE of 10T on 131,072 H100", (str(MOE), "--cluster", "h100:16384x8", "--global-batch", "16384"), 20.0),
)
"""A command and its target in CPU seconds."""
QUICK = 5
"""So many of them are quick."""
EXPLAINED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("explain llama3-8b on 64 H100", ("llama3-8b", "--cluster", "h100:8x8")),
    ("explain opt-6.7b on 8 A100 of 40 GB", ("opt-6.7b", "--cluster", "a100-40gb:2x4", "--global-batch", "64")),
    ("explain llama3-70b on 128 H100", ("llama3-70b", "--cluster", "h100:16x8")),
)
STARTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("help", ("--help",)),
    ("one plan of llama3-8b", ("estimate", "llama3-8b", "--cluster", "h100:8x8", "--tp", "8", "--json")),
    ("Cells of llama3-8b", ("estimate", "llama3-8b", "--cluster", "h100:8x8", "--json")),
    ("models", ("models", "list", "--json")),
)
"""What is hardly more than starting."""
MOST_TIMES = 8.0
"""A plan that is explained takes at most so many times as long."""
OTHERS = "llm-analysis 760, Calculon 20-120, SimuMax 2-8 plans a second, by their own accounts"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="bench.planning", description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="leave the largest commands out")
    parser.add_argument("--baseline", type=Path, help="a checkout whose commands are timed in turn with these")
    parser.add_argument(
        "--baseline-limit", type=int, default=60, help="CPU seconds after which the other checkout's command is ended"
    )
    parser.add_argument("--only", default="", help="of the commands those whose name holds this, and nothing else")
    parser.add_argument("--data", type=Path, help="the folder of the published runs")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    print(f"{cpu_name()}, {os.cpu_count()} cores, {platform.platform()}, python {platform.python_version()}")
    rows: dict[str, Any] = {}
    chosen = [command for command in COMMANDS[: QUICK if arguments.quick else None] if arguments.only in command[0]]
    whole = not arguments.only or "explain" in arguments.only
    explained = [command for command in EXPLAINED if whole and arguments.only in command[0]]
    starts = not arguments.only or "start" in arguments.only
    if chosen or explained or starts:
        with compiled() as ours, _baseline(arguments.baseline, arguments.baseline_limit) as theirs:
            if chosen:
                rows["commands"] = time_commands(chosen, arguments.repeats, ours, theirs)
            if explained:
                rows["explained"] = explain(explained, arguments.repeats, ours, theirs)
            if starts:
                rows["starts"] = time_starts(arguments.repeats, ours, theirs)
    if arguments.only:
        return 0
    rows["growth"] = grow(arguments.repeats)
    rows["bulk"] = price_in_bulk(arguments.repeats)
    rows["warm"] = ask_warm()
    if arguments.data is not None:
        from bench.planning.published import compare_with_published

        rows["published"] = compare_with_published(arguments.data)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


def _baseline(tree: Path | None, most_s: int) -> AbstractContextManager[Checkout | None]:
    return nullcontext() if tree is None else compiled(tree, most_s=most_s)


def time_commands(
    commands: Sequence[tuple[str, tuple[str, ...], float]], repeats: int, ours: Checkout, theirs: Checkout | None
) -> list[dict[str, Any]]:
    """CPU seconds and peak memory of whole commands, the least of several; those of a baseline in turn with them."""
    print(f"\nwhole command, least of {repeats}\n")
    print("| command | CPU | baseline | target | peak memory | plans covered | ways to share | iteration |")
    print("| :-- | --: | --: | --: | --: | --: | --: | --: |")
    rows = []
    for name, words, target_s in commands:
        own, before = in_turn(ours, theirs, ("plan", *words, "--json"), repeats)
        assert own.last is not None
        plan = json.loads(own.last.text)
        ways = len(ways_of(read(*words).spaces[0].space))
        covered = plan["provenance"]["search_space_size"]
        iteration = plan["estimate"]["iteration_time_s"]
        print(
            f"| {name} | {own} | {before or '-'} | {target_s:.1f} s | {own.peak_bytes / 2**20:.0f} MiB | {covered:,} |"
            f" {ways:,} | {iteration:.3f} s |",
            flush=True,
        )
        row = {"name": name, "cpu_s": own.best_s, "target_s": target_s, "peak_bytes": own.peak_bytes, "plans": covered}
        rows.append(row | _of_baseline(before))
    return rows


def explain(
    commands: Sequence[tuple[str, tuple[str, ...]]], repeats: int, ours: Checkout, theirs: Checkout | None
) -> list[dict[str, Any]]:
    """CPU seconds of plans alone and with `--explain`, in turn; those of a baseline in turn with them."""
    print(f"\nexplained, least of {repeats}; at most {MOST_TIMES:.0f} times the plan alone\n")
    print("| command | alone | explained | times | baseline explained |")
    print("| :-- | --: | --: | --: | --: |")
    rows = []
    for name, words in commands:
        alone = Least(ours, ("plan", *words, "--json"))
        explained = Least(ours, ("plan", *words, "--json", "--explain"))
        before = None if theirs is None else Least(theirs, explained.words)
        for _ in range(repeats):
            for each in (alone, explained, before):
                if each is not None:
                    each.turn()
        times = explained.best_s / alone.best_s
        print(f"| {name} | {alone} | {explained} | {times:.1f} | {before or '-'} |", flush=True)
        row = {"name": name, "alone_cpu_s": alone.best_s, "explained_cpu_s": explained.best_s}
        rows.append(row | _of_baseline(before))
    return rows


def time_starts(repeats: int, ours: Checkout, theirs: Checkout | None) -> list[dict[str, Any]]:
    """CPU seconds of commands that hardly compute."""
    print(f"\nstarts, least of {repeats}\n")
    print("| command | CPU | baseline |")
    print("| :-- | --: | --: |")
    rows = []
    for name, words in STARTS:
        own, before = in_turn(ours, theirs, words, repeats)
        print(f"| {name} | {own} | {before or '-'} |", flush=True)
        rows.append({"name": name, "cpu_s": own.best_s} | _of_baseline(before))
    return rows


def _of_baseline(before: Least | None) -> dict[str, Any]:
    """What a row keeps of it; nothing where it was ended."""
    return {} if before is None or before.ended else {"baseline_cpu_s": before.best_s}


def read(model: str, *words: str) -> SearchRequest:
    """The search behind the words of a command."""
    cluster = words[words.index("--cluster") + 1]
    batch = int(words[words.index("--global-batch") + 1]) if "--global-batch" in words else None
    return read_search(SearchOptions(model, cluster=cluster, global_batch=batch), store=None)


def grow(repeats: int) -> list[dict[str, Any]]:
    """CPU seconds of the search alone by layers and by devices."""
    print("\nthe search alone (Llama-3 8B's blocks, batch 1,024), least CPU seconds\n")
    print("| layers | devices | CPU | ways | best plan |")
    print("| --: | --: | --: | --: | :-- |")
    llama, found = load_model("llama3-8b"), []
    sizes = [(layers, 256) for layers in (16, 32, 64, 128, 256)]
    sizes += [(32, devices) for devices in (64, 256, 1024, 4096, 16384, 65536)]
    for layers, devices in sizes:
        inner = llama.layers[1:-1]
        model = replace(
            llama,
            layers=(llama.layers[0], *(inner[0] for _ in range(layers)), llama.layers[-1]),
            layer_names=tuple(f"layer {number}" for number in range(layers + 2)),
        )
        options = SearchOptions("llama3-8b", cluster=f"h100:{devices // 8}x8", global_batch=1024)
        took, result = [], None
        for _ in range(repeats):
            request = read_search(options, store=None, model=model)
            own = request.spaces[0]
            start = time.process_time()
            result = search(own.space, own.evaluator)
            took.append(time.process_time() - start)
        assert result is not None
        assert result.best is not None
        degrees = result.best.degrees
        print(
            f"| {layers} | {devices:,} | {min(took):.2f} s | {result.counts.ways:,} | tp {degrees.tp}, pp {degrees.pp},"
            f" dp {degrees.dp}, cp {degrees.cp} |",
            flush=True,
        )
        found.append({"layers": layers, "devices": devices, "cpu_s": min(took), "ways": result.counts.ways})
    return found


def price_in_bulk(repeats: int) -> dict[str, Any]:
    """Plans a second, in bulk and one by one: GPT-3's families at tp 8 and several pipelines, and Llama-3 8B's with all
    contiguous cuts of four stages, whose arrays are long."""
    own = read("gpt3-175b", "--cluster", "a100-80gb:128x8").spaces[0]
    pipelines = [
        (degrees, pipeline)
        for degrees in (
            BatchedDegrees(tp=8, pp=pp, dp=dp, samples=samples, sequence_parallel=True)
            for pp, dp, samples in ((4, 32, 1), (8, 16, 1), (8, 16, 2), (16, 8, 1), (16, 4, 4))
        )
        if not isinstance(
            pipeline := own.evaluator.pipeline(degrees, own.evaluator.placement(1, own.space.slots)), Infeasible
        )
    ]
    families = [(pipeline, family) for degrees, pipeline in pipelines for family in families_of(own, degrees)]
    plans = sum(family.plans for _, family in families)

    def bulk() -> None:
        for pipeline, family in families:
            pipeline.price(family)

    bulk()
    bulk_s = fastest_s(bulk, repeats)
    found = search(own.space, own.evaluator).best
    assert isinstance(found, Found)
    setup = setup_of(found, own)
    one_s = fastest_s(lambda: evaluate(setup), max(5, repeats))
    print(f"\n{plans:,} plans of {len(families)} families priced in bulk: {plans / bulk_s:,.0f} a second")
    print(
        f"one by one (a warm evaluation of the best plan): {1 / one_s:,.0f} a second,"
        f" {plans * one_s / bulk_s:,.0f} times fewer"
    )
    print(f"others: {OTHERS}")
    large = read("llama3-8b", "--cluster", "h100:8x8").spaces[0]
    degrees = BatchedDegrees(tp=2, pp=4, dp=8, samples=1, sequence_parallel=True)
    pipeline = large.evaluator.pipeline(degrees, large.evaluator.placement(1, large.space.slots))
    assert not isinstance(pipeline, Infeasible)
    every = cuts_of(large.space.model, pp=4, vpp=1, weights=pipeline.layer_s(), everything=True)
    family = Family(
        schedule="1f1b", cuts=every, recompute=recompute_rules(large.space, 9), states=state_rules(large.space, degrees)
    )
    whole_s = fastest_s(lambda: pipeline.price(family), repeats)
    print(f"one family with all {len(every):,} cuts, {family.plans:,} plans: {family.plans / whole_s:,.0f} a second")
    return {"plans": plans, "plans_per_s": plans / bulk_s, "one_by_one_per_s": 1 / one_s}


def families_of(own: DeviceSpace, degrees: BatchedDegrees) -> list[Family]:
    """All families of the space under these degrees."""
    pipeline = own.evaluator.pipeline(degrees, own.evaluator.placement(1, own.space.slots))
    assert not isinstance(pipeline, Infeasible)
    layers = own.evaluator.layers
    found = []
    for schedule, vpp in schedules_of(own.space, degrees):
        cuts = cuts_of(own.space.model, pp=degrees.pp, vpp=vpp, weights=pipeline.layer_s())
        blocks = max(sum(layers.recomputable(*part) for part in stage) for cut in cuts for stage in cut)
        found.append(
            Family(
                schedule=schedule,
                cuts=cuts,
                recompute=recompute_rules(own.space, blocks),
                states=state_rules(own.space, degrees),
            )
        )
    return found


def ask_warm() -> dict[str, Any]:
    """What a scheduler asks in one process: the best plan of each Cell (devices, stages) of a model."""
    own = read("llama3-8b", "--cluster", "h100:8x8").spaces[0]
    took: list[float] = []
    for _ in range(2):
        took = []
        for devices in (1, 2, 4, 8, 16, 32, 64):
            for stages in (1, 2, 4, 8):
                if stages > devices:
                    continue
                limits = replace(own.space.constraints, fix={"pp": stages, "devices": devices})
                start = time.process_time()
                search(replace(own.space, constraints=limits), own.evaluator)
                took.append(time.process_time() - start)
    print(
        f"\nwarm: the best plan of a Cell, {len(took)} of them: median {median(took) * 1e3:.1f} ms,"
        f" most {max(took) * 1e3:.1f} ms"
    )
    return {"cells": len(took), "median_s": median(took), "most_s": max(took)}


def fastest_s(call: Callable[[], object], repeats: int) -> float:
    """Least CPU seconds of `repeats` calls."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        seconds.append(time.process_time() - start)
    return min(seconds)


if __name__ == "__main__":
    sys.exit(main())
