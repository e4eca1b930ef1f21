"""What `planner.api.export` does: a plan file in a tool's format, or why not and what the tool could run instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from estimator.schedules.orders import schedule_problem
from models_zoo.user_code import names_code
from planner.one_job.explicit.reading import refuse_optimizer
from planner.one_job.exporting.formats import FORMATS, MANAGERS, load_exporter
from planner.one_job.exporting.nearest import Nearest, Search, find_nearest
from planner.one_job.exporting.order_costs import order_costs
from planner.one_job.tools.base.export_records import CannotExpress, Export, ExportContext
from planner.one_job.tools.catalogue import TOOLS
from planner.shared.inputs import open_existing
from planner.shared.options.running import ExportOptions
from planner.shared.plan import Plan
from planner.shared.plan_checks import check_places, load_plan_model
from planner.shared.plan_file import load_plan, plan_to_json
from profiles.errors import InputError, MachineError, NothingFits
from profiles.files import parse_json, write_atomically

Variables = tuple[tuple[str, str], ...]
JobEnvironmentOf = Callable[[Plan], tuple[Variables, tuple[str, ...]]]

WITH_ENVIRONMENT = ("slurm", "kubernetes", "ray")
"""Managers whose jobs are written with an environment."""


def list_formats() -> list[dict[str, str]]:
    """The formats, each with a line about it."""
    return [{"format": name, "summary": summary} for name, summary in FORMATS.items()]


def export_plan(options: ExportOptions, environment: JobEnvironmentOf | None = None) -> dict[str, Any]:
    """As `planner.api.export`. `environment` returns the variables of every rank of a plan, and notes on them."""
    load_exporter(options.to)  # a format that is none is said before the file is read
    if options.network is not None and options.to not in WITH_ENVIRONMENT:
        expected = f"a manager whose jobs have an environment: {', '.join(WITH_ENVIRONMENT)}"
        raise options.wrong("network", found=f"--to {options.to}", expected=expected)
    plan = load_plan(options.plan)
    return export_loaded(plan, options, *(environment(plan) if environment else ((), ())))


def export_loaded(
    plan: Plan, options: ExportOptions, environment: Variables = (), notes: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return and write as `planner.api.export` the plan that was read from `options.plan`, or has that name, with these
    variables in the environment of every rank and notes on them."""
    exporter = load_exporter(options.to)
    if options.nearest and options.to not in TOOLS:
        expected = f"a training tool, whose plans are limited: {', '.join(TOOLS)}"
        raise options.wrong("nearest", found=f"--to {options.to}", expected=expected)
    _check(plan, options)
    orders = order_costs(plan, options) if options.to in MANAGERS else None
    context = ExportContext(script=options.script, code=options.user_code, orders=orders, environment=environment)
    try:
        export = exporter(plan, context)
    except CannotExpress as refusal:
        search = Search(refused_time_s=plan.estimate.iteration_time_s, nearest=None)
        if options.to in TOOLS:
            with open_existing(options.store) as opened:
                search = find_nearest(plan, tool=TOOLS[options.to], context=context, store=opened)
        if not options.nearest or search.nearest is None:
            raise NothingFits(
                _say_refusal(refusal, search), result=_describe_refusal(options.to, refusal, search)
            ) from None
        export = _with_note(search.nearest, refusal, search)
    if options.output is not None:
        write_export(export, options.output)
    return {"format": options.to, "files": [asdict(file) for file in export.files], "notes": [*export.notes, *notes]}


def _check(plan: Plan, options: ExportOptions) -> None:
    """Raise InputError where the file's model or places are not those of what it names. A cluster manager's job does
    not need the model that a user's code makes."""
    where = str(options.plan)
    refuse_optimizer(plan, where=where)
    chunks = max(len(stage.chunks) for stage in plan.stages)
    problem = schedule_problem(plan.schedule, len(plan.stages), chunks, plan.batch.micro_batches)
    if problem is not None:
        counts = f"{len(plan.stages)} stages of {chunks} chunks, {plan.batch.micro_batches} micro-batches"
        raise InputError(where=where, key="schedule", found=f"{plan.schedule} with {counts}", expected=problem)
    if options.to in TOOLS or not names_code(plan.model.reference):
        load_plan_model(plan, options.user_code, where=where)
    check_places(plan, where=where)


def _with_note(nearest: Nearest, refusal: CannotExpress, search: Search) -> Export:
    """The nearest plan's files; the first note says what they are of."""
    said = f"{refusal}; these files are of the nearest plan that it runs: {_say_nearest(nearest, search)}"
    return Export(files=nearest.export.files, notes=(said, *nearest.export.notes))


def _say_nearest(nearest: Nearest, search: Search) -> str:
    time_s = nearest.plan.estimate.iteration_time_s
    return (
        f"{'; '.join(nearest.changes) or 'the same, stage by stage'}; estimated {time_s:.4g} s an iteration,"
        f" where the plan itself takes {search.refused_time_s:.4g} s"
    )


def _say_refusal(refusal: CannotExpress, search: Search) -> str:
    if search.nearest is None:
        return f"{refusal}; no plan near it was found that {refusal.tool} runs and that fits"
    return f"{refusal}; the nearest plan that it runs (--nearest exports it): {_say_nearest(search.nearest, search)}"


def _describe_refusal(to: str, refusal: CannotExpress, search: Search) -> dict[str, Any]:
    nearest = search.nearest
    return {
        "format": to,
        "refused": {
            "key": refusal.key,
            "found": str(refusal.found),
            "expected": refusal.expected,
            "iteration_time_s": search.refused_time_s,
        },
        "nearest": None
        if nearest is None
        else {
            "changes": list(nearest.changes),
            "iteration_time_s": nearest.plan.estimate.iteration_time_s,
            "plan": parse_json(plan_to_json(nearest.plan), where="plan"),
        },
    }


def write_export(export: Export, output: Path) -> None:
    """Write the files: one to the file `output`, or into it where it is a folder; several into the folder `output`,
    which is made where its own folder exists.

    InputError where several would go into one file. Each file is written whole or not at all.
    """
    if len(export.files) == 1 and not output.is_dir():
        write_atomically(output, export.files[0].text)
        return
    if output.exists() and not output.is_dir():
        names = ", ".join(file.name for file in export.files)
        raise InputError(where="export", key="--output", found=f"{output}, a file", expected=f"a folder for {names}")
    if not output.parent.is_dir():
        raise InputError(where=str(output), found=f"no folder {output.parent}", expected="a path in an existing folder")
    try:
        output.mkdir(exist_ok=True)
    except OSError as error:
        raise MachineError(f"{output}: could not be made: {error.strerror or error}") from error
    for file in export.files:
        write_atomically(output / file.name, file.text)
