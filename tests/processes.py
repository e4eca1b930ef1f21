"""The processes that a test has started, told by a token in their environment, and waits for what becomes of them."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import pytest

HANGS_S = 120.0
"""What takes longer hangs: many times what anything here takes on a machine that is busy."""

TOKEN = "CELLPLAN_TEST"


def new_token() -> str:
    """Return a mark for `TOKEN` in an environment. Skip the test where processes cannot be told apart by it."""
    if not Path("/proc/self/environ").exists():
        pytest.skip("this system has no /proc")
    return f"cellplan-test-{secrets.token_hex(8)}"


def processes_with(token: str) -> dict[int, str]:
    """Return the command lines, by process id, of the other live processes that have `token` in their environment."""
    commands = {}
    for pid in (int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()):
        folder = Path(f"/proc/{pid}")
        try:
            environment = (folder / "environ").read_bytes()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if is_running(pid) and token.encode() in environment and pid != os.getpid():
            commands[pid] = command
    return commands


def is_running(pid: int) -> bool:
    """Return whether there is such a process, and it has not ended but for its parent's taking note."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def wait_until(holds: Callable[[], object], otherwise: str | Callable[[], str], *, within_s: float = HANGS_S) -> None:
    """Return once `holds()`; fail, and say `otherwise`, where it does not in time."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, otherwise if isinstance(otherwise, str) else otherwise()
        time.sleep(0.02)
