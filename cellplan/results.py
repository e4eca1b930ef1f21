"""The results of the functions, one for each kind of answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cellplan.result import Result
from cellplan.written import save_with_parts
from planner.shared.options.search import PlanOptions
from planner.shared.plan import Plan, PlanStage
from planner.shared.words import TIME_NAMES, format_seconds, three_digits
from profiles.records import dataclass

if TYPE_CHECKING:
    from planner.many_jobs.simulation.run import Simulated
    from planner.one_job.planning.answer import PlanAnswer

CELL_COLUMNS = (
    "device", "devices", "stages", "fits", "micro_batch", "iteration_time_s", "tokens_per_s_per_device",
    "peak_memory_bytes", "reason",
)  # fmt: skip
LEAST_SHARE = 5e-4
"""Of an iteration: a part that takes less is not told."""


@dataclass(frozen=True, kw_only=True)
class _WithPlan(Result):
    """A result with a plan in it: its stages are the table, and saved it is the plan file."""

    @property
    def headline(self) -> str:
        """The plan's time and its memory."""
        plan = self.plan
        estimate = plan.estimate
        low, high = estimate.interval_90_s
        return (
            f"{plan.model.name} on {plan.cluster}: {format_seconds(estimate.iteration_time_s)} an iteration"
            f" (90%: {format_seconds(low)} to {format_seconds(high)}) of {plan.batch.global_batch} samples,"
            f" {three_digits(estimate.peak_memory_bytes / 2**30)} GiB peak"
        )

    @property
    def facts(self) -> tuple[str, ...]:
        """Throughput, and how sure it is that the plan fits."""
        estimate, devices = self.plan.estimate, len(self.plan.devices)
        tokens, fit, said = estimate.tokens_per_s_per_device, estimate.memory_fit, []
        if tokens is not None:
            said.append(f"{tokens:,.0f} tokens/s per device, {tokens * devices:,.0f} in all; MFU {estimate.mfu:.1%}")
        if fit is not None:
            left = (
                f"headroom {three_digits(fit.headroom_bytes / 2**30)} GiB of {three_digits(fit.device_bytes / 2**30)}"
            )
            said.append(f"memory {fit.verdict}: {fit.interval_share:.0%} of its 90% interval fits, {left} GiB")
        return tuple(said)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each stage of the plan."""
        return [_stage_row(number, stage) for number, stage in enumerate(self.plan.stages)]

    def save(self, path: str | Path) -> Path:
        """Write the plan file to `path` and return the path. A config or cluster given as a dict is written beside it
        (`NAME.config.json`, `NAME.cluster.yaml`); a live module has no file: its plan is read in this process alone."""
        return save_with_parts(self.plan, Path(path))

    def explain(self) -> str:
        """Return where the time of an iteration goes, and what the plan assumes."""
        estimate = self.plan.estimate
        return "\n".join(
            [_where_time_goes(asdict(estimate.breakdown), estimate.iteration_time_s), *self.plan.assumptions]
        )


@dataclass(frozen=True, kw_only=True)
class PlanResult(_WithPlan):
    """The best plan: `answer` has the plan and what vouches for it, `options` what was asked."""

    answer: PlanAnswer
    options: PlanOptions

    __repr__ = Result.__repr__

    @property
    def plan(self) -> Plan:
        """The best plan."""
        return self.answer.plan

    def to_dict(self) -> dict[str, Any]:
        """Return the plan file as an object; with what was asked besides, an object with the plan in it."""
        document: dict[str, Any] = json.loads(self.answer.to_json())
        return document

    def explain(self) -> str:
        """Return why it is the best: what binds, what other plans lose, what changes would bring. Searches some five
        times as long as the plan took, unless `explain=True` was asked with it."""
        explanation = self.answer.explanation
        if explanation is None:
            from planner import api

            again = replace(self.options, explain=True, compare=None, output=None, timeline=None)
            explanation = api.plan(again).explanation
        return "\n".join(explanation.summary) if explanation is not None else super().explain()


@dataclass(frozen=True, kw_only=True)
class _WithDocument(_WithPlan):
    """The plan of a command's whole document."""

    document: Mapping[str, Any]

    __repr__ = Result.__repr__

    @property
    def plan(self) -> Plan:
        """The plan of the document."""
        return plan_of(self.document)

    def to_dict(self) -> dict[str, Any]:
        """Return what the command prints with `--json`."""
        return dict(self.document)


@dataclass(frozen=True, kw_only=True)
class ExplicitResult(_WithDocument):
    """The estimate of one explicit plan, taken apart."""

    __repr__ = Result.__repr__


@dataclass(frozen=True, kw_only=True)
class CellsResult(Result):
    """The Cells of a model on a cluster, one for each device type and stage count."""

    document: Mapping[str, Any]

    __repr__ = Result.__repr__

    @property
    def headline(self) -> str:
        """The best Cell."""
        about = f"{self.document['model']} on {self.document['cluster']}"
        best = self._best
        if best is None:
            return f"{about}: no Cell fits"
        low, high = best["interval_90_s"]
        return (
            f"{about}: best of {len(self.document['cells'])} Cells has {best['stages']} stages on {best['devices']}"
            f" {best['device']}, {format_seconds(best['iteration_time_s'])} an iteration"
            f" (90%: {format_seconds(low)} to {format_seconds(high)})"
        )

    @property
    def _best(self) -> Mapping[str, Any] | None:
        return next((cell for cell in self.document["cells"] if cell["best"]), None)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each Cell."""
        return [flat_row(cell) for cell in self.document["cells"]]

    def shown_rows(self) -> list[dict[str, Any]]:
        """Return of each Cell what tells them apart."""
        return [{name: cell[name] for name in CELL_COLUMNS} for cell in self.document["cells"]]

    def to_dict(self) -> dict[str, Any]:
        """Return the Cells with what was assumed."""
        return dict(self.document)

    def explain(self) -> str:
        """Return where the best Cell's time goes, why others do not fit, and what was assumed."""
        best = self._best
        said = [] if best is None else [_where_time_goes(best["breakdown"], best["iteration_time_s"])]
        said += [
            f"{cell['stages']} stages on {cell['device']}: {cell['reason']}"
            for cell in self.document["cells"]
            if cell["reason"]
        ]
        return "\n".join([*said, *self.document["assumptions"]])


