"""What a DP group's spread weighs against a PP group's (Arnold, section 5.2): by the estimator, or by a database."""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot, log
from pathlib import Path
from typing import Literal

from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import Setup
from estimator.pricing.stage_work import boundary_bytes
from planner.one_job.site_pods.candidates import seating_by
from planner.one_job.site_pods.least_time import Evaluate
from planner.one_job.site_pods.site_job import SiteJob
from profiles.errors import InputError
from profiles.files import csv_rows, read_text
from profiles.numerals import read_number
from profiles.records import dataclass
from profiles.vocabulary import Infeasible

Distance = Literal["log", "printed"]
COLUMNS = ("device", "r1", "r2", "j_dp", "j_pp", "source")
SHIPPED = Path(__file__).with_name("affinities.csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Affinity:
    """The gains of narrow DP and PP groups, as shares of an iteration, and whose they are; `alpha` is what a DP group's
    spread weighs."""

    j_dp: float
    j_pp: float
    source: str
    said: float | None = None

    def __post_init__(self) -> None:
        if self.said is not None and not 0.0 <= self.said <= 1.0:
            raise InputError(where="pods", key="alpha", found=self.said, expected="a share from 0 to 1")

    @property
    def alpha(self) -> float:
        """j_dp / (j_dp + j_pp), gains below zero as zero; 0.5 of two zeros; or what somebody said.

        >>> Affinity(j_dp=0.01, j_pp=0.03, source="").alpha, Affinity(j_dp=-0.01, j_pp=0.0, source="").alpha
        (0.25, 0.5)
        """
        if self.said is not None:
            return self.said
        dp, pp = max(0.0, self.j_dp), max(0.0, self.j_pp)
        return dp / (dp + pp) if dp + pp else 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a database tells jobs apart by: the device, and the paper's two ratios."""

    device: str
    r1: float
    r2: float

    def distance(self, r1: float, r2: float, measure: Distance) -> float:
        """Return how far a row's ratios are: as printed in section 5.2, or of their logarithms."""
        if measure == "printed":
            return hypot(self.r1 - r1, self.r2 - r2)
        return hypot(log(self.r1 / r1), log(self.r2 / r2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the database."""

    device: str
    r1: float
    r2: float
    j_dp: float
    j_pp: float
    source: str


def estimated_affinity(job: SiteJob, evaluate: Evaluate) -> Affinity | Infeasible:
    """Return the gains that the estimator sees: the plan with DP groups as narrow as they can be, PP groups likewise,
    and in its default order, nodes in the cluster's. Infeasible where the job has no such placements."""
    times_s = []
    for method, alpha in (("cluster-order", 0.5), ("spread", 1.0), ("spread", 0.0)):
        seating = seating_by(job, method, alpha)
        if isinstance(seating, Infeasible):
            return seating
        evaluation = evaluate(job.seated(seating))
        if not isinstance(evaluation, Evaluation):
            return evaluation
        times_s.append(evaluation.iteration_time_s)
    default_s, dp_s, pp_s = times_s
    return Affinity(j_dp=(default_s - dp_s) / default_s, j_pp=(default_s - pp_s) / default_s, source="estimate")


def read_database(path: Path) -> tuple[Row, ...]:
    """Return the rows of a CSV of device, r1, r2, j_dp, j_pp and, optionally, source. Raise InputError with file, line
    and column for what is none."""
    where = str(path)
    lines = csv_rows(read_text(path), where=where)
    listed = ((number, cells) for number, cells in lines if any(cells) and not cells[0].startswith("#"))
    _, header = next(listed, (1, []))
    lacking = [name for name in COLUMNS[:-1] if name not in header]
    if lacking or len(set(header)) < len(header):
        raise InputError(where=where, key="header", found=", ".join(header) or "nothing", expected=", ".join(COLUMNS))
    rows = []
    for number, cells in listed:
        line = f"{where}, line {number}"
        if len(cells) != len(header):
            raise InputError(where=line, found=f"{len(cells)} values", expected=f"{len(header)}, as the header has")
        values = dict(zip(header, cells, strict=True))
        rows.append(
            Row(
                device=values["device"],
                source=values.get("source", where),
                **{name: _number(values[name], name, line) for name in COLUMNS[1:5]},
            )
        )
    return tuple(rows)


def nearest_affinity(rows: Sequence[Row], job: Job, *, where: str, distance: Distance = "log") -> Affinity:
    """Return what the nearest row of the job's device says, of equal ones the first. Raise InputError where no row is
    of that device."""
    of_device = [row for row in rows if row.device == job.device]
    if not of_device:
        devices = ", ".join(dict.fromkeys(row.device for row in rows)) or "none"
        expected = f"a row of {job.device} (or --affinity-else estimate)"
        raise InputError(where=where, key="device", found=f"rows of {devices}", expected=expected)
    nearest = min(of_device, key=lambda row: job.distance(row.r1, row.r2, distance))
    return Affinity(j_dp=nearest.j_dp, j_pp=nearest.j_pp, source=f"{where}: {nearest.source}")


def job_ratios(job: SiteJob) -> Job:
    """Return the ratios of a job as the paper's rows have them: r1 = mb * v_w / (v_d + v_p), r2 = v_d / v_p, volumes as
    in its appendix C: a stage's weights, their gradients, and one message and its gradient, each of all tensor-parallel
    ranks together. A job of one stage sends no messages; it counts one byte."""
    setup: Setup = job.setup
    weights = sum(column.weight_bytes for column in job.matrix.columns) / len(job.matrix.columns)
    stage = setup.stages[job.stages[0]]
    weight_bytes = weights * stage.tp
    shared = stage.cp * (stage.tp if stage.sequence_parallel else 1)
    message_bytes = 2.0 * boundary_bytes(setup, stage) * shared if len(setup.stages) > 1 else 1.0
    return Job(
        device=setup.cluster.group_of(stage.slots[0]).device.name,
        r1=setup.samples_per_rank(stage) * weight_bytes / (weight_bytes + message_bytes),
        r2=weight_bytes / message_bytes,
    )


def _number(word: str, column: str, where: str) -> float:
    try:
        value = read_number(word)
    except ValueError:
        value = float("nan")
    positive = column in ("r1", "r2")
    if not (0.0 < value < float("inf") if positive else float("-inf") < value < 1.0):
        expected = "a number above 0" if positive else "a share of an iteration below 1"
        raise InputError(where=where, key=column, found=repr(word), expected=expected)
    return value
