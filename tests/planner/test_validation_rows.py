"""Run tables: what is read, what is refused, what a blank becomes, and the plan that a row comes to."""

from __future__ import annotations

import csv
import io
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.layers.graph import build_graph
from planner.one_job.validation import columns
from planner.one_job.validation.columns import COLUMNS
from planner.one_job.validation.measured import convention_of, time_from_flops
from planner.one_job.validation.prepared import PreparedRun, Skipped
from planner.one_job.validation.rows import RunRow, parse_table, read_table
from planner.one_job.validation.setups import setup_of
from profiles.errors import InputError
from profiles.vocabulary import Shard
from tests.planner.run_row_examples import run_row

DATA = Path(__file__).resolve().parents[2] / "../shared/data/train_runs.csv"
DOCUMENT = Path(columns.__file__).with_name("COLUMNS.md")

needs_data = pytest.mark.skipif(not DATA.is_file(), reason="the published runs lie beside the repository, not in it")

SHORT = "id,model,device,gpus_total,global_batch,seq_len,tp,pp,micro_batch,iter_time_s,peak_mem_gb,framework\n"
OWN = "mine-1,llama3-8b,a100-80gb,16,128,8192,4,2,1,12.5,61,megatron-core\n"


def _rows(text: str) -> tuple[RunRow, ...]:
    return parse_table(text, name="runs.csv").rows


# Reading


def test_the_short_form_of_a_users_own_runs() -> None:
    (row,) = _rows(SHORT + OWN)
    assert (row.id, row.source, row.where) == ("mine-1", "mine", "runs.csv, line 2")
    assert row.measured_iteration_time_s == 12.5
    assert row.measured_memory_bytes == 61_000 * 2**20
    prepared = setup_of(row)
    assert isinstance(prepared, PreparedRun)
    stage = prepared.setup.stages[0]
    assert (len(prepared.setup.stages), stage.tp, stage.dp, prepared.setup.micro_batches) == (2, 4, 2, 64)
    assert prepared.setup.model.family == "llama"
    assert "dp: not stated; gpus_total / (tp * pp * cp)" in prepared.assumptions


def test_a_cluster_may_stand_in_place_of_a_device() -> None:
    text = "id,model_name,cluster,global_batch,tp\nr-1,llama3-8b,h100:2x8,64,8\n"
    prepared = setup_of(_rows(text)[0])
    assert isinstance(prepared, PreparedRun)
    assert prepared.setup.devices == 16
    assert prepared.setup.recipe.seq_len == 8192


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "line 1: id: found an empty file"),
        ("gpu,model\n", "line 1: id: found gpu, model"),
        ("id,model\na,b\n", "line 1: gpu: found no such column"),
        ("id,gpu,device\n", "line 1: gpu: found the column twice"),
        ("id,gpu\n", "runs.csv: found a header and no rows"),
        ("id,gpu\na,A100\na,A100\n", "line 3: id: found 'a' a second time (first: line 2)"),
        ("id,gpu,tp\na,A100\n", "line 2: found 2 cells, expected 3"),
        ("id,gpu,tp\na,A100,1,1\n", "line 2: found 4 cells, expected 3"),
        ('id,gpu,notes\na,A100,"cut off', "line 2: found no CSV (unexpected end of data)"),
        ("id,gpu\n,A100\n", "line 2: id: found nothing"),
        ("id,gpu,tp\na,A100,two\n", "line 2: tp: found 'two', expected a whole number from 1"),
        ("id,gpu,tp\na,A100,0\n", "tp: found '0'"),
        ("id,gpu,tp\na,A100,-8\n", "tp: found '-8'"),
        ("id,gpu,tp\na,A100,1.5\n", "tp: found '1.5'"),
        ("id,gpu,iter_time_s\na,A100,nan\n", "iter_time_s: found 'nan', expected a finite number above 0"),
        ("id,gpu,iter_time_s\na,A100,inf\n", "iter_time_s: found 'inf'"),
        ("id,gpu,iter_time_s\na,A100,-1\n", "iter_time_s: found '-1'"),
        ("id,gpu,seq_parallel\na,A100,maybe\n", "seq_parallel: found 'maybe', expected 0 or 1"),
        ("id,gpu,recompute\na,A100,half\n", "recompute: found 'half', expected one of none, selective, full"),
        ("id,gpu,metric_name,metric_value\na,A100,speed,3\n", "metric_name: found 'speed'"),
        ("id,gpu,metric_name,metric_value\na,A100,mfu,\n", "metric_value: found"),
        ("id,gpu,metric_name,metric_value,iter_time_s\na,A100,mfu,40,1\n", "found both iter_time_s and metric_name"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, expected: str) -> None:
    with pytest.raises(InputError) as told:
        _rows(text)
    assert str(told.value).startswith("runs.csv")
    assert expected in str(told.value)


