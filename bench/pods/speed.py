"""What placing costs: CPU seconds and memory, beside what is asked of them.

Methods of placement are timed in this process, commands in processes of their own, so that all of them counts:
starting Python, the plan search, all placements, the document. Two thirds of the nodes are free. Of each the quickest
of `REPEATS`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from bench.pods import figure_14
from bench.pods.cases import TABLE_1, Setting, free_nodes, requests_of
from bench.pods.figure_8 import ALPHA, BUSY, LARGE
from planner.one_job.pods.consolidation import closed_form
from planner.one_job.pods.least_spread import place_by_spread
from planner.one_job.pods.records import Placement, PodRequest
from profiles.vocabulary import Infeasible

REPEATS, SEEDS = 3, 5
ALPHAS = (0.0, 0.1, 0.3, 0.5, 0.7, 1.0)
SMALL, BIG = TABLE_1[-1], Setting(name="2,048 nodes", pods=16, nodes=2048, dp=0, tp=8, pp=8)
FREE = 2 / 3
PLANS = (
    ("llama3-70b", "h800-80gb", 64, 8, "512"),
    ("gpt3-175b", "a100-80gb", 128, 8, "1024"),
    ("mixtral-8x22b", "h800-80gb", 48, 4, "384"),
)
"""Model, device, nodes, pods, samples of a batch: planned with pods behind a quarter of their NICs, and without."""
CLUSTER = """schema: cellplan.cluster/1
sites:
  - name: main
    nodes:
      - count: {nodes}
        device: {device}
        devices: 8
        names: "gpu[0001-{nodes:04}]"
        nics: {{count: 8, link: ib-ndr400}}
    fabric: {{link: ib-ndr400{levels}}}
"""
POD = "{{name: {name}, nodes: {nodes}, oversubscription: 4}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Of a command: its CPU seconds, and the most memory that it held."""

    cpu_s: float
    memory_bytes: int


def lines(data: Path | None) -> Iterator[str]:
    """Return the table's lines as they are measured; with the traces beside them also of a simulation."""
    yield "\n| what | measured | aim | |"
    yield "| -- | --: | --: | -- |"
    yield from _methods()
    with TemporaryDirectory() as folder:
        yield from _commands(Path(folder))
    if data is not None:
        yield from _decisions(data)


def _methods() -> Iterator[str]:
    whole = PodRequest(rows=1250, columns=8, free=_filled(LARGE), alpha=ALPHA)
    yield f"| eq. 4 in closed form, 10,000 nodes in 100 pods | {_ms(lambda: closed_form(whole))} | 10 ms | |"
    table_1 = [request for alpha in ALPHAS for request in requests_of(SMALL, alpha, SEEDS)]
    half = [
        PodRequest(rows=64, columns=8, free=free_nodes(SMALL, busy, seed), alpha=alpha)
        for alpha in ALPHAS
        for busy in (0.0, 0.3)
        for seed in range(SEEDS)
    ]
    for title, requests in (("at (iii)", table_1), ("512 of 1,019", half)):
        fitting = [request for request in requests if sum(request.free) >= request.cells]
        spent_s = [_seconds(lambda request=request: place_by_spread(request)) for request in fitting]  # type: ignore[misc]
        yield f"| spread {title}, the slowest of {len(fitting)} draws | {max(spent_s) * 1e3:.0f} ms | 1 s | |"
    large = PodRequest(rows=512, columns=8, free=free_nodes(LARGE, BUSY, 0), alpha=ALPHA)
    placement = place_by_spread(large)
    assert isinstance(placement, Placement)
    assert placement.bound is not None
    gap = placement.value / placement.bound - 1
    yield (
        f"| spread, 4,096 of 10,000 | {_ms(lambda: place_by_spread(large))} | 10 s |"
        f" value {placement.value:.2f}, bound {placement.bound:.2f}: gap {gap:.1%} |"
    )


