"""Run a command that the kernel kills when its parent goes: `tied PARENT COMMAND...`, on Linux.

A process of its own before, so that nothing runs between a fork and the command in a process that has threads, and so
that the command is tied before it imports anything.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def tie_to(parent: int) -> None:
    """Have the kernel kill this process once `parent` (a process number), or the thread of it that started this
    process, is gone; end it now where it already is. Do nothing on other systems than Linux."""
    end_with_parent(parent, signal.SIGKILL)


def end_with_parent(parent: int, sent: signal.Signals) -> None:
    """Have the kernel send `sent` as `tie_to` has it send SIGKILL."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, sent, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Have this process be the parent of what descends from it and has lost its own; do nothing on other systems."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def main() -> None:
    """Tie this process to the parent that the command line names, and become the command."""
    parent, *command = sys.argv[1:]
    tie_to(int(parent))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
