"""A plan exported for Megatron-LM or torchtitan and read back is the same plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.one_job.explicit.estimate import estimate_explicit
from planner.one_job.explicit.evaluation import evaluate_with_store
from planner.one_job.importing.estimate import estimate_imported
from planner.one_job.search.differences import describe_differences
from planner.one_job.tools.base.export_records import Export, ExportContext
from planner.one_job.tools.base.writing import write_plan
from planner.one_job.tools.catalogue import TOOLS
from planner.shared.options.common import Launcher
from planner.shared.options.estimate import EstimateOptions
from planner.shared.plan import Plan
from planner.shared.plan_file import load_plan
from tests.planner.one_job.explicit.explicit_plan_examples import request_of

CORE = {"software": "megatron-core", "vocab_pad": 128, "recompute": "none", "global_batch": 64}
TITAN = {
    "software": "torchtitan",
    "recompute": "none",
    "global_batch": 64,
    "overlap": ("dp",),
    "feature": ("kernels=eager",),
}


def check_round_trip(plan: Plan, exported: Export, launcher: Launcher, folder: Path) -> None:
    """The exported file, read on the plan's cluster, gives the plan with its estimate."""
    file, output = folder / exported.files[0].name, folder / "again.json"
    file.write_text(exported.files[0].text, encoding="utf-8")
    options = EstimateOptions(cluster=plan.cluster, launcher=(launcher, str(file)), output=output)
    result = estimate_imported(options)
    again = load_plan(output)
    assert describe_differences(plan, again) == (), result["plan"]["assumptions"]
    assert again.model.reference == plan.model.reference
    assert again.estimate == plan.estimate


def plan_of(model: str, cluster: str, options: dict[str, Any]) -> Plan:
    """The plan of these options; what they leave open is said, as settings say it, so that no interval is wider."""
    said = {"micro_batch": 1, "recompute": "none", **options}
    return estimate_explicit(request_of(model, cluster, **said), evaluate=evaluate_with_store).plan


@pytest.mark.parametrize(
    ("model", "cluster", "options"),
    [
        ("llama3-8b", "h100:2x8", {"tp": 8, "pp": 2, "zero": 1, "sequence_parallel": True, "overlap": ("dp",)}),
        ("llama3-8b", "h100:2x8", {"tp": 2, "pp": 4, "vpp": 4, "overlap": ("dp", "p2p"), "recompute": "selective"}),
        ("llama3-70b", "h100:4x8", {"tp": 8, "pp": 4, "recompute": "full:5", "sequence_parallel": True, "overlap": ()}),
        ("llama3-8b", "h100:2x8", {"tp": 4, "cp": 2, "zero": 1, "overlap": ("dp", "tp"), "sequence_parallel": True}),
        ("llama3-8b", "h100:1x8", {"tp": 2, "zero": 1, "dtype": "fp8", "grad_dtype": "bf16", "overlap": ("dp",)}),
        ("llama3-8b", "h100:1x8", {"tp": 2, "zero": 1, "dtype": "fp8_block", "overlap": ("dp",)}),
        (
            "llama3-8b",
            "b200:1x8",
            {
                "tp": 2,
                "zero": 1,
                "dtype": "mxfp8",
                "overlap": ("dp",),
                "feature": ("fp8_attention=yes", "narrow_parameters=yes"),
            },
        ),
        (
            "llama3-8b",
            "b200:1x8",
            {"tp": 2, "zero": 1, "dtype": "nvfp4", "overlap": ("dp",), "feature": ("wide_first=1", "wide_last=4")},
        ),
        ("llama3-8b", "h100:2x8", {"tp": 2, "zero": 1, "hsdp": (4, 2), "overlap": ("dp",)}),
        ("gpt3-175b", "a100-80gb:16x8", {"tp": 8, "pp": 16, "overlap": (), "recompute": "full", "dtype": "fp16"}),
        ("mixtral-8x7b", "h100:4x8", {"tp": 1, "pp": 4, "ep": 8, "zero": 1, "overlap": ("dp",)}),
        (
            "mixtral-8x7b",
            "h100:4x8",
            {"tp": 2, "pp": 4, "ep": 4, "etp": 1, "zero": 1, "overlap": ("dp",), "moe_capacity": 1.25},
        ),
        ("gpt-tiny", "h100:1x8", {"dp": 8, "overlap": (), "dtype": "fp32"}),
        ("llama3-405b", "h100:64x8", {"tp": 8, "pp": 16, "zero": 1, "overlap": ("dp",), "recompute": "full"}),
    ],
)
def test_exported_arguments_read_back_give_the_same_plan(
    model: str, cluster: str, options: dict[str, Any], tmp_path: Path
) -> None:
    plan = plan_of(model, cluster, {**CORE, **options})
    check_round_trip(plan, write_plan(plan, TOOLS["megatron"], ExportContext()), "megatron", tmp_path)


@pytest.mark.parametrize(
    ("model", "cluster", "options"),
    [
        ("llama3-8b", "h100:2x8", {"tp": 2, "zero": 3, "recompute": "full", "sequence_parallel": True}),
        ("llama3-8b", "h100:2x8", {"tp": 2, "pp": 2, "zero": 3, "recompute": "full", "sequence_parallel": True}),
        ("llama3-8b", "h100:2x8", {"pp": 2, "vpp": 2, "zero": 3, "recompute": "full"}),
        (
            "llama3-70b",
            "h100:8x8",
            {"tp": 8, "hsdp": (4, 2), "zero": 3, "recompute": "full", "sequence_parallel": True},
        ),
        ("llama3-8b", "h100:1x8", {"dp": 8, "zero": 2, "recompute": "full"}),
        ("llama3-8b", "h100:2x8", {"cp": 2, "zero": 3, "recompute": "full"}),
        ("llama3-8b", "h100:1x8", {"dp": 8, "recompute": "full", "dtype": "fp8", "feature": ("kernels=fused",)}),
    ],
)
def test_an_exported_toml_file_read_back_gives_the_same_plan(
    model: str, cluster: str, options: dict[str, Any], tmp_path: Path
) -> None:
    plan = plan_of(model, cluster, {**TITAN, **options})
    check_round_trip(plan, write_plan(plan, TOOLS["torchtitan-toml"], ExportContext()), "torchtitan", tmp_path)