def test_a_file_that_is_no_text_is_told(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(b"id,gpu\n\xff\xfe,A100\n")
    with pytest.raises(InputError, match="UTF-8"):
        read_table(path)
    with pytest.raises(InputError, match="No such file"):
        read_table(tmp_path / "none.csv")


def test_unknown_columns_are_noted_and_odd_bytes_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(b"\xef\xbb\xbfid,gpu,colour,tp\r\n\r\na,A100,red,4\r\n")
    table = read_table(path)
    assert table.notes == ("columns that are not read: colour",)
    assert (table.rows[0].tp, table.rows[0].where) == (4, f"{path}, line 3")


@given(order=st.permutations(SHORT.strip().split(",")))
@settings(max_examples=30, deadline=None)
def test_the_order_of_columns_means_nothing(order: list[str]) -> None:
    titles, cells = SHORT.strip().split(","), OWN.strip().split(",")
    out = io.StringIO()
    csv.writer(out).writerows([order, [cells[titles.index(title)] for title in order]])
    assert _rows(out.getvalue()) == _rows(SHORT + OWN)


def test_every_column_has_its_field_and_stands_in_the_document() -> None:
    assert {column.field for column in COLUMNS} <= set(RunRow.__dataclass_fields__)
    headers = [header for column in COLUMNS for header in (column.name, *column.aliases)]
    assert max(Counter(headers).values()) == 1
    document = DOCUMENT.read_text(encoding="utf-8")
    assert not [column.name for column in COLUMNS if f"`{column.name}`" not in document]


# What was measured


def test_tokens_per_second_become_seconds() -> None:
    text = (
        "id,gpu,gpus_total,global_batch,seq_len,metric_name,metric_value\na,A100,8,64,2048,tokens_per_s_per_gpu,4062\n"
    )
    assert _rows(text)[0].measured_iteration_time_s == pytest.approx(64 * 2048 / (8 * 4062))


def test_a_derived_time_comes_before_the_metric_and_a_stated_one_before_both() -> None:
    head = "id,gpu,metric_name,metric_value,derived_iter_time_s\n"
    assert _rows(head + "a,A100,mfu,40,7\n")[0].measured_iteration_time_s == 7
    assert _rows(head + "a,A100,iter_time_s,3,7\n")[0].measured_iteration_time_s == 3
    assert _rows(head + "a,A100,,,\n")[0].measured_iteration_time_s is None


def _narayanan_flops(*, batch: int, seq: int, layers: int, hidden: int, vocab: int, factor: int) -> float:
    """Narayanan et al. 2021, equation 3 (factor 96), or without recomputation (72): heads count three times always."""
    blocks = factor * batch * seq * layers * hidden**2 * (1 + seq / (6 * hidden))
    return blocks + 6 * batch * seq * hidden * vocab


@pytest.mark.parametrize(("convention", "factor"), [("hardware", 96), ("model", 72)])
def test_tflops_become_seconds_by_their_convention(convention: str, factor: int) -> None:
    row = run_row(metric_name="tflops_per_gpu", metric_value=140.0, recompute="full", tflops_convention=convention)
    flops = _narayanan_flops(batch=64, seq=1024, layers=24, hidden=2048, vocab=51200, factor=factor)
    seconds, basis = time_from_flops(row)
    assert seconds == pytest.approx(flops / (140e12 * 16), rel=1e-6)
    assert convention in basis


def test_causal_counting_is_less_and_mfu_is_of_the_peak() -> None:
    full = time_from_flops(run_row(metric_name="tflops_per_gpu", metric_value=156.0))[0]
    causal = time_from_flops(run_row(metric_name="tflops_per_gpu", metric_value=156.0, tflops_convention="causal"))[0]
    assert full is not None
    assert causal is not None
    assert 0.8 * full < causal < full
    assert time_from_flops(run_row(metric_name="mfu", metric_value=50.0))[0] == pytest.approx(full)


def test_the_notes_tell_hardware_flops() -> None:
    assert convention_of(run_row(notes="HARDWARE FLOPs incl. recompute")) == "hardware"
    assert convention_of(run_row(source_repo_or_paper="NVIDIA-NeMo/Megatron-Bridge")) == "causal"
    assert convention_of(run_row()) == "model"


def test_memory_has_kind_and_unit() -> None:
    head = "id,gpu,peak_mem_gb,memory_kind,memory_unit,notes\n"
    rows = _rows(
        head
        + "a,A100,40,,,\n"
        + "b,A100,40,allocated,GiB,\n"
        + "c,A100,40,,,peak_mem = max allocated GiB (reserved 41 GiB)\n"
        + "d,A100,40,,,OUT OF MEMORY; x\n"
    )
    assert [(row.memory_kind, row.measured_memory_bytes) for row in rows[:3]] == [
        ("reserved", 40_000 * 2**20),
        ("allocated", 40 * 2**30),
        ("allocated", 40 * 2**30),
    ]
    assert [row.out_of_memory for row in rows] == [False, False, False, True]


# The published runs


@needs_data
def test_all_published_runs_are_prepared_or_refused_with_a_reason() -> None:
    rows = read_table(DATA).rows
    outcomes = [(row, setup_of(row)) for row in rows]
    skipped = Counter(row.source for row, outcome in outcomes if isinstance(outcome, Skipped))
    assert len(rows) - sum(skipped.values()) >= 1340
    assert not set(skipped) & {"VTS", "VTM", "BSA", "MPT", "IEVO", "SMXB", "KORT", "SC21", "NTRN", "SMXA"}
    assert all(outcome.reason for _, outcome in outcomes if isinstance(outcome, Skipped))
    for row, outcome in outcomes:
        if isinstance(outcome, PreparedRun):
            assert outcome.setup.devices == row.gpus_total
            assert row.micro_batch is None or outcome.setup.micro_batch == row.micro_batch * outcome.setup.stages[0].dp


@needs_data
def test_published_runs_have_the_parameters_that_their_authors_count() -> None:
    """llm-foundry counts every parameter, so its models must come out exactly."""
    rows = [row for row in read_table(DATA).rows if row.source == "MPT"]
    for row in {(row.model_name, row.seq_len): row for row in rows}.values():
        assert row.params_b is not None
        outcome = setup_of(row)
        assert isinstance(outcome, PreparedRun)
        shard = Shard(seq_len=outcome.setup.model.seq_len, dtype="bf16", attention="flash")
        counted = build_graph(outcome.setup.model, shard=shard, degrees=()).parameters
        assert counted == pytest.approx(row.params_b * 1e9, rel=1e-5)


@needs_data
def test_times_from_tflops_agree_with_those_that_the_table_derives() -> None:
    for row in read_table(DATA).rows:
        if row.metric_name == "tflops_per_gpu" and row.derived_iter_time_s is not None:
            assert time_from_flops(row)[0] == pytest.approx(row.derived_iter_time_s, rel=1e-4)
