"""Options without effect, given twice, or that ask for more than there is: one message each, which names them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner import api
from planner.cli.main import main
from planner.many_jobs.traces.read import SMALL_TRACE
from planner.one_job.profiling.profile_run import BUDGET_SPENT
from planner.one_job.profiling.profiling import refuse_nothing
from profiles.errors import NothingFits

ONE = "gpt-tiny --cluster a100-80gb:1x4"
TRACE = "jobs.csv --cluster a100-80gb:2x8"
WRONG = (
    (f"estimate {ONE} --tp 2 --tp 4", "argument --tp: found it twice, expected it once"),
    (f"estimate {ONE} --cluster h100:1x4", "argument --cluster: found it twice"),
    (f"plan {ONE} -o a.json --output b.json", "argument -o/--output: found it twice"),
    (f"simulate {TRACE} --seed 1 --seed 2", "argument --seed: found it twice"),
    ("estimate --from megatron a --from megatron b --cluster h100:1x8", "argument --from: found it twice"),
    (
        f"estimate {ONE} --tp 2 --sequence-parallel --no-sequence-parallel",
        "-parallel: found --sequence-parallel and --no-sequence-parallel, expected one of them",
    ),
    (f"estimate {ONE} --user-code-limit 5", "--user-code-limit: found 5 seconds, and no code of yours, expected"),
    ("models show gpt-tiny --user-code-limit 5", "--user-code-limit: found 5 seconds, and no code of yours"),
    ("export plan.json --to megatron --user-code-limit 5", "--user-code-limit: found 5 seconds, and no code of yours"),
    (f"simulate {TRACE} --user-code-limit 5", "--user-code-limit: found 5 seconds, and no code of yours"),
    (f"simulate {TRACE} --policies fcfs,sjf --user-code-limit 5", "--user-code-limit: found 5 seconds, and no code"),
    ("comm measure --ranks 1", "measure links: --ranks: found (1,), expected rank counts of at least 2"),
    (f"plan gpt-tiny --cluster {'+'.join(['t4:1x1'] * 129)}", "cluster: found 129 terms in a cluster's short form"),
    ("estimate --from megatron @run.sh --cluster h100:1x8 --timeline a.svg", "--timeline: found --from too"),
    (f"estimate {ONE} --profiles torch --store none.sqlite", "--profiles: found torch without a store"),
    (f"plan {ONE} --code os:abort", "--code: found os:abort, expected --compare beside it"),
    (
        f"plan {ONE} --code os:abort --compare plan.json",
        "plan.json: model.reference: found 'gpt-tiny', expected os:abort",
    ),
    ("estimate --plan plan.json --code os:abort", "expected os:abort, which --code names, or no --code"),
    ("export plan.json --to slurm --nearest", "--nearest: found --to slurm, expected a training tool"),
    (f"place {ONE} --devices 4 --half-life 5", "--half-life: found 5.0, expected --comm or --links beside it"),
    (f"place {ONE} --devices 4 --now 5", "--now: found 5.0, expected --comm or --links beside it"),
    ("profile gpt-tiny --cluster h100:1x4 --tp 2", "--tp: found --cluster h100:1x4 too"),
    ("profile gpt-tiny --cluster h100:1x4 --recompute full", "--recompute: found --cluster h100:1x4 too"),
    ("profile gpt-tiny --global-batch 4", "--global-batch: found 4, expected --cluster beside it"),
    ("profile gpt-tiny --cluster nonsense", "cluster: found 'nonsense'"),
    ("run plan.json --data-dtype int32", "--data-dtype: found no --data"),
    ("run plan.json --data t.npy --data-dtype int32", "--data-dtype: found t.npy, which says its own"),
    ("run plan.json --steps 999999999999", "argument --steps: found '999999999999', expected a whole number from 1"),
    (f"simulate {TRACE} --checkpoint-every 5", "--checkpoint-every: found 5 without --checkpoint"),
    ("jct train jobs.csv -o a.model --threads 99999", "--threads: found 99,999 threads, expected at most"),
    ("jct predict jobs.csv jobs.csv --threads 99999", "--threads: found 99,999 threads, expected at most"),
    ("jct evaluate jobs.csv --threads 99999", "--threads: found 99,999 threads, expected at most"),
    ("jct train jobs.csv -o a.model --search 1000000000", "argument --search: found '1000000000', expected"),
    ("jct train jobs.csv -o a.model --cap 1000000000", "jct: --cap: found 1000000000, expected 2 to"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("options")
    api.estimate("gpt-tiny", cluster="a100-80gb:1x4", dp=4, global_batch=16, output=place / "plan.json")
    (place / "jobs.csv").write_text(SMALL_TRACE.read_text(encoding="utf-8"))
    return place


@pytest.mark.parametrize(("words", "message"), WRONG)
def test_an_option_that_cannot_count_is_refused_by_its_name(
    words: str, message: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CELLPLAN_STORE", str(folder / "store.sqlite"))
    assert main(words.split()) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("cellplan: error: ")
    assert message in said


def test_a_profile_of_nothing_is_no_success() -> None:
    spent = f"{BUDGET_SPENT}; estimates model it"
    layers = [{"measured": False, "reason": reason} for reason in ("needs 9 GiB more", spent)]
    with pytest.raises(NothingFits, match="no layer can be measured; the first: needs 9 GiB more") as failure:
        refuse_nothing({"layers": layers[:1]})
    assert failure.value.result == {"layers": layers[:1]}
    refuse_nothing({"layers": layers})
    refuse_nothing({"layers": [*layers[:1], {"measured": True}]})


def test_cells_of_another_cluster_are_not_written_over(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    cells = tmp_path / "cells.json"
    words = ("simulate", "jobs.csv", "--head", "3", "--cells", str(cells), "--cluster")
    assert main([*words, "a100-80gb:2x8"]) == 0
    before = cells.read_bytes()
    assert main([*words, "a100-80gb:4x8"]) == 2
    assert "cells.json: of: found Cells of another cluster" in capsys.readouterr().err
    assert cells.read_bytes() == before
    assert json.loads(before)["cells"]
