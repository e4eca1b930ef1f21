"""Whatever `plan --tool T` finds `export --to T` writes, and what T's settings say, read back, is the plan."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, get_args

import pytest

from bench.exports.facts import differences
from bench.exports.plans import LATENT, QWEN, WINDOWED
from planner.one_job.importing.estimate import READERS as SETTINGS
from planner.one_job.importing.estimate import estimate_imported
from planner.one_job.planning.searching import plan_model
from planner.one_job.search.differences import describe_differences
from planner.one_job.tools.base.export_records import Export, ExportContext
from planner.one_job.tools.base.tool import TrainingTool
from planner.one_job.tools.base.writing import write_plan
from planner.one_job.tools.catalogue import TOOLS
from planner.shared.options.common import Tool
from planner.shared.options.estimate import EstimateOptions
from planner.shared.options.search import SearchOptions
from planner.shared.plan import Plan
from planner.shared.plan_file import load_plan
from profiles.cluster_file import load_cluster
from profiles.errors import NothingFits
from tests.planner.one_job.exporting.export_reading import READERS
from tests.seeds import seeds

MODELS = (
    *("gpt-tiny", "gpt-mini", "gpt2-350m", "gpt2-1.3b", "llama2-7b", "llama3-8b", "llama3-8b", "mixtral-8x7b"),
    *("bert-mini", "bert-large", "moe-mini", "moe-0.69b", "nmt-tiny", "wide-resnet-tiny", LATENT, QWEN, WINDOWED),
)
CLUSTERS = ("h100:1x8", "a100-80gb:2x4", "a100-80gb:1x6", "a100-40gb:1x4", "a100-80gb:1x4+h100:1x4")


def random_request(rng: random.Random, tool: str) -> SearchOptions:
    """A model, a cluster, and what is wanted of the plan; often a pipeline."""
    wanted: dict[str, Any] = {"global_batch": rng.choice([8, 12, 16, 64])}
    pipelines: list[dict[str, Any]] = [{}, {"fix": ("pp=2",)}, {"min": ("pp=2",), "max": ("pp=4",)}, {"min": ("tp=2",)}]
    wanted |= rng.choice(pipelines)
    if rng.random() < 0.3:
        wanted["recompute"] = rng.choice(["full", "none", "selective"])
    if rng.random() < 0.3:
        wanted["zero"] = rng.choice([0, 1, 2, 3])
    return SearchOptions(model=rng.choice(MODELS), cluster=rng.choice(CLUSTERS), tool=tool, **wanted)  # type: ignore[arg-type]


def test_every_training_tool_is_a_word_of_the_option() -> None:
    assert get_args(Tool) == tuple(TOOLS)
    assert {tool.name for tool in TOOLS.values()} == set(TOOLS)
    assert {tool.read for tool in TOOLS.values()} - {None} == set(SETTINGS.values())


@pytest.mark.parametrize("seed", seeds(200, least=25, share=8))
def test_what_is_planned_for_a_tool_it_writes_and_reads_back(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    tool = list(TOOLS.values())[seed % len(TOOLS)]
    try:
        plan = plan_model(random_request(rng, tool.name)).plan
    except NothingFits as failure:
        said = str(failure)
    else:
        check_written(plan, tool, tmp_path)
        return
    assert "no plan" in said or f": {tool.name} cannot express " in said


def check_written(plan: Plan, tool: TrainingTool, folder: Path) -> None:
    """The tool's files say what the plan says."""
    export = write_plan(plan, tool, ExportContext())
    if tool.name in READERS:
        assert differences(tool.name, READERS[tool.name](export), plan) == []
    places = [(one.device, one.node, one.index) for one in plan.devices]
    first = [(slot.device, slot.node, slot.index) for slot in load_cluster(plan.cluster).free_slots[: len(places)]]
    # Settings say how many devices, not which: read back, a plan is on the cluster's first ones.
    if tool.read is not None and places == first:
        check_read_back(plan, export, next(name for name, read in SETTINGS.items() if read == tool.read), folder)


def check_read_back(plan: Plan, export: Export, launcher: str, folder: Path) -> None:
    """The exported settings, read on the plan's cluster, are the plan, and as fast. What DeepSpeed's settings do not
    say (the model, stages, what its code does) is given beside them."""
    file, output = folder / export.files[0].name, folder / "again.json"
    file.write_text(export.files[0].text, encoding="utf-8")
    beside: dict[str, Any] = {"devices": len(plan.devices)}
    if launcher == "deepspeed":
        first = plan.stages[0]
        beside |= {"software": "deepspeed", "pp": len(plan.stages), "ep": first.ep, "etp": first.etp}
    options = EstimateOptions(
        model=plan.model.reference,
        cluster=plan.cluster,
        output=output,
        launcher=(launcher, str(file)),  # type: ignore[arg-type]
        **beside,
    )
    estimate_imported(options)
    again = load_plan(output)
    assert describe_differences(plan, again) == ()
    assert again.estimate.iteration_time_s == pytest.approx(plan.estimate.iteration_time_s, rel=1e-9)
    assert again.estimate.peak_memory_bytes == plan.estimate.peak_memory_bytes
