"""Two workers really train; what was estimated for them beforehand stands beside it.

    python -m bench.real_runs [--framework torch,jax] [--rounds 3] [--steps 4] [--models gpt-mini,...] [--json FILE]
        [--keep DIR]
    python -m bench.real_runs --again DIR

Each worker is pinned to a core. The estimates come from profiles of single layers on one core, a measured link table
and the measured contention of two busy workers; nothing is fitted on a run. All of it is measured and run `--rounds`
times in turns, and of profiles and iterations alike the least counts; how far the rounds' least iterations lie apart is
the machine's noise, which no estimate can be nearer than. Accuracy is
1 - |Te - Td| / Td (Crius, section 8.3: 93.4% on average and 90.5% at worst). The order of a model's plans is right
where the estimates order every pair that differs by more than 5% as the runs do.

`--keep` leaves in DIR, a new folder, what the estimates rest on (a profile store for each round: rates, contention,
layer times, link tables), the plans, and of each run its estimate and iterations with where their time went
(`runs.json`); `--again` estimates the kept plans anew, as the program now does, and sets them beside the same runs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any, Literal

from estimator.host.cpu import cpu_name
from estimator.pricing.outcome import Evaluation
from planner import api
from planner.one_job.explicit.estimate import estimate_explicit
from planner.one_job.explicit.request import read_explicit
from planner.one_job.running.estimating import estimate_as_run
from planner.one_job.running.program import program_of
from planner.shared.inputs import open_existing
from planner.shared.options.estimate import EstimateOptions
from planner.shared.plan_checks import load_plan_model
from planner.shared.plan_file import load_plan, save_plan
from profiles.errors import InputError, NothingFits
from profiles.store import ProfileStore

MODELS = ("gpt-mini", "bert-mini", "moe-mini", "wide-resnet-mini")
PLANS: dict[str, dict[str, Any]] = {
    "dp2": {"dp": 2},
    "tp2": {"tp": 2},
    "pp2": {"pp": 2},
    "pp2 gpipe": {"pp": 2, "schedule": "gpipe"},
}
GLOBAL_BATCH, MICRO_BATCHES = 16, 4
APART = 0.05
RUNS = "runs.json"
Framework = Literal["torch", "jax"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One plan: seconds estimated before, measured (least iteration) and how far rounds differ."""

    framework: str
    model: str
    plan: str
    estimated_s: float
    measured_s: float
    noise: float

    @property
    def accuracy(self) -> float:
        """As Crius defines it."""
        return 1 - abs(self.estimated_s - self.measured_s) / self.measured_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a plan: its `round`, the seconds estimated for it, those of its iterations, and where both went by
    part (`planner.one_job.running.comparison.Parts`), stage by stage of what was measured."""

    framework: Framework
    model: str
    plan: str
    round: int
    estimated_s: float
    estimated_parts: dict[str, float]
    iteration_times_s: list[float]
    measured_parts: list[dict[str, float]]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", default="torch,jax", help="torch, jax or both (default: %(default)s)")
    parser.add_argument("--models", default=",".join(MODELS), help="zoo models (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each plan is run (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=4, help="measured iterations of a run (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the rows here as well")
    parser.add_argument("--keep", type=Path, help="a new folder for stores, plans and runs")
    parser.add_argument("--again", type=Path, help="such a folder: estimate its plans anew, run nothing")
    args = parser.parse_args(argv)
    print(f"{cpu_name()}, {os.cpu_count()} cores, {platform.platform()}, python {platform.python_version()}; seed 0")
    with ExitStack() as stack:
        if args.again is not None:
            runs = estimate_again(args.again)
        else:
            if args.keep is not None:
                args.keep.mkdir(parents=True)
            folder = args.keep or Path(stack.enter_context(TemporaryDirectory()))
            runs = []
            for framework in args.framework.split(","):
                runs += run_framework(framework, args.models.split(","), args.rounds, args.steps, folder)
                (folder / RUNS).write_text(json.dumps([asdict(run) for run in runs], indent=1) + "\n", encoding="utf-8")
    rows = rows_of(runs)
    print_rows(rows)
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    return 0


def run_framework(framework: Framework, models: Sequence[str], rounds: int, steps: int, folder: Path) -> list[Run]:
    """All plans of all models with one framework. Each round measures links, layers and contention anew before it runs
    the plans: a machine that others share is not the same after ten minutes."""
    runs = []
    for turn in range(rounds):
        store = store_of(folder, framework, turn)
        # The rates of this machine, which `local` is described by; the budget allows no layer, which is said so.
        with suppress(NothingFits):
            api.profile("gpt-tiny", framework=framework, dtype="fp32", budget=1e-3, store=store)
        backend: Literal["gloo", "xla"] = "xla" if framework == "jax" else "gloo"
        api.comm_measure(backend=backend, ranks=(2,), busy=True, timeout=1200.0, store=store)
        for model in models:
            for name in PLANS:
                result = run_plan(write_plan(model, name, folder, store), framework, steps, store)
                run = Run(
                    framework=framework,
                    model=model,
                    plan=name,
                    round=turn,
                    estimated_s=result["estimated"]["iteration_time_s"],
                    estimated_parts=result["estimated"]["breakdown"],
                    iteration_times_s=result["measured"]["iteration_times_s"],
                    measured_parts=[stage["breakdown"] for stage in result["measured"]["stages"]],
                )
                runs.append(run)
                print(f"{framework} {model} {name}: {min(run.iteration_times_s) * 1e3:.1f} ms", flush=True)
    return runs


def estimate_again(folder: Path) -> list[Run]:
    """The runs that were kept in `folder`, with the estimates that the program makes now of what was measured then."""
    runs = []
    for kept in json.loads((folder / RUNS).read_text(encoding="utf-8")):
        run = Run(**kept)
        path = plan_path(run.model, run.plan, folder)
        plan = load_plan(path)
        program = program_of(plan, load_plan_model(plan, where=str(path)), where=str(path))
        with ProfileStore(store_of(folder, run.framework, run.round)) as store:
            _, evaluation = estimate_as_run(plan, program, store, where=str(path), framework=run.framework)
        if not isinstance(evaluation, Evaluation):
            raise InputError(where=str(path), found=evaluation.reason, expected="a plan that was run")
        runs.append(replace(run, estimated_s=evaluation.iteration_time_s))
    return runs


def rows_of(runs: Sequence[Run]) -> list[Row]:
    """A row for each plan: of estimates and iterations of all rounds the least."""
    of_plan: defaultdict[tuple[str, str, str], list[Run]] = defaultdict(list)
    for run in runs:
        of_plan[run.framework, run.model, run.plan].append(run)
    rows = []
    for (framework, model, plan), alike in of_plan.items():
        measured = [min(run.iteration_times_s) for run in alike]
        rows.append(
            Row(
                framework=framework,
                model=model,
                plan=plan,
                estimated_s=min(run.estimated_s for run in alike),
                measured_s=min(measured),
                noise=max(measured) / min(measured) - 1,
            )
        )
    return rows


def store_of(folder: Path, framework: str, turn: int) -> Path:
    """The profile store of a round."""
    return folder / f"{framework}.{turn}.sqlite"


def plan_path(model: str, name: str, folder: Path) -> Path:
    """The file of a plan."""
    return folder / f"{model}.{name.replace(' ', '-')}.json"


def write_plan(model: str, name: str, folder: Path, store: Path) -> Path:
    """The plan file of one explicit plan on two workers of this machine, whose rates `store` has."""
    path = plan_path(model, name, folder)
    options: dict[str, Any] = {
        "dtype": "fp32",
        "global_batch": GLOBAL_BATCH,
        "micro_batches": MICRO_BATCHES,
        "recompute": "none",
        **PLANS[name],
    }
    if name == "tp2" and model.startswith("moe"):
        options |= {"ep": 2, "etp": 1, "moe_capacity": 1.0}
    elif model.startswith("moe"):
        options |= {"moe_capacity": 1.0}
    return save_stated(model, path, store, **options)


def save_stated(model: str, path: Path, store: Path, **options: Any) -> Path:
    """Write the plan that the options state to a file: stages of as many layers, and no choice that is left to a
    search, so that it stays what was run before."""
    given = EstimateOptions(model, cluster="local:1x2", store=store, **options)
    with open_existing(store) as opened:
        save_plan(estimate_explicit(read_explicit(given, store=opened)).plan, path)
    return path


def run_plan(path: Path, framework: Framework, steps: int, store: Path) -> dict[str, Any]:
    """Measured and estimated, as `cellplan run --profile` gives them."""
    found = api.run(path, backend=framework, device="cpu", steps=steps, warm_up=1, profile=True, store=store)
    assert found is not None, "no launcher started this"
    return found


def print_rows(rows: Sequence[Row]) -> None:
    """The table, accuracies in sum, and pairs of plans in the wrong order."""
    print("\n| framework | model | plan | estimated | measured | accuracy | noise |")
    print("| :-- | :-- | :-- | --: | --: | --: | --: |")
    for row in rows:
        print(
            f"| {row.framework} | {row.model} | {row.plan} | {row.estimated_s * 1e3:.1f} ms"
            f" | {row.measured_s * 1e3:.1f} ms | {row.accuracy:.1%} | {row.noise:.1%} |"
        )
    for framework in dict.fromkeys(row.framework for row in rows):
        own = [row for row in rows if row.framework == framework]
        wrong, compared = order_of_plans(own)
        print(
            f"{framework}: accuracy {mean(row.accuracy for row in own):.1%} on average,"
            f" {min(row.accuracy for row in own):.1%} at worst (Crius 93.4%, 90.5%);"
            f" {compared - len(wrong)} of {compared} pairs of plans in the right order"
        )
        for one, other in wrong:
            print(f"  wrong order: {one.model} {one.plan} and {other.plan}")


def order_of_plans(rows: Sequence[Row]) -> tuple[list[tuple[Row, Row]], int]:
    """Pairs of a model's plans that differ by more than `APART` and are estimated in the other order; and all such."""
    wrong, compared = [], 0
    for one, other in combinations(rows, 2):
        fast, slow = sorted((one, other), key=lambda row: row.measured_s)
        if one.model != other.model or slow.measured_s <= (1 + APART) * fast.measured_s:
            continue
        compared += 1
        if fast.estimated_s >= slow.estimated_s:
            wrong.append((fast, slow))
    return wrong, compared


if __name__ == "__main__":
    raise SystemExit(main())
