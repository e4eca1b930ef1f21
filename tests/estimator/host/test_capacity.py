"""What this machine cannot hold is refused before anything starts: one message, what it has and the way beyond."""

from __future__ import annotations

import re
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from estimator.communication import measure_torch
from estimator.communication.measure_torch import measure_links
from estimator.host import capacity
from estimator.host.capacity import PER_CORE, process_limit, thread_limit
from estimator.profiling import contention
from planner.cli.main import main
from planner.one_job.running import launch
from planner.shared.plan_file import save_plan
from profiles.errors import InputError
from tests.planner.one_job.running.run_plan_examples import GPT, HandStage, hand_plan, write_config

GIB = 2**30
TRACE = Path(capacity.__file__).parents[2] / "planner" / "many_jobs" / "traces" / "small.csv"


@pytest.fixture(autouse=True)
def _small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two cores, 4 GiB, 1,024 open files and no other limit, on which nothing is ever started."""
    monkeypatch.delenv(PER_CORE, raising=False)
    monkeypatch.setattr(capacity, "usable_cores", lambda: 2)
    for module in (capacity, measure_torch):
        monkeypatch.setattr(module, "free_host_memory_bytes", lambda: 4 * GIB)
    monkeypatch.setattr(capacity, "_files_left", lambda: 1024)
    monkeypatch.setattr(capacity, "_processes_left", lambda: None)
    for module in (measure_torch, contention, launch):
        monkeypatch.setattr(module, "run_workers", lambda *_, **__: pytest.fail("workers were started"))
    monkeypatch.setattr("estimator.host.children.process_pool", lambda *_: pytest.fail("a pool was started"))


@pytest.mark.parametrize(
    ("cores", "memory_bytes", "files", "processes", "threads", "most"),
    [
        (2, 100 * GIB, None, None, 1, 16),
        (2, 100 * GIB, None, None, 4, 4),
        (2, 100 * GIB, None, None, 100, 1),
        (64, 4 * GIB, None, None, 1, 10),
        (64, 100 * GIB, 40, None, 1, 10),
        (64, 100 * GIB, None, 30, 2, 15),
        (64, 0, 0, 0, 1, 1),
    ],
)
def test_what_is_shortest_limits(
    cores: int,
    memory_bytes: int,
    files: int | None,
    processes: int | None,
    threads: int,
    most: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(capacity, "usable_cores", lambda: cores)
    monkeypatch.setattr(capacity, "free_host_memory_bytes", lambda: memory_bytes)
    monkeypatch.setattr(capacity, "_files_left", lambda: files)
    monkeypatch.setattr(capacity, "_processes_left", lambda: processes)
    assert process_limit(threads=threads).most == most


def test_the_environment_lets_more_share_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PER_CORE, "3")
    assert (process_limit(each_bytes=1).most, thread_limit().most) == (6, 6)
    monkeypatch.setenv(PER_CORE, "0")
    with pytest.raises(InputError, match=f"environment: {PER_CORE}: found 0, expected a whole number"):
        process_limit()


def test_limits_of_the_system_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    infinite = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda _: (infinite, infinite))
    assert capacity._files_left() is None
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 200))
    monkeypatch.setattr("os.geteuid", lambda: Path("/proc/self").stat().st_uid or 0)
    assert capacity._files_left() == 36
    assert capacity.usable_cores() >= 1
    assert capacity._threads_of_user() >= 1


def trained_words(folder: Path, dp: int) -> list[str]:
    config = write_config(folder, "gpt", GPT)
    save_plan(
        hand_plan(config, HandStage(chunks=((0, 6),), dp=dp), global_batch=dp, micro_batch=dp), folder / "plan.json"
    )
    return ["run", str(folder / "plan.json")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (lambda _: ["comm", "measure", "--ranks", "2,100000"], "ranks: found 100,000 processes, expected at most 10 "),
        (lambda _: ["comm", "measure", "--ranks", "5000", "--backend", "xla"], "ranks: found 5,000 processes"),
        (lambda _: ["comm", "measure", "--sizes", str(GIB)], "sizes: found 1,073,741,824 bytes in a message"),
        (lambda _: ["profile", "gpt-tiny", "--threads", "100000"], "--threads: found 100,000 threads"),
        (lambda folder: ["jct", "train", str(TRACE), "-o", str(folder / "m"), "--threads", "100"], "found 100 threads"),
        (lambda folder: ["jct", "predict", str(folder / "m"), str(TRACE), "--threads", "17"], "--threads: found 17"),
        (lambda _: ["jct", "evaluate", str(TRACE), "--threads", "17"], "--threads: found 17 threads"),
        (lambda folder: trained_words(folder, 32), "ranks: found 32 processes, expected at most 10 "),
        (lambda folder: [*trained_words(folder, 32), "--backend", "jax"], "ranks: found 32 processes"),
        (lambda folder: [*trained_words(folder, 2), "--threads", "17"], "--threads: found 17 threads"),
        (
            lambda _: ["simulate", str(TRACE), "--cluster", "a40:4x2", "--seeds", "0..99", "--workers", "99"],
            "--workers: found 99 processes, expected at most 16 ",
        ),
    ],
)
def test_commands_refuse_what_the_machine_cannot_hold(
    words: Callable[[Path], list[str]], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(tmp_path)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert re.search(r"this machine has \d|GiB of free memory here", line)
    assert PER_CORE in line or "fewer ranks or more machines" in line


def test_more_workers_than_runs_are_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def note(count: int) -> None:
        asked.append(count)
        raise ZeroDivisionError

    monkeypatch.setattr("estimator.host.children.process_pool", note)
    words = ["simulate", str(TRACE), "--cluster", "a40:4x2", "--seeds", "0..2", "--workers", "1000"]
    with pytest.raises(ZeroDivisionError):
        main(words)
    assert asked == [3]


def test_other_numbers_of_workers_cannot_be_measured_either() -> None:
    with pytest.raises(InputError, match="contention: workers: found 64 processes, expected at most 8 "):
        contention.measure_contention(64, threads=2)
    with pytest.raises(InputError, match="measure links: --ranks: found 17 processes"):
        measure_links(link_name="l", ranks=(17,))
