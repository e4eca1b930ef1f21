"""Clean up after a process that was killed: `python -I -S guardian.py`, a process beside it, of which this one only
knows that its standard input closes when the other goes.

It is told in lines of JSON: `watch` and `release` a process group, `folder` to remove, `undo` with a command to run,
and `done`, after which there is nothing left to do.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time

_UNDO_S = 60.0
_TRIES, _BETWEEN_TRIES_S = 50, 0.1
"""Those who write to a folder may take a moment to die."""


def main() -> None:
    """Listen until nobody talks any more; then kill the groups, run the commands, remove the folders."""
    groups: set[int] = set()
    folders: list[str] = []
    commands: list[list[str]] = []
    for line in sys.stdin:
        (word, value), *_ = json.loads(line).items()
        match word:
            case "watch":
                groups.add(value)
            case "release":
                groups.discard(value)
            case "folder":
                folders.append(value)
            case "undo":
                commands.append(value)
            case "done":
                return
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    for command in reversed(commands):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(command, timeout=_UNDO_S, check=False)
    for folder in folders:
        for _ in range(_TRIES):
            shutil.rmtree(folder, ignore_errors=True)
            if not os.path.lexists(folder):
                break
            time.sleep(_BETWEEN_TRIES_S)


if __name__ == "__main__":
    main()
