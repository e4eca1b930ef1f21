"""How many processes and bytes this machine takes, so that what it cannot hold is refused before anything starts."""

from __future__ import annotations

import os
from pathlib import Path

from estimator.host.memory import free_host_memory_bytes
from profiles.errors import InputError
from profiles.limits import MIB, Limit
from profiles.numerals import read_whole

PER_CORE = "CELLPLAN_PROCESSES_PER_CORE"
"""In the environment: how many processes or threads may share a core, where somebody wants more than the usual."""

_USUAL_PER_CORE = 8
"""More only take turns; what is measured then says nothing of a machine that holds them."""

WORKER_BYTES = 400 * MIB
"""Of host memory that a worker process with its framework takes before it holds a weight."""

SIMULATION_BYTES = 150 * MIB
"""Of host memory that a process takes which simulates without a framework."""

_FILES_FOR_EACH, _FILES_BESIDE = 4, 64
"""Files open for each process (its pipe, what it writes, connections to others), and those that are open anyway."""

_PIDS = (Path("/sys/fs/cgroup/pids.max"), Path("/sys/fs/cgroup/pids.current"))


def process_limit(*, threads: int = 1, each_bytes: int = WORKER_BYTES) -> Limit:
    """Return how many busy processes this machine holds at once, each of so many threads and bytes: by its cores, free
    memory, open files and processes. InputError where the environment's `PER_CORE` is no number."""
    per_core, cores, free_bytes = _per_core(), usable_cores(), free_host_memory_bytes()
    files, processes = _files_left(), _processes_left()
    counts = [
        cores * per_core // threads,
        free_bytes // each_bytes,
        *([] if files is None else [files // _FILES_FOR_EACH]),
        *([] if processes is None else [processes // threads]),
    ]
    has = (
        f"{cores} cores for {per_core} threads each",
        f"{free_bytes / 2**30:.1f} GiB of free memory at {each_bytes / MIB:.0f} MiB a process",
        *([] if files is None else [f"{files:,} open files"]),
        *([] if processes is None else [f"{processes:,} further processes"]),
    )
    return Limit(
        most=max(1, min(counts)),
        unit="processes",
        reason=f"this machine has {', '.join(has)}",
        beyond=f"{PER_CORE}=N in the environment lets N share a core",
    )


def thread_limit() -> Limit:
    """Return how many threads of one process this machine runs at once. InputError as `process_limit`."""
    each, cores = _per_core(), usable_cores()
    return Limit(
        most=cores * each,
        unit="threads",
        reason=f"this machine has {cores} cores for {each} each",
        beyond=f"{PER_CORE}=N in the environment lets N share a core",
    )


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _per_core() -> int:
    word = os.environ.get(PER_CORE)
    if word is None:
        return _USUAL_PER_CORE
    try:
        each = read_whole(word)
    except ValueError:
        each = 0
    if each < 1:
        raise InputError(where="environment", key=PER_CORE, found=word, expected="a whole number of at least 1")
    return each


def _files_left() -> int | None:
    """Files that this process may open beside those that it needs anyway; None where there is no limit."""
    import resource  # POSIX alone has it.

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else max(0, soft - _FILES_BESIDE)


def _processes_left() -> int | None:
    """Processes and threads that the system still gives this user and control group; None where there is no limit."""
    import resource

    rooms = []
    most, used = (_number(path) for path in _PIDS)
    if most is not None and used is not None:
        rooms.append(most - used)
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and os.geteuid():  # It does not hold for root.
        rooms.append(soft - _threads_of_user())
    return max(0, min(rooms)) if rooms else None


def _threads_of_user() -> int:
    """Threads of this user, where the system has a /proc that says."""
    count = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.stat().st_uid == os.geteuid():
                count += sum(1 for _ in (folder / "task").iterdir())
        except OSError:
            continue
    return count


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
