"""Processes of this machine that carry a token in their environment (Linux's /proc)."""

from __future__ import annotations

import os
from pathlib import Path

TOKEN = "CELLPLAN_TEST"


def processes_with(token: str) -> dict[int, str]:
    """Return the command lines, by process id, of the other live processes that have `token` in their environment."""
    commands = {}
    for pid in (int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()):
        folder = Path(f"/proc/{pid}")
        try:
            environment = (folder / "environ").read_bytes()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
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
