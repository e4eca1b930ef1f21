"""Exports read by the real tools, where they are installed; `python -m bench.exports` checks the others."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from bench.exports.__main__ import TOOLS, check
from bench.exports.plans import make_plans
from planner.one_job.exporting.runners import FINE_TUNERS

MODULES = {
    "megatron": "megatron.core",
    "bridge": "megatron.bridge",
    "torchtitan": "torchtitan",
    "torchtitan-toml": "torchtitan",
    "deepspeed": "deepspeed",
    "accelerate": "accelerate",
    "maxtext": "maxtext",
    "llama-factory": "llamafactory",
    "axolotl": "axolotl",
    "peft": "peft",
    "torchtune": "torchtune",
}


def is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("tool", TOOLS)
def test_the_tool_reads_what_the_plan_says(tool: str, tmp_path: Path) -> None:
    if not is_there(MODULES[tool]):
        pytest.skip(f"{MODULES[tool]} is not installed here")
    verdicts = [
        (name, verdict, why)
        for name, verdict, why, _ in check(
            tool, sys.executable, list(make_plans(fine_tuning=tool in FINE_TUNERS)), tmp_path
        )
    ]
    assert [found for found in verdicts if found[1] == "wrong"] == []
    assert any(verdict == "checked" for _, verdict, _ in verdicts)
