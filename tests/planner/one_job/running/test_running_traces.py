"""Traces that Perfetto opens and the sums behind a comparison: of runs as measured, of plans as estimated, and both."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from estimator.pricing.outcome import Evaluation
from planner.one_job.running.comparison import (
    Parts,
    describe_estimated,
    describe_measured,
    differences,
    estimated_parts,
    measured_parts,
    measured_traffic,
    say_differences,
)
from planner.one_job.running.program import Program
from planner.one_job.running.record import RunRecord
from planner.one_job.running.spans import Recorder, Span, collectives_inside, shifted
from planner.one_job.running.traces import (
    ESTIMATED_RANKS_FROM,
    ROWS,
    estimated_spans,
    measured_spans,
    save_traces,
    trace_events,
)
from planner.shared.plan import Plan
from tests.planner.one_job.running.run_plan_examples import GPT, HandStage, hand_plan, write_config
from tests.planner.one_job.running.running_examples import estimate_of, put_own_rates, run_together

STEPS = 3


def _stage(first: int, end: int, **options: Any) -> HandStage:
    return HandStage(chunks=((first, end),), **options)


def plans_of(gpt: str) -> dict[str, Plan]:
    chunked = (HandStage(chunks=((0, 2), (3, 4))), HandStage(chunks=((2, 3), (4, 6))))
    return {
        "dp2": hand_plan(gpt, _stage(0, 6, dp=2)),
        "tp2": hand_plan(gpt, _stage(0, 6, tp=2)),
        "pp2": hand_plan(gpt, _stage(0, 3), _stage(3, 6)),
        "interleaved": hand_plan(gpt, *chunked, schedule="interleaved"),
        "zero3": hand_plan(gpt, _stage(0, 6, dp=2, zero=3)),
    }


RUN = ("dp2", "tp2", "pp2", "interleaved", "zero3")
ESTIMATED_ALONE = ("gpipe", "pp4", "mixed")


@dataclass(frozen=True)
class Example:
    """Plans with their estimates, those that two workers can run with what came of it."""

    programs: dict[str, Program]
    evaluations: dict[str, Evaluation]
    records: dict[str, RunRecord]


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Example:
    folder = tmp_path_factory.mktemp("traces")
    gpt = write_config(folder, "gpt", GPT)
    store = put_own_rates(folder / "store")
    plans = plans_of(gpt)
    records = run_together(plans, steps=STEPS)
    plans["gpipe"] = hand_plan(gpt, _stage(0, 2), _stage(2, 4), _stage(4, 6), schedule="gpipe")
    plans["pp4"] = hand_plan(gpt, *(_stage(i + (i > 0), i + 2 + (i == 3)) for i in range(4)))
    plans["mixed"] = hand_plan(gpt, _stage(0, 2, dp=2, zero=1), _stage(2, 6, tp=2, sequence_parallel=True))
    found = {name: estimate_of(plan, store) for name, plan in plans.items()}
    return Example(
        programs={name: program for name, (program, _) in found.items()},
        evaluations={name: evaluation for name, (_, evaluation) in found.items()},
        records=records,
    )


# A validator of Chrome traces, as strict as Perfetto's importer


def validate_trace(text: str) -> list[dict[str, Any]]:
    """The complete events of a trace file; AssertionError for anything that Perfetto drops or misreads."""
    trace = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert trace["displayTimeUnit"] in ("ms", "ns")
    events: list[dict[str, Any]] = trace["traceEvents"]
    for event in events:
        assert {"name", "ph", "pid", "tid"} <= set(event), event
        assert isinstance(event["name"], str)
        assert event["name"]
        assert (type(event["pid"]), type(event["tid"])) == (int, int)
        assert event["ph"] in ("X", "M"), event
    named: defaultdict[str, set[tuple[int, ...]]] = defaultdict(set)
    for event in (event for event in events if event["ph"] == "M"):
        assert event["name"] in ("process_name", "process_sort_index", "thread_name")
        place = (event["pid"], event["tid"]) if event["name"] == "thread_name" else (event["pid"],)
        assert place not in named[event["name"]], f"{event} twice"
        named[event["name"]].add(place)
        key = "sort_index" if event["name"] == "process_sort_index" else "name"
        assert isinstance(event["args"][key], int if key == "sort_index" else str)
    complete = [event for event in events if event["ph"] == "X"]
    for event in complete:
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        assert (event["pid"],) in named["process_name"]
        assert (event["pid"], event["tid"]) in named["thread_name"]
        json.dumps(event["args"], allow_nan=False)
    _check_nesting(complete)
    return complete


def _check_nesting(events: Sequence[Mapping[str, Any]]) -> None:
    """On one row every two events nest or are disjoint, to the nanosecond."""
    rows: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        start = round(event["ts"] * 1000)
        rows[event["pid"], event["tid"]].append((start, start + round(event["dur"] * 1000)))
    for row, spans in rows.items():
        open_ends: list[int] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1], f"row {row}: [{start}, {end}] reaches out of {open_ends[-1]}"
            open_ends.append(end)


def _event(**changes: Any) -> dict[str, Any]:
    return {"name": "x", "ph": "X", "ts": 0, "dur": 10, "pid": 1, "tid": 1, "args": {}} | changes


NAMED = [
    {"name": "process_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": "p"}},
    {"name": "thread_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": "t"}},
]


@pytest.mark.parametrize(
    "wrong",
    [
        [_event(dur=-1)],
        [_event(ts=-1)],
        [_event(pid=2)],
        [_event(tid=2)],
        [_event(name="")],
        [_event(ph="Q")],
        [_event(), _event(ts=5, dur=5.001)],
        [NAMED[0]],
    ],
)
def test_the_validator_finds_what_is_wrong(wrong: list[dict[str, Any]]) -> None:
    good = [*NAMED, _event(), _event(ts=2, dur=3), _event(ts=5, dur=5), _event(ts=10)]
    assert len(validate_trace(json.dumps({"displayTimeUnit": "ms", "traceEvents": good}))) == 4
    with pytest.raises(AssertionError):
        validate_trace(json.dumps({"displayTimeUnit": "ms", "traceEvents": [*good, *wrong]}))


# Files


def save(example: Example, name: str, folder: Path, *, estimated: bool = True) -> dict[str, list[dict[str, Any]]]:
    """The complete events of each file that is written, by the file's name."""
    evaluation = example.evaluations[name] if estimated else None
    files = save_traces(folder / "run.json", example.programs[name], example.records[name], evaluation)
    return {file.name: validate_trace(file.read_text(encoding="utf-8")) for file in files}


