"""A run as a page: what was measured over what was estimated, moment by moment and part by part."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from estimator.pricing.outcome import Evaluation
from planner.one_job.running.program import Program
from planner.one_job.running.record import RunRecord
from planner.one_job.running.spans import Span
from planner.one_job.running.traces import estimated_spans, measured_spans
from planner.one_job.timeline.axis import TimeAxis
from planner.report.charts import grouped, lines
from planner.report.records import Chart, Fact, Page, Part, Picture, Section, Table, Words
from planner.report.svg import box, label, picture, time_marks
from planner.shared.pictures import COLOURS
from planner.shared.words import RUN_PARTS, format_bytes, format_seconds

WIDTH, LEFT, HEIGHT, HEAD = 1000.0, 130.0, 22.0, 24.0
MOST_RANKS = 16
MOST_SPANS = 3000
FILLS: dict[str, str] = {
    "forward": COLOURS[5],
    "backward": COLOURS[0],
    "weight": COLOURS[4],
    "wait": "#b8bec6",
    "sync": COLOURS[3],
    "optimizer": COLOURS[6],
    "offload": COLOURS[1],
}
NAMES = {
    "forward": "forward",
    "backward": "backward",
    "weight": "weight gradients",
    "wait": "waiting for a message",
    "sync": "gradients of the replicas",
    "optimizer": "optimizer",
    "offload": "offload",
}


def run_page(answer: Mapping[str, Any], program: Program, record: RunRecord, evaluation: Evaluation | None) -> Page:
    """Return the page of what `run --json` prints."""
    measured, estimated = answer["measured"], answer["estimated"]
    sections = [_timeline(program, record, evaluation)]
    if estimated is not None:
        sections.append(_parts(answer))
    sections += [_iterations(answer), _memory(answer)]
    notes = [*answer["notes"], *answer.get("where_they_part", ())]
    if answer["estimated_reason"]:
        notes.append(f"no estimate: {answer['estimated_reason']}")
    sections.append(Section(name="notes", title="Notes", parts=(Words(texts=tuple(notes), listed=True),)))
    plan = answer["plan"]
    return Page(
        title=f"{plan['model']}, really run on {plan['ranks']} ranks",
        subtitle=f"{answer['backend']} on {answer['device']}, {measured['software']}",
        facts=_facts(answer),
        sections=tuple(sections),
        notes=("Measured: the 10th percentile of the iterations after the warm-ups.",),
        answer=answer,
    )


def _facts(answer: Mapping[str, Any]) -> tuple[Fact, ...]:
    measured, estimated = answer["measured"], answer["estimated"]
    facts = [
        Fact(
            label="measured",
            value=format_seconds(measured["iteration_time_s"]),
            note=f"median {format_seconds(measured['median_iteration_time_s'])}",
        )
    ]
    if estimated is not None:
        low, high = estimated["interval_90_s"]
        note = f"90%: {format_seconds(low)} to {format_seconds(high)}"
        facts.append(Fact(label="estimated", value=format_seconds(estimated["iteration_time_s"]), note=note))
        facts.append(Fact(label="estimated over measured", value=f"{answer['ratio']:.1%}"))
    facts.append(Fact(label="peak memory, measured", value=format_bytes(measured["peak_memory_bytes"])))
    return tuple(facts)


def _timeline(program: Program, record: RunRecord, evaluation: Evaluation | None) -> Section:
    rows: list[tuple[str, tuple[Span, ...]]] = []
    measured = measured_spans(record)
    estimated = {} if evaluation is None else estimated_spans(program, evaluation)
    for rank in sorted(measured)[:MOST_RANKS]:
        rows.append((f"rank {rank} measured", measured[rank]))
        if rank in estimated:
            rows.append((f"rank {rank} estimated", estimated[rank]))
    left = len(measured) - MOST_RANKS
    lead = f"The first {MOST_RANKS} of {len(measured)} ranks." if left > 0 else ""
    shown = Picture(
        title="The typical iteration, measured over estimated",
        about="For each rank a row of what it did when, and below it what was estimated",
        svg=_draw(rows),
    )
    return Section(name="timeline", title="Moment by moment", parts=(shown,), lead=lead)


def _draw(rows: Sequence[tuple[str, tuple[Span, ...]]]) -> str:
    """A row for each; of very many pieces the longest."""
    shown = [(name, [span for span in spans if span.kind in FILLS]) for name, spans in rows]
    end_s = max((span.end_s for _, spans in shown for span in spans), default=1.0)
    axis = TimeAxis(end_s=max(end_s, 1e-9), width=WIDTH)
    lengths = sorted((span.seconds for _, spans in shown for span in spans), reverse=True)
    least_s = lengths[MOST_SPANS] if len(lengths) > MOST_SPANS else 0.0
    elements: list[str] = []
    for row, (name, spans) in enumerate(shown):
        y = row * HEIGHT + HEAD
        elements.append(label(LEFT - 6, y + 14, name, size=11, ink="ink", anchor="end"))
        elements += [
            box(
                LEFT + axis.pixels(span.start_s),
                y,
                max(0.3, axis.pixels(span.seconds)),
                HEIGHT - 4,
                FILLS[span.kind],
                said=f"{span.name}: {axis.say_moment(span.start_s)} to {axis.say_moment(span.end_s)}",
            )
            for span in spans
            if span.seconds >= least_s
        ]
    bottom = len(shown) * HEIGHT + HEAD
    kinds = {span.kind for _, spans in shown for span in spans}
    marks = time_marks(axis, left=LEFT, top=HEAD - 2, bottom=bottom)
    return picture(LEFT + WIDTH + 24, bottom + 20, "Measured over estimated", [*_legend(kinds), marks, *elements])


def _legend(kinds: Collection[str]) -> Iterator[str]:
    x = LEFT
    for kind, fill in FILLS.items():
        if kind in kinds:
            yield box(x, 4, 12, 12, fill)
            yield label(x + 16, 14, NAMES[kind], size=11, ink="ink")
            x += 30 + 6.2 * len(NAMES[kind])


def _parts(answer: Mapping[str, Any]) -> Section:
    rows = [
        {"part": RUN_PARTS[each["part"]], "s": each[key], "is": name}
        for each in answer["differences"]
        for key, name in (("measured_s", "measured"), ("estimated_s", "estimated"))
    ]
    table = Table(
        title="Parts of an iteration on the stage that limits the estimate",
        columns=("part", "measured", "estimated", "difference"),
        rows=tuple(
            (
                RUN_PARTS[each["part"]],
                format_seconds(each["measured_s"]),
                format_seconds(each["estimated_s"]),
                f"{'-' if each['difference_s'] < 0 else '+'}{format_seconds(abs(each['difference_s']))}",
            )
            for each in answer["differences"]
        ),
    )
    chart = Chart(
        title="Part by part",
        about="Two bars for each part of an iteration: measured and estimated seconds",
        spec=grouped(rows, along="s", of="part", groups="is", unit="seconds"),
    )
    return Section(name="parts", title="Where they part", parts=(chart, table))


def _iterations(answer: Mapping[str, Any]) -> Section:
    measured = answer["measured"]
    rows = [
        {"iteration": number + 1, "s": seconds, "of": "measured"}
        for number, seconds in enumerate(measured["iteration_times_s"])
    ]
    estimated = answer["estimated"]
    if estimated is not None:
        rows += [
            {"iteration": number, "s": estimated["iteration_time_s"], "of": "estimated"}
            for number in (1, max(2, len(measured["iteration_times_s"])))
        ]
    parts: list[Part] = [
        Chart(
            title="Seconds of each measured iteration",
            about="Measured seconds of each iteration, and the estimate as a line",
            spec=lines(rows, x="iteration", y="s", x_unit="iteration", y_unit="seconds", of="of", whole=True),
        )
    ]
    losses = [
        {"iteration": number + 1, "loss": loss, "of": "loss"}
        for number, loss in enumerate(answer["losses"])
        if loss is not None
    ]
    if losses:
        parts.append(
            Chart(
                title="Loss, warm-ups included",
                about="The global batch's mean loss in each iteration",
                spec=lines(losses, x="iteration", y="loss", x_unit="iteration", y_unit="loss", of="of", whole=True),
            )
        )
    return Section(name="iterations", title="Iterations", parts=tuple(parts))


def _memory(answer: Mapping[str, Any]) -> Section:
    measured, estimated = answer["measured"], answer["estimated"]
    rows = []
    for number, stage in enumerate(measured["stages"]):
        other = "-" if estimated is None else format_bytes(estimated["stages"][number]["peak_memory_bytes"])
        rows.append((str(stage["stage"]), format_bytes(stage["peak_memory_bytes"]), other))
    table = Table(title="Peak memory by stage", columns=("stage", "measured", "estimated"), rows=tuple(rows))
    return Section(name="memory", title="Memory", parts=(table,), lead=f"Measured is {measured['peak_memory_is']}.")
