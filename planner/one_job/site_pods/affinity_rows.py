"""Rows of affinity that a job adds to a database: what narrow DP and PP groups win it, by the estimator."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import Setup
from planner.one_job.site_pods.affinity import COLUMNS, Row, estimated_affinity, job_ratios, read_database
from planner.one_job.site_pods.least_time import Evaluate
from planner.one_job.site_pods.site_job import SiteJob, site_job
from profiles.errors import InputError, NothingFits
from profiles.files import read_text, write_atomically
from profiles.vocabulary import Infeasible


def measure_affinity(setup: Setup, evaluate: Evaluate, path: Path) -> tuple[dict[str, Any], ...]:
    """Add a row for each site of a plan to the database at `path`, which is made where there is none, and return the
    rows. A row of the same device, ratios and source is replaced. The source says that the estimator priced it, and
    whether by measured tables or by models; nothing ran.

    Raise NothingFits where the plan is no matrix of nodes in pods, InputError for a file that is no database.
    """
    rows, reasons = [], []
    for site in dict.fromkeys(slot.site for stage in setup.stages for slot in stage.slots):
        job = site_job(setup, site)
        row = _row(job, evaluate) if isinstance(job, SiteJob) else job
        if isinstance(row, Row):
            rows.append(row)
        else:
            reasons.append(f"{site}: {'no pods' if row is None else row.reason}")
    if not rows:
        raise NothingFits(f"--measure-affinity: no affinity can be told of {setup.model.name}: {'; '.join(reasons)}")
    add_rows(path, rows)
    return tuple(asdict(row) for row in rows)


def add_rows(path: Path, rows: Sequence[Row]) -> None:
    """Put rows into the database at `path`; what it says besides stays as it is, comments too. Raise InputError for a
    file that is no database, or has its columns in another order."""
    text = ",".join(COLUMNS) + "\n"
    if path.exists():
        read_database(path)
        text = read_text(path)
        header = next(line for line in text.splitlines() if not line.startswith("#"))
        if [name.strip() for name in header.split(",")] != list(COLUMNS):
            raise InputError(where=str(path), key="header", found=header, expected=",".join(COLUMNS))
    lines = [_line(row) for row in rows]
    replaced = {_same(line) for line in lines}
    kept = [line for line in text.splitlines() if line.startswith("#") or _same(line) not in replaced]
    write_atomically(path, "\n".join([*kept, *lines]) + "\n")


def _row(job: SiteJob, evaluate: Evaluate) -> Row | Infeasible:
    affinity, ratios = estimated_affinity(job, evaluate), job_ratios(job)
    evaluation = evaluate(job.setup)
    if isinstance(affinity, Infeasible):
        return affinity
    if not isinstance(evaluation, Evaluation):
        return evaluation
    setup = job.setup
    stage = setup.stages[job.stages[0]]
    degrees = f"tp {stage.tp}, pp {len(setup.stages)}, dp {stage.dp}"
    said = f"estimate: {setup.model.name}, {degrees} in {len(job.nodes.pods)} parts ({job.nodes.level})"
    return Row(
        device=ratios.device,
        r1=float(f"{ratios.r1:.6g}"),
        r2=float(f"{ratios.r2:.6g}"),
        j_dp=float(f"{affinity.j_dp:.4g}"),
        j_pp=float(f"{affinity.j_pp:.4g}"),
        source=f"{said}; layers {evaluation.compute_provenance}, links {evaluation.communication_provenance or 'none'}",
    )


def _line(row: Row) -> str:
    text = StringIO()
    csv.writer(text, lineterminator="").writerow([getattr(row, name) for name in COLUMNS])
    return text.getvalue()


def _same(line: str) -> tuple[str, ...]:
    """What tells a row from others: its device, ratios and source."""
    cells = next(csv.reader([line]), [])
    return (*cells[:3], cells[-1]) if len(cells) == len(COLUMNS) else (line,)