@pytest.mark.parametrize("name", RUN)
def test_traces_are_valid_and_the_common_file_has_both(example: Example, tmp_path: Path, name: str) -> None:
    found = save(example, name, tmp_path)
    assert sorted(found) == ["run.estimated.json", "run.json", "run.measured.json"]
    measured, estimated = found["run.measured.json"], found["run.estimated.json"]
    moved = [event | {"pid": event["pid"] + ESTIMATED_RANKS_FROM} for event in estimated]
    assert found["run.json"] == [*measured, *moved]
    assert {event["pid"] for event in measured} == {event["pid"] for event in estimated} == {0, 1}


def test_without_an_estimate_there_is_what_was_measured(example: Example, tmp_path: Path) -> None:
    found = save(example, "pp2", tmp_path, estimated=False)
    assert sorted(found) == ["run.json", "run.measured.json"]
    assert found["run.json"] == found["run.measured.json"]


@pytest.mark.parametrize("name", ["pp2", "interleaved"])
def test_measured_and_estimated_have_the_same_tasks_in_the_same_form(
    example: Example, tmp_path: Path, name: str
) -> None:
    """On each rank the same forwards and backwards in the same order, under the same names, keys and row."""
    found = save(example, name, tmp_path)

    def tasks(file: str, rank: int) -> list[tuple[Any, ...]]:
        events = [event for event in found[file] if event["cat"] in ("forward", "backward") and event["pid"] == rank]
        shown = sorted(events, key=lambda event: event["ts"])
        return [(event["name"], event["tid"], *sorted(event["args"].items()), *event) for event in shown]

    for rank in range(2):
        measured = tasks("run.measured.json", rank)
        assert measured == tasks("run.estimated.json", rank)
        assert len(measured) == 2 * 4 * (2 if name == "interleaved" else 1)
    kinds = {event["cat"] for event in found["run.estimated.json"]}
    assert kinds == {"forward", "backward", "sync", "optimizer"}
    assert kinds <= {event["cat"] for event in found["run.measured.json"]} <= set(ROWS)


