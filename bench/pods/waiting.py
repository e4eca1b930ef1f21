"""Start now, or wait? CPU seconds of the whole command for a third of 1,019 nodes, beside placing at every coming end.

(iii)'s pods (`bench/pods/cases.py`) of leaves of 16 nodes, 97 jobs of drawn sizes on nodes that follow each other, each
with an end of its own, so that 639 nodes are free; pods with uplinks of an eighth and the shipped spread table. A job
for 368 nodes, whose plan is given, and nothing beside compute.
"""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from bench.pods.cases import TABLE_1, free_nodes
from planner.cli.main import main
from planner.many_jobs.placement import waiting
from profiles.errors import InputError

SETTING, SEED, JOBS, HELD, LEAF = TABLE_1[-1], 1, 97, 380, 16
MODELS = (
    ("llama3-405b", "--tp", "8", "--pp", "8", "--global-batch", "736"),
    ("mixtral-8x22b", "--tp", "8", "--pp", "8", "--ep", "2", "--global-batch", "736"),
    ("llama2-70b", "--tp", "8", "--pp", "8", "--global-batch", "736"),
)
CLUSTER = """schema: cellplan.cluster/1
sites:
  - name: main
    nodes:
      - {count: 1019, device: h800-80gb, devices: 8, names: "gpu[0000-1018]", nics: {count: 8, link: ib-ndr400}}
    fabric: {link: ib-ndr400, levels: [{name: leaf}, {name: pod, oversubscription: 8, spread: arnold-h800}]}
"""


def lines() -> Iterator[str]:
    """Return the table, a line at a time."""
    yield "| model | starts told | slower than at every end | ends looked at | CPU | without waiting | at every end |"
    yield "| -- | --: | --: | --: | --: | --: | --: |"
    with TemporaryDirectory() as folder:
        files = write_files(Path(folder))
        for model, *degrees in MODELS:
            asked = ["place", model, *degrees, *files, "--devices", "2944", "--overlap", "none", "--json"]
            waits = ["--running", str(Path(folder) / "running.csv"), "--now", "1000"]
            _, alone_s = answer_of(asked)
            answer, spent_s = answer_of([*asked, *waits])
            with patch.object(waiting, "_falls", _every), patch.object(waiting, "remember", lambda evaluate: evaluate):
                every, every_s = answer_of([*asked, *waits])
            told = answer["waiting"]
            far = how_far(told, every["waiting"])
            yield (
                f"| {model} | {len(told['starts'])} | {far} | {told['looked_at']} | {spent_s:.1f} s | {alone_s:.1f} s |"
                f" {every_s:.0f} s |"
            )


def answer_of(words: Sequence[str]) -> tuple[dict[str, Any], float]:
    """Return what a command answers, and its CPU seconds (without those of starting Python)."""
    said = io.StringIO()
    started = time.process_time()
    with contextlib.redirect_stdout(said):
        status = main(words)
    spent_s = time.process_time() - started
    if status:
        raise InputError(where=" ".join(words), found=f"exit status {status}", expected="0")
    return json.loads(said.getvalue()), spent_s


def how_far(told: dict[str, Any], every: dict[str, Any]) -> str:
    """Return by how much the starts told are slower than those of placing at every end, at most: the best that has come
    by then of both."""
    most = 0.0
    for start in every["starts"]:
        by_then = [one["iteration_time_s"] for one in told["starts"] if one["wait_s"] <= start["wait_s"]]
        most = max(most, min(by_then) / start["iteration_time_s"] - 1)
    return f"{most:.2%}"


def write_files(folder: Path) -> list[str]:
    """Write the cluster, its tree and the jobs, and return the options that name the first two."""
    sizes = free_nodes(SETTING, 0.0, SEED)
    rows, node = ["host,pod,leaf"], 0
    for pod, size in enumerate(sizes):
        rows += [f"gpu{node + place:04},p{pod},p{pod}l{place // LEAF}" for place in range(size)]
        node += size
    (folder / "topology.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (folder / "cluster.yaml").write_text(CLUSTER, encoding="utf-8")
    rng = Random(SEED)
    jobs, free = ["job,hosts,end"], set(range(node))
    for job in range(JOBS):
        wanted = max(1, round(HELD / JOBS * rng.uniform(0.3, 1.7)))
        first = rng.randrange(node - wanted)
        taken = [other for other in sorted(free) if other >= first][:wanted]
        free -= set(taken)
        hosts = ",".join(f"gpu{other:04}" for other in taken)
        jobs.append(f'{job},"{hosts}",{1000 + 600 * (job + 1) + rng.randrange(300)}')
    (folder / "running.csv").write_text("\n".join(jobs) + "\n", encoding="utf-8")
    return ["--cluster", str(folder / "cluster.yaml"), "--topology", str(folder / "topology.csv")]


def _every(_start_at: Any, low: int, high: int, _go_on: Any) -> range:
    """Every end, in place of those that halving finds."""
    return range(low + 1, high + 1)
