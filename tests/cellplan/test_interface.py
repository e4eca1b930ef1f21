"""`import cellplan`: what a Python user gives, and what results can do."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cellplan
from cellplan.result import html_table
from cellplan.results import ExplicitResult
from planner import api
from profiles.given import given_under
from profiles.yaml_files import yaml_text

ROOT = Path(__file__).resolve().parents[2]
CONFIG: dict[str, Any] = json.loads((ROOT / "models_zoo/configs/llama-3-8b.json").read_text(encoding="utf-8"))
CLUSTER = {"sites": [{"name": "here", "nodes": [{"count": 1, "device": "h100", "devices": 8}]}]}


@pytest.fixture(scope="module")
def best() -> Any:
    return cellplan.plan("gpt-tiny", cluster="h100:1x2", global_batch=8)


def test_importing_it_loads_nothing_of_ours() -> None:
    code = "import sys, cellplan; print([m for m in sys.modules if m.startswith(('planner', 'estimator', 'numpy'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there_and_no_other() -> None:
    assert all(hasattr(cellplan, name) for name in cellplan.__all__)
    assert set(cellplan.__all__) < set(dir(cellplan))
    with pytest.raises(AttributeError, match="it has Cluster"):
        cellplan.__getattr__("nothing")


@pytest.mark.parametrize("name", ["plan", "estimate", "place", "simulate", "validate"])
def test_functions_show_the_options_of_their_command(name: str) -> None:
    shown = inspect.signature(getattr(cellplan, name)).parameters
    assert set(inspect.signature(getattr(api, name)).parameters) <= set(shown)


def test_a_plan_is_that_of_the_interface(best: Any) -> None:
    assert best.plan == api.plan("gpt-tiny", cluster="h100:1x2", global_batch=8).plan
    assert len(repr(best)) < 200
    assert best.to_dict()["schema"] == "cellplan.plan/1"
    assert "why" not in best.to_dict()
    assert best.explain().startswith("An iteration takes")


def test_a_plan_is_saved_drawn_and_exported(best: Any, tmp_path: Path) -> None:
    again = cellplan.load_plan(best.save(tmp_path / "plan.json"))
    assert isinstance(again, ExplicitResult)
    assert again.plan.stages == best.plan.stages
    drawing = best.timeline(tmp_path / "plan.svg")
    assert (tmp_path / "plan.svg").read_text(encoding="utf-8") == drawing.svg
    assert drawing._repr_html_().startswith("<svg")
    assert list(best.export("megatron")) == ["megatron.sh"]
    assert len(repr(drawing)) < 200


def test_the_keys_of_a_config_are_its_file(tmp_path: Path) -> None:
    options: dict[str, Any] = {"cluster": "h100:1x8", "global_batch": 8, "tp": 2}
    given = cellplan.estimate(CONFIG, **options)
    (tmp_path / "llama.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    of_file = cellplan.estimate(tmp_path / "llama.json", **options)
    assert given.to_dict()["estimate"]["iteration_time_s"] == of_file.to_dict()["estimate"]["iteration_time_s"]
    saved = cellplan.load_plan(given.save(tmp_path / "plan.json"))
    assert saved.plan.model.reference == str(tmp_path / "plan.config.json")
    assert saved.plan.estimate == given.plan.estimate


def test_a_cluster_is_a_dict_or_a_record(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(yaml_text({"schema": "cellplan.cluster/1", **CLUSTER}), encoding="utf-8")
    asked: dict[str, Any] = {"global_batch": 8, "dp": 8}
    of_file = cellplan.estimate("gpt-tiny", cluster=tmp_path / "c.yaml", **asked).plan
    of_dict = cellplan.estimate("gpt-tiny", cluster=CLUSTER, **asked)
    of_record = cellplan.estimate("gpt-tiny", cluster=cellplan.load_cluster(str(tmp_path / "c.yaml")), **asked).plan
    assert of_dict.plan.estimate == of_file.estimate == of_record.estimate
    assert given_under(of_dict.plan.cluster) == {"schema": "cellplan.cluster/1", **CLUSTER}
    saved = cellplan.load_plan(of_dict.save(tmp_path / "plan.json"))
    assert saved.plan.cluster == str(tmp_path / "plan.cluster.yaml")


@pytest.mark.parametrize(
    ("model", "cluster", "message"),
    [
        (3, "h100:1x1", "found int alone"),
        ((3, 4), "h100:1x1", "(int, int)"),
        ({"model_type": "none-such"}, "h100:1x1", "config: model_type"),
        ({"model_type": {1, 2}}, "h100:1x1", "as a file has them"),
        ("gpt-tiny", 7, "cluster: found int"),
        ("gpt-tiny", {"sites": 3}, "cluster: sites"),
        ("gpt-tiny", "none:1x1", "none"),
    ],
)
def test_what_is_wrong_is_an_input_error(model: Any, cluster: Any, message: str) -> None:
    with pytest.raises(cellplan.InputError, match=re.escape(message)):
        cellplan.plan(model, cluster=cluster)


def test_cells_are_no_plan() -> None:
    cells = cellplan.estimate("gpt-tiny", cluster="h100:1x2", global_batch=8)
    assert "best of 2 Cells" in repr(cells)
    assert {row["stages"] for row in cells.rows()} == {1, 2}
    assert cells.explain().startswith("An iteration of")
    with pytest.raises(cellplan.InputError, match="found no plan"):
        cells.export("megatron")


def test_jobs_and_places_have_tables() -> None:
    trace = ROOT / "planner/many_jobs/traces/small.csv"
    run = cellplan.simulate(trace, cluster="a40:8x2+a10:8x2", policy="fcfs", head=5)
    assert [type(row["jct_s"]) for row in run.rows()] == [float] * 5
    assert "of 5 jobs finished" in repr(run)
    placed = cellplan.place("gpt-tiny", cluster="a40:2x2", devices=2, global_batch=8)
    assert "2 devices of site" in placed.explain()
    assert sum(row["devices"] for row in placed.rows()) == len(placed.plan.devices)


def test_a_frame_needs_pandas_and_has_the_rows(best: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(cellplan.InputError, match="pip install pandas"):
        best.to_frame()
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    assert best.to_frame() == best.rows()


def test_html_is_escaped_and_without_scripts(best: Any) -> None:
    page = best._repr_html_()
    assert "<table>" in page
    assert "<script" not in page
    assert "tokens/s per device" in page
    assert "memory safe: 100% of its 90% interval fits" in page
    cells = cellplan.estimate("gpt-tiny", cluster="h100:1x2", global_batch=8)
    assert cells._repr_html_().count("<th ") < 10 < len(cells.rows()[0])
    assert "&lt;script&gt;" in html_table([{"<script>": "<script>"}])
    assert "and 5 more rows" in html_table([{"stage": number} for number in range(45)])