def test_a_process_is_a_rank_and_a_row_a_kind(example: Example) -> None:
    program = example.programs["tp2"]
    events = list(trace_events(program, measured_spans(example.records["tp2"]), "measured"))
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["measured: rank 0, stage 0", "measured: rank 1, stage 0"]
    rows = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert rows == {"schedule", "layers", "collectives"}
    sums = [event for event in events if event["name"] == "all_reduce"]
    assert sums
    assert all(event["args"]["axis"] == "tp" and event["args"]["bytes"] > 0 for event in sums)
    layers = {event["args"]["layer"] for event in events if event.get("cat") == "layer"}
    assert layers == set(range(6))


# Sums


@pytest.mark.parametrize("name", RUN + ESTIMATED_ALONE)
def test_an_estimated_trace_ends_when_the_estimate_does(example: Example, name: str) -> None:
    program, evaluation = example.programs[name], example.evaluations[name]
    spans = estimated_spans(program, evaluation)
    assert sorted(spans) == list(range(program.ranks))
    # The closed form of an interleaved schedule is no more than near.
    tolerance = 0.1 if name == "interleaved" else 1e-9
    for own in spans.values():
        assert max(span.end_s for span in own) == pytest.approx(evaluation.iteration_time_s, rel=tolerance)
        assert min(span.start_s for span in own) >= 0


@pytest.mark.parametrize("name", RUN + ESTIMATED_ALONE)
def test_estimated_parts_sum_to_the_estimate(example: Example, name: str) -> None:
    evaluation = example.evaluations[name]
    parts = estimated_parts(evaluation.breakdown)
    assert parts.total_s == pytest.approx(evaluation.iteration_time_s, rel=1e-12)
    assert all(value >= 0 for value in asdict(parts).values())


@pytest.mark.parametrize("name", RUN)
def test_measured_parts_sum_to_the_iteration(example: Example, name: str) -> None:
    record, program = example.records[name], example.programs[name]
    for stage in program.stages:
        parts = measured_parts(record, stage)
        assert parts.total_s == pytest.approx(record.iteration_time_s, rel=1e-9)
        assert all(value > -1e-6 for value in asdict(parts).values()), parts
        assert parts.compute_s > 0
        assert (parts.tp_s > 0) == (name == "tp2")
        assert (parts.waiting_s > 0.0) or name not in ("pp2", "interleaved")


@pytest.mark.parametrize("name", RUN)
def test_differences_are_between_the_parts_and_the_largest_comes_first(example: Example, name: str) -> None:
    record, program, evaluation = example.records[name], example.programs[name], example.evaluations[name]
    rows = differences(record, program, evaluation)
    assert sorted(row["part"] for row in rows) == sorted(part.name for part in fields(Parts))
    sizes = [abs(row["difference_s"]) for row in rows]
    assert sizes == sorted(sizes, reverse=True)
    apart = math.fsum(row["difference_s"] for row in rows)
    assert apart == pytest.approx(evaluation.iteration_time_s - record.iteration_time_s, rel=1e-6, abs=1e-9)
    assert len(say_differences(rows, record.iteration_time_s)) == sum(
        size >= 0.02 * record.iteration_time_s for size in sizes
    )


def test_what_is_said_of_a_difference() -> None:
    rows = [
        {"part": "compute_s", "difference_s": -0.5},
        {"part": "dp_s", "difference_s": 0.03},
        {"part": "tp_s", "difference_s": 0.01},
    ]
    assert say_differences(rows, 1.0) == [
        "compute: estimated 50% of the iteration too fast",
        "gradients and weights of the replicas: estimated 3% of the iteration too slow",
    ]


