"""Run tables: what is read, what is refused, what a blank becomes, and the plan that a row comes to."""

from __future__ import annotations

import csv
import io
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.pricing.evaluate import evaluate
from planner.one_job.validation import columns
from planner.one_job.validation.columns import COLUMNS, DEGREES, RunRow
from planner.one_job.validation.measured import measured_of, measured_time_s
from planner.one_job.validation.model import load_reference
from planner.one_job.validation.prepared import PreparedRun
from planner.one_job.validation.rows import parse_table, read_table
from planner.one_job.validation.run import predict_rows
from planner.one_job.validation.setups import setup_of
from profiles.errors import InputError
from tests.planner.one_job.validation.run_row_examples import run_row
from tests.seeds import examples

DATA = Path(__file__).resolve().parents[4] / "../shared/data/train_runs.csv"
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
    assert (measured_of(row).iteration_time_s, measured_of(row).memory_bytes) == (12.5, 61e9)
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
        ("id,gpu,peak_mem_gb\na,A100,1e300\n", "peak_mem_gb: found '1e300', expected a number from 1e-18 to 1e18"),
        ("id,gpu,iter_time_s\na,A100,1e-300\n", "iter_time_s: found '1e-300', expected a number from 1e-18 to 1e18"),
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


def test_a_model_of_a_name_that_no_file_can_have_is_none() -> None:
    assert load_reference("x" * 3000) is None


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
    assert (table.rows[0].degree("tp"), table.rows[0].where) == (4, f"{path}, line 3")


@given(order=st.permutations(SHORT.strip().split(",")))
@settings(max_examples=examples(30), deadline=None)
def test_the_order_of_columns_means_nothing(order: list[str]) -> None:
    titles, cells = SHORT.strip().split(","), OWN.strip().split(",")
    out = io.StringIO()
    csv.writer(out).writerows([order, [cells[titles.index(title)] for title in order]])
    assert _rows(out.getvalue()) == _rows(SHORT + OWN)


def test_every_column_has_its_field_and_stands_in_the_document() -> None:
    assert {column.name for column in COLUMNS} - {*DEGREES} | {"where", "degrees"} == set(RunRow.__dataclass_fields__)
    headers = [header for column in COLUMNS for header in (column.name, *column.aliases)]
    assert max(Counter(headers).values()) == 1
    document = DOCUMENT.read_text(encoding="utf-8")
    assert not [column.name for column in COLUMNS if f"`{column.name}`" not in document]


# What was measured


def test_tokens_per_second_become_seconds() -> None:
    text = (
        "id,gpu,gpus_total,global_batch,seq_len,metric_name,metric_value\na,A100,8,64,2048,tokens_per_s_per_gpu,4062\n"
    )
    assert measured_time_s(_rows(text)[0]) == pytest.approx(64 * 2048 / (8 * 4062))


def test_a_derived_time_comes_before_the_metric_and_a_stated_one_before_both() -> None:
    head = "id,gpu,metric_name,metric_value,derived_iter_time_s\n"
    assert measured_time_s(_rows(head + "a,A100,mfu,40,7\n")[0]) == 7
    assert measured_time_s(_rows(head + "a,A100,iter_time_s,3,7\n")[0]) == 3
    assert measured_time_s(_rows(head + "a,A100,,,\n")[0]) is None


def _time_of(row: RunRow) -> float | None:
    prepared = setup_of(row)
    assert isinstance(prepared, PreparedRun), prepared
    return measured_time_s(row, prepared.setup)


def _narayanan_flops(*, batch: int, seq: int, layers: int, hidden: int, vocab: int, factor: int) -> float:
    """Narayanan et al. 2021, equation 3 (factor 96), or without recomputation (72): heads count three times always."""
    blocks = factor * batch * seq * layers * hidden**2 * (1 + seq / (6 * hidden))
    return blocks + 6 * batch * seq * hidden * vocab


@pytest.mark.parametrize(("convention", "factor"), [("hardware", 96), ("model", 72)])
def test_tflops_become_seconds_by_their_convention(convention: str, factor: int) -> None:
    row = run_row(metric_name="tflops_per_gpu", metric_value=140.0, recompute="full", tflops_convention=convention)
    flops = _narayanan_flops(batch=64, seq=1024, layers=24, hidden=2048, vocab=51200, factor=factor)
    assert _time_of(row) == pytest.approx(flops / (140e12 * 16), rel=1e-6)
    assert measured_time_s(row) is None


def test_causal_counting_is_less_and_mfu_is_of_the_peak() -> None:
    full = _time_of(run_row(metric_name="tflops_per_gpu", metric_value=156.0))
    causal = _time_of(run_row(metric_name="tflops_per_gpu", metric_value=156.0, tflops_convention="causal"))
    assert full is not None
    assert causal is not None
    assert 0.8 * full < causal < full
    assert _time_of(run_row(metric_name="mfu", metric_value=50.0)) == pytest.approx(full)


def test_memory_has_kind_and_unit() -> None:
    head = "id,gpu,peak_mem_gb,memory_kind,memory_unit,out_of_memory,notes\n"
    rows = _rows(
        head
        + "a,A100,40,,,,\n"
        + "b,A100,40,allocated,GiB,,\n"
        + "c,A100,40,required,MiB,,max allocated GiB\n"
        + "d,A100,40,,,1,\n"
    )
    measured = [measured_of(row) for row in rows]
    assert [(each.memory_kind, each.memory_bytes) for each in measured[:3]] == [
        ("reserved", 40e9),
        ("allocated", 40 * 2**30),
        ("required", 40 * 2**20),
    ]
    assert [each.out_of_memory for each in measured] == [False, False, False, True]


# A table as publishers write it


@needs_data
def test_rows_in_words_of_their_own_are_skipped_with_the_column_that_needs_a_plain_one() -> None:
    """Rows that state things plainly are read by the product itself, the others say which column they need."""
    results = predict_rows(read_table(DATA).rows[::25], prepare=setup_of, evaluate=evaluate)
    assert sum(result.predicted for result in results) >= 5
    for result in results:
        if result.skipped is not None and ": " in result.skipped:
            name = result.skipped.partition(":")[0]
            assert set(name.split(" and ")) <= {column.name for column in COLUMNS}, result.skipped


def test_each_word_that_is_not_plain_is_told_with_its_column() -> None:
    for column, words in {
        "gpu": "A100 (NDm A100 v4)",
        "inter_node_link": "4x 100Gb/s RoCE per node",
        "intra_node_link": "NVLink5/NVSwitch",
        "dtype": "FP8-CS",
        "zero_or_fsdp": "ZeRO-1 over 8 ranks",
        "optimizer_notes": "decoupled AdamW",
        "framework": "Megatron",
        "features": "kernels",
        "schedule": "gpipes",
        "overlap": "dp+all",
        "offload": "weights",
    }.items():
        with pytest.raises(InputError, match=r"^runs\.csv, line 2: ") as told:
            setup_of(run_row(**{column: words}))
        assert str(told.value.key).startswith(column)
