"""Pages of answers: each carries the answer, asks for nothing, and is the same for the same input."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from planner.cli.main import main
from planner.many_jobs.jobs.records import Job, Workload
from planner.report.cluster_picture import draw_cluster
from planner.report.gantt import draw_gantt
from planner.report.jct_page import jct_page
from planner.report.page import page_html, unpack_answer
from planner.report.records import Chart, Command, Fact, Page, Picture, Section, Table, Words
from planner.shared.documents import answer_schema
from tests.planner.report.pages import COMMANDS, JCT, page_of, run_page

MOST_BYTES = 1_200_000
LOGGED = Workload(model="gpt2-350m", seq_len=None, dtype="bf16", global_batch=64)
TIMED = ("timing",)
"""What an answer says of this machine's own seconds, which pages leave out or which differ from call to call."""


class _Reader(HTMLParser):
    """What a page holds: attributes that fetch, chart specifications, text that people see."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.specs: list[Any] = []
        self.seen: list[str] = []
        self.inside: list[str] = []
        self.is_spec = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.fetched += [
            value for key, value in attrs if key in ("src", "href", "srcset", "action") and value and value[0] != "#"
        ]
        self.is_spec = tag == "script" and values.get("class") == "spec"
        if tag in ("script", "style"):
            self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self.inside.pop()
            self.is_spec = False

    def handle_data(self, data: str) -> None:
        if self.is_spec:
            self.specs.append(json.loads(data))
        elif not self.inside:
            self.seen.append(data)


def _read(text: str) -> _Reader:
    reader = _Reader()
    reader.feed(text)
    reader.close()
    return reader


def _untimed(answer: Any) -> Any:
    return {key: value for key, value in answer.items() if key not in TIMED}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_carries_the_answer_that_json_prints(name: str) -> None:
    text, answer = page_of(name)
    assert _untimed(unpack_answer(text)) == _untimed(answer)
    assert len(text.encode("utf-8")) <= MOST_BYTES
    Draft202012Validator(answer_schema(COMMANDS[name][0])).validate(answer)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_fetches_nothing_and_its_charts_have_rows(name: str) -> None:
    reader = _read(page_of(name)[0])
    assert reader.fetched == []
    for spec in reader.specs:
        layers = spec.get("layer", [spec])
        assert spec["data"]["values"], spec
        fields = {channel["field"] for layer in layers for channel in layer["encoding"].values() if "field" in channel}
        own = {key for layer in layers for row in layer.get("data", {"values": []})["values"] for key in row}
        assert fields <= {key for row in spec["data"]["values"] for key in row} | own


def test_the_plans_page_says_the_plans_numbers() -> None:
    text, answer = page_of("plan")
    reader = _read(text)
    plan, whole = answer["plan"], answer["plan"]["estimate"]["iteration_time_s"]
    time, memory = reader.specs[0], reader.specs[1]
    assert sum(row["s"] for row in time["data"]["values"]) == pytest.approx(whole, rel=1e-4)
    assert sum(row["GiB"] for row in memory["data"]["values"]) == pytest.approx(
        sum(stage["memory_bytes"] + stage["memory"]["reserve_bytes"] for stage in plan["stages"]) / 2**30
    )
    changes = {row["change"]: row["time"] for spec in reader.specs for row in spec["data"]["values"] if "change" in row}
    assert changes == {each["name"]: each["change"] for each in answer["explanation"]["sensitivities"]}
    runners = [row for spec in reader.specs for row in spec["data"]["values"] if row.get("is") == "runner-up"]
    assert [row["s"] for row in runners] == [
        each["iteration_time_s"] for each in answer["explanation"]["runners_up"] if each["iteration_time_s"]
    ]


def test_the_same_answer_makes_the_same_page() -> None:
    first, _ = page_of("estimate")
    page_of.cache_clear()
    assert page_of("estimate")[0] == first


def test_hostile_names_stay_words() -> None:
    text, _ = page_of("simulate")
    assert "<b>c</b>" not in text
    assert "&lt;/script&gt;" in text  # the user of job d
    assert any("</script>" in words for words in _read(text).seen)


def test_everything_that_is_shown_is_escaped() -> None:
    evil = "<img src=x onerror=alert(1)>\"'&</script>"
    page = Page(
        title=evil,
        subtitle=evil,
        facts=(Fact(label=evil, value=evil, note=evil),),
        sections=(
            Section(
                name="one",
                title=evil,
                lead=evil,
                parts=(
                    Table(title=evil, columns=(evil,), rows=((evil,),)),
                    Table(title=evil, columns=(evil,), rows=((evil,),), folded=True),
                    Words(texts=(evil,), listed=True, title=evil),
                    Words(texts=(evil,)),
                    Command(title=evil, text=evil),
                    Chart(title=evil, about=evil, spec={"data": {"values": [{"a": evil}]}}),
                    Picture(title=evil, about=evil, svg="<svg/>"),
                ),
            ),
        ),
        notes=(evil,),
        answer={"a": evil},
    )
    text = page_html(page)
    assert "<img" not in text
    assert unpack_answer(text) == {"a": evil}
    assert json.loads(re.findall(r'class="spec">(.*?)</script>', text)[0]) == {"data": {"values": [{"a": evil}]}}


@pytest.mark.parametrize(
    ("path", "said"), [("page.txt", "ends in .html"), ("missing/page.html", "missing"), ("page.html", "Jinja2")]
)
def test_what_cannot_be_written_is_said_before_the_work(
    path: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if said == "Jinja2":
        monkeypatch.setattr("planner.report.page.find_spec", lambda _: None)
    words = ["plan", "gpt2-350m", "--cluster", "a100-80gb:1x4", "--report", str(tmp_path / path)]
    assert main(words) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_page_of_runs_has_a_point_for_each_and_says_what_is_left_out() -> None:
    text, answer = page_of("validate")
    reader = _read(text)
    points = {row["run"]: row for spec in reader.specs for row in spec["data"]["values"] if "run" in row}
    timed = {row["id"]: row for row in answer["rows"] if row["estimated_iteration_time_s"]}
    assert len(timed) == 2
    assert {name: row["estimated"] for name, row in points.items()} == {
        name: row["estimated_iteration_time_s"] for name, row in timed.items()
    }
    (skipped,) = (row["skipped"] for row in answer["rows"] if row["skipped"])
    assert skipped in reader.seen


def test_the_page_of_a_real_run_sets_measured_over_estimated() -> None:
    pytest.importorskip("torch")
    text, answer = run_page(("--steps", "2"))
    assert unpack_answer(text) == answer
    assert "rank 0 measured" in text
    assert "rank 0 estimated" in text
    parts = [row for row in _read(text).specs[0]["data"]["values"] if row["is"] == "measured"]
    assert [row["s"] for row in parts] == [each["measured_s"] for each in answer["differences"]]


def test_the_page_of_predictions_has_the_errors_of_all() -> None:
    reader = _read(page_html(jct_page(JCT, trace="week.csv")))
    assert [row["rmse"] for row in reader.specs[0]["data"]["values"]] == [0.9, 1.1, 1.5]
    assert [(row["days"], row["rmse"]) for row in reader.specs[1]["data"]["values"]] == [(1.0, 0.9), (2.0, 0.45)]


@pytest.mark.parametrize("nodes", [4, 200])
def test_stays_are_drawn_each_or_of_many_nodes_as_shares(nodes: int) -> None:
    jobs = [Job(id="j", submit_s=0.0, pool="p", devices=8, workload=LOGGED, iterations=1.0, duration_s=1.0)]
    slices = [(0, "p", node, 0b1111, 0.0, 5.0, 10.0 * (1 + node % 2)) for node in range(nodes)]
    svg = draw_gantt(slices, jobs, {"p": 8})
    if nodes == 4:
        assert svg.count("<title>job j: 4 of 8 devices") == 4
    else:
        shares = [float(share) for share in re.findall(r'fill-opacity="([0-9.]+)"', svg)]
        assert set(shares) <= {0.5, 0.25, 0.29, 0.21}
        assert 0.5 in shares


@pytest.mark.parametrize("nodes", [4, 200])
def test_stays_in_turns_are_drawn_beside_each_other_and_counted_once(nodes: int) -> None:
    job = Job(id="j", submit_s=0.0, pool="p", devices=8, workload=LOGGED, iterations=1.0, duration_s=1.0)
    jobs = [job, replace(job, id="k")]
    slices = [(job, "p", node, 0b1111, 5.0 * job, 5.0 * job, 10.0) for node in range(nodes) for job in (0, 1)]
    svg = draw_gantt(slices, jobs, {"p": 8})
    if nodes == 4:
        high = {name: re.findall(rf'height="([0-9.]+)"[^>]*><title>job {name}', svg) for name in "jk"}
        assert {name: {float(height) for height in heights} for name, heights in high.items()} == {
            "j": {8.0},
            "k": {4.0},
        }
    else:
        assert {float(share) for share in re.findall(r'fill-opacity="([0-9.]+)"', svg)} == {0.5}


def test_a_plan_on_thousands_of_devices_stays_small_enough() -> None:
    ranks = range(16384)
    devices = [{"rank": rank, "site": "s", "node": rank // 8, "device": "h100", "index": rank % 8} for rank in ranks]
    svg = draw_cluster(devices, [{"ranks": list(ranks)}])
    assert len(svg) < 300_000
    assert "and 1,920 more nodes" in svg


def test_the_page_of_a_deep_pipeline_is_no_larger(tmp_path: Path) -> None:
    path = tmp_path / "deep.html"
    words = "estimate gpt3-175b --cluster h100:64x8 --tp 8 --pp 48 --vpp 2 --dp 1 --global-batch 384 --micro-batch 1"
    assert main([*words.split(), "--devices", "384", "--report", str(path)]) == 0
    size = len(path.read_bytes())
    assert size <= MOST_BYTES
    assert "not drawn one by one" in path.read_text(encoding="utf-8")
