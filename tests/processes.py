"""Waits for what becomes of the processes that a test has started, told by a token in their environment."""

from __future__ import annotations

import secrets
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

GUARDIAN = "estimator.host.guardian"
"""In the command line of a process that cleans up after a killed one."""

HANGS_S = 300.0
"""What takes longer hangs: many times what anything here takes on a machine that is busy."""

BETWEEN_LOOKS_S = 0.02
TURN_S = 0.06
"""What a look and the pause after it take at most where a processor is free."""


def new_token() -> str:
    """Return a mark for `TOKEN` in an environment. Skip the test where processes cannot be told apart by it."""
    if not Path("/proc/self/environ").exists():
        pytest.skip("this system has no /proc")
    return f"cellplan-test-{secrets.token_hex(8)}"


@contextmanager
def running(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Start a process, with `options` of `subprocess.Popen`, and wait for its end. Where the test fails it is killed:
    it may be one that runs without end, and what nobody waited for is another test's warning."""
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


@contextmanager
def all_running(commands: Sequence[Sequence[str]], **options: Any) -> Iterator[list[subprocess.Popen[Any]]]:
    """Start several as `running` does one."""
    with ExitStack() as stack:
        yield [stack.enter_context(running(command, **options)) for command in commands]


def wait_until(holds: Callable[[], object], otherwise: str | Callable[[], str], *, within_s: float = HANGS_S) -> None:
    """Return once `holds()`; fail, and say `otherwise`, where it does not in time. Of each turn at most `TURN_S` count:
    what holds this process up on a busy machine holds up those that it waits for."""
    left_s, before_s = within_s, time.monotonic()
    while not holds():
        assert left_s > 0, otherwise if isinstance(otherwise, str) else otherwise()
        time.sleep(BETWEEN_LOOKS_S)
        now_s = time.monotonic()
        left_s, before_s = left_s - min(now_s - before_s, TURN_S), now_s
