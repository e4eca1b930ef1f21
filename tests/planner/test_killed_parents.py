"""Every command that starts processes, killed by signal 9: within seconds none of them is left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from bench.killed.processes import is_running, processes_with
from planner.shared.plan_file import save_plan
from tests.hostile_modules import RUNAWAY
from tests.planner.one_job.running.run_plan_examples import GPT, HandStage, hand_plan, write_config
from tests.planner.one_job.running.running_examples import put_own_rates
from tests.processes import HANGS_S, running, wait_until

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


def run_words(folder: Path) -> list[str]:
    return ["run", str(folder / "plan.json"), "--steps", ENDLESS, "--store", str(folder / "store")]


def measure_words(folder: Path) -> list[str]:
    return ["comm", "measure", "--repeats", ENDLESS, "--timeout", ENDLESS, "--store", str(folder / "links")]


def sweep_words(_folder: Path) -> list[str]:
    return ["simulate", str(TRACE), "--cluster", "a40:4x2", "--seeds", "0..400", "--workers", "2"]


def compile_words(folder: Path) -> list[str]:
    """A stage for whose compiler there is no cache yet."""
    config = str(folder / "gpt" / "config.json")
    return ["profile", config, "--stage", "0:6", "--compile", "--dtype", "fp32", "--store", str(folder / "store")]


def factory_words(_folder: Path) -> list[str]:
    return ["estimate", "tests.hostile_modules:runs_away_and_stays", "--cluster", "a100-80gb:1x2"]


def policy_words(folder: Path) -> list[str]:
    policy = ["--policy", "tests.hostile_modules:HostilePolicy", "--option", "how=run away and stay"]
    return ["simulate", str(TRACE), "--cluster", "a40:8x2+a10:8x2", "--cells", str(folder), "--head", "3", *policy]


def await_some(count: int, worker: str, token: str, parent: subprocess.Popen[bytes]) -> None:
    """Until the command has so many processes of that name."""
    wait_until(
        lambda: sum(worker in name for name in processes_with(token).values()) >= count or parent.poll() is not None,
        lambda: f"no workers: {processes_with(token)}",
    )
    assert parent.poll() is None, "it ended before it was killed"


@pytest.mark.parametrize(
    ("words", "worker", "count", "wait_s"),
    [
        (run_words, "running.torch_worker", 2, 1.5),
        (lambda folder: [*run_words(folder), "--backend", "jax"], "running.jax_worker", 2, 0.0),
        (measure_words, "communication.worker_torch", 2, 0.0),
        (lambda folder: [*measure_words(folder), "--backend", "xla"], "communication.worker_jax", 2, 1.5),
        (sweep_words, "multiprocessing.spawn", 2, 0.0),
        (sweep_words, "multiprocessing.spawn", 2, 1.5),
        pytest.param(
            *(compile_words, "cc1plus", 1, 0.0), marks=pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
        ),
    ],
)
def test_its_processes_end_with_it(
    words: Callable[[Path], list[str]],
    worker: str,
    count: int,
    wait_s: float,
    folder: Path,
    token: str,
    tmp_path: Path,
) -> None:
    """At once after the start, or in the middle of the work."""
    environment = {**os.environ, "PYTHONPATH": ROOT, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "planner.cli.main", *words(folder)]
    with running(command, env=environment, stdout=subprocess.DEVNULL) as parent:
        await_some(count, worker, token, parent)
        with suppress(subprocess.TimeoutExpired):
            parent.wait(wait_s)
        parent.kill()
    wait_until(lambda: not processes_with(token), lambda: f"left: {processes_with(token)}", within_s=GONE_S)
    assert not list(tmp_path.glob("cellplan-*"))


@pytest.mark.parametrize("words", [factory_words, policy_words])
def test_what_code_of_the_users_has_started_ends_with_a_killed_command(
    words: Callable[[Path], list[str]], token: str, tmp_path: Path
) -> None:
    """It is nobody's child, in a session of its own, and has nothing in its environment."""
    started = tmp_path / "pid"
    environment = {**os.environ, "PYTHONPATH": ROOT, "TMPDIR": str(tmp_path), RUNAWAY: str(started)}
    command = [sys.executable, "-m", "planner.cli.main", *words(tmp_path)]
    with running(command, env=environment, stdout=subprocess.DEVNULL) as parent:
        wait_until(lambda: started.exists() and started.read_text(), lambda: f"there are {processes_with(token)}")
        assert is_running(int(started.read_text()))
        parent.kill()
    wait_until(lambda: not processes_with(token), lambda: f"left: {processes_with(token)}", within_s=GONE_S)
    wait_until(lambda: not is_running(int(started.read_text())), "what it had started lives on", within_s=GONE_S)
    assert not list(tmp_path.glob("cellplan-*"))


ENDINGS = {signal.SIGTERM: -signal.SIGTERM, signal.SIGHUP: -signal.SIGHUP, signal.SIGINT: 130}


@pytest.mark.parametrize(
    ("words", "worker", "number"),
    [
        (measure_words, "communication.worker_torch", signal.SIGINT),
        *((sweep_words, "multiprocessing.spawn", number) for number in ENDINGS),
        *((policy_words, "--policy", number) for number in ENDINGS),
    ],
)
def test_signals_end_its_processes_too(
    words: Callable[[Path], list[str]], worker: str, number: signal.Signals, token: str, tmp_path: Path
) -> None:
    """As a terminal sends them: to all processes of its group. Only one of them speaks."""
    environment = {**os.environ, "PYTHONPATH": ROOT, "TMPDIR": str(tmp_path), RUNAWAY: str(tmp_path / "pid")}
    command = [sys.executable, "-m", "planner.cli.main", *words(tmp_path)]
    with running(command, env=environment, stderr=subprocess.PIPE, start_new_session=True) as parent:
        assert parent.stderr is not None
        await_some(2, worker, token, parent)
        os.killpg(parent.pid, number)
        said = parent.stderr.read().decode()
    wait_until(lambda: not processes_with(token), lambda: f"left: {processes_with(token)}", within_s=GONE_S)
    assert parent.returncode == ENDINGS[number]
    assert "Traceback" not in said
    if number == signal.SIGINT:
        assert said == "cellplan: error: interrupted\n"
    assert not list(tmp_path.glob("cellplan-*"))


def test_a_closed_terminal_ends_its_processes_too(token: str, tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    environment = {**os.environ, "PYTHONPATH": ROOT, "TMPDIR": str(tmp_path)}
    # The shell that a terminal starts leads its session, and what it starts is in front.
    shell = "import os, sys; os.login_tty(int(sys.argv[1])); os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
    command = [sys.executable, "-c", shell, str(theirs), "-m", "planner.cli.main", *sweep_words(tmp_path)]
    with running(command, env=environment, pass_fds=(theirs,)) as parent:
        os.close(theirs)
        await_some(2, "multiprocessing.spawn", token, parent)
        os.close(ours)
        assert parent.wait(HANGS_S)
    wait_until(lambda: not processes_with(token), lambda: f"left: {processes_with(token)}", within_s=GONE_S)
