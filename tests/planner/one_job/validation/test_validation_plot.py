"""The picture of measured against estimated, and what it says when it cannot be drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.one_job.validation.plot import MOST_GROUPS, draw_runs, save_plot
from planner.one_job.validation.report import describe_row
from planner.shared.pictures import picture_format
from profiles.errors import InputError
from tests.planner.one_job.validation.validation_examples import row, skipped

matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")

ROWS = [
    describe_row(one)
    for one in (
        row(1),
        row(2, source="Y", measured_iteration_time_s=0.02, estimated_iteration_time_s=0.03),
        row(3, measured_iteration_time_s=None),
        skipped(4, "no device", source="Z"),
    )
]


def test_the_picture_has_axes_with_units_and_a_legend_with_the_groups_drawn() -> None:
    text = draw_runs(ROWS).decode("utf-8")
    for words in ("measured iteration time (s)", "estimated iteration time (s)", "estimated / measured"):
        assert words in text
    assert "X (1: 10.0%)" in text
    assert "Y (1: 50.0%)" in text
    assert "Z (" not in text
    assert "2 runs" in text


def test_the_same_rows_give_the_same_bytes() -> None:
    assert draw_runs(ROWS) == draw_runs(ROWS)
    picture = draw_runs(ROWS, form="png")
    assert picture.startswith(b"\x89PNG")
    assert picture == draw_runs(ROWS, form="png")


def test_groups_are_those_asked_for_and_the_smallest_share_an_entry() -> None:
    assert "a100-80gb (2: " in draw_runs(ROWS, by="device").decode("utf-8")
    many = [describe_row(row(n, source=f"S{n % 30}")) for n in range(60)]
    text = draw_runs(many).decode("utf-8")
    assert f"other groups ({60 - 2 * (MOST_GROUPS - 1)}: " in text
    assert text.count(": 10.0%)") == MOST_GROUPS


def test_every_group_looks_different() -> None:
    from matplotlib.figure import Figure

    drawn: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *words: Any, **options: Any) -> None:
        drawn.append(figure)
        save(figure, *words, **options)

    many = [describe_row(row(n, source=f"S{n}")) for n in range(MOST_GROUPS)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", keep)
        draw_runs(many)
    looks = {(line.get_color(), line.get_marker()) for line in drawn[0].axes[0].lines[1:]}
    assert len(looks) == MOST_GROUPS


@pytest.mark.parametrize("name", ["plot.pdf", "plot", "no/such/folder/plot.svg"])
def test_a_name_that_cannot_be_drawn_to_is_wrong_input(name: str) -> None:
    with pytest.raises(InputError, match=r"--plot: found .*, expected a"):
        picture_format(Path(name), where="validate")


def test_nothing_to_draw_is_wrong_input_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no row with a measured and an estimated time"):
        save_plot(tmp_path / "plot.svg", ROWS[2:])
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("planner.shared.pictures.find_spec", lambda name: None)  # noqa: ARG005
    with pytest.raises(InputError, match=r"pip install 'cellplan\[plot\]'"):
        picture_format(tmp_path / "plot.svg", where="validate")
