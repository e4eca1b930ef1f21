"""Grouped products against measured mixtures of experts: rows are thinned as the table says, and stay this near."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from bench.accuracy.grouped import BESIDE, error, main, read_rows
from profiles.efficiencies import load_operator_efficiencies

DATA = Path(__file__).parents[3] / "shared" / "data"

measured = pytest.mark.skipif(not DATA.is_dir(), reason="the measured kernels are not beside the project")


def test_without_the_table_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(tmp_path)]) == 2
    assert "skipped: no" in capsys.readouterr().out


@measured
@pytest.mark.parametrize(
    ("device", "dtype", "most", "middle"),
    [
        ("a100-80gb", "bf16", 0.19, 0.10),
        ("h100", "bf16", 0.14, 0.07),
        ("h200", "bf16", 0.14, 0.07),
        ("h200", "fp8", 0.16, 0.09),
        ("h100", "fp8_block", 0.16, 0.11),
        ("b200", "bf16", 0.15, 0.10),
        ("b200", "mxfp8", 0.11, 0.08),
        ("gb200", "bf16", 0.15, 0.10),
        ("b300", "nvfp4", 0.28, 0.20),
    ],
)
def test_error_on_the_shapes_that_nothing_was_fitted_on(device: str, dtype: str, most: float, middle: float) -> None:
    """Some rows are eager where others are graphs, up to five times as long: hence the median too."""
    known = {device: load_operator_efficiencies(device)}
    rows = [
        row
        for row in read_rows(DATA / "kernels" / "moe.csv.gz")
        if row.device.name == device and row.dtype == dtype and row.held
    ]
    assert len(rows) > 20
    assert all(row.software.startswith("trtllm") or row.sizes["ep"] == 1 for row in rows)
    errors = [abs(error(row, known, BESIDE)) for row in rows]
    assert statistics.mean(errors) < most
    assert statistics.median(errors) < middle
