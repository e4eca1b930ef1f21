"""Several simulated runs as a page: policies beside each other and the log, with what seeds make of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.report.charts import intervals, points
from planner.report.records import Chart, Fact, Page, Part, Section, Table, Words
from planner.shared.words import format_figure, format_seconds

HOUR = 3600.0
FIGURES: tuple[tuple[str, str], ...] = (
    ("jct_mean_s", "mean JCT"),
    ("jct_p99_s", "p99 JCT"),
    ("queue_mean_s", "mean queueing"),
    ("makespan_s", "makespan"),
)
"""In seconds, which the page says in hours."""
SHARES: tuple[tuple[str, str, str], ...] = (
    ("utilization_mean", "utilization", ".1%"),
    ("gpu_utilization_mean", "GPUs that compute", ".1%"),
    ("throughput_mean", "throughput", ".2f"),
    ("restarts_mean", "restarts a job", ".2f"),
    ("finished", "finished", ",.0f"),
    ("deadlines_met_ratio", "deadlines met", ".1%"),
)


def sweep_page(answer: Mapping[str, Any], *, trace: str) -> Page:
    """Return the page of what `simulate --json` prints of several runs of the trace."""
    means, logged = answer["means"], answer["as_logged"]
    best = min((mean for mean in means if mean["jct_mean_s"]["mean"] is not None), key=_mean_jct, default=None)
    seeds = " or ".join(dict.fromkeys(str(mean["seeds"]) for mean in means))
    sections = [
        Section(name="notes", title="Read this first", parts=(Words(texts=tuple(answer["notes"]), listed=True),)),
        Section(name="policies", title="Policies", parts=tuple(_policies(means, logged)), lead=_lead(means)),
        Section(name="runs", title="Every run", parts=tuple(_runs(answer["runs"]))),
    ]
    policies = list(dict.fromkeys(mean["policy"] for mean in means))
    each = "one seed" if seeds == "1" else f"{seeds} seeds"
    return Page(
        title=f"{trace} under {policies[0] if len(policies) == 1 else f'{len(policies)} policies'}",
        subtitle=f"{len(answer['runs'])} runs, {each} each; all modelled",
        facts=() if best is None else tuple(_facts(best, means, logged)),
        sections=tuple(sections),
        notes=("JCT: from submission to end, of the jobs that finished. Intervals are those of the mean over seeds.",),
        answer=answer,
    )


def _mean_jct(mean: Mapping[str, Any]) -> float:
    jct: float = mean["jct_mean_s"]["mean"]
    return jct


def _facts(
    best: Mapping[str, Any], means: Sequence[Mapping[str, Any]], logged: Mapping[str, Any] | None
) -> Iterator[Fact]:
    yield Fact(label="least mean JCT", value=name_of(best, means), note=_say(best["jct_mean_s"]))
    worst = max((mean for mean in means if mean["jct_mean_s"]["mean"] is not None), key=_mean_jct)
    if worst is not best:
        yield Fact(label="largest mean JCT", value=name_of(worst, means), note=_say(worst["jct_mean_s"]))
    if logged is not None:
        yield Fact(label="mean JCT as logged", value=_hours(logged["jct_mean_s"]))
    violations = sum(mean["violations"]["mean"] or 0 for mean in means)
    yield Fact(label="violations", value=f"{violations:g}", note="of what a cluster can hold")


def name_of(mean: Mapping[str, Any], means: Sequence[Mapping[str, Any]]) -> str:
    """Return what a group of runs is called: its policy, and what else tells it from the others."""
    several = [key for key in ("placer", "network", "load") if len({each[key] for each in means}) > 1]
    said = {"placer": f"{mean['placer']}", "network": f"network {mean['network']}", "load": f"load {mean['load']:g}"}
    return ", ".join([mean["policy"], *(said[key] for key in several)])


def _lead(means: Sequence[Mapping[str, Any]]) -> str:
    return (
        ""
        if all(mean["seeds"] == 1 for mean in means)
        else "A line over a bar: the 95% interval of the mean over seeds."
    )


def _policies(means: Sequence[Mapping[str, Any]], logged: Mapping[str, Any] | None) -> Iterator[Part]:
    for key, name in FIGURES:
        rows = [
            _bar(name_of(mean, means), mean[key]["mean"], mean[key]["half_width_95"])
            for mean in means
            if mean[key]["mean"] is not None
        ]
        if logged is not None and logged.get(key) is not None:
            rows.append(_bar("as logged", logged[key], None))
        if rows:
            about = f"A bar for each policy: {name} in hours, with its interval over seeds"
            yield Chart(
                title=f"{name[0].upper()}{name[1:]}", about=about, spec=intervals(rows, of="policy", unit="hours")
            )
    columns = ("policy", *(name for _, name in FIGURES), *(name for _, name, _ in SHARES))
    rows_of = [
        (
            name_of(mean, means),
            *(_say(mean[key]) for key, _ in FIGURES),
            *(_say(mean[key], form) for key, _, form in SHARES),
        )
        for mean in means
    ]
    if logged is not None:
        rows_of.append(
            (
                "as logged",
                *(_hours(logged.get(key)) for key, _ in FIGURES),
                *(f"{logged['jobs']:,}" if key == "finished" else "-" for key, _, _ in SHARES),
            )
        )
    yield Table(title="Means over seeds, ± half their 95% interval", columns=columns, rows=tuple(rows_of))


def _bar(name: str, mean_s: float, half_s: float | None) -> dict[str, Any]:
    half = half_s or 0.0
    return {"policy": name, "hours": mean_s / HOUR, "low": (mean_s - half) / HOUR, "high": (mean_s + half) / HOUR}


def _runs(runs: Sequence[Mapping[str, Any]]) -> Iterator[Part]:
    rows = [
        {
            "run": f"{name_of(run, runs)}, seed {run['seed']}",
            "policy": run["policy"],
            "hours": run["jct_mean_s"] / HOUR,
            "utilization": run["utilization_mean"],
        }
        for run in runs
        if run["jct_mean_s"] is not None
    ]
    if rows:
        yield Chart(
            title="Mean JCT against utilization: a point for each run",
            about="A point for each run by its mean completion time and how busy the cluster was",
            spec=points(
                rows,
                x="hours",
                y="utilization",
                x_unit="mean JCT, hours",
                y_unit="utilization",
                name="run",
                kind="policy",
            ),
        )
    columns = ("run", "mean JCT", "p99 JCT", "mean queueing", "utilization", "finished", "restarts")
    yield Table(
        title="Every run",
        columns=columns,
        rows=tuple(
            (
                f"{name_of(run, runs)}, seed {run['seed']}",
                *(_hours(run[key]) for key in ("jct_mean_s", "jct_p99_s", "queue_mean_s")),
                format_figure(run["utilization_mean"], ".1%"),
                f"{run['finished']:,} of {run['jobs']:,}",
                f"{run['restarts']:,}",
            )
            for run in runs
        ),
        folded=len(runs) > 12,
    )


def _hours(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    hours = seconds / HOUR
    return format_seconds(seconds) if hours < 1 else f"{hours:,.{0 if hours >= 1000 else 1}f} h"


def _say(value: Mapping[str, float | None], form: str | None = None) -> str:
    """A mean and half the width of its interval; without `form` seconds, in hours."""
    mean, half = value["mean"], value["half_width_95"]
    if mean is None:
        return "-"
    said = [_hours(part) if form is None else format(part, form) for part in (mean, half) if part is not None]
    return " ± ".join(said)
