"""Checks exported plans with the tools that read them: python -m bench.exports --torchtitan PYTHON --bridge PYTHON ...

Each tool is named by the Python of an environment that has it (RESULTS.md says what it needs); what is not named is not
checked. Every plan of `plans.py` is exported, or refused with a key; what is exported is read by the tool's own code,
and what that says it understood must be what the plan says.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.exports.facts import differences
from bench.exports.plans import make_plans
from planner.one_job.exporting.exporting import write_export
from planner.one_job.exporting.formats import load_exporter
from planner.one_job.exporting.runners import FINE_TUNERS
from planner.one_job.tools.base.export_records import CannotExpress, ExportContext
from planner.shared.plan import Plan

ROOT = Path(__file__).resolve().parents[2]

TOOLS = {
    "megatron": "check_megatron",
    "bridge": "check_bridge",
    "torchtitan": "check_torchtitan",
    "torchtitan-toml": "check_torchtitan_toml",
    "deepspeed": "check_deepspeed",
    "accelerate": "check_accelerate",
    "maxtext": "check_maxtext",
    "llama-factory": "check_llama_factory",
    "axolotl": "check_axolotl",
    "peft": "check_peft",
    "torchtune": "check_torchtune",
}
"""Formats, and the module that runs in the tool's environment."""


def check(tool: str, python: str, plans: list[tuple[str, Plan]], folder: Path) -> Iterator[tuple[str, str, str, Any]]:
    """For each plan its name; refused, checked or wrong; why; and what the tool said."""
    tasks: list[tuple[str, Plan, dict[str, Any]]] = []
    for number, (name, plan) in enumerate(plans):
        try:
            export = load_exporter(tool)(plan, ExportContext())
        except CannotExpress as refusal:
            yield name, "refused", refusal.key, {}
            continue
        place = folder / f"{tool}-{number}"
        place.mkdir()
        write_export(export, place)
        task = {"folder": str(place), "world": len(plan.devices), "dp": plan.stages[0].dp}
        tasks.append((name, plan, task))
    lines = "".join(json.dumps(task) + "\n" for _, _, task in tasks)
    words = [python, "-m", "bench.exports.reader", TOOLS[tool]]
    own = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, input=lines, capture_output=True, text=True, cwd=folder, env=own, check=False)
    answers = done.stdout.splitlines()
    if len(answers) != len(tasks):
        sys.exit(f"{tool}: {done.stderr.strip()[-2000:]}")
    for (name, plan, _), answer in zip(tasks, answers, strict=True):
        said: dict[str, Any] = json.loads(answer)
        apart = said.get("error") or "; ".join(differences(tool, said, plan))
        yield name, "wrong" if apart else "checked", apart, said


def _plans_for(tool: str, plans: list[tuple[str, Plan]], tuned: list[tuple[str, Plan]]) -> list[tuple[str, Plan]]:
    return [*plans, *tuned] if tool in FINE_TUNERS else plans


def main() -> None:
    """Check with each tool that is named."""
    parser = argparse.ArgumentParser(prog="python -m bench.exports", description=(__doc__ or "").splitlines()[0])
    for tool in TOOLS:
        parser.add_argument(f"--{tool}", metavar="PYTHON", help=f"the Python of an environment with {tool}")
    arguments = vars(parser.parse_args())
    named = {tool: arguments[tool.replace("-", "_")] for tool in TOOLS if arguments[tool.replace("-", "_")]}
    if not named:
        parser.error("no tool named")
    plans, wrong = list(make_plans()), 0
    tuned = list(make_plans(fine_tuning=True)) if set(named) & set(FINE_TUNERS) else []
    for tool, python in named.items():
        counts: Counter[str] = Counter()
        said: dict[str, Any] = {}
        with tempfile.TemporaryDirectory() as folder:
            for name, verdict, why, answer in check(tool, python, _plans_for(tool, plans, tuned), Path(folder)):
                counts[verdict] += 1
                said = answer or said
                if verdict != "checked":
                    print(f"{tool:16} {verdict:8} {name}: {why}")
        wrong += counts["wrong"]
        about = ", ".join(f"{name} {number}" for name, number in said.get("versions", {}).items())
        stubs = f"; stood in for: {', '.join(said['stubs'])}" if said.get("stubs") else ""
        print(f"{tool:16} {counts['checked']} checked, {counts['refused']} refused, {counts['wrong']} wrong")
        print(f"{'':16} with {about}{stubs}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
