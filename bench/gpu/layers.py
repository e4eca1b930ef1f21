"""Layer shards of the zoo through our own profiler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.gpu.backend import Backend
from bench.gpu.operators import check_alive
from bench.gpu.record import Deadline, Log, ResultFile
from bench.gpu.workloads import Wanted
from estimator.profiling.plan import plan_profile
from estimator.profiling.run import ProfileReport
from estimator.profiling.setting import Repeats

REPEATS = Repeats(least=6, least_s=0.03, most=40, limit_s=1.5)
TINY_REPEATS = Repeats(warm_up=1, least=2, least_s=0.0, most=2)


def measure_layers(
    wanted: Sequence[Wanted], file: ResultFile, deadline: Deadline, *, backend: Backend, tiny: bool, log: Log
) -> None:
    """Profiles `wanted` in order until `deadline`; its section says what was left to the model and what failed."""
    section = file.begin("layers", [one.label for one in wanted])
    for one in wanted:
        if deadline.left_s <= 0:
            break
        try:
            tasks = plan_profile(
                one.model,
                degrees=one.degrees,
                micro_batches_per_rank=[one.micro_batch],
                dtype=one.dtype,
                attention=backend.attention(),
            )
            report = backend.profile(file.shelf, tasks, TINY_REPEATS if tiny else REPEATS, deadline.left_s)
            row = describe_report(one, report)
            section.add(row)
            log.write(f"layers of {one.label}: {describe_row(row)}")
        except Exception as error:  # the next model may do better
            log.write(f"failed: layers of {one.label}: {section.fail(error)}")
            failed = True
        else:
            failed = False
        backend.free_memory()
        if failed:
            check_alive(backend)


def describe_report(wanted: Wanted, report: ProfileReport) -> dict[str, Any]:
    """`no_time` and `infeasible` name tasks."""
    return {
        "what": wanted.label,
        "measured": report.measured,
        "known": report.reused,
        "seconds": report.elapsed_s,
        "no_time": [task.label for task in report.left_to_model],
        "infeasible": [{"what": task.label, "error": reason.reason} for task, reason in report.infeasible],
    }


def describe_row(row: dict[str, Any]) -> str:
    text = f"{row['measured']} measured, {row['known']} known, {row['seconds']:.1f} s"
    if row["no_time"]:
        text += f"; no time for {names_of(row['no_time'])}"
    if row["infeasible"]:
        first = row["infeasible"][0]
        text += f"; {len(row['infeasible'])} cannot be had, as {first['what']}: {first['error']}"
    return text


def names_of(labels: Sequence[str]) -> str:
    """The first few of many."""
    return ", ".join(labels[:3]) + (f" and {len(labels) - 3} more" if len(labels) > 3 else "")