def test_measured_and_estimated_have_the_same_figures(example: Example) -> None:
    record, program, evaluation = (getattr(example, kind)["pp2"] for kind in ("records", "programs", "evaluations"))
    measured, estimated = describe_measured(record, program), describe_estimated(evaluation, program)
    common = {"iteration_time_s", "samples_per_s", "tokens_per_s_per_device", "peak_memory_bytes", "stages"}
    assert common <= set(measured)
    assert common <= set(estimated)
    for figures in (measured, estimated):
        seconds = figures["iteration_time_s"]
        assert figures["samples_per_s"] == pytest.approx(8 / seconds)
        assert figures["tokens_per_s_per_device"] == pytest.approx(8 * 16 / seconds / 2)
        assert [stage["stage"] for stage in figures["stages"]] == [0, 1]
        assert all({"compute_s", "peak_memory_bytes"} <= set(stage) for stage in figures["stages"])
    assert estimated["limiting_stage"] in (0, 1)
    assert set(estimated["breakdown"]) == set(measured["stages"][0]["breakdown"])
    assert len(measured["iteration_times_s"]) == STEPS
    assert min(measured["iteration_times_s"]) == measured["iteration_time_s"] <= measured["median_iteration_time_s"]


# Traffic

PARAMETERS = 99 * 32 + 16 * 32 + 4 * (12 * 32 * 32 + 13 * 32) + 2 * 32
"""GPT-2 by hand: token and position tables, blocks with biases and norms, the last norm; the head shares the table."""


def test_replicas_exchange_four_bytes_for_each_parameter(example: Example) -> None:
    (gradients,) = measured_traffic(example.records["dp2"])
    assert (gradients.axis, gradients.op, gradients.bytes) == ("dp", "all_reduce", 4 * PARAMETERS)
    # The shared table stands apart from the rest.
    assert gradients.count == 2


def test_a_pipeline_sends_its_activations_and_gradients(example: Example) -> None:
    """Each of four micro-batches of 2 samples of 16 tokens of 32 numbers crosses the cut both ways; either rank
    receives one of them. The table's gradients are exchanged once."""
    found = {(one.axis, one.op): one for one in measured_traffic(example.records["pp2"])}
    assert sorted(found) == [("pp", "send_recv"), ("tied", "send_recv")]
    assert (found["pp", "send_recv"].count, found["pp", "send_recv"].bytes) == (4, 4 * 2 * 16 * 32 * 4)
    assert (found["tied", "send_recv"].count, found["tied", "send_recv"].bytes) == (1, 99 * 32 * 4)


def test_tensor_parallel_ranks_sum_their_activations(example: Example) -> None:
    """Of four micro-batches, forward after each of four blocks' attention and feed-forward and after the embedding;
    backward before the same parts, and before the head."""
    spans = example.records["tp2"].typical[0].spans
    size = 2 * 16 * 32 * 4
    sums = [span for span in spans if span.name == "all_reduce" and span.bytes == size]
    assert {(span.axis, span.ranks) for span in sums} == {("tp", 2)}
    assert [sum(span.phase == phase for span in sums) for phase in ("forward", "backward")] == [36, 36]


# Spans by themselves


def test_a_recorder_notes_from_the_start_of_the_iteration() -> None:
    ticks = iter(range(100))
    recorder = Recorder(lambda: float(next(ticks)))
    recorder.start()
    with recorder.span("forward", "a", chunk=1), recorder.span("collective", "all_reduce", bytes=8):
        pass
    with pytest.raises(KeyError), recorder.span("sync", "b"):
        raise KeyError
    assert [(span.name, span.start_s, span.end_s) for span in recorder.spans] == [
        ("all_reduce", 2.0, 3.0),
        ("a", 1.0, 4.0),
        ("b", 5.0, 6.0),
    ]
    assert collectives_inside(recorder.spans, *_ends(recorder.spans[1])) == 1.0
    assert collectives_inside(recorder.spans, *_ends(recorder.spans[2])) == 0.0
    recorder.start()
    assert (recorder.spans, recorder.now_s()) == ([], 1.0)


def test_a_span_survives_its_json_and_can_be_moved() -> None:
    span = Span(kind="collective", name="all_reduce", start_s=1.0, end_s=3.0, phase="backward", bytes=4, axis="dp")
    assert Span(**json.loads(json.dumps(span.to_json()))) == span
    plain = Span(kind="wait", name="w", start_s=0.0, end_s=0.0)
    assert sorted(plain.to_json()) == ["end_s", "kind", "name", "start_s"]
    assert Span(**plain.to_json()) == plain
    (moved,) = shifted([span], 2.0)
    assert (moved.start_s, moved.end_s, moved.seconds, moved.bytes) == (3.0, 5.0, 2.0, 4)


def _ends(span: Span) -> tuple[float, float]:
    return span.start_s, span.end_s
