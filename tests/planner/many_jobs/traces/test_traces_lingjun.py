"""Lingjun's two tables: a small trace of our own in the columns as they were published."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from planner.many_jobs.traces.read import read_trace
from profiles.errors import InputError

FOLDER = Path(__file__).parent / "lingjun"
"""job.csv, worker.csv and topo.csv of our making, with what is odd about the published ones."""


def copied(folder: Path, **changed: tuple[str, str]) -> Path:
    """The tables with a text in one of them replaced by another."""
    for name in ("job", "worker"):
        text = (FOLDER / f"{name}.csv").read_text(encoding="utf-8")
        if name in changed:
            assert changed[name][0] in text
            text = text.replace(*changed[name])
        (folder / f"{name}.csv").write_text(text, encoding="utf-8")
    return folder


def test_the_tables_are_read_together() -> None:
    trace = read_trace(FOLDER)
    assert trace == read_trace(FOLDER / "job.csv", format="lingjun")
    assert trace.format == "lingjun"
    # The job that started twelve days before it was submitted counts from when it was created.
    assert trace.zero == datetime(2023, 7, 5, 15, 17)
    early, large, small = trace.rows
    assert (early.job_id, early.submit_time_s, early.queue_s) == ("dlcearly", 0.0, 60.0)
    assert early.duration_s == 11 * 86400 + 11 * 3600 + 39 * 60
    assert (large.job_id, large.gpus, large.nodes, large.duration_s, large.queue_s) == ("dlclarge", 20, 3, 720.0, 120.0)
    assert (large.status, large.job_type_or_name, large.model, large.priority) == ("failed", "llama_30b", "", 1)
    assert large.cpus == 240.0
    assert large.mem_gb == pytest.approx(2.5 * 1600 * 2**30 / 1e9)
    # The master first, then by the workers' numbers; the worker that was started anew counts where it sat last.
    assert large.hosts == (("b2", 8), ("a1", 8), ("c3", 4))
    assert (small.status, small.job_type_or_name, small.hosts) == ("cancelled", "", (("a1", 2),))


def test_what_is_left_out_and_why() -> None:
    trace = read_trace(FOLDER)
    assert trace.reasons == {
        "never ran": 2,
        "asked for no GPU": 1,
        "had not ended when the trace was taken": 1,
        "has no worker": 1,
    }
    assert "gmt_modified" in trace.ignored_columns


def test_its_topology_is_a_tree() -> None:
    from profiles.topology_reading import read_topology

    tree = read_topology(FOLDER / "topo.csv")
    network = tree.network(tuple(tree.places))
    assert [len(level.parts) for level in network.levels] == [3, 2]


@pytest.mark.parametrize(
    ("table", "text", "by", "place", "expected"),
    [
        ("job", "2023/7/15 00:52", "2023-07-15 00:52", "line 3", "gmt_job_running"),
        ("job", "2023/7/15 01:04", "2023/7/15 00:04", "line 3", "after gmt_job_running"),
        ("job", "gmt_job_finished", "gmt_done", "line 1", "gmt_job_finished"),
        ("worker", '{""cpu"": ""96""', "{cpu: 96", "line", "RES"),
        ("worker", "1600Gi", "many", "line", "RES.memory"),
        ("worker", ",b2,", ",b 2,", "line", "host_ip"),
        ("worker", "host_ip", "host", "line 1", "host_ip"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, table: str, text: str, by: str, place: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected) as caught:
        read_trace(copied(tmp_path, **{table: (text, by)}))
    assert f"{table}.csv, {place}" in str(caught.value)


def test_a_lenient_reader_counts_wrong_lines_of_either_table(tmp_path: Path) -> None:
    folder = copied(tmp_path, worker=("1600Gi", "many"))
    trace = read_trace(folder, lenient=True)
    # Of a job with a wrong line of a worker nobody knows how large it was.
    assert trace.reasons["malformed"] == 12
    assert [row.job_id for row in trace.rows] == ["dlcsmall"]


def test_both_tables_are_needed(tmp_path: Path) -> None:
    copied(tmp_path)
    (tmp_path / "worker.csv").unlink()
    with pytest.raises(InputError, match=r"worker\.csv"):
        read_trace(tmp_path / "job.csv")
