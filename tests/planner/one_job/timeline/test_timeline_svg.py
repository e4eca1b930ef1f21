"""The picture of a timeline: what is in it, that nothing collides or runs over, how large it gets, and its colours."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.schedules.records import Kind, Task
from planner.one_job.timeline.axis import TimeAxis, say_length
from planner.one_job.timeline.boxes import boxes_of
from planner.one_job.timeline.events import Timeline, make_timeline
from planner.one_job.timeline.markup import cut_text, text_width
from planner.one_job.timeline.palette import EMPTY_ROW, FAINT_TEXT, LOOKS, PAPER, TEXT, channels, fill_of
from planner.one_job.timeline.svg import MOST_PARTS, PLOT_WIDTH, draw_timeline
from tests.planner.one_job.timeline.timeline_examples import PLANS, TASK_S, made_up, plan_named

SVG = "{http://www.w3.org/2000/svg}"
BOX = re.compile(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)H\1z")

MANY: list[dict[str, Any]] = [
    {"schedule": "1f1b", "stages": 128, "micro_batches": 512},
    {"schedule": "gpipe", "stages": 32, "micro_batches": 128},
    {"schedule": "zb-h1", "stages": 64, "micro_batches": 256},
    {"schedule": "dualpipe", "stages": 64, "micro_batches": 128},
    {"schedule": "interleaved", "stages": 32, "chunks": 4, "micro_batches": 128},
    {"schedule": "zb-h1", "stages": 26, "micro_batches": 70},  # just not grouped
    {"schedule": "1f1b", "stages": 1, "micro_batches": 2700},
]


def parse(timeline: Timeline) -> ElementTree.Element:
    return ElementTree.fromstring(draw_timeline(timeline))


def texts(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


Rectangle = tuple[float, float, float, float]


def drawn(root: ElementTree.Element, kind: str) -> list[Rectangle]:
    """x, y, width and height of the boxes whose words begin as the pattern `kind` says."""
    found: list[Rectangle] = []
    for path in root.iter(f"{SVG}path"):
        title = path.findtext(f"{SVG}title") or ""
        if re.match(kind, title):
            for part in path.attrib["d"].split("M")[1:]:
                matched = BOX.fullmatch(f"M{part}")
                assert matched, part
                x, y, wide, high = map(float, matched.groups())
                found.append((x, y, wide, high))
    return found


# What is in it


@pytest.mark.parametrize("name", PLANS)
def test_the_picture_has_every_stage_and_says_what_it_shows(name: str) -> None:
    timeline = make_timeline(plan_named(name))
    root = parse(timeline)
    assert root.tag == f"{SVG}svg"
    said = texts(root)
    bubble = f"bubble {timeline.bubble_s / timeline.iteration_time_s:.1%} of it"
    iteration = f"iteration {say_length(timeline.iteration_time_s)} (estimated)"
    for words in (timeline.model, timeline.cluster, timeline.schedule, iteration, bubble):
        assert words in " ".join(said[:2])
    for stage in timeline.stages:
        label = next(text for text in said if text.startswith(f"stage {stage.number}: layer"))
        for first, end in stage.planned.chunks:
            assert re.search(rf"\b{first}\b" if end - first == 1 else rf"\b{first}-{end - 1}\b", label)
    planned = timeline.stages[0].planned
    way = f"{len(planned.ranks)} x a100-80gb, dp {planned.dp} x tp {planned.tp}"
    assert said.count(way) == len(timeline.stages)
    split = any(task.kind == "weight" for task in timeline.stages[0].tasks)
    assert ("gradients of weights" in " ".join(said)) == split
    assert ("recomputation" in " ".join(said)) == (name == "zb-h1")
    assert ("offloaded state" in said) == (name == "offloaded")


@pytest.mark.parametrize("name", PLANS)
def test_a_box_for_each_task_where_its_time_is(name: str) -> None:
    timeline = make_timeline(plan_named(name))
    root = parse(timeline)
    pixels_per_s = PLOT_WIDTH / max(timeline.end_s, timeline.iteration_time_s)
    left = min(x for kind in get_args(Kind) for x, *_ in drawn(root, kind))
    for kind in get_args(Kind):
        boxes = drawn(root, "backward of" if kind == "weight" else rf"{kind} \d")
        tasks = [task for stage in timeline.stages for task in stage.tasks if task.kind == kind]
        assert len(boxes) == len(tasks)
        starts = sorted(left + task.start_s * pixels_per_s for task in tasks)
        assert sorted(x for x, *_ in boxes) == pytest.approx(starts, abs=0.11)
        total = sum(wide for _, _, wide, _ in boxes)
        length = sum(task.end_s - task.start_s for task in tasks) * pixels_per_s
        assert length - 0.8 * len(tasks) <= total <= length + 0.1 * len(tasks)


def test_numbers_count_micro_batches_and_stand_where_they_do_not_fit_lying() -> None:
    few = texts(parse(made_up("1f1b", stages=2, micro_batches=4)))
    assert [few.count(str(k)) for k in range(1, 4)] == [4, 4, 4]
    root = parse(made_up("1f1b", stages=4, micro_batches=40))
    standing = [element for element in root.iter(f"{SVG}text") if "rotate(-90)" in element.get("transform", "")]
    assert {element.text for element in standing} == {str(k) for k in range(10, 40)}


def test_what_follows_the_schedule_is_drawn_only_where_it_takes_time() -> None:
    timeline = made_up("1f1b", stages=3, micro_batches=4)
    root = parse(timeline)
    for kind in ("gradient sync", "optimizer"):
        boxes = drawn(root, kind)
        assert len(boxes) == 3
        assert len({box[1] for box in boxes}) == 3
    assert max(x + width for x, _, width, _ in drawn(root, "optimizer")) == pytest.approx(
        min(x for x, *_ in drawn(root, "forward")) + PLOT_WIDTH, abs=0.3
    )
    without = replace(timeline, sync_s=0.0, optimizer_s=0.0)
    assert not drawn(parse(without), "gradient sync")
    assert "gradient sync" not in draw_timeline(without)


def test_the_foot_of_a_box_is_what_collectives_stop() -> None:
    timeline = made_up("1f1b", stages=2, micro_batches=4, stopped=0.25)
    root = parse(timeline)
    (feet,) = (group for group in root.iter(f"{SVG}g") if group.get("fill", "").endswith("-stopped)"))
    paths = [element.get("d", "") for element in feet]
    boxes = {(x, y, wide): high for kind in TASK_S for x, y, wide, high in drawn(root, rf"{kind} \d")}
    assert len(paths) == len(boxes) == 16
    for path in paths:
        matched = BOX.fullmatch(path)
        assert matched, path
        x, _, wide, high = map(float, matched.groups())
        whole = next(tall for (left, _, across), tall in boxes.items() if (left, across) == (x, wide))
        assert high == pytest.approx(whole / 4, abs=0.11)
    assert draw_timeline(timeline).count("25.0% of it collectives") == 16
    assert "collectives that stop them" in texts(root)
    assert "-stopped)" not in draw_timeline(made_up("1f1b", stages=2, micro_batches=4))


def test_chunks_are_shaded_and_named() -> None:
    text = draw_timeline(made_up("interleaved", stages=2, micro_batches=4, chunks=3))
    fills = {fill_of(kind, chunk, 3) for kind in ("forward", "backward") for chunk in range(3)}
    assert len(fills) == 6
    assert all(text.count(f'<g fill="{fill}">') == 1 for fill in fills)
    assert "forward 1, chunk 2: " in text
    assert "(chunk 0 to 2)" in text


def test_differences_to_other_figures_are_said() -> None:
    timeline = made_up("interleaved", stages=2, micro_batches=4, chunks=2)
    assert "closed form" not in draw_timeline(timeline)
    assert "The plan itself" not in draw_timeline(timeline)
    other = replace(timeline, iteration_time_s=1.1 * timeline.end_s, planned_time_s=timeline.end_s)
    said = " ".join(texts(parse(other)))
    assert f"ends at {say_length(timeline.end_s)}; the estimate of {say_length(1.1 * timeline.end_s)}" in said
    assert f"The plan itself states {say_length(timeline.end_s)} an iteration" in said


def test_names_are_escaped() -> None:
    timeline = replace(made_up("1f1b", stages=2, micro_batches=2), model='<b>&"\x00\x1b', cluster="]]>&amp;")
    assert texts(parse(timeline))[0].startswith('<b>&"?? on ]]>&amp;: 1f1b')


def test_the_same_timeline_gives_the_same_bytes() -> None:
    timeline = make_timeline(plan_named("1f1b"))
    assert draw_timeline(timeline) == draw_timeline(make_timeline(plan_named("1f1b")))


# Large ones


@pytest.mark.parametrize("sizes", MANY, ids=lambda sizes: "-".join(map(str, sizes.values())))
def test_many_stages_and_micro_batches_stay_below_a_megabyte(sizes: dict[str, Any]) -> None:
    timeline = made_up(**sizes)
    text = draw_timeline(timeline)
    assert len(text.encode("utf-8")) < 1_000_000
    root = ElementTree.fromstring(text)
    boxes = sum(len(drawn(root, kind)) for kind in ("forward", "backward"))
    assert boxes <= MOST_PARTS
    said = texts(root)
    tasks = sum(len(stage.tasks) for stage in timeline.stages)
    stages = timeline.stages
    for stage in stages:
        assert sum(text.startswith((f"{stage.number}: layer", f"stage {stage.number}: layer")) for text in said) == 1
    grouped = boxes < tasks
    assert grouped or tasks <= MOST_PARTS
    if grouped:
        assert f"Of {tasks:,} tasks " in " ".join(said)
        assert "The trace (--timeline" in " ".join(said)
    # Grouped or not, the area is the work.
    height = max(high for *_, high in drawn(root, "optimizer"))
    area = sum(wide * high for kind in ("forward", "backward") for _, _, wide, high in drawn(root, kind))
    busy = sum(stage.busy_s for stage in stages) / timeline.end_s * PLOT_WIDTH * height
    assert area == pytest.approx(busy, rel=0.03 if grouped else 0.25)


def test_narrow_tasks_are_grouped_even_where_there_are_few_stages() -> None:
    root = parse(made_up("1f1b", stages=2, micro_batches=900))
    assert any(text.startswith("Of 3,600 tasks 3,600 are not drawn") for text in texts(root))
    assert len(drawn(root, "forward")) < 100
    ranges = [text for text in texts(root) if re.fullmatch(r"\d+-\d+", text)]
    assert len(ranges) > 0.9 * sum(len(drawn(root, kind)) for kind in ("forward", "backward"))


def test_micro_batches_that_are_not_all_there_get_no_numbers_but_dots_in_words() -> None:
    text = draw_timeline(made_up("dualpipe", stages=64, micro_batches=128))
    assert re.search(r"<title>backward \d+\.\.\.\d+ \(", text)
    assert not re.search(r">\d+\.\.\.\d+</text>", text)


def task_rows() -> st.SearchStrategy[list[list[Task]]]:
    """Rows of tasks in order, with gaps, of whole milliseconds."""

    def row(found: list[tuple[int, int, Kind, int]]) -> list[Task]:
        tasks, clock = [], 0
        for k, (gap, length, kind, chunk) in enumerate(found):
            start, clock = clock + gap, clock + gap + length
            tasks.append(Task(stage=0, chunk=chunk, micro_batch=k, kind=kind, start_s=start / 1e3, end_s=clock / 1e3))
        return tasks

    one = st.tuples(st.integers(0, 40), st.integers(0, 60), st.sampled_from(get_args(Kind)), st.integers(0, 2))
    return st.lists(st.lists(one, max_size=40).map(row), min_size=1, max_size=4)


@given(rows=task_rows(), seconds_per_pixel=st.sampled_from([1e-4, 1e-3, 1e-2, 1.0]), most=st.integers(1, 60))
def test_boxes_hold_every_task_once_in_order(rows: list[list[Task]], seconds_per_pixel: float, most: int) -> None:
    boxes = boxes_of(rows, seconds_per_pixel=seconds_per_pixel, group_width=44.0, most_parts=most)
    assert len(boxes) == len(rows)
    for row, own in zip(rows, boxes, strict=True):
        lasting = [task for task in row if task.end_s > task.start_s]
        assert sum(box.tasks for box in own) == len(lasting)
        work = math.fsum(task.end_s - task.start_s for task in lasting)
        assert math.fsum(part.seconds for box in own for part in box.parts) == pytest.approx(work)
        assert all(first.end_s <= second.start_s for first, second in pairwise(own))
        for box in own:
            assert len({part.kind for part in box.parts}) == len(box.parts)
            assert sum(part.seconds for part in box.parts) <= (box.end_s - box.start_s) * (1 + 1e-9)
    parts = sum(len(box.parts) for own in boxes for box in own)
    assert parts <= max(most, 3 * len(rows))


# Nothing collides


def _extent(element: ElementTree.Element, size: float, anchor: str) -> tuple[float, float]:
    x, wide = float(element.attrib["x"]), text_width(element.text or "", size)
    return {"start": (x, x + wide), "middle": (x - wide / 2, x + wide / 2), "end": (x - wide, x)}[anchor]


@pytest.mark.parametrize(
    "timeline",
    [
        *(make_timeline(plan_named(name)) for name in PLANS),
        made_up("1f1b", stages=64, micro_batches=64),
        made_up("dualpipe", stages=16, micro_batches=32),
        made_up("interleaved", stages=4, micro_batches=8, chunks=12),
        replace(made_up("1f1b", stages=2, micro_batches=2), cluster="+".join(["a100-80gb:16x8"] * 30)),
        replace(made_up("1f1b", stages=2, micro_batches=2), cluster="/x" * 400),
    ],
    ids=lambda timeline: f"{timeline.schedule}-{len(timeline.stages)}",
)
def test_no_text_runs_over_another_or_out_of_the_picture(timeline: Timeline) -> None:
    root = parse(timeline)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    rows: dict[float, list[tuple[float, float]]] = {}
    parents = {child: parent for parent in root.iter() for child in parent}
    for element in root.iter(f"{SVG}text"):
        if "transform" in element.attrib:
            continue
        outer = parents[element]
        size = float(element.get("font-size") or outer.get("font-size") or 0)
        anchor = element.get("text-anchor") or outer.get("text-anchor") or "start"
        start, end = _extent(element, size, anchor)
        y = float(element.attrib["y"])
        assert size >= 8
        assert 0 <= start < end <= width, element.text
        assert size <= y <= height - 8
        rows.setdefault(round(y), []).append((start, end))
    for found in rows.values():
        for (_, end), (start, _) in pairwise(sorted(found)):
            assert end <= start + 1


def test_a_long_label_is_cut() -> None:
    timeline = made_up("1f1b", stages=2, micro_batches=2)
    name = "device-of-a-very-long-name-" * 4
    stages = tuple(replace(stage, planned=replace(stage.planned, device=name)) for stage in timeline.stages)
    said = texts(parse(replace(timeline, stages=stages)))
    assert sum(text.startswith("2 x device-of") and text.endswith("...") for text in said) == 2
    assert cut_text("abcdef", text_width("abcdef", 10), 10) == "abcdef"
    assert cut_text("abcdefg", text_width("abcdef", 10), 10) == "abc..."


@given(st.floats(1e-8, 1e6))
def test_marks_are_round_and_not_too_many(end_s: float) -> None:
    marks = TimeAxis(end_s=end_s, width=1000.0).marks()
    assert 4 <= len(marks) <= 12
    assert marks[0] == (0.0, "0")
    assert marks[-1][0] <= end_s * (1 + 1e-9)
    steps = [second[0] - first[0] for first, second in pairwise(marks)]
    assert max(steps) == pytest.approx(min(steps))
    digits = re.fullmatch(r"([\d.]+)(e[-+]\d+)? (s|ms|us)", marks[1][1])
    assert digits
    assert digits[1].replace(".", "").strip("0") in ("1", "2", "25", "5")


def test_an_axis_of_no_length_is_refused() -> None:
    with pytest.raises(ValueError, match="end_s=0"):
        TimeAxis(end_s=0.0, width=1.0)


# Colours


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG 2 defines it."""
    parts = [channel / 255 for channel in channels(colour)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def lightness(colour: str) -> float:
    """CIE L*, 0 to 100."""
    return 116 * math.cbrt(luminance(colour)) - 16


def test_letters_can_be_read_on_what_they_stand() -> None:
    for mark, look in LOOKS.items():
        for fill in (look.first, look.last):
            assert contrast(look.ink, fill) >= 4.5, mark
    assert min(contrast(ink, PAPER) for ink in (TEXT, FAINT_TEXT)) >= 4.5


def test_kinds_differ_in_grey_whatever_their_chunk() -> None:
    ranges = {kind: sorted(map(lightness, (LOOKS[kind].first, LOOKS[kind].last))) for kind in get_args(Kind)}
    for one, other in combinations(ranges.values(), 2):
        assert max(one[0], other[0]) - min(one[1], other[1]) >= 5
    assert all(lightness(EMPTY_ROW) - high >= 10 for _, high in ranges.values())
    for schedule_kinds in (("forward", "backward"), ("forward", "weight"), ("weight", "backward")):
        first, second = (lightness(LOOKS[kind].first) for kind in schedule_kinds)
        assert abs(first - second) >= 12
