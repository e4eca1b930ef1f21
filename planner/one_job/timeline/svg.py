"""A timeline as an SVG that stands by itself: a row for each stage, time from left to right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from estimator.schedules.records import Kind
from planner.one_job.timeline.axis import TimeAxis
from planner.one_job.timeline.boxes import Box, Part, boxes_of
from planner.one_job.timeline.events import Timeline
from planner.one_job.timeline.markup import MIDDLE, box_path, cut_text, fit_text, px, text_width, wrap_text, xml_text
from planner.one_job.timeline.palette import EMPTY_ROW, FAINT_TEXT, GRID, HATCHES, LOOKS, PAPER, TEXT, Mark, fill_of
from planner.one_job.timeline.words import (
    AFTER_NAMES,
    describe_part,
    describe_stage,
    devices_of,
    figures_of,
    layers_of,
    legend_of,
    notes_of,
    numbers_of,
    title_of,
)
from profiles.records import dataclass

PLOT_WIDTH = 1120.0
MARGIN = 20.0
GAP = 10.0
"""Between a row's label and the row."""

BUSY_WIDTH = 46.0
MOST_LABEL_WIDTH = 380.0
ROWS_HEIGHT = 880.0
LEAST_ROW, MOST_ROW = 18.0, 44.0
TWO_LINES = 30.0
"""From this height on a row's label has two lines."""

MOST_PARTS = 5500
"""Keeps the file below 1 MB: a part with its words takes some 140 bytes."""

NUMBER_SIZES = (11.0, 9.5, 8.0)
"""Of the fonts of micro-batch numbers: the largest that fits."""

LEAST_STOPPED = 0.4
"""In pixels: a lower foot of a box is not drawn."""

MOST_SHADES = 6
"""Of a kind's chunks, in the legend."""

FONTS = "system-ui, -apple-system, &apos;Segoe UI&apos;, &apos;Helvetica Neue&apos;, Arial, sans-serif"
HATCH_NAME = "cellplan"

Line = tuple[str, float, str]
"""Text, size of the font, ink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A picture so wide, whose time axis begins at `left`, in pixels."""

    left: float
    width: float
    axis: TimeAxis


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """Where the rows are, in pixels."""

    left: float
    top: float
    row_height: float
    rows: int
    axis: TimeAxis

    @property
    def box_height(self) -> float:
        return self.row_height - (4.0 if self.row_height >= TWO_LINES else 2.0)

    @property
    def bottom(self) -> float:
        return self.top + self.rows * self.row_height

    @property
    def right(self) -> float:
        return self.left + PLOT_WIDTH + BUSY_WIDTH

    def x(self, seconds: float) -> float:
        return self.left + self.axis.pixels(seconds)

    def y(self, row: int) -> float:
        return self.top + row * self.row_height


def draw_timeline(timeline: Timeline, *, most_parts: int = MOST_PARTS) -> str:
    """The text of the SVG: below 1 MB, the same for the same timeline. More tasks than `most_parts` are drawn in
    groups."""
    row_height = _row_height(timeline)
    labels, common = _labels(timeline, two_lines=row_height >= TWO_LINES)
    plot = plot_of(timeline)
    axis, left, width = plot.axis, plot.left, plot.width
    head, head_end = _heading(timeline, common, width)
    frame = _Frame(left=left, top=head_end + 24.0, row_height=row_height, rows=len(timeline.stages), axis=axis)
    rows = [stage.tasks for stage in timeline.stages]
    boxes = boxes_of(
        rows,
        seconds_per_pixel=axis.seconds_per_pixel,
        group_width=text_width(f"{timeline.micro_batches}-{timeline.micro_batches}", NUMBER_SIZES[1]) + 6,
        most_parts=most_parts,
    )
    foot, height = _foot(notes_of(timeline, boxes), frame, width)
    size = f'width="{px(width)}" height="{px(height)}"'
    lines = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {px(width)} {px(height)}" role="img"'
        f' font-family="{FONTS}">',
        f"<title>{xml_text(f'Timeline of {timeline.model} on {timeline.cluster}')}</title>",
        _hatch(),
        f'<rect {size} fill="{PAPER}"/>',
        *head,
        *_grid(frame),
        *_stage_labels(timeline, labels, frame),
        *_tasks(timeline, boxes, frame),
        *_after_tasks(timeline, frame),
        *foot,
        "</svg>",
    )
    return "\n".join(lines) + "\n"


