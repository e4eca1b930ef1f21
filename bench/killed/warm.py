"""Runs commands of cellplan in forks of a process that has imported what they need, so that a kill finds them at work.

Each line of standard input is a JSON object with `words`, `environment` and `output`, a file for what the command
prints; answered by a line with the fork's process id, and by one with how it ended.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from typing import Any

from planner.cli.main import main as run_command

MODULES = (
    "estimator.profiling.measure_torch",
    "planner.cli.comm",
    "planner.cli.jct",
    "planner.cli.plan",
    "planner.cli.profile",
    "planner.cli.run",
    "planner.cli.simulate",
    "planner.many_jobs.jct.commands",
    "planner.many_jobs.simulation.run",
    "planner.one_job.planning.searching",
    "planner.one_job.profiling.profiling",
    "planner.one_job.running.run",
    "profiles.schema",
    "lightgbm",
    "torch",
)
"""None of them starts a thread when it is imported; a fork would lack it."""


def main() -> None:
    """Fork for each request, and wait for the fork's end."""
    for name in MODULES:
        importlib.import_module(name)
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _become(request)
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(request: dict[str, Any]) -> None:
    """Be the command that is asked for, and end with its status."""
    status = 1
    try:
        os.setsid()
        os.environ.update(request["environment"])
        nothing = os.open(os.devnull, os.O_RDONLY)
        printed = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for descriptor, taken in ((0, nothing), (1, printed), (2, printed)):
            os.dup2(taken, descriptor)
        status = run_command(request["words"])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
