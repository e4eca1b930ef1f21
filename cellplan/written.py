"""A plan as files: its own, with what it was given by value beside it, and those of a training tool."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.shared.plan import Plan
from planner.shared.plan_file import save_plan
from profiles.files import write_atomically
from profiles.given import given_under

PLAN_NAME = Path("plan")
"""What messages call a plan that is in no file."""


def export_files(plan: Plan, to: str, **options: Any) -> dict[str, str]:
    """Return the files of `plan` for the tool `to` by their names. Raise as `planner.api.export`."""
    from planner.one_job.exporting.exporting import export_loaded
    from planner.shared.options.running import ExportOptions

    files = export_loaded(plan, ExportOptions(plan=PLAN_NAME, to=to, **options))["files"]
    return {file["name"]: file["text"] for file in files}


def save_with_parts(plan: Plan, path: Path) -> Path:
    """Write the plan to `path` and return it. A config or a cluster that the caller gave as a dict is written beside
    it, `NAME.config.json` and `NAME.cluster.yaml`, and named by the file: another process can read it then."""
    stem = path.with_name(path.name.removesuffix(".json"))
    config, cluster = given_under(plan.model.reference), given_under(plan.cluster)
    if isinstance(config, Mapping):
        beside = stem.with_name(f"{stem.name}.config.json")
        write_atomically(beside, json.dumps(config, indent=2) + "\n")
        plan = replace(plan, model=replace(plan.model, reference=str(beside)))
    if cluster is not None:
        from profiles.yaml_files import yaml_text

        beside = stem.with_name(f"{stem.name}.cluster.yaml")
        write_atomically(beside, yaml_text(cluster))
        plan = replace(plan, cluster=str(beside))
    save_plan(plan, path)
    return path
