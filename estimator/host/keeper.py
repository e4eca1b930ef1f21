"""Stand between code of the user's and the process that asked for it: `keeper PARENT COMMAND...`.

The code's parent is a process of this kind, so what it sends to its parent hits nobody else. Whatever it has started,
in sessions of its own too, falls to that process, and is killed once the code's own process has ended or whoever asked
has. It ends as the code's own did. There are two of them, one behind the other: code may kill its parent.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from estimator.host.descendants import descendants_of, end_all
from estimator.host.tied import adopt_orphans, end_with_parent, tie_to

_FAILED = 127


def keep(parent: int, become: Callable[[], object]) -> NoReturn:
    """Have a grandchild of this process `become` something, and end as it does, with all that it has started; end them
    all when `parent`, which is this process's, goes or SIGTERM comes."""
    outer = os.getpid()
    _keep(parent, lambda: _keep(outer, become))


def _keep(parent: int, become: Callable[[], object]) -> NoReturn:
    """As `keep`, with a child."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    end_with_parent(parent, signal.SIGTERM)
    adopt_orphans()
    keeper = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            if sys.platform.startswith("linux"):  # Elsewhere a group is all that they are known by.
                os.setsid()
            tie_to(keeper)
            become()
        finally:
            os._exit(_FAILED)
    _let_go_of_files()
    status = _end_of(child)
    end_all(lambda: descendants_of(keeper))
    _end_as(status)


def _let_go_of_files() -> None:
    """Whoever reads what the code writes is to see its end."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


def _end_of(child: int) -> int:
    """What the child ended with as soon as it has, or SIGTERM's own status."""
    while signal.sigwait((signal.SIGCHLD, signal.SIGTERM)) != signal.SIGTERM:
        pid = -1
        while pid:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == child:
                return status
    return int(signal.SIGTERM)


def _end_as(status: int) -> NoReturn:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os._exit(abs(code))


def main() -> NoReturn:
    """Keep the command that the command line names, for the parent that it names."""
    parent, *command = sys.argv[1:]
    keep(int(parent), lambda: os.execvp(command[0], command))


if __name__ == "__main__":
    main()
