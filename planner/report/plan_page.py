"""A plan as a page: what it takes, where time and memory go, what comes next, and what it all rests on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.one_job.timeline.events import Timeline
from planner.one_job.timeline.svg import draw_timeline
from planner.report.charts import bars, points, stacked, steps
from planner.report.cluster_picture import draw_cluster
from planner.report.estimate_parts import FIT_NAMES, MEMORY_NAMES, describe_interval, headline_facts
from planner.report.memory_over_time import memory_steps
from planner.report.records import Chart, Command, Fact, Page, Part, Picture, Section, Table, Words
from planner.shared.words import TIME_NAMES, format_bytes, format_seconds, percent

GIB = 2**30
MOST_PARTS = 1000
"""Of the timeline: what a page of 1.2 MB has room for beside the scripts of its charts."""


def plan_page(
    answer: Mapping[str, Any], *, timeline: Timeline | None, commands: Sequence[tuple[str, str]] = ()
) -> Page:
    """Return the page of what `plan --json` or `estimate --plan --json` prints.

    Args:
        answer: the plan's file as a mapping, or an object whose `plan` it is, with what was asked besides.
        timeline: the plan's, where it could be made.
        commands: titles and texts to be copied.
    """
    plan = answer.get("plan", answer)
    sections = list(plan_sections(answer, timeline=timeline))
    if commands:
        copied = tuple(Command(title=title, text=text) for title, text in commands)
        sections.append(Section(name="run", title="Run it", parts=copied))
    types = " and ".join(sorted({stage["device"] for stage in plan["stages"]}))
    length = f" of {plan['model']['seq_len']:,} tokens" if plan["model"]["seq_len"] else ""
    return Page(
        title=f"{plan['model']['name']} on {plan['cluster']}",
        subtitle=f"{plan['batch']['global_batch']:,} samples{length} an iteration on {len(plan['devices'])} {types}",
        facts=(*headline_facts(plan["estimate"], len(plan["devices"])), *_cost(answer)),
        sections=tuple(sections),
        notes=(f"{describe_interval()} {FIT_NAMES}",),
        answer=answer,
    )


def plan_sections(answer: Mapping[str, Any], *, timeline: Timeline | None) -> Iterator[Section]:
    """Yield all that is said of a plan below its first figures."""
    plan, explanation = answer.get("plan", answer), answer.get("explanation")
    yield from _time(plan, timeline)
    yield from _memory(plan, timeline)
    yield from _stages(plan)
    if explanation:
        yield _others(plan, explanation)
        yield _changes(explanation)
        yield _why(explanation)
    yield _cluster(plan, explanation)
    yield _basis(plan, answer)


def _cost(answer: Mapping[str, Any]) -> Iterator[Fact]:
    training = answer.get("training") or {}
    for label, key in (("whole training", "days"), ("cost", "cost")):
        value = training.get(key)
        if isinstance(value, int | float):
            yield Fact(label=label, value=f"{value:,.4g}{' days' if key == 'days' else ''}", note="modelled")


def _time(plan: Mapping[str, Any], timeline: Timeline | None) -> Iterator[Section]:
    breakdown, whole = plan["estimate"]["breakdown"], plan["estimate"]["iteration_time_s"]
    rows = [
        {"iteration": "iteration", "part": TIME_NAMES[key], "s": seconds}
        for key, seconds in breakdown.items()
        if seconds > 1e-6 * whole
    ]
    parts: list[Part] = [
        Chart(
            title="Where an iteration's time goes, on the stage that limits",
            about="A bar made of the parts of an iteration; the table has their seconds",
            spec=stacked(rows, along="s", of="iteration", parts="part", unit="seconds"),
            table=Table(
                title="Parts of an iteration",
                columns=("part", "seconds", "share"),
                rows=tuple((row["part"], format_seconds(row["s"]), f"{row['s'] / whole:.1%}") for row in rows),
                folded=True,
            ),
        )
    ]
    if timeline is not None:
        parts.append(
            Picture(
                title="An iteration, stage by stage",
                about=f"Timeline of {len(timeline.stages)} stages; communication stands apart from compute",
                svg=draw_timeline(timeline, most_parts=MOST_PARTS),
            )
        )
    yield Section(name="time", title="Time", parts=tuple(parts))


def _memory(plan: Mapping[str, Any], timeline: Timeline | None) -> Iterator[Section]:
    fit = plan["estimate"].get("memory_fit") or {}
    rows = [
        {"stage": f"stage {number}", "part": name, "GiB": stage["memory"][key] / GIB}
        for number, stage in enumerate(plan["stages"])
        for key, name in MEMORY_NAMES.items()
        if stage["memory"] and stage["memory"][key] > 0
    ]
    if not rows:
        return
    line = fit.get("device_bytes")
    parts: list[Part] = [
        Chart(
            title="Memory of a rank of each stage at its fullest moment",
            about="Stacked bars of memory by part for each stage, with the device's memory as a line",
            spec=stacked(
                rows,
                along="GiB",
                of="stage",
                parts="part",
                unit="GiB",
                line=None if line is None else line / GIB,
                line_name="the device's memory",
            ),
            table=Table(
                title="Memory by stage and part",
                columns=("stage", "part", "memory"),
                rows=tuple((row["stage"], row["part"], format_bytes(row["GiB"] * GIB)) for row in rows),
                folded=True,
            ),
        )
    ]
    if timeline is not None:
        moments = memory_steps(plan, timeline)
        if moments:
            parts.append(
                Chart(
                    title="Memory over an iteration",
                    about="Memory of ranks of the first, middle and last stage over time, as micro-batches come and go",
                    spec=steps(moments, x="s", y="GiB", x_unit="seconds", y_unit="GiB", lines="stage"),
                )
            )
    yield Section(name="memory", title="Memory", parts=tuple(parts))


def _stages(plan: Mapping[str, Any]) -> Iterator[Section]:
    stages, batch = plan["stages"], plan["batch"]
    degrees = [name for name in ("dp", "tp", "cp", "ep", "etp") if any(stage[name] > 1 for stage in stages)] or ["dp"]
    rows = tuple(
        (
            str(number),
            ", ".join(f"{first}-{end - 1}" for first, end in stage["chunks"]),
            f"{len(stage['ranks'])} x {stage['device']}",
            *(str(stage[name]) for name in degrees),
            stage["recompute"]["kind"],
            format_seconds(stage["compute_s"]),
            format_seconds(stage["communication_s"]),
            format_bytes(stage["memory_bytes"]),
        )
        for number, stage in enumerate(stages)
    )
    columns = ("stage", "layers", "devices", *degrees, "recompute", "compute", "communication", "memory")
    sharding = stages[0]["sharding"]
    settings = (
        f"{batch['micro_batches']} micro-batches of {batch['micro_batch']} samples, schedule {plan['schedule']}",
        f"{plan['optimizer']} in {plan['model']['dtype']}, ZeRO {sharding['zero']} over {sharding['shard']} ranks",
    )
    yield Section(
        name="plan",
        title="The plan",
        parts=(
            Words(texts=settings, listed=True),
            Table(title="Stages; seconds of one micro-batch", columns=columns, rows=rows, folded=len(rows) > 12),
        ),
    )


def _others(plan: Mapping[str, Any], explanation: Mapping[str, Any]) -> Section:
    best = {
        "plan": "this plan",
        "s": plan["estimate"]["iteration_time_s"],
        "GiB": plan["estimate"]["peak_memory_bytes"] / GIB,
        "is": "this plan",
    }
    others = [
        {
            "plan": other["plan"],
            "s": other["iteration_time_s"],
            "GiB": other["peak_memory_bytes"] / GIB,
            "is": "runner-up",
        }
        for other in explanation["runners_up"]
        if other["iteration_time_s"] is not None and other["peak_memory_bytes"] is not None
    ]
    rows = [best, *others]
    for row in rows:
        row["front"] = not any(
            (other["s"] <= row["s"] and other["GiB"] <= row["GiB"])
            and (other["s"], other["GiB"]) != (row["s"], row["GiB"])
            for other in rows
        )
    table = Table(
        title="Runners-up: the best plans without one of its choices",
        columns=("without", "plan", "iteration", "loss", "memory"),
        rows=tuple(
            (
                " and ".join(other["without"]),
                other["plan"],
                format_seconds(other["iteration_time_s"]),
                percent(other["loss"]),
                format_bytes(other["peak_memory_bytes"]),
            )
            for other in explanation["runners_up"]
            if other["iteration_time_s"] is not None
        ),
    )
    chart = Chart(
        title="Time against memory: this plan, runners-up, and the line of those that none beats in both",
        about="A point for each plan by seconds of an iteration and memory of a rank",
        spec=points(
            rows,
            x="s",
            y="GiB",
            x_unit="seconds of an iteration",
            y_unit="GiB of a rank",
            name="plan",
            kind="is",
            front=True,
        ),
    )
    return Section(name="others", title="Other plans", parts=(chart, table))


def _changes(explanation: Mapping[str, Any]) -> Section:
    rows = [
        {"change": each["name"], "time": each["change"]}
        for each in sorted(explanation["sensitivities"], key=lambda each: -abs(each["change"] or 0.0))
        if each["change"] is not None
    ]
    table = Table(
        title="What more of each resource brings",
        columns=("change", "iteration", "plan"),
        rows=tuple(
            (each["name"], "-" if each["change"] is None else percent(each["change"]), "; ".join(each["differences"]))
            for each in explanation["sensitivities"]
        ),
        folded=True,
    )
    chart = Chart(
        title="Change of an iteration's time",
        about="Bars: how much shorter or longer an iteration is with more of each resource",
        spec=bars(rows, along="time", of="change", unit="change of time", form="+.1%"),
        table=table,
    )
    return Section(
        name="changes", title="What would help", parts=(chart,), lead="Each with the best plan there, searched anew."
    )


def _why(explanation: Mapping[str, Any]) -> Section:
    certificate = explanation["certificate"]
    proved = "proved: no plan of the space is better" if certificate["proved"] else "not proved"
    searched = (
        f"{certificate['considered']:,} ways considered, {certificate['plans']:,} plans priced in full; {proved}."
    )
    return Section(name="why", title="Why this plan", parts=(Words(texts=(*explanation["summary"], searched)),))


def _cluster(plan: Mapping[str, Any], explanation: Mapping[str, Any] | None) -> Section:
    parts: list[Part] = [
        Picture(
            title="Ranks on nodes",
            about="A box for each node with its devices, coloured by the stage that they work on",
            svg=draw_cluster(plan["devices"], plan["stages"]),
        )
    ]
    links = (explanation or {}).get("binding", {}).get("communication") or ()
    if links:
        whole = plan["estimate"]["iteration_time_s"]
        rows = [
            {"link": f"{each['axis']} over {each['link']}", "share": each["seconds"] / whole}
            for each in links
            if each["link"]
        ]
        parts.append(
            Chart(
                title="Links, by the share of an iteration that waits for them",
                about="Bars: the share of an iteration that waits for each axis's link",
                spec=bars(rows, along="share", of="link", unit="share of an iteration", form=".1%"),
            )
        )
    return Section(name="cluster", title="On the cluster", parts=tuple(parts))


def _basis(plan: Mapping[str, Any], answer: Mapping[str, Any]) -> Section:
    basis = plan["provenance"]
    parts: list[Part] = [
        Words(
            texts=(
                f"Compute is {basis['compute']}, communication {basis['communication'] or 'not needed'}, memory"
                f" {basis['memory']}.",
            )
        )
    ]
    effects = (answer.get("explanation") or {}).get("assumption_effects") or answer.get("effects") or ()
    if effects:
        rows = [
            {"assumed": f"{each['assumed']}; with {each['alternative']}", "time": each["time_ratio"] - 1}
            for each in effects
        ]
        parts.append(
            Chart(
                title="What moves this most, were it otherwise",
                about="Bars: the change of an iteration's time if an assumption were another",
                spec=bars(rows, along="time", of="assumed", unit="change of time", form="+.1%"),
            )
        )
    parts.append(Words(title="Assumed", texts=tuple(plan["assumptions"]), listed=True))
    return Section(name="basis", title="What it rests on", parts=tuple(parts))