@dataclass(frozen=True, kw_only=True)
class ValidationResult(Result):
    """Measured runs beside what is predicted of them."""

    document: Mapping[str, Any]

    __repr__ = Result.__repr__

    @property
    def headline(self) -> str:
        """How many rows, and how far off they are."""
        rows = self.document["rows"]
        errors = sorted(abs(row["error"]) for row in rows if row["error"] is not None)
        middle = f", median error {errors[len(errors) // 2]:.1%}" if errors else ""
        return f"{len(errors)} of {len(rows)} runs predicted{middle}"

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each run."""
        return [flat_row(row) for row in self.document["rows"]]

    def to_dict(self) -> dict[str, Any]:
        """Return rows, groups, baselines and what was skipped."""
        return dict(self.document)

    def explain(self) -> str:
        """Return what was assumed and why rows were skipped, each with how often."""
        said = [f"{count} skipped: {reason}" for reason, count in self.document["skipped"].items()]
        said += [f"{count} rows: {text}" for text, count in self.document["assumptions"].items()]
        return "\n".join(said)


@dataclass(frozen=True, kw_only=True)
class SimulationResult(Result):
    """Many jobs on a cluster under a policy."""

    simulated: Simulated

    __repr__ = Result.__repr__

    @property
    def headline(self) -> str:
        """Jobs, their completion time and the devices held."""
        summary = self.simulated.result.summary
        mean = "-" if summary.jct_mean_s is None else format_seconds(summary.jct_mean_s)
        return (
            f"{summary.policy}: {summary.finished} of {summary.jobs} jobs finished, mean JCT {mean},"
            f" {summary.utilization_mean:.0%} of devices held"
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each job, in order of submission."""
        from planner.many_jobs.simulation.tables import job_rows

        names, *jobs = job_rows(self.simulated.result)
        return [{str(name): _figure(str(name), cell) for name, cell in zip(names, job, strict=True)} for job in jobs]

    def to_dict(self) -> dict[str, Any]:
        """Return the figures of the run, with notes and bounds."""
        return self.simulated.as_dict()

    def explain(self) -> str:
        """Return what was left out, drawn or assumed."""
        return "\n".join(self.simulated.notes)


@dataclass(frozen=True, kw_only=True)
class PlacementResult(_WithDocument):
    """Sites and devices for a job, and its plan there."""

    __repr__ = Result.__repr__

    @property
    def _sites(self) -> str:
        return " and ".join(f"{len(site['devices'])} devices of {site['name']}" for site in self.document["sites"])

    def explain(self) -> str:
        """Return which sites were chosen and how, and where the time goes there."""
        proved = "proved best" if self.document["proved"] else "not proved best"
        return f"{self._sites}, chosen by {self.document['method']} ({proved})\n{super().explain()}"


def _figure(name: str, cell: object) -> object:
    """A cell of the table of jobs as a figure; None where it is empty."""
    if cell == "":
        return None
    return float(str(cell)) if name.endswith("_s") or name in ("iterations", "fairness_rho") else cell


def plan_of(document: Mapping[str, Any]) -> Plan:
    """Return the plan in the document of a command."""
    from planner.shared.plan_file import parse_plan

    return parse_plan(json.dumps(document["plan"]), "plan")


def flat_row(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return figures by name: those of an object within under both names, an interval as its ends, no other lists."""
    row: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            row |= {f"{name}.{inner}": part for inner, part in value.items() if not isinstance(part, list | Mapping)}
        elif isinstance(value, list | tuple):
            if name.startswith(("interval_90", "memory_interval_90")) and len(value) == 2:
                row |= {f"{name}.low": value[0], f"{name}.high": value[1]}
        else:
            row[name] = value
    return row


def _where_time_goes(breakdown: Mapping[str, float], total_s: float) -> str:
    """The parts of an iteration in one sentence, the longest first."""
    parts = sorted(breakdown.items(), key=lambda part: -part[1])
    shown = [
        f"{TIME_NAMES[name]} {seconds / total_s:.1%}" for name, seconds in parts if seconds > LEAST_SHARE * total_s
    ]
    return f"An iteration of {format_seconds(total_s)}: {', '.join(shown)}."


def _stage_row(number: int, stage: PlanStage) -> dict[str, Any]:
    return {
        "stage": number,
        "layers": sum(end - first for first, end in stage.chunks),
        "device": stage.device,
        "devices": len(stage.ranks),
        "dp": stage.dp,
        "tp": stage.tp,
        "cp": stage.cp,
        "ep": stage.ep,
        "zero": stage.sharding.zero,
        "recompute": stage.recompute.kind,
        "compute_s": stage.compute_s,
        "communication_s": stage.communication_s,
        "memory_bytes": stage.memory_bytes,
    }