def plot_of(timeline: Timeline) -> Plot:
    """Return where the picture of a timeline has its time axis."""
    labels, _ = _labels(timeline, two_lines=_row_height(timeline) >= TWO_LINES)
    label_width = min(MOST_LABEL_WIDTH, max(text_width(line, size) for lines in labels for line, size, _ in lines))
    left = MARGIN + label_width + GAP
    return Plot(
        left=left,
        width=left + PLOT_WIDTH + BUSY_WIDTH + MARGIN,
        axis=TimeAxis(end_s=max(timeline.end_s, timeline.iteration_time_s), width=PLOT_WIDTH),
    )


def _row_height(timeline: Timeline) -> float:
    return min(MOST_ROW, max(LEAST_ROW, ROWS_HEIGHT / len(timeline.stages)))


def _hatch() -> str:
    patterns = (
        f'<pattern id="{HATCH_NAME}-{mark}" width="6" height="6" patternUnits="userSpaceOnUse"'
        f' patternTransform="rotate(45)"><rect width="6" height="6" fill="{fill_of(mark)}"/>'
        f'<rect width="2" height="6" fill="{hatch}"/></pattern>'
        for mark, hatch in HATCHES.items()
    )
    return f"<defs>{''.join(patterns)}</defs>"


def _paint(mark: Mark | None, chunk: float = 0, chunks: int = 1) -> str:
    """The attributes of a box of this kind; None: an empty one."""
    if mark is None:
        return f'fill="{EMPTY_ROW}" stroke="{GRID}"'
    return f'fill="url(#{HATCH_NAME}-{mark})"' if mark in HATCHES else f'fill="{fill_of(mark, chunk, chunks)}"'


def _heading(timeline: Timeline, common: str, width: float) -> tuple[list[str], float]:
    """Title, figures and legend, and where they end."""
    elements, y = [], MARGIN
    for text, size, ink in ((title_of(timeline), 17.0, TEXT), (figures_of(timeline), 13.0, TEXT), (common, 12.0, TEXT)):
        # Bold letters are wider.
        room, weight = (width, "") if size < 17 else (0.9 * width, ' font-weight="600"')
        for line in wrap_text(text, room - 2 * MARGIN, size):
            y += 1.35 * size
            opening = f'<text x="{px(MARGIN)}" y="{px(y)}" font-size="{size:g}" fill="{ink}"{weight}>'
            elements.append(f"{opening}{xml_text(line)}</text>")
    legend, y = _legend(timeline, y + 24.0, width)
    return [*elements, *legend], y


def _legend(timeline: Timeline, y: float, width: float) -> tuple[list[str], float]:
    """A swatch and a name for all that is drawn; chunks from the first to the last."""
    elements, x = [], MARGIN
    for mark, name in legend_of(timeline):
        shades = min(len(timeline.stages[0].planned.chunks), MOST_SHADES) if mark in get_args(Kind) else 1
        wide = 16.0 if shades == 1 else 10.0 * shades
        if x + wide + 6 + text_width(name, 12) > width - MARGIN and x > MARGIN:
            x, y = MARGIN, y + 20.0
        for shade in range(shades):
            place = f'x="{px(x + shade * 10)}" y="{px(y - 11)}" width="{px(wide / shades)}" height="13"'
            elements.append(f"<rect {place} {_paint(mark, shade, shades)}/>")
        x += wide + 6
        elements.append(f'<text x="{px(x)}" y="{px(y)}" font-size="12" fill="{TEXT}">{xml_text(name)}</text>')
        x += text_width(name, 12) + 18
    return elements, y + 6.0


