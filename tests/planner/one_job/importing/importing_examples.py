"""Published settings of launchers (`tests/data/launcher_settings.toml`), written as the files that users have."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from planner.one_job.importing.estimate import estimate_imported
from planner.shared.options.common import Launcher
from planner.shared.options.estimate import EstimateOptions
from profiles.errors import NothingFits

PUBLISHED: dict[str, list[dict[str, Any]]] = tomllib.loads(
    (Path(__file__).resolve().parents[3] / "data" / "launcher_settings.toml").read_text(encoding="utf-8")
)

PARALLEL = "--micro-batch-size 1 --global-batch-size 16 --bf16"

SMALL_MEGATRON = (
    "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --max-position-embeddings 512"
    f" --vocab-size 4096 {PARALLEL}"
)
"""Arguments of a model that no zoo name stands for."""


def published(launcher: Launcher) -> Any:
    """A test parameter for each published setting of a launcher."""
    return [pytest.param(entry, id=entry["name"]) for entry in PUBLISHED[launcher]]


def estimate(launcher: Launcher, settings: str, cluster: str = "h100:1x8", **named: Any) -> dict[str, Any]:
    """The estimate of settings, whether they fit or not."""
    find_best = named.pop("find_best", None)
    options = EstimateOptions(cluster=cluster, launcher=(launcher, settings), **named)
    try:
        return estimate_imported(options, find_best=find_best)
    except NothingFits as failure:
        return cast(dict[str, Any], failure.result)


def to_toml(values: Mapping[str, Any], prefix: str = "") -> str:
    """A TOML document of `values`, which hold what JSON has but null."""
    plain = [f"{key} = {json.dumps(value)}" for key, value in values.items() if not isinstance(value, Mapping)]
    lines = [f"[{prefix.rstrip('.')}]"] * bool(prefix) + plain
    tables = [to_toml(value, f"{prefix}{key}.") for key, value in values.items() if isinstance(value, Mapping)]
    return "\n".join([*lines, "", *tables])


def check_read_as(entry: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    """The plan of `result` is what the published entry says it is."""
    plan = result["plan"]
    stages, recipe, batch = plan["stages"], plan["recipe"], plan["batch"]
    first = stages[0]
    found = {
        **{key: first.get(key) for key in ("tp", "dp", "cp", "ep", "etp", "sequence_parallel", "offload")},
        "zero": first["sharding"]["zero"],
        "recompute": first["recompute"]["kind"],
    }
    assert {key: found[key] for key in entry["stage"]} == entry["stage"]
    whole = {
        "pp": len(stages),
        "chunks": len(first["chunks"]),
        "micro_batches": batch["micro_batches"],
        "global_batch": batch["global_batch"],
        "dtype": plan["model"]["dtype"],
        "schedule": plan["schedule"],
        "overlap": recipe["overlap"],
        "grad_dtype": recipe["grad_dtype"],
    }
    assert {key: whole[key] for key in entry["plan"]} == entry["plan"]
    if "reference" in entry:
        assert plan["model"]["reference"] == entry["reference"]
    if "parameters" in entry:
        assert plan["model"]["sizes"]["parameters"] == pytest.approx(entry["parameters"], rel=0.02)
    for words in entry["said"]:
        assert any(words in sentence for sentence in plan["assumptions"]), (words, plan["assumptions"])
