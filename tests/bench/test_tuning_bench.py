"""What the tuning bench counts, on made-up groups and a small run table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.accuracy.markdown import section_of
from bench.accuracy.runs import load_runs
from bench.tuning.__main__ import main
from bench.tuning.approaches import APPROACHES, Outcome, add_up, at_random, by_all, by_crius, by_estimate
from bench.tuning.fitting import fit_error_model, log_likelihood
from bench.tuning.groups import Group, groups_of
from bench.tuning.local import MODELS, PLANS
from planner.one_job.tuning.measured import ErrorModel
from planner.one_job.tuning.traits import TRAITS

HEADER = (
    "id,gpu,gpu_mem_gb,gpus_total,gpus_per_node,model_family,layers,hidden,heads,vocab,seq_len,global_batch,micro_batch,"
    "tp,pp,dp,dtype,recompute,iter_time_s"
)
SHAPES = ((1, 1, 8), (2, 1, 4), (4, 1, 2), (8, 1, 1), (2, 2, 2), (1, 2, 4), (4, 2, 1), (1, 4, 2))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A group of eight plans; the more devices share a layer, the slower."""
    lines = [HEADER]
    for number, (tp, pp, dp) in enumerate(SHAPES):
        seconds = 0.5 + 0.1 * tp + 0.07 * pp
        lines.append(
            f"VTM-{number:04},A100,80,8,8,dense_gpt,16,1024,16,51200,1024,32,2,{tp},{pp},{dp},bf16,full,{seconds}"
        )
    folder = tmp_path_factory.mktemp("data")
    (folder / "train_runs.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def group(table: Path) -> Group:
    (found,) = groups_of(load_runs(table / "train_runs.csv", lambda _: None), "all")
    return found


def test_a_group_holds_its_plans_once_with_the_median(table: Path, group: Group) -> None:
    assert len(group.candidates) == len(SHAPES)
    assert group.least_s == pytest.approx(0.67)
    runs = load_runs(table / "train_runs.csv", lambda _: None)
    faster = [replace(run, result=replace(run.result, measured_iteration_time_s=0.5)) for run in runs]
    (twice,) = groups_of([*runs, *runs, *faster], "all")
    assert twice.measured_s == group.measured_s


def test_cells_hold_plans_of_their_stage_count(group: Group) -> None:
    assert len(group.cells) == len(group.halves) == 3
    for whole, half in zip(group.cells, group.halves, strict=True):
        assert set(half) <= set(whole)
        assert len({len(group.candidates[number].plan.stages) for number in whole}) == 1
    assert set(group.best_cell) <= set(group.every_cell)
    assert by_crius(group) is not None


def test_accuracy_is_crius() -> None:
    assert by_all_of([2.0, 1.0]).accuracy == 1.0


def by_all_of(times: list[float]) -> Outcome:
    """`by_all` of a group whose plans took `times`."""
    return by_all(Group(source="x", name="x", candidates=(None,) * len(times), measured_s=tuple(times)))  # type: ignore[arg-type]


def test_every_approach_measures_what_it_says(group: Group) -> None:
    found = {name: approach(group) for name, approach in APPROACHES.items()}
    assert all(one is not None and one.plans == 8 and one.accuracy <= 1 for one in found.values())
    assert found["all plans"] == Outcome(plans=8, measured=8, accuracy=1.0)
    alone = by_estimate(group)
    assert alone.measured == 0
    assert alone.saving == 8
    ours = found["our default"]
    assert ours is not None
    assert 1 <= ours.measured <= 8


def test_at_random_is_the_mean_over_all_draws(group: Group) -> None:
    from itertools import combinations
    from statistics import fmean

    found = at_random()(group)
    assert found is not None
    draws = combinations([seconds for seconds in group.measured_s if seconds is not None], found.measured)
    expected = fmean(1 - (min(draw) - group.least_s) / group.least_s for draw in draws)
    assert found.accuracy == pytest.approx(expected)


def test_sums() -> None:
    one, other = Outcome(plans=8, measured=2, accuracy=1.0), Outcome(plans=4, measured=0, accuracy=0.5)
    found = add_up([one, other])
    assert found is not None
    assert (found.accuracy_mean, found.accuracy_worst) == (0.75, 0.5)
    assert (found.saving_mean, found.saving_most, found.saving_in_sum) == (4.0, 4.0, 4.0)
    assert add_up([]) is None


def test_the_fit_is_no_less_likely_than_errors_alone(group: Group) -> None:
    found = fit_error_model([group])
    assert found.log_likelihood >= found.alone_log_likelihood - 0.05
    scale = [1.0] * len(TRAITS)
    assert log_likelihood([group, group], ErrorModel(), scale) == pytest.approx(
        2 * log_likelihood([group], ErrorModel(), scale)
    )


def test_the_command_writes_all_sections(table: Path, tmp_path: Path) -> None:
    assert main(["--data", str(table), "--out", str(tmp_path), "--json", str(tmp_path / "out.json")]) == 0
    text = (tmp_path / "RESULTS.md").read_text(encoding="utf-8")
    whole = section_of(text, "All rows")
    assert whole is not None
    assert "| our default | 1 | 8 |" in whole
    assert "Not run yet." in (section_of(text, "Two workers of this machine") or "")
    assert (tmp_path / "out.json").is_file()


def test_without_a_table_there_is_nothing_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(tmp_path)]) == 2
    assert "skipped" in capsys.readouterr().out


def test_local_plans_are_of_two_workers() -> None:
    assert MODELS
    for options in PLANS.values():
        assert [options.get(name, 1) for name in ("tp", "pp", "dp")].count(2) == 1
