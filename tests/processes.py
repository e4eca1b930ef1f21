"""Waits for what becomes of the processes that a test has started, told by a token in their environment."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path

import pytest

GUARDIAN = "estimator.host.guardian"
"""In the command line of a process that cleans up after a killed one."""

HANGS_S = 120.0
"""What takes longer hangs: many times what anything here takes on a machine that is busy."""


def new_token() -> str:
    """Return a mark for `TOKEN` in an environment. Skip the test where processes cannot be told apart by it."""
    if not Path("/proc/self/environ").exists():
        pytest.skip("this system has no /proc")
    return f"cellplan-test-{secrets.token_hex(8)}"


def wait_until(holds: Callable[[], object], otherwise: str | Callable[[], str], *, within_s: float = HANGS_S) -> None:
    """Return once `holds()`; fail, and say `otherwise`, where it does not in time."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, otherwise if isinstance(otherwise, str) else otherwise()
        time.sleep(0.02)
