"""A plan as a page: what it takes, where time and memory go, what comes next, and what it all rests on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.one_job.timeline.events import Timeline
from planner.one_job.timeline.svg import draw_timeline, plot_of
from planner.report.charts import bars, points, stacked
from planner.report.cluster_section import cluster_section
from planner.report.estimate_parts import FIT_NAMES, MEMORY_NAMES, describe_interval, headline_facts, say_count
from planner.report.memory_over_time import memory_steps
from planner.report.memory_picture import draw_memory
from planner.report.records import Chart, Command, Fact, Page, Part, Picture, Section, Table, Words
from planner.shared.words import TIME_NAMES, format_bytes, format_range, format_seconds, percent

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
    yield from _memory(plan)
    yield from _stages(plan)
    if explanation:
        yield _others(plan, explanation)
        yield _changes(explanation)
        yield _why(explanation)
    yield cluster_section(plan, explanation, answer.get("link_loads"))
    yield _basis(plan, answer)


def _cost(answer: Mapping[str, Any]) -> Iterator[Fact]:
    """Of the whole training, where it was asked for: days, device-hours, money and energy, each with its interval."""
    training = answer.get("training") or (answer.get("estimate") or {}).get("training") or {}
    for label, key, form, unit in (
        ("whole training", "days", ",.3g", " days"),
        ("device-hours", "device_hours", ",.0f", ""),
        ("cost", "price", ",.0f", ""),
        ("energy", "energy_kwh", ",.0f", " kWh"),
    ):
        value, interval = training.get(key), training.get(f"{key}_interval_90")
        if value is not None:
            span = "" if interval is None else f"90%: {format_range(*(format(end, form) for end in interval))}{unit}"
            yield Fact(label=label, value=f"{format(value, form)}{unit}", note=span)


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
        svg = draw_timeline(timeline, most_parts=MOST_PARTS)
        moments = memory_steps(plan, timeline)
        if moments:
            fit = plan["estimate"].get("memory_fit") or {}
            svg += draw_memory(moments, plot_of(timeline), device_bytes=fit.get("device_bytes"))
        parts.append(
            Picture(
                title="An iteration, stage by stage, and the memory of ranks below" if moments else "An iteration",
                about=f"Timeline of {len(timeline.stages)} stages; what collectives stop is hatched; memory runs below",
                svg=svg,
            )
        )
    yield Section(name="time", title="Time", parts=tuple(parts))


def _memory(plan: Mapping[str, Any]) -> Iterator[Section]:
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
        f"{say_count(batch['micro_batches'], 'micro-batch', 'es')} of {say_count(batch['micro_batch'], 'sample')},"
        f" schedule {plan['schedule']}",
        f"{plan['optimizer']} in {plan['model']['dtype']}, ZeRO {sharding['zero']} over"
        f" {say_count(sharding['shard'], 'rank')}",
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
        spec=bars(rows, along="time", of="change", unit="change of time", form="+.2~%"),
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


def _basis(plan: Mapping[str, Any], answer: Mapping[str, Any]) -> Section:
    basis, estimate = plan["provenance"], answer.get("estimate") or {}
    texts = [
        f"Compute is {basis['compute']}, communication {basis['communication'] or 'not needed'}, memory"
        f" {basis['memory']}."
    ]
    guesses = answer.get("guesses") or ()
    if guesses:
        share = min(1.0, sum(each["share"] for each in guesses))
        texts.append(
            f"{share:.1%} of an iteration rests on models with no measurement near them, listed below; the rest is"
            " measured, or follows from these, as the bubble does."
        )
    parts: list[Part] = [Words(texts=tuple(texts)), *_guessed(guesses)]
    effects = (answer.get("explanation") or {}).get("assumption_effects") or estimate.get("assumption_effects") or ()
    if effects:
        rows = [
            {"assumed": f"{each['assumed']}; with {each['alternative']}", "time": each["time_ratio"] - 1}
            for each in effects
        ]
        parts.append(
            Chart(
                title="What moves this most, were it otherwise",
                about="Bars: the change of an iteration's time if an assumption were another",
                spec=bars(rows, along="time", of="assumed", unit="change of time", form="+.2~%"),
                table=Table(
                    title="The same as a table",
                    columns=("assumed", "instead", "iteration", "memory"),
                    rows=tuple(_effect(each) for each in effects),
                    folded=True,
                ),
            )
        )
    parts.append(Words(title="Assumed", texts=tuple(plan["assumptions"]), listed=True))
    return Section(name="basis", title="What it rests on", parts=tuple(parts))


def _effect(effect: Mapping[str, Any]) -> tuple[str, ...]:
    """Of an assumption: what it is, what it could be, and what that would change."""
    memory = effect["memory_change_bytes"]
    sign = "-" if memory < 0 else "+"
    fits = "" if effect["fits"] else ", does not fit"
    change = f"{percent(effect['time_ratio'] - 1)}{fits}"
    return (
        effect["assumed"],
        f"{effect['alternative']} ({effect['flag']})",
        change,
        f"{sign}{format_bytes(abs(memory))}",
    )


def _guessed(guesses: Sequence[Mapping[str, Any]]) -> Iterator[Part]:
    """What is modelled, by share of the time."""
    if guesses:
        rows = [{"modelled": each["what"].partition(": ")[0], "share": each["share"]} for each in guesses]
        yield Chart(
            title="Modelled, by share of an iteration",
            about="Bars: the share of an iteration that rests on each thing that nobody measured",
            spec=bars(rows, along="share", of="modelled", unit="share of an iteration", form=".2~%"),
            table=Table(
                title="What stands in, and what would measure it",
                columns=("share", "modelled", "measured by"),
                rows=tuple((f"{each['share']:.1%}", each["what"], each["remedy"]) for each in guesses),
                folded=True,
            ),
        )
