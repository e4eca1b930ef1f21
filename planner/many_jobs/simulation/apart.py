"""A simulation under a policy or a rule of placement of the user's: in a fork of this process, whatever that code does
to it.

A policy decides on live jobs and Cells, which cannot be sent elsewhere; a fork has them all. Back comes the result, as
values of JSON.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from estimator.host.pulse import Pulse
from planner.many_jobs.jobs.records import Job, Policy
from planner.many_jobs.policies.user_policy import Makers, code_process
from planner.many_jobs.simulation.checkpoint import read_column, write_column
from planner.many_jobs.simulation.result import Result, Summary, Timing
from planner.many_jobs.simulation.settings import Settings
from planner.many_jobs.simulation.totals import JobTable
from planner.many_jobs.simulation.turn_groups import TurnsTaken
from profiles.errors import InputError


def simulate_apart(
    makers: Makers,
    jobs: Sequence[Job],
    settings: Settings,
    run: Callable[[Policy, Settings], Result],
) -> Result:
    """Return what `run` does, on `jobs` in order of submission, with code of the user's and these `settings`, carried
    out in a fork of this process.

    Raises:
        InputError, NothingFits, MachineError: as `run` does.
        InputError: the code ends its process, or does to it what it should not.
        MachineError: it takes too much time or memory.
        KeyboardInterrupt: the run ended because `settings.stop` said so.
    """
    pulse = Pulse()

    def work(tell: Callable[[object], None]) -> object:
        def report(*place: object) -> None:
            tell(place)

        policy, placer = makers.policy(pulse), makers.placer(pulse)
        progress = None if settings.progress is None else report
        told = replace(settings, placer=placer, stop=pulse.stopped, progress=progress)
        try:
            return _values(run(policy, told))
        except KeyboardInterrupt:
            return None

    def show(place: Any) -> None:
        if settings.progress is not None and isinstance(place, list) and len(place) == 4:
            settings.progress(*place)

    with code_process(makers, work, pulse) as process:
        values = process.result(told=show, stop=settings.stop)
    if values is None:
        raise KeyboardInterrupt
    try:
        return _result(values, jobs)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        kind, factory = makers.of_user[0]
        stated, where = "code that changed what came of the simulation", f"{kind} {factory.reference}"
        raise InputError(where=where, found=stated, expected=f"a {kind} that decides") from error


def _values(result: Result) -> dict[str, Any]:
    """A result but for its jobs, as values of JSON."""
    return {
        "summary": asdict(result.summary),
        "timing": asdict(result.timing),
        "table": {name: write_column(getattr(result.table, name)) for name in JobTable.__slots__},
        "reasons": list(result.reasons.items()),
        "devices": result.devices,
        "series": {name: write_column(array("d", column)) for name, column in result.series.items()},
        # As a text: the bits of a node's devices are no number that others read.
        "slices": json.dumps(list(result.slices)),
        "moves": list(result.moves),
        "granted": sorted(result.granted),
        "turns": None if result.turns is None else asdict(result.turns),
    }


def _result(values: Mapping[str, Any], jobs: Sequence[Job]) -> Result:
    """What `_values` made values of; ValueError and the like where it is something else."""
    from pydantic import TypeAdapter

    table = JobTable(len(jobs))
    for name in JobTable.__slots__:
        column = read_column(values["table"][name], getattr(getattr(table, name), "typecode", "B"))
        if len(column) != len(jobs):
            raise ValueError(f"{len(column)} values of {name} for {len(jobs)} jobs")
        setattr(table, name, bytearray(column) if name == "status" else column)
    granted = TypeAdapter(frozenset[tuple[tuple[str, int], ...]])
    return Result(
        summary=TypeAdapter(Summary).validate_python(values["summary"]),
        timing=TypeAdapter(Timing).validate_python(values["timing"]),
        jobs=jobs,
        table=table,
        reasons=TypeAdapter(dict[int, str]).validate_python(dict(values["reasons"])),
        devices=int(values["devices"]),
        series={str(name): read_column(text, "d").tolist() for name, text in values["series"].items()},
        slices=[tuple(row) for row in json.loads(values["slices"])],
        moves=TypeAdapter(list[tuple[int, float, float]]).validate_python(values["moves"]),
        granted=granted.validate_python(values["granted"]),
        turns=TypeAdapter(TurnsTaken | None).validate_python(values["turns"]),
    )
