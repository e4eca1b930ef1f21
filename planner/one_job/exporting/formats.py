"""The formats that a plan can be exported to: those of the training tools, and those of cluster managers."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module

from planner.one_job.tools.base.export_records import Export, ExportContext
from planner.one_job.tools.base.writing import write_plan
from planner.one_job.tools.catalogue import TOOLS
from planner.shared.plan import Plan
from profiles.errors import InputError

Exporter = Callable[[Plan, ExportContext], Export]


MANAGERS: dict[str, str] = {
    "slurm": "Slurm: a batch script with the plan's ranks in order",
    "kubernetes": "Kubernetes: a JobSet for Kueue with a topology request",
    "hosts": "host file and rank file: the plan's named nodes in the order of its ranks, for torchrun, DeepSpeed, MPI",
    "ray": "Ray: a placement group and the workers on it",
}
"""Cluster managers, each with a line about it; `planner.one_job.launchers` has a module for each."""

FORMATS: dict[str, str] = {**{name: tool.summary for name, tool in TOOLS.items()}, **MANAGERS}
"""A line about each format."""


def load_exporter(name: str) -> Exporter:
    """Return the exporter of a format. Raise InputError with the formats' names where there is none of that name."""
    if name in TOOLS:
        return lambda plan, context: write_plan(plan, TOOLS[name], context)
    if name in MANAGERS:
        exporter: Exporter = getattr(import_module(f"planner.one_job.launchers.{name}"), f"export_{name}")
        return exporter
    near = get_close_matches(name, FORMATS, n=1, cutoff=0.6)
    meant = f" (did you mean {near[0]}?)" if near else ""
    raise InputError(where="export", key="--to", found=repr(name), expected=f"one of {', '.join(FORMATS)}{meant}")