def _labels(timeline: Timeline, *, two_lines: bool) -> tuple[list[tuple[Line, ...]], str]:
    """The lines of each stage's label, and what is said once because it holds for all stages."""
    stages = timeline.stages
    if two_lines:
        return [
            ((f"stage {stage.number}: {layers_of(stage)}", 12.0, TEXT), (devices_of(stage), 11.0, FAINT_TEXT))
            for stage in stages
        ], ""
    ways = {devices_of(stage) for stage in stages}
    alike = len(ways) == 1
    return [
        ((f"{stage.number}: {layers_of(stage)}{'' if alike else f', {devices_of(stage)}'}", 10.0, TEXT),)
        for stage in stages
    ], f"every stage: {ways.pop()}" if alike else ""


def _stage_labels(timeline: Timeline, labels: Sequence[tuple[Line, ...]], frame: _Frame) -> list[str]:
    """Each row's label on the left and, on the right, for how much of the drawn time it works."""
    at_right = f'x="{px(frame.right)}" text-anchor="end" fill="{FAINT_TEXT}"'
    elements = [
        f'<text {at_right} y="{px(frame.top - 8)}" font-size="10">busy'
        "<title>Share of the time drawn in which the stage does forwards and backwards</title></text>"
    ]
    for row, (stage, lines) in enumerate(zip(timeline.stages, labels, strict=True)):
        middle = frame.y(row) + frame.box_height / 2
        elements.append(f"<g><title>{xml_text(describe_stage(stage))}</title>")
        for turn, (text, size, ink) in enumerate(lines):
            y = middle + MIDDLE * size + (turn - (len(lines) - 1) / 2) * 14.0
            shown = xml_text(cut_text(text, frame.left - GAP - MARGIN, size))
            elements.append(f'<text x="{px(MARGIN)}" y="{px(y)}" font-size="{size:g}" fill="{ink}">{shown}</text>')
        elements.append("</g>")
        size = lines[-1][1]
        share = f"{stage.busy_s / frame.axis.end_s:.0%}"
        elements.append(f'<text {at_right} y="{px(middle + MIDDLE * size)}" font-size="{size:g}">{share}</text>')
    return elements


def _grid(frame: _Frame) -> list[str]:
    """Empty rows, lines at round moments, and their names: below, and above as well where that is far."""
    empty = [box_path(frame.left, frame.y(row), PLOT_WIDTH, frame.box_height) for row in range(frame.rows)]
    marks = frame.axis.marks()
    lines = "".join(f"M{px(frame.x(s))} {px(frame.top - 3)}V{px(frame.bottom + 4)}" for s, _ in marks)
    heights = [frame.bottom + 17.0]
    if frame.bottom - frame.top > ROWS_HEIGHT / 2:
        heights.append(frame.top - 8.0)
    return [
        f'<path fill="{EMPTY_ROW}" d="{"".join(empty)}"/>',
        f'<path d="{lines}" stroke="{GRID}" fill="none"/>',
        f'<g font-size="11" text-anchor="middle" fill="{FAINT_TEXT}">',
        *(f'<text x="{px(frame.x(s))}" y="{px(y)}">{name}</text>' for y in heights for s, name in marks),
        "</g>",
    ]


