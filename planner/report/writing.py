"""Answers of `planner.api` as pages in files: what each page is made from besides the answer itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models_zoo.user_code import UserCode
from planner.one_job.timeline.events import Timeline, make_timeline
from planner.report.commands import launch_commands
from planner.report.page import save_page
from planner.report.plan_page import plan_page
from planner.report.records import Page
from planner.shared.inputs import open_existing
from planner.shared.plan import Plan
from profiles.errors import InputError

if TYPE_CHECKING:
    from estimator.profiling.setting import Framework
    from planner.many_jobs.simulation.run import Simulated
    from planner.one_job.planning.answer import PlanAnswer
    from planner.one_job.running.run import Traced
    from planner.shared.options.jct import JctEvaluateOptions
    from planner.shared.options.place import PlaceOptions
    from planner.shared.options.running import ValidateOptions
    from planner.shared.options.search import PlanOptions
    from planner.shared.options.simulate import SimulateOptions, SweepOptions


def report_plan(options: PlanOptions, answer: PlanAnswer, path: Path) -> None:
    """Write the page of a searched plan."""
    save_page(searched_page(options, answer), path)


def searched_page(options: PlanOptions, answer: PlanAnswer) -> Page:
    """Return the page of a searched plan."""
    described = json.loads(answer.to_json())
    timeline = _timeline(answer.plan, options.store, options.profiles, options.user_code)
    commands = launch_commands(answer.plan, tool=options.tool, code=options.user_code)
    return plan_page(described, timeline=timeline, commands=commands)


def report_estimate(
    answer: Mapping[str, Any],
    path: Path,
    *,
    store: Path | None,
    profiles: Framework | None,
    code: UserCode,
) -> None:
    """Write the page of `estimate`: of one explicit plan, or of Cells."""
    save_page(estimate_page(answer, store=store, profiles=profiles, code=code), path)


def estimate_page(answer: Mapping[str, Any], *, store: Path | None, profiles: Framework | None, code: UserCode) -> Page:
    """Return the page of `estimate`."""
    if "cells" in answer:
        from planner.report.cells_page import cells_page

        return cells_page(answer)
    from planner.shared.plan_file import plan_of_values

    plan = plan_of_values(answer["plan"])
    timeline = _timeline(plan, store, profiles, code)
    return plan_page(answer, timeline=timeline, commands=launch_commands(plan, tool=None, code=code))


def report_placed(options: PlaceOptions, answer: Mapping[str, Any], path: Path) -> None:
    """Write the page of `place`."""
    from planner.report.placement_page import placement_page
    from planner.shared.plan_file import plan_of_values

    timeline = None
    if answer.get("plan"):
        plan = plan_of_values(answer["plan"])
        timeline = _timeline(plan, options.store, None, options.user_code)
    save_page(placement_page(answer, timeline=timeline), path)


def report_simulation(options: SimulateOptions, answer: Simulated, path: Path) -> None:
    """Write the page of one run of the simulator, whose series and slices were kept."""
    from planner.report.simulation_page import simulation_page

    page = simulation_page(
        answer.as_dict(), answer.result, trace=options.trace.name, devices_per_node=answer.devices_per_node
    )
    save_page(page, path)


def report_sweep(options: SweepOptions, answer: Mapping[str, Any], path: Path) -> None:
    """Write the page of several runs of the simulator."""
    from planner.report.sweep_page import sweep_page

    save_page(sweep_page(answer, trace=options.trace.name), path)


def report_run(answer: Mapping[str, Any], traced: Traced, path: Path) -> None:
    """Write the page of a plan that was really run."""
    from planner.report.run_page import run_page

    save_page(run_page(answer, traced.program, traced.record, traced.evaluation), path)


def report_validation(options: ValidateOptions, answer: Mapping[str, Any], path: Path) -> None:
    """Write the page of measured against estimated runs."""
    from planner.report.validation_page import validation_page

    save_page(validation_page(answer, runs=options.path.name, by=options.group or "source"), path)


def report_jct(options: JctEvaluateOptions, answer: Mapping[str, Any], path: Path) -> None:
    """Write the page of evaluated predictions."""
    from planner.report.jct_page import jct_page

    save_page(jct_page(answer, trace=options.trace.name), path)


def _timeline(plan: Plan, store: Path | None, profiles: Framework | None, code: UserCode) -> Timeline | None:
    """The plan's; None where it has more steps than are drawn."""
    try:
        with open_existing(store) as opened:
            return make_timeline(plan, store=opened, profiles=profiles, code=code)
    except InputError:
        return None
