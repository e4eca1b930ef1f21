"""Every command that starts processes, killed by signal 9: within seconds none of them is left."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from bench.killed.processes import TOKEN, processes_with
from planner.shared.plan_file import save_plan
from tests.planner.one_job.running.run_plan_examples import GPT, HandStage, hand_plan, write_config
from tests.planner.one_job.running.running_examples import put_own_rates
from tests.processes import new_token, wait_until

ROOT = str(Path(__file__).parents[2])
GONE_S = 5.0
ENDLESS = str(10**6)
TRACE = Path(ROOT) / "planner" / "many_jobs" / "traces" / "small.csv"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a plan of two ranks, and a store that knows this machine's rates."""
    made = tmp_path_factory.mktemp("killed")
    save_plan(hand_plan(write_config(made, "gpt", GPT), HandStage(chunks=((0, 6),), dp=2)), made / "plan.json")
    put_own_rates(made / "store")
    return made


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    mark = new_token()
    monkeypatch.setenv(TOKEN, mark)
    yield mark
    wait_until(lambda: not processes_with(mark), lambda: f"processes were left behind: {processes_with(mark)}")


def run_words(folder: Path) -> list[str]:
    return ["run", str(folder / "plan.json"), "--steps", ENDLESS, "--store", str(folder / "store")]


def measure_words(folder: Path) -> list[str]:
    return ["comm", "measure", "--repeats", ENDLESS, "--timeout", ENDLESS, "--store", str(folder / "links")]


def sweep_words(_folder: Path) -> list[str]:
    return ["simulate", str(TRACE), "--cluster", "a40:4x2", "--seeds", "0..400", "--workers", "2"]


@pytest.mark.parametrize(
    ("words", "worker", "count"),
    [
        (run_words, "running.torch_worker", 2),
        (lambda folder: [*run_words(folder), "--backend", "jax"], "running.jax_worker", 2),
        (measure_words, "communication.worker_torch", 2),
        (lambda folder: [*measure_words(folder), "--backend", "xla"], "communication.worker_jax", 2),
        (sweep_words, "multiprocessing.spawn", 2),
    ],
)
def test_its_processes_end_with_it(
    words: Callable[[Path], list[str]], worker: str, count: int, folder: Path, token: str, tmp_path: Path
) -> None:
    """At once after the start as well as in the middle of the work."""
    for wait_s in (0.0, 1.5):
        environment = {**os.environ, "PYTHONPATH": ROOT, "TMPDIR": str(tmp_path)}
        command = [sys.executable, "-m", "planner.cli.main", *words(folder)]
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as parent:
            wait_until(
                lambda: (
                    sum(worker in name for name in processes_with(token).values()) >= count or parent.poll() is not None
                ),
                lambda: f"no workers: {processes_with(token)}",
            )
            assert parent.poll() is None, "it ended before it was killed"
            with suppress(subprocess.TimeoutExpired):
                parent.wait(wait_s)
            parent.kill()
        wait_until(lambda: not processes_with(token), lambda: f"left: {processes_with(token)}", within_s=GONE_S)
    assert not list(tmp_path.glob("cellplan-*"))
