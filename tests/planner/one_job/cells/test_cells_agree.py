"""One price: a Cell, its plan, the plan's file, the searches by Cells and the scheduler's Cells say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner import api
from planner.many_jobs.jobs.records import Workload
from planner.many_jobs.scheduling.cell_book import EstimatedCells, pools_of
from planner.shared.plan import Plan
from planner.shared.plan_file import load_plan, save_plan
from profiles.cluster_file import load_cluster

PAIRS: tuple[tuple[str, str, int], ...] = (
    ("gpt-tiny", "a100-80gb:1x4", 32),
    ("gpt2-350m", "a10:2x4", 64),
    ("gpt2-1.3b", "a40:2x4", 64),
    ("bert-large", "a40:2x2", 64),
    ("bert-1.3b", "v100-32gb:1x8", 64),
    ("bert-6.7b", "a100-40gb:2x8", 128),
    ("llama3-8b", "a100-80gb:2x8", 256),
    ("llama3-8b", "h100:1x8", 128),
    ("llama2-7b", "a100-40gb:2x4", 64),
    ("opt-6.7b", "a100-80gb:1x8", 64),
    ("mixtral-8x7b", "h100:4x8", 256),
    ("moe-2.4b", "a100-80gb:1x8", 128),
    ("resnet-50", "a100-80gb:1x4", 256),
    ("wide-resnet-2b", "a100-80gb:1x8", 256),
    ("gpt3-175b", "h100:8x8", 384),
    ("llama3-70b", "h100:4x8", 128),
    ("gpt-tiny", "a10:3x6", 72),
    ("bert-mini", "a100-80gb:1x2", 32),
    ("gpt2-1.3b", "h200:1x8", 48),
    ("llama3-8b", "mi300x:1x8", 64),
)


def dtype_on(cluster: str) -> str:
    return "fp16" if "v100" in cluster else "bf16"


def settings_of(cluster: str, batch: int) -> dict[str, Any]:
    return {"cluster": cluster, "global_batch": batch, "dtype": dtype_on(cluster)}


@pytest.mark.parametrize(("model", "cluster", "batch"), PAIRS, ids=lambda part: str(part))
def test_a_cell_its_plan_and_the_schedulers_cell_agree(model: str, cluster: str, batch: int, tmp_path: Path) -> None:
    settings = settings_of(cluster, batch)
    store = tmp_path / "none.sqlite"
    result = api.estimate(model, store=store, **settings)
    cell = next(cell for cell in result["cells"] if cell["best"])
    plan = api.plan(model, store=store, search="cells", micro_batches="fit", **settings).plan
    same_figures(cell, plan)
    file = tmp_path / "plan.json"
    save_plan(plan, file)
    assert load_plan(file) == plan
    again = api.estimate(plan=file, store=store)["estimate"]
    for name in ("iteration_time_s", "interval_90_s", "peak_memory_bytes", "memory_interval_90_bytes", "breakdown"):
        assert again[name] == pytest.approx(cell[name], rel=1e-12), name
    place = load_cluster(cluster)
    book = EstimatedCells(cluster=place, pools=pools_of(place))
    (pool,) = book.pools.values()
    workload = Workload(model=model, global_batch=batch, dtype=settings["dtype"])
    scheduled = book.cell(workload, pool.name, pool.devices, cell["stages"])
    assert scheduled is not None
    assert scheduled.iteration_time_s == pytest.approx(cell["iteration_time_s"], rel=1e-12)
    assert list(scheduled.assembly) == cell["assembly"]


def same_figures(cell: dict[str, Any], plan: Plan) -> None:
    assert plan.estimate.iteration_time_s == cell["iteration_time_s"]
    assert list(plan.estimate.interval_90_s or ()) == list(cell["interval_90_s"])
    assert plan.estimate.peak_memory_bytes == cell["peak_memory_bytes"]
    assert [list(stage.chunks[0]) for stage in plan.stages] == [stage["layers"] for stage in cell["split"]]
    assert [stage.memory_bytes for stage in plan.stages] == [stage["memory_bytes"] for stage in cell["split"]]


@pytest.mark.parametrize(("model", "cluster", "batch"), PAIRS[:6], ids=lambda part: str(part))
def test_an_explicit_plan_of_the_same_degrees_is_priced_alike(
    model: str, cluster: str, batch: int, tmp_path: Path
) -> None:
    """The Cell of one stage, said in degrees."""
    settings = settings_of(cluster, batch)
    store = tmp_path / "none.sqlite"
    (cell,) = api.estimate(model, store=store, stages=(1,), recompute="none", zero=1, **settings)["cells"]
    (stage,) = cell["split"]
    one = api.estimate(
        model,
        store=store,
        tp=stage["tp"],
        dp=stage["dp"],
        zero=1,
        recompute="none",
        sequence_parallel=stage["tp"] > 1,
        micro_batches=cell["micro_batches"],
        **settings,
    )["estimate"]
    assert one["iteration_time_s"] == pytest.approx(cell["iteration_time_s"], rel=1e-12)
    assert one["peak_memory_bytes"] == cell["peak_memory_bytes"]


def test_what_is_measured_here_counts_the_same_everywhere(tmp_path: Path) -> None:
    """Profiles and link tables of this machine, for two workers."""
    store, file = tmp_path / "store.sqlite", tmp_path / "plan.json"
    settings: dict[str, Any] = {"cluster": "local:1x2", "global_batch": 8, "store": store}
    api.profile("gpt-tiny", cluster="local:1x2", global_batch=8, store=store, dtype="fp32", seq_len=16)
    options: dict[str, Any] = {**settings, "dtype": "fp32", "seq_len": 16}
    result = api.estimate("gpt-tiny", **options)
    cell = next(cell for cell in result["cells"] if cell["best"])
    assert cell["provenance"]["compute"] == "measured"
    plan = api.plan("gpt-tiny", search="cells", micro_batches="fit", **options).plan
    same_figures(cell, plan)
    assert plan.provenance.profile_ids
    save_plan(plan, file)
    again = api.estimate(plan=file, store=store)["estimate"]
    assert again["iteration_time_s"] == pytest.approx(cell["iteration_time_s"], rel=1e-12)
