"""How much memory a process may still take on this host, and has taken. Files of Linux where they exist, POSIX
elsewhere."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4  # of glibc's malloc.h

_STATUS = Path("/proc/self/status")
_CGROUP = Path("/sys/fs/cgroup")
_GROUP_FILES = (  # limit, usage, statistics and the statistic of pages that can be dropped: cgroup 2, then 1
    (_CGROUP / "memory.max", _CGROUP / "memory.current", _CGROUP / "memory.stat", "inactive_file"),
    (
        _CGROUP / "memory/memory.limit_in_bytes",
        _CGROUP / "memory/memory.usage_in_bytes",
        _CGROUP / "memory/memory.stat",
        "total_inactive_file",
    ),
)


def host_memory_bytes() -> int:
    """Bytes of memory of this host, or of the control group that this process is confined to."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([installed, *(limit for files in _GROUP_FILES if (limit := _read_bytes(files[0])) is not None)])


def free_host_memory_bytes() -> int:
    """Return the bytes that can be taken before the host or the control group runs out (then Linux kills, not
    refuses)."""
    free = [_read_entry(Path("/proc/meminfo"), "MemAvailable:", unit=1024) or host_memory_bytes()]
    for limit_file, usage_file, statistics_file, droppable in _GROUP_FILES:
        limit, used = _read_bytes(limit_file), _read_bytes(usage_file)
        if limit is not None and used is not None:
            free.append(max(0, limit - used + (_read_entry(statistics_file, droppable, unit=1) or 0)))
    return min(free)


def start_resident_peak() -> int:
    """Start this process's peak of resident memory anew, where Linux lets it. Return the bytes resident now (elsewhere
    the peak so far)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _read_entry(_STATUS, "VmRSS:", unit=1024) or resident_peak_bytes()


def resident_peak_bytes() -> int:
    """Return the most that this process has had resident, which counts what its allocator keeps back too."""
    import resource  # POSIX alone has it.

    unit = 1 if sys.platform == "darwin" else 1024
    return _read_entry(_STATUS, "VmHWM:", unit=1024) or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def resident_bytes_of(process: int) -> int:
    """Return the bytes that another process has resident, shared ones too; 0 where the system does not say."""
    fields = _read(Path(f"/proc/{process}/statm")).split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0


def own_bytes_of(process: int) -> int:
    """Return the bytes that another process has resident, its part of those that it shares (takes a millisecond or
    ten); all of those where the system does not tell them apart."""
    proportional_bytes = _read_entry(Path(f"/proc/{process}/smaps_rollup"), "Pss:", unit=1024)
    return resident_bytes_of(process) if proportional_bytes is None else proportional_bytes


def keep_freed_memory() -> None:
    """Let glibc keep what this process frees, so that a tensor made again and again costs no page faults; elsewhere
    nothing happens. Workers and profilers do so alike: a profile then holds for a run."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_M_TOP_PAD, 2**26)


def _read_bytes(path: Path) -> int | None:
    """The number in `path`; None where there is no such file or no number in it (`max`: unlimited)."""
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _read_entry(path: Path, name: str, *, unit: int) -> int | None:
    """The number after `name` at the start of a line of `path`, in bytes."""
    fields = next((line.split() for line in _read(path).splitlines() if line.startswith(name)), None)
    return int(fields[1]) * unit if fields else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
