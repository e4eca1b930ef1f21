"""`network measure`: counters in, an iteration and its traffic out; less than two iterations is refused."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from bench.network.recordings import Recorded, record_series
from planner import api
from planner.cli.main import main


def write(folder: Path, text: str) -> str:
    (folder / "c.csv").write_text(text, encoding="utf-8")
    return str(folder / "c.csv")


def text_of(series: Recorded, *, how: str = "total", nics: int = 1) -> str:
    """The series as `nics` equal counters that count in this way."""
    header = ",".join(["time_s", *(f"nic{nic}_bytes{HOW[how]}" for nic in range(nics)), "gpu_active", "note"])
    lines = [header]
    before_s = before = 0.0
    for time_s, total, active in zip(series.times_s, series.totals, series.active, strict=True):
        sent = total - before
        value = {"total": total % 1e9, "since": sent, "rate": sent / (time_s - before_s) if time_s > before_s else 0.0}
        lines.append(",".join([repr(time_s), *[repr(value[how] / nics)] * nics, repr(active), "x"]))
        before_s, before = time_s, total
    return "\n".join(lines) + "\n"


HOW = {"total": "_total", "since": "", "rate": "_per_s"}


@pytest.mark.parametrize(("how", "nics"), [("since", 1), ("since", 8), ("rate", 2)])
def test_counters_of_each_kind_say_the_same(how: str, nics: int, tmp_path: Path) -> None:
    series = record_series(3)
    answer = api.network_measure(Path(write(tmp_path, text_of(series, how=how, nics=nics))))
    jsonschema.validate(answer, api.answer_schema("network measure"))
    assert answer["iteration_time_s"] == pytest.approx(series.iteration_s, rel=0.01)
    assert answer["sent_bytes"] == pytest.approx(series.sent_bytes, rel=0.03)
    assert answer["traffic"]["bytes"] == answer["sent_bytes"] / 2
    assert answer["traffic"]["begins_s"] == pytest.approx(series.begins_s, abs=0.05 * series.iteration_s)
    assert len(answer["notes"]) == 1


def test_a_counter_that_begins_anew_loses_only_what_it_had() -> None:
    """32-bit counters of InfiniBand wrap, drivers are loaded again."""
    from profiles.counter_file import _counters

    found = _counters([[0.0, 5.0], [1.0, 9.0], [2.0, 2.0], [3.0, 3.0]], ["time_s", "_bytes_total"])
    assert found.totals == (0.0, 4.0, 6.0, 7.0)


def test_people_read_the_iteration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["network", "measure", write(tmp_path, text_of(record_series(3), how="since"))]) == 0
    shown = capsys.readouterr().out
    assert "begins to send after" in shown
    assert "as a job's traffic: {compute_s:" in shown


SHORT = "time_s,nic_bytes\n" + "".join(f"{row},{1 if row > 20 else 0}\n" for row in range(30))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "expected time_s"),
        ("time_s,speed\n1,2\n", "columns whose names end in"),
        ("time_s,nic_bytes\n1,2\n2,3\n", "found 2 rows"),
        ("time_s,nic_bytes\n" + "1,2\n" * 20, "a later time"),
        ("time_s,nic_bytes\n" + "".join(f"{row},-1\n" for row in range(20)), "found '-1'"),
        ("time_s,nic_bytes\n" + "".join(f"{row},nan\n" for row in range(20)), "found 'nan'"),
        ("time_s,nic_bytes,a_active\n" + "".join(f"{row},1,50\n" for row in range(20)), "a share from 0 to 1"),
        ("time_s,nic_bytes\n" + "1\n" * 20, "found 1 cells"),
        (SHORT, "two iterations or more"),
    ],
)
def test_what_is_no_recording_is_refused(
    text: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["network", "measure", write(tmp_path, text), "--json"]) == 2
    captured = capsys.readouterr()
    assert told in json.loads(captured.out)["failure"]["message"]
