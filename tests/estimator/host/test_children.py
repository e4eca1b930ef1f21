"""Processes end with the one that started them, with what they started in turn; nothing else of them stays either."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from bench.killed.processes import is_running, processes_with
from estimator.host import tied
from estimator.host.children import child_processes, interrupts_held_back
from estimator.host.descendants import descendants_of
from tests.processes import GUARDIAN, running, wait_until

ROOT = str(Path(__file__).parents[3])
GONE_S = 5.0

GRANDPARENT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
time.sleep(600)
"""

PARENT = f"""
import os, pathlib, sys, time
from estimator.host.children import child_processes
with child_processes() as children:
    children.undo_after_death(("touch", sys.argv[1] + "/undone"))
    (children.folder / "file").touch()
    pathlib.Path(sys.argv[1], "folder").write_text(str(children.folder))
    children.start([sys.executable, "-c", {GRANDPARENT!r}])
    time.sleep(600)
"""

POOL = """
import sys, time
from estimator.host.children import process_pool
if __name__ == "__main__":
    with process_pool(2, sys.argv[2]) as pool:
        list(pool.map(time.sleep, [600, 600, 600]))
"""


def begin(program: str, folder: Path, *words: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    (folder / "program.py").write_text(textwrap.dedent(program))
    command = [sys.executable, str(folder / "program.py"), str(folder), *words]
    return running(command, env={**os.environ, "PYTHONPATH": ROOT, "TMPDIR": str(folder)})


def await_processes(token: str, holds: Callable[[list[str]], bool]) -> None:
    """Until the command lines of what runs are as they are to be."""
    wait_until(lambda: holds(list(processes_with(token).values())), lambda: f"there are {processes_with(token)}")


def sleepers(commands: list[str]) -> int:
    return sum("-c import time; time.sleep(600)" in command for command in commands)


def test_what_was_started_ends_with_a_killed_parent(token: str, tmp_path: Path) -> None:
    with begin(PARENT, tmp_path) as parent:
        await_processes(token, lambda commands: len(commands) == 4 and sleepers(commands) == 1)
        parent.kill()
    wait_until(lambda: not processes_with(token), lambda: f"left: {processes_with(token)}", within_s=GONE_S)
    wait_until((tmp_path / "undone").exists, "the command was not run")
    assert not Path((tmp_path / "folder").read_text()).exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a kernel's signal that is Linux's")
def test_children_end_with_a_killed_parent_whose_guardian_was_killed_too(token: str, tmp_path: Path) -> None:
    with begin(PARENT.replace(repr(GRANDPARENT), repr("import time; time.sleep(600)")), tmp_path) as parent:
        await_processes(token, lambda commands: len(commands) == 3 and sleepers(commands) == 1)
        (guarding,) = (pid for pid, command in processes_with(token).items() if GUARDIAN in command)
        os.kill(guarding, signal.SIGKILL)
        wait_until(lambda: guarding not in processes_with(token), "it lives on")
        parent.kill()
    wait_until(lambda: not processes_with(token), lambda: f"left: {processes_with(token)}", within_s=GONE_S)


def test_grandchildren_end_with_the_context(token: str) -> None:
    with child_processes() as children:
        children.start([sys.executable, "-c", GRANDPARENT])
        await_processes(token, lambda commands: sleepers(commands) == 1)
    assert not processes_with(token)
    assert not children.folder.exists()


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_pool_ends_with_a_killed_parent(method: str, token: str, tmp_path: Path) -> None:
    with begin(POOL, tmp_path, method) as parent:
        await_processes(token, lambda commands: len(commands) >= 3)
        parent.kill()
    wait_until(lambda: not processes_with(token), lambda: f"left: {processes_with(token)}", within_s=GONE_S)


def test_what_starts_while_interrupts_wait_is_not_told_of_one() -> None:
    """Not by another thread of this process that takes it either; it comes once the context ends."""
    asleep = threading.Event()
    threading.Thread(target=asleep.wait, daemon=True).start()
    shows = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()))"
    done: list[str] = []

    def starts() -> None:
        with interrupts_held_back():
            os.kill(os.getpid(), signal.SIGINT)
            started = subprocess.run([sys.executable, "-c", shows], capture_output=True, text=True, check=True)
            done.append(started.stdout)

    with pytest.raises(KeyboardInterrupt):
        starts()
    asleep.set()
    assert done == ["True\n"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_child_whose_parent_went_before_it_was_tied_does_not_begin(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", tied.__file__, str(os.getppid()), "touch", str(tmp_path / "begun")]
    assert subprocess.run(command, check=False).returncode == 1
    assert not (tmp_path / "begun").exists()


def test_a_program_that_there_is_not_is_told_at_once() -> None:
    with child_processes() as children, pytest.raises(FileNotFoundError, match="no-such-program"):
        children.start(["no-such-program"])


BESIDE = """
import os, subprocess, sys, time
from estimator.host.children import child_processes
if os.fork() == 0:
    os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(599)"])
with child_processes() as children, children.answer_for_all():
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    time.sleep(600)
"""


def test_what_is_answered_for_ends_with_a_killed_parent_and_nobody_else_of_its_group(
    token: str, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(BESIDE)
    command = [sys.executable, str(tmp_path / "program.py")]
    environment = {**os.environ, "PYTHONPATH": ROOT, "TMPDIR": str(tmp_path)}
    with running(command, env=environment, start_new_session=True) as parent:
        # What was forked is the sleeper beside only once it has become it.
        await_processes(
            token,
            lambda commands: (
                len(commands) == 4 and sleepers(commands) == 1 and any("sleep(599)" in command for command in commands)
            ),
        )
        parent.kill()
    wait_until(lambda: len(processes_with(token)) == 1, lambda: f"there are {processes_with(token)}", within_s=GONE_S)
    ((pid, beside),) = processes_with(token).items()
    assert "sleep(599)" in beside
    os.kill(pid, signal.SIGKILL)


def name_of(pid: int) -> bytes:
    """The command line of a process, empty where it has ended meanwhile."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def test_what_left_the_session_and_its_environment_ends_with_code_that_is_kept(token: str) -> None:
    runaway = "import os, time; os.fork() or (os.setsid(), os.execve('/bin/sleep', ['sleep', '600'], {}))"
    with child_processes() as children:
        process = children.start([sys.executable, "-c", f"{runaway}; time.sleep(600)"], kept=True)

        def sleeping() -> list[int]:
            names = ((pid, name_of(pid)) for pid in descendants_of(process.pid))
            return [pid for pid, name in names if name.startswith(b"sleep")]

        wait_until(sleeping, "it did not begin")
        (away,) = sleeping()
    assert not is_running(away)
    assert not processes_with(token)