def _commands(folder: Path) -> Iterator[str]:
    for title, setting, nodes, model, degrees, aim in (
        ("368 of 1,019", SMALL, 368, "llama3-70b", ("--tp", "8", "--pp", "8", "--global-batch", "736"), "10 s"),
        ("368 of 1,019, plan searched", SMALL, 368, "llama3-70b", ("--global-batch", "736"), "10 s"),
        ("1,200 of 2,048", BIG, 1200, "llama3-405b", ("--tp", "8", "--pp", "8", "--global-batch", "2400"), "60 s"),
        ("1,200 of 2,048, plan searched", BIG, 1200, "llama3-405b", ("--global-batch", "2400"), "60 s"),
    ):
        files = _write_pods(folder, setting)
        words = ["place", model, *degrees, *files, "--devices", str(8 * nodes), "--alternatives", "8", "--json"]
        spent = _least(words)
        yield f"| `place`, {title}, eight alternatives | {spent.cpu_s:.1f} s | {aim} | {model}, {_mib(spent)} |"
    for model, device, nodes, pods, batch in PLANS:
        with_pods, without = (
            _least(["plan", model, "--cluster", str(path), "--global-batch", batch, "--json"])
            for path in _write_plain(folder, device, nodes, pods)
        )
        times = with_pods.cpu_s / without.cpu_s
        what = f"{nodes * 8} {device} in {pods} pods, {without.cpu_s:.1f} s without, {_mib(with_pods)}"
        yield f"| `plan` {model} with pods | {with_pods.cpu_s:.1f} s, {times:.2f} times | 2 times | {what} |"


def _decisions(data: Path) -> Iterator[str]:
    for name, file in figure_14.TRACES.items():
        path = data / "traces" / file
        if path.exists():
            figures = figure_14.run(figure_14.read_rows(path), "ours", 0)
            spent = f"{figures.decision_p99_ms:.1f} ms"
            yield f"| a placement in a simulation of 2,048 nodes, p99 | {spent} | 20 ms | {name} |"


def _write_pods(folder: Path, setting: Setting) -> list[str]:
    """Write a cluster of named nodes in pods, and which of them are free, and return the options that name both."""
    sizes = free_nodes(setting, 0.0, 0)
    parts = ", ".join(POD.format(name=f"p{pod}", nodes=size) for pod, size in enumerate(sizes))
    levels = f", levels: [{{name: pod, parts: [{parts}], spread: arnold-h800}}]"
    cluster, free = folder / "cluster.yaml", folder / "free.txt"
    cluster.write_text(CLUSTER.format(nodes=setting.nodes, device="h800-80gb", levels=levels), encoding="utf-8")
    kept = set(Random(0).sample(range(setting.nodes), round(setting.nodes * FREE)))
    rows = [f"gpu{node + 1:04} gpu:h800:8 {'idle' if node in kept else 'allocated'}" for node in range(setting.nodes)]
    free.write_text("NODELIST GRES STATE\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return ["--cluster", str(cluster), "--free", str(free)]


def _write_plain(folder: Path, device: str, nodes: int, pods: int) -> tuple[Path, Path]:
    paths = folder / "pods.yaml", folder / "plain.yaml"
    for path, levels in zip(paths, (f", pods: {pods}, oversubscription: 4", ""), strict=True):
        path.write_text(CLUSTER.format(nodes=nodes, device=device, levels=levels), encoding="utf-8")
    return paths


def _filled(setting: Setting) -> tuple[int, ...]:
    return tuple(nodes + 2 for nodes in free_nodes(setting, 0.0, 0))


def _least(words: Sequence[str]) -> Spent:
    runs = [_run(words) for _ in range(REPEATS)]
    return Spent(cpu_s=min(run.cpu_s for run in runs), memory_bytes=max(run.memory_bytes for run in runs))


def _run(words: Sequence[str]) -> Spent:
    command = [sys.executable, "-m", "cellplan", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{json.dumps(command)}: exit status {process.returncode}")
    return Spent(cpu_s=usage.ru_utime + usage.ru_stime, memory_bytes=usage.ru_maxrss * 1024)


def _mib(spent: Spent) -> str:
    return f"{spent.memory_bytes / 2**20:.0f} MiB"


def _ms(work: Callable[[], object]) -> str:
    return f"{_seconds(work) * 1e3:.1f} ms"


def _seconds(work: Callable[[], object]) -> float:
    """CPU seconds of the quickest call."""
    best = float("inf")
    for _ in range(REPEATS):
        before = time.process_time()
        result = work()
        best = min(best, time.process_time() - before)
        assert not isinstance(result, Infeasible)
    return best
