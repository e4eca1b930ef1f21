"""A page of each kind, made by the commands as a user makes them, once for all tests of a process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from planner.cli.main import main

CLUSTERS = Path(__file__).resolve().parents[3] / "bench" / "testbed" / "clusters"

TRACE = """job_id,submit_time_s,duration_s,gpus,user,model
a,0,7200,8,ann,gpt2-350m
b,600,3600,4,bob,gpt2-350m
<b>c</b>,1200,5400,16,ann,bert-large
d,1800,1800,1,"</script>",gpt2-350m
"""

RUNS = """id,device,gpus,gpus_per_node,model,global_batch,seq_len,tp,pp,dp,metric_name,metric_value
mine-1,a100-80gb,4,4,gpt2-350m,64,1024,1,1,4,iter_time_s,0.9
mine-2,a100-80gb,8,8,gpt2-1.3b,64,1024,2,1,4,iter_time_s,1.1
ours-3,a100-80gb,7,8,gpt2-1.3b,64,1024,2,1,4,iter_time_s,1.1
"""

COMMANDS: dict[str, tuple[str, ...]] = {
    "plan": (
        *("plan", "gpt2-350m", "--cluster", "a100-80gb:1x4", "--global-batch", "64"),
        *("--train-tokens", "10B", "--price", "a100-80gb=2"),
    ),
    "estimate": ("estimate", "gpt2-1.3b", "--cluster", "a100-80gb:2x8", "--tp", "2", "--pp", "4"),
    "cells": ("estimate", "gpt2-350m", "--cluster", "a100-80gb:1x4"),
    "place": ("place", "gpt2-350m", "--cluster", str(CLUSTERS / "four-sites.yaml"), "--devices", "4"),
    "place-pods": ("place", "gpt2-350m", "--cluster", str(CLUSTERS / "three-pods.yaml"), "--devices", "4"),
    "validate": ("validate", "{folder}/runs.csv"),
    "simulate": ("simulate", "{folder}/jobs.csv", "--cluster", "a100-80gb:2x8", "--policy", "fcfs", "--bound"),
    "sweep": (
        *("simulate", "{folder}/jobs.csv", "--cluster", "a100-80gb:2x8"),
        *("--policies", "fcfs,tiresias", "--seeds", "0..1"),
    ),
    "simulate-network": (
        *("simulate", "{folder}/jobs.csv", "--cluster", "a100-80gb:2x8"),
        *("--placer", "random", "--network", "crux", "--network-change-s", "5"),
    ),
    "sweep-networks": (
        *("simulate", "{folder}/jobs.csv", "--cluster", "a100-80gb:2x8"),
        *("--placer", "random", "--networks", "none,crux"),
    ),
}
"""Commands that take a second or so; `run`, `validate` and `jct evaluate` have tests of their own."""


@lru_cache(maxsize=16)
def page_of(name: str, *more: str) -> tuple[str, Any]:
    """Return the text of a command's page, and what the same call prints with --json."""
    with TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "jobs.csv").write_text(TRACE, encoding="utf-8")
        (path / "runs.csv").write_text(RUNS, encoding="utf-8")
        words = [word.format(folder=folder) for word in COMMANDS[name]]
        answer = json_of([*words, *more, "--report", str(path / "page.html"), "--json"])
        return (path / "page.html").read_text(encoding="utf-8"), answer


_ERRORS = {"rmse_intervals": 3.0, "mae_intervals": 2.0, "log_rmse": 0.9, "within_2x": 0.5}
_COVERED = {"coverage_90": 0.9, "width_90_intervals": 9.0}
JCT: dict[str, Any] = {
    **_ERRORS,
    **_COVERED,
    "test_jobs": 10,
    "cap_intervals": 24,
    "network": _ERRORS | {"log_rmse": 1.1},
    "baselines": {"mean": _ERRORS | {"log_rmse": 1.5, "within_2x": 0.25}},
    "origins": [
        _ERRORS | _COVERED | {"origin_s": 86400.0 * day, "training_jobs": 40 * day, "log_rmse": 0.9 / day}
        for day in (1, 2)
    ],
    "quantiles": None,
}
"""An answer of `jct evaluate`, made up: a real one takes minutes."""


SMALL = ("--global-batch", "4", "--seq-len", "64")


@lru_cache(maxsize=2)
def run_page(more: tuple[str, ...]) -> tuple[str, Any]:
    """Return the text of the page of a plan that is really run, and what the same call prints; torch must be there."""
    from tests.planner.one_job.running.running_examples import put_own_rates

    with TemporaryDirectory() as folder:
        path = Path(folder)
        plan, store = path / "plan.json", put_own_rates(path / "store.sqlite")
        json_of(
            ["plan", "gpt-tiny", "--cluster", "a100-80gb:1x1", "--dtype", "fp32", *SMALL, "-o", str(plan), "--json"]
        )
        words = ["run", str(plan), *more, "--store", str(store), "--report", str(path / "run.html"), "--json"]
        answer = json_of(words)
        return (path / "run.html").read_text(encoding="utf-8"), answer


def any_page(name: str) -> str:
    """Return the text of a page of `KINDS`."""
    if name == "jct":
        from planner.report.jct_page import jct_page
        from planner.report.page import page_html

        return page_html(jct_page(JCT, trace="week.csv"))
    return run_page(("--steps", "2"))[0] if name == "run" else page_of(name)[0]


KINDS = (*COMMANDS, "jct", *(["run"] if find_spec("torch") else []))
"""Pages of all commands."""


def json_of(words: Sequence[str]) -> Any:
    """Return what a command prints, as JSON."""
    from contextlib import redirect_stdout
    from io import StringIO

    printed = StringIO()
    with redirect_stdout(printed):
        status = main(list(words))
    assert status == 0, words
    return json.loads(printed.getvalue())