def _tasks(timeline: Timeline, boxes: Sequence[Sequence[Box]], frame: _Frame) -> list[str]:
    """Boxes by colour, then the numbers over them by ink."""
    chunks = len(timeline.stages[0].planned.chunks)
    digits = len(str(timeline.micro_batches - 1))
    fills: dict[str, list[str]] = {}
    inks: dict[str, list[str]] = {}
    for row, row_boxes in enumerate(boxes):
        for box in row_boxes:
            x, y = frame.x(box.start_s), frame.y(row)
            wide = frame.axis.pixels(box.end_s - box.start_s)
            for part in box.parts:
                # A group's area is its work: what it waits stays empty at its foot.
                high = frame.box_height * part.seconds / (box.end_s - box.start_s)
                shown = box_path(x, y, wide - 0.7 if wide >= 3 else wide, high)
                stopped = min(1.0, timeline.stages[row].stopped_in(part.kind, part.chunk, part.tasks) / part.seconds)
                title = describe_part(box, part, chunks, frame.axis, stopped)
                chunk = (chunks - 1) / 2 if part.chunk is None else part.chunk
                same = fills.setdefault(_paint(part.kind, chunk, chunks), [])
                same.append(f'<path d="{shown}"><title>{title}</title></path>')
                if stopped * high >= LEAST_STOPPED:
                    # The foot of a box: as large a part of it as collectives are of the task.
                    foot = box_path(x, y + (1 - stopped) * high, wide - 0.7 if wide >= 3 else wide, stopped * high)
                    fills.setdefault(f'{_paint("stopped")} pointer-events="none"', []).append(f'<path d="{foot}"/>')
                inks.setdefault(LOOKS[part.kind].ink, []).extend(
                    _number(part, digits, x, y, wide, high * (1 - stopped))
                )
                y += high
    elements = []
    for fill, paths in sorted(fills.items()):
        elements += [f"<g {fill}>", *paths, "</g>"]
    for ink, texts in sorted(inks.items()):
        opening = f'<g fill="{ink}" font-size="{NUMBER_SIZES[0]:g}" text-anchor="middle" pointer-events="none">'
        elements += [opening, *texts, "</g>"] if texts else []
    return elements


def _number(part: Part, digits: int, x: float, y: float, wide: float, high: float) -> list[str]:
    """The micro-batches of a part in the middle of its box, if those of all boxes of this size would fit."""
    text = numbers_of(part)
    sizes = NUMBER_SIZES if part.tasks == 1 else NUMBER_SIZES[1:]
    fits = fit_text(len(text), sizes, wide, high) if part.gapless else None
    if fits is None or fit_text(max(len(text), digits), sizes, wide, high) is None:
        return []
    size, stands = fits
    other = "" if size == NUMBER_SIZES[0] else f' font-size="{size:g}"'
    x, y = x + wide / 2 - 0.3, y + high / 2
    if stands:
        return [f'<text transform="translate({px(x + MIDDLE * size)} {px(y)})rotate(-90)"{other}>{text}</text>']
    return [f'<text x="{px(x)}" y="{px(y + MIDDLE * size)}"{other}>{text}</text>']


def _after_tasks(timeline: Timeline, frame: _Frame) -> list[str]:
    """What all stages do once the schedule is done."""
    elements, start_s = [], timeline.pipeline_s
    for mark, seconds in timeline.after_s.items():
        if not seconds:
            continue
        end_s = start_s + seconds
        said = f"{AFTER_NAMES[mark]}: {frame.axis.say_moment(start_s)} to {frame.axis.say_moment(end_s)}"
        x, wide = frame.x(start_s), frame.axis.pixels(seconds)
        shown = "".join(box_path(x, frame.y(row), wide, frame.box_height) for row in range(frame.rows))
        elements.append(f'<path {_paint(mark)} d="{shown}"><title>{said}</title></path>')
        start_s = end_s
    return elements


def _foot(notes: Sequence[str], frame: _Frame, width: float) -> tuple[list[str], float]:
    """The notes, and where the picture ends."""
    y = frame.bottom + 26.0
    elements = [f'<g font-size="11" fill="{FAINT_TEXT}">']
    for note in notes:
        for line in wrap_text(note, width - 2 * MARGIN, 11):
            y += 15.0
            elements.append(f'<text x="{px(MARGIN)}" y="{px(y)}">{xml_text(line)}</text>')
    elements.append("</g>")
    return elements, y + MARGIN
