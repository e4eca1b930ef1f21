"""Exchanges of tokens against measured dispatch and combine: rows are chosen as the table says, and stay this near."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from bench.accuracy.expert_exchange import main, modelled_s, over_links_s, read_exchanges

DATA = Path(__file__).parents[3] / "shared" / "data"

measured = pytest.mark.skipif(not DATA.is_dir(), reason="the measured kernels are not beside the project")


def test_without_the_table_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(tmp_path)]) == 2
    assert "skipped: no" in capsys.readouterr().out


@measured
@pytest.mark.parametrize(
    ("gpu", "dispatcher", "most"),
    [
        ("H100 SXM", "deduplicated", 0.17),
        ("H200 SXM", "deduplicated", 0.16),
        ("B200 SXM", "deduplicated", 0.20),
        ("B300 SXM", "deduplicated", 0.20),
        ("GB200 SXM", "hybrid", 0.16),
    ],
)
def test_error_on_the_shapes_that_nothing_was_fitted_on(gpu: str, dispatcher: str, most: float) -> None:
    rows = [
        row
        for row in read_exchanges(DATA / "kernels" / "expert_comm.csv.gz")
        if row.held and (row.gpu, row.dispatcher.name) == (gpu, dispatcher)
    ]
    assert len(rows) > 20
    errors = [abs(modelled_s(row) / row.measured_s - 1) for row in rows]
    before = [abs(over_links_s(row) / row.measured_s - 1) for row in rows]
    assert statistics.mean(errors) < most
    assert statistics.mean(errors) < statistics.mean(before)
