"""Fits without some rows: on a made-up model whose log error is known exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import pytest

from bench.accuracy import left_out
from bench.accuracy.fitting import Timed
from bench.accuracy.left_out import fit_all, refit_without, take_slopes
from estimator.pricing.recipe import Setup

NAMES = ("share", "share.new", "alone")
BOUNDS = {name: {"low": 0.01, "high": 100.0} for name in NAMES}


def row(number: int, source: str) -> Timed:
    return Timed(id=f"{source}-{number}", source=source, setup=cast(Setup, None), measured_s=1.0, fitted=True)


ROWS = (*(row(n, "A") for n in range(6)), *(row(n, "B") for n in range(6)), *(row(n, "C") for n in range(2)))


def errors_of(rows: Sequence[Timed], values: Mapping[str, float]) -> np.ndarray:
    """A is right at share 2, B at share 4, and C at share.new 3 (without it: share) and alone 5."""
    found = []
    for one in rows:
        match one.source:
            case "A":
                found.append(np.log(values["share"] / 2))
            case "B":
                found.append(np.log(values["share"] / 4))
            case _:
                found.append(np.log(values.get("share.new", values["share"]) / 3) + np.log(values["alone"] / 5))
    return np.array(found)


@pytest.fixture(autouse=True)
def _made_up_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_out, "log_errors", errors_of)
    monkeypatch.setattr(left_out, "load_training_rows", lambda: cast(dict[str, Any], BOUNDS))


def known() -> left_out.Slopes:
    return take_slopes(ROWS, {"share": 2.8, "share.new": 3.0, "alone": 5.0}, lambda _: None)


def test_slopes_say_which_rows_are_behind_a_parameter() -> None:
    assert {one.source for one in known().behind("share")} == {"A", "B"}
    assert {one.source for one in known().behind("share.new")} == {"C"}
    assert known().slopes[0, 0] == pytest.approx(1.0)


@pytest.mark.parametrize(("without", "share"), [("B", 2.0), ("A", 4.0)])
def test_the_other_source_alone_decides(without: str, share: float) -> None:
    found = refit_without(known(), {one.id for one in ROWS if one.source == without})
    assert found.values["share"] == pytest.approx(share, rel=0.02)
    assert (found.lost, found.kept) == ((), ())


def test_all_rows_together_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_out, "initial_values", lambda: {"share": 2.9, "share.new": 2.5, "alone": 4.0})
    fitted = fit_all(ROWS, lambda _: None)
    assert 2.0 < fitted["share"] < 4.0
    assert fitted["share.new"] * fitted["alone"] == pytest.approx(15.0, rel=0.02)


def test_parameters_without_a_row_give_way_or_stay() -> None:
    found = refit_without(known(), {one.id for one in ROWS if one.source == "C"})
    assert (found.lost, found.kept) == (("share.new",), ("alone",))
    assert "share.new" not in found.values
    assert found.values["alone"] == 5.0
    assert 2.0 < found.values["share"] < 4.0


def test_without_any_row_it_is_refused() -> None:
    with pytest.raises(ValueError, match="all rows are left out"):
        refit_without(known(), {one.id for one in ROWS})
