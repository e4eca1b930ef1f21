"""A simulation's jobs and series as CSV."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from itertools import chain

from planner.many_jobs.simulation.result import Result

JOB_COLUMNS = (
    "job_id",
    "status",
    "reason",
    "submit_s",
    "start_s",
    "end_s",
    "jct_s",
    "waited_s",
    "attained_device_s",
    "restarts",
    "moves",
    "failures",
    "nodes",
    "seats",
    "seats_cost_s",
    "progress_s",
    "lost_to_others_s",
    "contended_s",
    "busy_device_s",
    "flops",
    "cross_node_bytes",
    "fairness_rho",
    "pool",
    "devices",
    "model",
    "global_batch",
    "iterations",
    "user",
    "virtual_cluster",
    "priority",
    "deadline_s",
    "deadline_met",
)


def jobs_csv(result: Result) -> str:
    """A row for each job, in order of submission; an empty cell where there is no such figure. Figures in full, so that
    equal runs give equal files."""
    return csv_text(job_rows(result))


def job_rows(result: Result) -> Iterator[Sequence[object]]:
    """Yield the names of the columns, then a row of cells for each job, in order of submission."""
    yield JOB_COLUMNS
    table, rho, seats = result.table, result.fairness, last_seats(result)
    moves = Counter(number for number, *_ in result.moves)
    of_others = (table.progress_s, table.lost_to_others_s, table.contended_s, table.busy_device_s, table.flops)
    for number, job in enumerate(result.jobs):
        end_s, status = table.end_s[number], result.status(number)
        finished = status == "finished"
        due = job.deadline_s
        yield (
            job.id,
            status,
            result.reasons.get(number, ""),
            _figure(job.submit_s),
            _figure(table.start_s[number]),
            _figure(end_s),
            _figure(end_s - job.submit_s if finished else math.nan),
            _figure(table.waited_s[number]),
            _figure(table.attained_device_s[number]),
            table.restarts[number],
            moves[number],
            table.failures[number],
            table.nodes[number],
            seats.get(number, ""),
            _figure(table.seats_cost_s[number]),
            *(_figure(column[number]) for column in of_others),
            _figure(table.cross_node_bytes[number]),
            _figure(rho[number]),
            job.pool,
            job.devices,
            job.workload.model,
            job.workload.global_batch,
            _figure(job.iterations),
            job.user,
            job.virtual_cluster,
            job.priority,
            "" if due is None else _figure(due),
            "" if due is None else str(finished and end_s <= due).lower(),
        )


def last_seats(result: Result) -> dict[int, str]:
    """Return where each job sat last, by number, as `a100:17x8 a100:18x4` (pool, node, devices of it); nothing of a run
    that did not keep its slices."""
    since_s: dict[int, float] = {}
    pieces: dict[int, list[str]] = {}
    for number, pool, node, mask, from_s, _, _ in result.slices:
        if since_s.get(number) != from_s:
            since_s[number], pieces[number] = from_s, []
        pieces[number].append(f"{pool}:{node}x{mask.bit_count()}")
    return {number: " ".join(words) for number, words in pieces.items()}


def series_csv(result: Result) -> str:
    """A row for each event: the state from that time on."""
    rows = (tuple(map(_figure, row)) for row in zip(*result.series.values(), strict=True))
    return csv_text(chain([tuple(result.series)], rows))


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """Return rows as CSV, the header among them."""
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _figure(value: float) -> str:
    """The shortest text that reads back as the same number; whole ones without a point."""
    if math.isnan(value):
        return ""
    return str(int(value)) if float(value).is_integer() else repr(float(value))
