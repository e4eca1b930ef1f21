"""A page of each kind, made by the commands as a user makes them, once for all tests of a process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
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
    "plan": ("plan", "gpt2-350m", "--cluster", "a100-80gb:1x4", "--global-batch", "64"),
    "estimate": ("estimate", "gpt2-1.3b", "--cluster", "a100-80gb:2x8", "--tp", "2", "--pp", "4"),
    "cells": ("estimate", "gpt2-350m", "--cluster", "a100-80gb:1x4"),
    "place": ("place", "gpt2-350m", "--cluster", str(CLUSTERS / "four-sites.yaml"), "--devices", "4"),
    "place-pods": ("place", "gpt2-350m", "--cluster", str(CLUSTERS / "three-pods.yaml"), "--devices", "4"),
    "validate": ("validate", "{folder}/runs.csv"),
    "simulate": ("simulate", "{folder}/jobs.csv", "--cluster", "a100-80gb:2x8", "--policy", "fcfs", "--bound"),
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


def json_of(words: Sequence[str]) -> Any:
    """Return what a command prints, as JSON."""
    from contextlib import redirect_stdout
    from io import StringIO

    printed = StringIO()
    with redirect_stdout(printed):
        status = main(list(words))
    assert status == 0, words
    return json.loads(printed.getvalue())
