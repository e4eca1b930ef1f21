"""Clean up after a process that was killed: a process beside it, of which this one only knows that its standard input
closes when the other goes.

It is told in lines of JSON: `watch` and `release` a process that leads its group, the `mark` that all have in their
environment, `folder` to remove, `undo` with a command to run, and `done`, after which there is nothing left to do.
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

from estimator.host.descendants import carriers_of, descendants_of, end_all

_UNDO_S = 60.0
_TRIES, _BETWEEN_TRIES_S = 50, 0.1
"""Those who write to a folder may take a moment to die."""


def main() -> None:
    """Listen until nobody talks any more; then kill the groups, run the commands, remove the folders."""
    leaders: set[int] = set()
    marks: list[str] = []
    folders: list[str] = []
    commands: list[list[str]] = []
    for line in sys.stdin:
        (word, value), *_ = json.loads(line).items()
        match word:
            case "watch":
                leaders.add(value)
            case "release":
                leaders.discard(value)
            case "mark":
                marks.append(value)
            case "folder":
                folders.append(value)
            case "undo":
                commands.append(value)
            case "done":
                return
    end_all(lambda: [pid for leader in leaders for pid in descendants_of(leader)])
    for leader in leaders:
        with contextlib.suppress(OSError):
            os.killpg(leader, signal.SIGKILL)
    end_all(lambda: [pid for mark in marks for pid in carriers_of(mark)])
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
