"""Spread tables out of runs of nccl-tests over several parts of a level: shares, what is filled in, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from estimator.communication.nccl_tests import NcclRun, read_nccl_runs
from estimator.communication.spread_fit import fit_spread
from planner import api
from planner.cli.main import main
from profiles.cluster_file import load_cluster
from profiles.errors import InputError
from profiles.vocabulary import CollectiveOp
from tests.estimator.communication.test_nccl_tests_output import run_text

TREE = "host,pod\n" + "".join(f"n{node},p{node // 4}\n" for node in range(12))
NODES = 3


def run(op: CollectiveOp, parts: int, seconds: float, *, ranks: int = 8, size: int = 1 << 28) -> NcclRun:
    hosts = tuple(f"p{number % parts}-{number}" for number in range(NODES))
    return NcclRun(op=op, ranks=ranks, hosts=hosts, seconds=((1 << 20, seconds / 10), (size, seconds)))


def pod_of(host: str) -> str:
    return host.partition("-")[0]


def test_a_share_is_the_time_over_one_part_over_that_over_several() -> None:
    runs = [run("all_reduce", 1, 1.0), run("all_reduce", 2, 1.25), run("send_recv", 1, 2.0), run("send_recv", 3, 8.0)]
    fitted = fit_spread(runs, pod_of, source="runs.txt")
    assert fitted.table.collective == (1.0, 0.8)
    assert fitted.table.message == (1.0, 0.625, 0.25)
    assert fitted.table.source == "runs.txt"
    assert fitted.notes == ("messages (sendrecv_perf) over 2 parts: on the line between those measured",)
    assert [(point.op, point.parts, point.share) for point in fitted.points][-1] == ("send_recv", 3, 0.25)


def test_the_best_of_repeats_and_the_mean_of_collectives_count_and_shares_never_grow() -> None:
    runs = [
        *(run("all_reduce", 1, seconds) for seconds in (1.1, 1.0)),
        *(run("all_reduce", 2, seconds) for seconds in (2.0, 3.0)),
        *(run("all_gather", parts, seconds) for parts, seconds in ((1, 1.0), (2, 1.0), (3, 0.9))),
    ]
    fitted = fit_spread(runs, pod_of, source="runs.txt")
    assert fitted.table.collective == (1.0, 0.75, 0.75)
    assert fitted.table.message == (1.0,)
    assert len(fitted.notes) == 2


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([run("all_reduce", 2, 1.0)], "expected the same run inside one part"),
        ([run("all_reduce", 1, 1.0), run("all_reduce", 2, 1.0, ranks=16)], "16 ranks on 3 nodes over 2 parts"),
        ([run("all_reduce", 1, 1.0)], "found runs inside one part alone"),
        ([NcclRun(op="all_reduce", ranks=8, hosts=(), seconds=((1, 1.0),))], "found a run of all_reduce without hosts"),
    ],
)
def test_runs_that_tell_no_share_are_refused(runs: list[NcclRun], message: str) -> None:
    with pytest.raises(InputError, match=message):
        fit_spread(runs, pod_of, source="runs.txt")


def test_runs_that_differ_in_their_sizes_are_refused() -> None:
    other = NcclRun(op="all_reduce", ranks=8, hosts=("p0-0", "p1-1", "p0-2"), seconds=((64, 1.0),))
    with pytest.raises(InputError, match="no size of all_reduce of 8 ranks over both 1 and 2 parts"):
        fit_spread([run("all_reduce", 1, 1.0), other], pod_of, source="runs.txt")


def test_runs_of_one_text_stay_apart() -> None:
    text = run_text("all_reduce", hosts=("a", "b")) + run_text("all_reduce", hosts=("a", "c"))
    assert [each.hosts for each in read_nccl_runs(text, where="x")] == [("a", "b"), ("a", "c")]


def written(tmp_path: Path) -> list[str]:
    slower = {
        size: (2 * out, 2 * inside) for size, (out, inside) in {1 << 20: (50.0, 49.0), 1 << 28: (2e3, 2e3)}.items()
    }
    fast = {size: (out / 2, inside / 2) for size, (out, inside) in slower.items()}
    runs = run_text("all_reduce", fast, hosts=("n0", "n1.cluster.local")) + run_text(
        "all_reduce", slower, hosts=("n0", "n4")
    )
    (tmp_path / "runs.txt").write_text(runs, encoding="utf-8")
    (tmp_path / "tree.csv").write_text(TREE, encoding="utf-8")
    runs_file, tree = str(tmp_path / "runs.txt"), str(tmp_path / "tree.csv")
    return ["comm", "fit", runs_file, "--link", "ib-hdr200", "--cluster", "a100-80gb:12x8", "--topology", tree]


def test_comm_fit_makes_a_table_that_a_cluster_file_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*written(tmp_path), "--spread", "pod", "--store", str(tmp_path / "none.sqlite")]
    assert main([*words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    jsonschema.validate(answer, api.answer_schema("comm fit"))
    assert answer["spread"]["collective"] == [1.0, 0.5]
    assert [each["parts"] for each in answer["runs"]] == [1, 2]
    assert main(words) == 0
    printed = capsys.readouterr().out.partition("for the level in the cluster file:\n")[2]
    text = (
        "schema: cellplan.cluster/1\nsites:\n  - name: s\n    nodes: [{count: 2, device: a100-80gb}]\n"
        "    fabric:\n      link: ib-hdr200\n      levels:\n"
        "        - name: pod\n          parts: [{nodes: 1}, {nodes: 1}]\n"
        + "".join(f"          {line}\n" for line in printed.rstrip().splitlines())
    )
    (tmp_path / "c.yaml").write_text(text, encoding="utf-8")
    spread = load_cluster(str(tmp_path / "c.yaml")).sites[0].network.levels[0].spread
    assert spread is not None
    assert spread.collective == (1.0, 0.5)
    assert not (tmp_path / "none.sqlite").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--spread", "core"], "found 'core', expected one of its levels (pod) on nodes with names"),
        ([], "expected --spread LEVEL beside it"),
    ],
)
def test_a_level_that_is_not_there_is_refused(
    tmp_path: Path, change: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*written(tmp_path), *change]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_host_that_the_cluster_lacks_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = written(tmp_path)
    (tmp_path / "runs.txt").write_text(run_text("all_reduce", hosts=("n0", "other")), encoding="utf-8")
    assert main([*words, "--spread", "pod"]) == 2
    assert "found 'other', expected one of 12 nodes' names" in " ".join(capsys.readouterr().err.split())
